-- The public keys that directories show, and those that they showed. Messages of years ago stay verifiable.

-- A row per key of a device or an agent. Triggers keep it in step with the keys in force, so no code can forget it.
create table public_key (
    principal_id       uuid        not null,                              -- user or agent
    principal_kind     text        not null check (principal_kind in ('user', 'agent')),
    device_id          text        not null,                              -- empty for agents
    key_id             text        not null,                              -- of the two public keys
    public_key         bytea       not null,                              -- X25519
    signing_public_key bytea       not null,                              -- Ed25519
    schemes            text[]      not null default '{}',                 -- the encryption schemes that its holder speaks
    introduced_by      text,                                              -- an earlier key of the principal, by its key_id
    introduction       bytea,                                             -- the earlier key's signature; clients verify it
    shown_at           timestamptz not null default app_now(),
    retired_at         timestamptz,                                       -- null: a current key; an agent's may lie ahead
    primary key (principal_id, device_id, key_id),
    check ((introduced_by is null) = (introduction is null))
);

create function public_key_of_device() returns trigger language plpgsql
    security definer set search_path = public, pg_temp as $$
begin
    update public_key set retired_at = app_now()
    where principal_id = new.user_id and device_id = old.device_id and retired_at is null;
    if new.key_id is not null then
        insert into public_key as p (principal_id, principal_kind, device_id, key_id, public_key, signing_public_key, shown_at)
        select new.user_id, 'user', new.device_id, b.key_id, b.public_key, b.signing_public_key, new.key_since
        from key_backup b where b.user_id = new.user_id and b.device_id = new.device_id and b.version = new.key_version
        on conflict (principal_id, device_id, key_id) do update
            set shown_at = excluded.shown_at, retired_at = null, schemes = '{}', introduced_by = null, introduction = null;
    end if;
    return null;
end $$;
create trigger device_public_key after update of key_id on device
    for each row when (old.key_id is distinct from new.key_id) execute function public_key_of_device();

create function public_key_of_agent() returns trigger language plpgsql
    security definer set search_path = public, pg_temp as $$
begin
    if tg_op = 'DELETE' then
        update public_key set retired_at = least(coalesce(retired_at, app_now()), app_now())
        where principal_id = old.agent_id and key_id = old.key_id;
        update agent set key_list_version = key_list_version + 1 where agent_id = old.agent_id;
        return null;
    end if;
    insert into public_key as p (principal_id, principal_kind, device_id, key_id, public_key, signing_public_key, shown_at,
                                 retired_at)
    values (new.agent_id, 'agent', '', new.key_id, new.public_key, new.signing_public_key, new.created_at, new.valid_until)
    on conflict (principal_id, device_id, key_id) do update
        set shown_at = excluded.shown_at, retired_at = excluded.retired_at;
    update agent set key_list_version = key_list_version + 1 where agent_id = new.agent_id;
    return null;
end $$;
create trigger agent_public_key after insert or update or delete on agent_key
    for each row execute function public_key_of_agent();
