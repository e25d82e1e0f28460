-- Agents and their tokens.

create table agent (
    agent_id        uuid        primary key,                              -- UUID v7
    owner_user_id   uuid        not null references user_account,
    display_name    text        not null,
    description     text,
    state           text        not null default 'registered',            -- registered, active, unreachable, token_revoked
    manifest        text,                                                 -- JSON as it was sent
    manifest_version integer    not null default 0,
    created_at      timestamptz not null default app_now()
);
create index agent_of_owner on agent (owner_user_id);

-- A token is found by its public characters and proven by bcrypt over the whole of it.
create table agent_token (
    token_id        uuid        primary key,                              -- ULID
    agent_id        uuid        not null references agent,
    lookup          text        not null constraint agent_token_lookup_key unique,
    bcrypt_hash     text,                                                 -- null once it is revoked
    created_at      timestamptz not null default app_now(),
    last_used_at    timestamptz,
    valid_until     timestamptz,                                          -- end of grace, for all but the current one
    revoked_at      timestamptz
);
create index agent_token_of_agent on agent_token (agent_id);
