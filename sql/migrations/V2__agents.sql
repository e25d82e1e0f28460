-- Agents and their tokens.

create table agent (
    agent_id          uuid        primary key,                            -- UUID v7
    owner_user_id     uuid        not null references user_account,
    display_name      text        not null,
    description       text,
    state             text        not null default 'registered'
        constraint agent_state check (state in ('registered', 'active', 'unreachable', 'token_revoked', 'deleted')),
    -- pull: it reads its inbox by socket or poll; webhook: it is called.
    delivery_mode     text        not null default 'pull' check (delivery_mode in ('pull', 'webhook')),
    manifest          text,                                               -- JSON as it was sent
    manifest_version  integer     not null default 0,
    key_list_version  integer     not null default 0,                     -- rises with every change of its keys
    created_at        timestamptz not null default app_now(),
    unreachable_since timestamptz,                                        -- set while its state is unreachable
    deleted_at        timestamptz                                         -- the row stays for those who talked with it
);
create index agent_of_owner on agent (owner_user_id);
-- Each ack asks whether its agent is unreachable; nearly none is.
create index agent_unreachable on agent (agent_id) where state = 'unreachable';

-- A token is found by its public characters and proven by bcrypt over the whole token.
create table agent_token (
    token_id        uuid        primary key,                              -- ULID
    agent_id        uuid        not null references agent,
    lookup          text        not null constraint agent_token_lookup_key unique,
    bcrypt_hash     text,                                                 -- null once it is revoked
    created_at      timestamptz not null default app_now(),
    last_used_at    timestamptz,
    valid_until     timestamptz,                                          -- end of grace; null: the current token
    revoked_at      timestamptz,
    -- As its sockets are told.
    revoke_reason   text check (revoke_reason in (
        'device_revoked', 'logout', 'password_reset', 'refresh_reuse', 'token_revoked', 'token_regenerated', 'account_deleted')),
    -- The session of the user that made the token. No foreign key: sessions are forgotten, and tokens stay.
    session_id      uuid
);
create index agent_token_of_agent on agent_token (agent_id);
create index agent_token_of_session on agent_token (session_id) where session_id is not null and revoked_at is null;
create index agent_token_ending on agent_token (valid_until) where valid_until is not null and revoked_at is null;
