-- Devices that can be revoked and named, key backups, accounts that can be deleted.

alter table device
    add column revoked_at   timestamptz,                                  -- by its owner; signing in again takes it back
    add column renamed_from text,                                         -- its provisional id, which open sockets still know it by
    add column key_id       text,                                         -- of the keys that the directory shows; null: none
    add column key_version  integer,                                      -- the backup that holds them
    add column key_since    timestamptz;                                  -- since when they are these

alter table user_account
    add column key_list_version integer not null default 0,               -- rises with every change of the devices' keys
    add column deleted_at   timestamptz,                                  -- from then on nothing of the account works
    add column erased_at    timestamptz;                                  -- what it left in conversations is gone, too
create index user_account_to_erase on user_account (deleted_at) where deleted_at is not null and erased_at is null;

-- Encrypted private keys and the public ones that belong to them, as a device uploaded them. Append-only: replacing a
-- backup is another version, and of each device the last ten stay.
create table key_backup (
    user_id             uuid        not null references user_account,
    device_id           text        not null,
    version             integer     not null,                             -- 1, 2, 3 per device
    session_id          uuid        not null,                             -- who wrote it
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
