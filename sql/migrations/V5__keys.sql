-- Keys: of devices, of agents, of conversations. Private halves are encrypted by the clients.

-- Encrypted private keys and their public keys, as a device uploaded them. Append-only: a new backup is another
-- version, and the last ten of each device stay.
create table key_backup (
    user_id             uuid        not null references user_account,
    device_id           text        not null,
    version             integer     not null,                             -- 1, 2, 3 per device
    session_id          uuid        not null,                             -- the session that wrote it, for inquiries
    key_id              text        not null,                             -- of the two public keys
    public_key          bytea       not null,                             -- X25519
    signing_public_key  bytea       not null,                             -- Ed25519
    backup_a            bytea       not null,                             -- the private halves, encrypted by the client
    backup_b            bytea       not null,
    argon2_salt         bytea       not null,
    argon2_m            integer     not null,
    argon2_t            integer     not null,
    argon2_p            integer     not null,
    created_at          timestamptz not null default app_now(),
    primary key (user_id, device_id, version)
);

create function key_backup_is_append_only() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if exists (select 1 from user_account where user_id = old.user_id and deleted_at is not null)
            or (select count(*) from key_backup where user_id = old.user_id and device_id = old.device_id
                                                  and version > old.version) >= 10 then
            return old;
        end if;
    end if;
    raise exception 'key_backup is append-only' using errcode = 'insufficient_privilege';
end $$;
create trigger key_backup_rows before update or delete on key_backup
    for each row execute function key_backup_is_append_only();
create trigger key_backup_truncate before truncate on key_backup
    for each statement execute function key_backup_is_append_only();

-- An agent's current keys and those still in grace. Expired keys are deleted: no reader asks for them.
create table agent_key (
    agent_id           uuid        not null references agent,
    key_id             text        not null,                              -- hex of 16 bytes of SHA-256 over both keys
    public_key         bytea       not null,                              -- X25519
    signing_public_key bytea       not null,                              -- Ed25519
    created_at         timestamptz not null default app_now(),
    valid_until        timestamptz,                                       -- end of grace; null: the current keys
    primary key (agent_id, key_id)
);
create unique index agent_key_current on agent_key (agent_id) where valid_until is null;
create index agent_key_ending on agent_key (valid_until) where valid_until is not null;

-- Keys of conversations. A member wraps the key for each device of each member. Old epochs stay, because messages that
-- were encrypted under them stay readable.
create table group_key (
    conversation_id uuid        not null references conversation,
    epoch           integer     not null,
    principal_id    uuid        not null,
    device_id       text        not null,                                 -- empty for agents
    wrapped_key     text        not null,                                 -- opaque
    rotated_at      timestamptz not null default app_now(),
    primary key (conversation_id, principal_id, epoch, device_id)
);
