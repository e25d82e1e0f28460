-- What a session has made stays its own, so that a user sees after a theft what the thief has added, and undoes it.
-- No foreign keys: sessions are forgotten, and what they made stays.

-- Sessions of before count as just begun.
alter table session add column created_at timestamptz not null default app_now();
alter table agent add column session_id uuid;
alter table relation add column session_id uuid;
-- Of an agent in a group: the session that put it there, or gave it its present rights.
alter table member add column session_id uuid;
alter table passkey add column session_id uuid;
alter table share add column session_id uuid;
create index agent_of_session on agent (session_id) where session_id is not null;
create index relation_of_session on relation (session_id) where session_id is not null;
create index member_of_session on member (session_id) where session_id is not null;
create index passkey_of_session on passkey (session_id) where session_id is not null;
create index share_of_session on share (session_id) where session_id is not null;

-- What sessions have added and is still there. The tokens and webhooks of an agent of the same session end with it.
create view session_change as
    select a.owner_user_id as user_id, a.session_id, 'agent' as kind, a.agent_id, a.agent_id as change_id,
           null::uuid as conversation_id, null::bytea as share_hash, a.display_name as name, a.created_at as made_at
    from agent a where a.session_id is not null and a.state <> 'deleted'
    union all
    select a.owner_user_id, t.session_id, 'token', a.agent_id, t.token_id, null, null, a.display_name, t.created_at
    from agent_token t join agent a on a.agent_id = t.agent_id
    where t.session_id is not null and t.revoked_at is null and (t.valid_until is null or t.valid_until > app_now())
        and a.session_id is distinct from t.session_id and a.state <> 'deleted'
    union all
    select a.owner_user_id, w.url_session_id, 'webhook', a.agent_id, a.agent_id, null, null, a.display_name, w.updated_at
    from webhook w join agent a on a.agent_id = w.agent_id
    where w.url_session_id is not null and w.status <> 'suspended'
        and a.session_id is distinct from w.url_session_id and a.state <> 'deleted'
    union all
    select a.owner_user_id, w.secret_session_id, 'webhook', a.agent_id, a.agent_id, null, null, a.display_name, w.updated_at
    from webhook w join agent a on a.agent_id = w.agent_id
    where w.secret_session_id is not null and w.status <> 'suspended'
        and w.secret_session_id is distinct from w.url_session_id
        and a.session_id is distinct from w.secret_session_id and a.state <> 'deleted'
    union all
    select r.user_id, r.session_id, 'relation', r.agent_id, r.relation_id, null, null, a.display_name, r.created_at
    from relation r join agent a on a.agent_id = r.agent_id
    where r.session_id is not null and r.state = 'active'
    union all
    -- Only an administrator of the group removes it.
    select s.user_id, m.session_id, 'instance', m.principal_id, m.instance_id, m.conversation_id, null, a.display_name, m.joined_at
    from member m join session s on s.session_id = m.session_id join agent a on a.agent_id = m.principal_id
    join member admin on admin.conversation_id = m.conversation_id and admin.principal_id = s.user_id
        and admin.role in ('owner', 'admin')
    where m.session_id is not null and m.instance_id is not null
    union all
    select p.user_id, p.session_id, 'passkey', null, p.passkey_id, null, null, p.name, p.created_at
    from passkey p where p.session_id is not null
    union all
    select s.owner_id, s.session_id, 'share', s.agent_id, null, null, s.share_hash,
           coalesce(u.filename, a.display_name, s.kind), s.created_at
    from share s left join upload u on u.upload_id = s.upload_id left join agent a on a.agent_id = s.agent_id
    where s.session_id is not null and s.expires_at > app_now();
