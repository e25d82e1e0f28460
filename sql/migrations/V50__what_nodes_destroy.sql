-- What the serving role can destroy. A node, an SQL mistake in it, or its stolen password ends no backup that counts.

-- The deletions whose grace has not passed, or whose backups are not erased yet. A trigger makes a row, and the role that
-- erases takes it away. The serving role only reads how old the oldest is.
create table key_backup_erasure (
    user_id     uuid        primary key references user_account,
    due_at      timestamptz not null                                      -- 7 days after the deletion
);
create index key_backup_erasure_due on key_backup_erasure (due_at);

-- A deletion is final: it has the database's time and is never taken back.
create function user_account_deletion() returns trigger language plpgsql
    security definer set search_path = public, pg_temp as $$
begin
    if old.deleted_at is not null then
        raise exception 'the deletion of an account is final' using errcode = 'insufficient_privilege';
    end if;
    new.deleted_at := app_now();
    insert into key_backup_erasure (user_id, due_at) values (new.user_id, new.deleted_at + interval '7 days');
    return new;
end $$;
revoke all on function user_account_deletion from public;
create trigger user_account_deletion before update on user_account
    for each row when (new.deleted_at is distinct from old.deleted_at) execute function user_account_deletion();

-- Whether newer versions make this one dispensable: ten are newer, and it is a month old or neither the first nor the last
-- of its day. So ten versions of junk push out none that stood there before their day.
create function is_dispensable(of_user uuid, of_device text, its_version integer, made_at timestamptz) returns boolean
    language sql stable as $$
    select 10 <= (
        select count(*) from key_backup where user_id = of_user and device_id = of_device and version > its_version
    ) and (made_at < app_now() - interval '30 days' or 2 = (
        select count(distinct version > its_version) from key_backup
        where user_id = of_user and device_id = of_device and version <> its_version
            and (created_at at time zone 'utc')::date = (made_at at time zone 'utc')::date
    ))
$$;

-- Appends with the database's time and the next number. Deletes what is dispensable, and what is due to be erased.
create or replace function key_backup_is_append_only() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        new.created_at := app_now();
        if new.version = 1 + coalesce((
            select max(version) from key_backup where user_id = new.user_id and device_id = new.device_id), 0)
        then
            return new;
        end if;
    elsif tg_op = 'DELETE' then
        if is_dispensable(old.user_id, old.device_id, old.version, old.created_at)
            or exists (select from key_backup_erasure where user_id = old.user_id and due_at <= app_now())
        then
            return old;
        end if;
    end if;
    raise exception 'key_backup is append-only' using errcode = 'insufficient_privilege';
end $$;
create trigger key_backup_appends before insert on key_backup
    for each row execute function key_backup_is_append_only();

-- Deletes the dispensable versions of a device up to one of them.
create or replace function forget_key_backups(of_user uuid, of_device text, through integer) returns void language sql
    security definer set search_path = public, pg_temp
    as $$
    delete from key_backup
    where user_id = of_user and device_id = of_device and version <= through
        and is_dispensable(user_id, device_id, version, created_at)
$$;

-- contract: the role of nodes erases no backups any more
drop function erase_key_backups(uuid);

-- Erases what the grace has kept of 100 deleted accounts. Returns the number of these accounts. The role that erases may
-- call this and nothing else.
create function erase_accounts() returns bigint language plpgsql
    security definer set search_path = public, pg_temp as $$
declare
    due uuid[] := array(
        select user_id from key_backup_erasure where due_at <= app_now() order by user_id limit 100 for update);
begin
    delete from key_backup where user_id = any(due);
    delete from key_backup_erasure where user_id = any(due);
    return cardinality(due);
end $$;
revoke all on function erase_accounts from public;

-- As before, and no call drops a day before the retention does.
create or replace function rotate_webhook_deliveries(retained integer) returns integer language plpgsql security definer
    set search_path = public, pg_temp as $$
declare
    today date := (app_now() at time zone 'utc')::date;
    made integer := 0;
    day date;
    part text;
begin
    perform pg_advisory_xact_lock(hashtext('rotate_webhook_deliveries'));
    for day in select generate_series(today - 1, today + 7, interval '1 day')::date loop
        part := 'webhook_delivery_' || to_char(day, 'YYYYMMDD');
        if to_regclass(part) is null then
            execute format('create table %I partition of webhook_delivery for values from (%L) to (%L)',
                part, first_uuid_of(day), first_uuid_of(day + 1));
            made := made + 1;
        end if;
    end loop;
    for part in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'webhook_delivery'::regclass
            -- As text: Postgres may judge the names of other tables first, and `to_date` fails for a name without a day.
            and right(c.relname, 8) < to_char(today - greatest(retained, 30), 'YYYYMMDD')
    loop
        execute format('drop table %I', part);
    end loop;
    return made;
end
$$;

-- Logs what agents have read: the only way into the log for the serving role. The subject of a row follows from what was
-- read. An unproven reader refuses the whole call: a pushed or polled event is in the agent's inbox, keys of a user belong
-- to an active relation, and all else is read by an active member or was the answer to the agent's own tool call. These
-- readers have a live token.
create function log_access(agent_ids uuid[], kinds text[], conversation_ids uuid[], user_ids uuid[], items bigint[],
                           from_seqs bigint[], to_seqs bigint[]) returns bigint language plpgsql
    security definer set search_path = public, pg_temp as $$
declare
    logged bigint;
begin
    insert into access_log (subject_id, agent_id, conversation_id, kind, items, from_seq, to_seq)
    select case when c.conversation_id is null then r.user_id
                when c.kind = 'agent' then c.created_by else c.conversation_id end,
           r.agent_id, r.conversation_id, r.kind, r.items, r.from_seq, r.to_seq
    from unnest(agent_ids, kinds, conversation_ids, user_ids, items, from_seqs, to_seqs)
        as r (agent_id, kind, conversation_id, user_id, items, from_seq, to_seq)
    left join conversation c using (conversation_id)
    where case
        when r.kind in ('push', 'poll') then exists (
            select from (
                select e.*, (r.from_seq - e.seq + e.events)::integer as n from inbox_entry e
                where e.principal_id = r.agent_id and e.seq >= r.from_seq order by e.seq limit 1
            ) part
            where c.conversation_id = coalesce(part.conversation_id, part.conversation_ids[part.n], (
                select v.conversation_id from event v where v.event_id = part.event_ids[part.n] limit 1)))
        when not exists (select from live_agent_token t where t.agent_id = r.agent_id) then false
        when r.conversation_id is null then r.kind = 'keys' and exists (
            select from relation own
            where own.user_id = r.user_id and own.agent_id = r.agent_id and own.state = 'active')
        else exists (
            select from active_member m where m.conversation_id = c.conversation_id and m.principal_id = r.agent_id
        ) or r.kind = 'tool_call' and exists (
            select from tool_call t where t.conversation_id = c.conversation_id and t.agent_id = r.agent_id)
    end
    order by 1, 2, r.kind = 'poll';
    get diagnostics logged = row_count;
    if logged <> coalesce(cardinality(agent_ids), 0) then
        raise exception 'an agent does not read this any more' using errcode = 'serialization_failure';
    end if;
    return logged;
end $$;
revoke all on function log_access from public;
