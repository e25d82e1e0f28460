-- The only definitions of the rows that count. Postgres inlines these views, so they cost nothing.
-- A column that is added to a table reaches its view by `create or replace view`.

-- Sessions that may act.
create view live_session as
    select * from session where revoked_at is null and absolute_expires_at > app_now();

-- Tokens that an agent may act by: the current one and those in grace.
create view live_agent_token as
    select * from agent_token where revoked_at is null and (valid_until is null or valid_until > app_now());

-- Members who see and hear what happens. An agent whose relation was revoked stays a member but is not active.
create view active_member as
    select m.* from member m left join relation r on r.relation_id = m.relation_id
    where r.state is distinct from 'revoked';

-- An agent as its owner sees it, with its current key and token.
create view agent_shown as
    select a.agent_id, a.owner_user_id, a.display_name, a.description, a.state, a.delivery_mode, a.manifest,
           a.manifest_version, k.key_id, t.created_at as token_created_at, t.last_used_at as token_last_used_at,
           g.grace_until, coalesce(i.head_seq, 0) as head_seq, coalesce(r.acked_seq, 0) as acked_seq,
           a.unreachable_since, a.created_at
    from agent a
    left join lateral (
        select created_at, last_used_at from live_agent_token
        where agent_id = a.agent_id and valid_until is null limit 1
    ) t on true
    left join lateral (
        select max(valid_until) as grace_until from live_agent_token where agent_id = a.agent_id
    ) g on true
    left join lateral (
        select key_id from agent_key
        where agent_id = a.agent_id and (valid_until is null or valid_until > app_now())
        order by valid_until desc nulls first limit 1
    ) k on true
    left join inbox i on i.principal_id = a.agent_id
    left join inbox_reader r on r.principal_id = a.agent_id and r.device_id = ''
    where a.state <> 'deleted';
