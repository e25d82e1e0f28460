-- What agents have besides a name: keys, a way of delivery, times of their states.

-- The keys that an agent has and may still be reached by. What is dead is deleted: nobody asks for it again.
create table agent_key (
    agent_id           uuid        not null references agent,
    key_id             text        not null,                              -- hex of 16 bytes of SHA-256 over both keys
    public_key         bytea       not null,                              -- X25519
    signing_public_key bytea       not null,                              -- Ed25519
    created_at         timestamptz not null default app_now(),
    valid_until        timestamptz,                                       -- end of grace, for all but the current one
    primary key (agent_id, key_id)
);
create unique index agent_key_current on agent_key (agent_id) where valid_until is null;
create index agent_key_ending on agent_key (valid_until) where valid_until is not null;

alter table agent_token add column revoke_reason text;                    -- as its sockets are told
create index agent_token_ending on agent_token (valid_until) where valid_until is not null and revoked_at is null;

-- pull: it reads its inbox by socket or poll; webhook: it is called.
alter table agent add column delivery_mode text not null default 'pull' check (delivery_mode in ('pull', 'webhook'));
alter table agent add column unreachable_since timestamptz;               -- set while its state says so
alter table agent add column deleted_at timestamptz;                      -- the row stays for those who talked with it
alter table agent add constraint agent_state check (state in ('registered', 'active', 'unreachable', 'token_revoked', 'deleted'));
-- Acks ask whether their agent is one of these; nearly none is.
create index agent_unreachable on agent (agent_id) where state = 'unreachable';

-- An agent with all that belongs to it, as its owner sees it: one place for what is its current key and token.
create view agent_shown as
    select a.agent_id, a.owner_user_id, a.display_name, a.description, a.state, a.delivery_mode, a.manifest,
           a.manifest_version, k.key_id, t.created_at as token_created_at, t.last_used_at as token_last_used_at,
           g.grace_until, coalesce(i.head_seq, 0) as head_seq, coalesce(r.acked_seq, 0) as acked_seq,
           a.unreachable_since, a.created_at
    from agent a
    left join lateral (
        select created_at, last_used_at from agent_token
        where agent_id = a.agent_id and revoked_at is null and valid_until is null limit 1
    ) t on true
    left join lateral (
        select max(valid_until) as grace_until from agent_token
        where agent_id = a.agent_id and revoked_at is null and valid_until > app_now()
    ) g on true
    left join lateral (
        select key_id from agent_key
        where agent_id = a.agent_id and (valid_until is null or valid_until > app_now())
        order by valid_until desc nulls first limit 1
    ) k on true
    left join inbox i on i.principal_id = a.agent_id
    left join inbox_reader r on r.principal_id = a.agent_id and r.device_id = ''
    where a.state <> 'deleted';
