-- Rights of the serving role on append-only tables, blocks, and the data of search.

-- The serving role has no right to delete backups. It calls these functions, which run as the owner; the table's trigger
-- holds them to its rules too.

-- Deletes the versions of a device up to this one. The ten newest stay.
create function forget_key_backups(of_user uuid, of_device text, through integer) returns void
    language sql security definer set search_path = public, pg_temp
    as $$ delete from key_backup where user_id = of_user and device_id = of_device and version <= through $$;
revoke all on function forget_key_backups from public;

-- Deletes all backups of a deleted account.
create function erase_key_backups(of_user uuid) returns void
    language sql security definer set search_path = public, pg_temp
    as $$ delete from key_backup where user_id = of_user $$;
revoke all on function erase_key_backups from public;

-- Principals whom a user does not want to meet in new conversations.
create table block (
    block_id        uuid        primary key,                              -- ULID; the order of the list
    user_id         uuid        not null references user_account,
    blocked_id      uuid        not null,                                 -- user or agent
    blocked_kind    text        not null check (blocked_kind in ('user', 'agent')),
    blocked_at      timestamptz not null default app_now(),
    constraint block_pair unique (user_id, blocked_id)
);
create index block_of_user on block (user_id, block_id);

-- Trigrams of names. A managed Postgres allows a database's owner to make this extension.
create extension if not exists pg_trgm;

-- Hashes by which a client finds its messages. The key of the hash is the clients'; the server compares.
create table message_token (
    conversation_id uuid        not null,
    token           text        not null,
    seq             bigint      not null,
    primary key (conversation_id, seq, token)                             -- the purge goes by seq
);
create index message_token_found on message_token (conversation_id, token, seq);
