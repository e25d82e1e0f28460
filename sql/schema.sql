-- The schema after all migrations. Written by `make schema`; a test compares it. The reasons stand in migrations/.

set check_function_bodies = off;

create extension pg_trgm;

CREATE OR REPLACE FUNCTION access_log_chain()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
declare
    previous bytea;
begin
    insert into access_log_head as head (subject_id, seq, hash) values (new.subject_id, 1, decode(repeat('00', 32), 'hex'))
    on conflict (subject_id) do update set seq = head.seq + 1
    returning head.seq, head.hash into new.seq, previous;
    new.at := app_now();
    new.access_id := (left(replace(ulid_floor(new.at)::text, '-', ''), 12)
        || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid;
    new.hash := sha256(previous || convert_to(concat_ws('|', new.subject_id, new.seq, new.access_id, new.agent_id,
        coalesce(new.conversation_id::text, '-'), new.kind, new.items, coalesce(new.from_seq::text, '-'),
        coalesce(new.to_seq::text, '-'), (extract(epoch from new.at) * 1000000)::bigint), 'UTF8'));
    update access_log_head set hash = new.hash where subject_id = new.subject_id;
    return new;
end $function$;

CREATE OR REPLACE FUNCTION access_log_is_append_only()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
    -- The chain's own trigger moves a head.
    if tg_table_name = 'access_log_head' and tg_op in ('INSERT', 'UPDATE') and pg_trigger_depth() > 1 then
        return new;
    end if;
    raise exception 'the access log is append-only' using errcode = 'insufficient_privilege';
end $function$;

CREATE OR REPLACE FUNCTION activity_ceiling(activity uuid)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    select (lpad(to_hex(least(('x' || translate(left(activity::text, 13), '-', ''))::bit(48)::bigint + 60000, 281474976710655)), 12, '0')
        || repeat('f', 20))::uuid
$function$;

CREATE OR REPLACE FUNCTION agent_texts_end()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
    new.display_name := 'Deleted agent';
    new.description := null;
    new.manifest := null;
    return new;
end $function$;

CREATE OR REPLACE FUNCTION app_now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$select statement_timestamp()$function$;

CREATE OR REPLACE FUNCTION charge_accounts(uploader_ids uuid[], bytes bigint[])
 RETURNS void
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
    insert into account_storage as s (user_id, used_bytes)
    select coalesce(a.owner_user_id, c.uploader_id), sum(c.bytes)
    from unnest(uploader_ids, bytes) as c (uploader_id, bytes) left join agent a on a.agent_id = c.uploader_id
    group by 1 having sum(c.bytes) <> 0 order by 1
    on conflict (user_id) do update set used_bytes = s.used_bytes + excluded.used_bytes
$function$;

CREATE OR REPLACE FUNCTION charge_uploads()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
begin
    if tg_op = 'INSERT' then
        perform charge_accounts(array_agg(uploader_id), array_agg(charged_bytes(state, object_key, size))) from after_rows;
    elsif tg_op = 'DELETE' then
        perform charge_accounts(array_agg(uploader_id), array_agg(-charged_bytes(state, object_key, size))) from before_rows;
    else
        perform charge_accounts(array_agg(uploader_id), array_agg(bytes)) from (
            select uploader_id, charged_bytes(state, object_key, size) as bytes from after_rows
            union all
            select uploader_id, -charged_bytes(state, object_key, size) from before_rows
        ) as changes;
    end if;
    return null;
end $function$;

CREATE OR REPLACE FUNCTION charged_bytes(state text, object_key text, size bigint)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE
AS $function$
    select case when state in ('pending', 'uploaded') or (state = 'confirmed' and object_key is not null) then size else 0 end
$function$;

CREATE OR REPLACE FUNCTION erase_accounts()
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
declare
    due uuid[] := array(
        select user_id from key_backup_erasure where due_at <= app_now() order by user_id limit 10 for update);
    one record;
begin
    delete from key_backup where user_id = any(due);
    delete from inbox_reader where principal_id = any(due);
    for one in
        select user_id, device_id, 'erased-' || gen_random_uuid() as erased_id from device where user_id = any(due)
    loop
        -- Sessions follow by their foreign key.
        update device set device_id = one.erased_id, renamed_from = null
        where user_id = one.user_id and device_id = one.device_id;
        update public_key set device_id = one.erased_id
        where principal_id = one.user_id and device_id = one.device_id;
        update group_key set device_id = one.erased_id
        where principal_id = one.user_id and device_id = one.device_id;
    end loop;
    delete from key_backup_erasure where user_id = any(due);
    return cardinality(due);
end $function$;

CREATE OR REPLACE FUNCTION first_uuid_of(day date)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE
AS $function$
select (lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$function$;

CREATE OR REPLACE FUNCTION forget_key_backups(of_user uuid, of_device text, through integer)
 RETURNS void
 LANGUAGE sql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
    delete from key_backup
    where user_id = of_user and device_id = of_device and version <= through
        and is_dispensable(user_id, device_id, version, created_at)
$function$;

CREATE OR REPLACE FUNCTION inbox_epoch()
 RETURNS bigint
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
    return (select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint << 16 | (restores & 65535)
            from cluster);
end
$function$;

CREATE OR REPLACE FUNCTION is_dispensable(of_user uuid, of_device text, its_version integer, made_at timestamp with time zone)
 RETURNS boolean
 LANGUAGE sql
 STABLE
AS $function$
    select 10 <= (
        select count(*) from key_backup where user_id = of_user and device_id = of_device and version > its_version
    ) and (made_at < app_now() - interval '30 days' or 2 = (
        select count(distinct version > its_version) from key_backup
        where user_id = of_user and device_id = of_device and version <> its_version
            and (created_at at time zone 'utc')::date = (made_at at time zone 'utc')::date
    ))
$function$;

CREATE OR REPLACE FUNCTION key_backup_is_append_only()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION log_access(agent_ids uuid[], kinds text[], conversation_ids uuid[], user_ids uuid[], items bigint[], from_seqs bigint[], to_seqs bigint[])
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION log_cursor()
 RETURNS bigint[]
 LANGUAGE sql
 STABLE
AS $function$
    select pg_snapshot_xmax(s)::text::bigint || array(select x::text::bigint from pg_snapshot_xip(s) x)
    from pg_current_snapshot() s
$function$;

CREATE OR REPLACE FUNCTION log_position()
 RETURNS bigint
 LANGUAGE sql
AS $function$
    select pg_current_xact_id()::text::bigint
$function$;

CREATE OR REPLACE FUNCTION note_activity()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
declare
    activity uuid := coalesce(new.last_message_id, new.conversation_id);
begin
    if new.activity_until between activity and activity_ceiling(activity) then
        return new;
    end if;
    new.activity_until := activity_ceiling(activity);
    update member_activity set activity_until = new.activity_until where conversation_id = new.conversation_id;
    return new;
end $function$;

CREATE OR REPLACE FUNCTION note_member_activity()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
begin
    -- Until the members change, their conversation's activity is not noted.
    perform from conversation c where c.conversation_id in (select conversation_id from added)
        order by c.conversation_id for no key update;
    insert into member_activity (conversation_id, principal_id, activity_until)
    select a.conversation_id, a.principal_id, coalesce(c.activity_until, activity_ceiling(coalesce(c.last_message_id, c.conversation_id)))
    from added a join conversation c on c.conversation_id = a.conversation_id;
    return null;
end $function$;

CREATE OR REPLACE FUNCTION oldest_webhook_delivery()
 RETURNS timestamp with time zone
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
    day date;
    found uuid;
begin
    for day in
        select to_date(right(c.relname, 8), 'YYYYMMDD') from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'webhook_delivery'::regclass order by 1
    loop
        select delivery_id into found from webhook_delivery
        where delivery_id >= first_uuid_of(day) and delivery_id < first_uuid_of(day + 1) limit 1;
        if found is not null then
            return to_timestamp(('x' || left(replace(found::text, '-', ''), 12))::bit(48)::bigint / 1000.0);
        end if;
    end loop;
    return null;
end $function$;

CREATE OR REPLACE FUNCTION public_key_of_agent()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION public_key_of_device()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
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
end $function$;

CREATE OR REPLACE FUNCTION record_revocation()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
declare
    credential uuid;
begin
    if tg_table_name = 'session' then credential := new.session_id; else credential := new.token_id; end if;
    insert into reconcile_log (credential_id) values (credential);
    return null;
end
$function$;

CREATE OR REPLACE FUNCTION require_live(session_ids uuid[], token_ids uuid[])
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
    if exists (
        select from unnest(session_ids) as c (id)
        where c.id is not null and not exists (select from live_session s where s.session_id = c.id)
    ) or exists (
        select from unnest(token_ids) as c (id)
        where c.id is not null and not exists (select from live_agent_token t where t.token_id = c.id)
    ) then
        raise exception 'a credential has ended meanwhile' using errcode = 'serialization_failure';
    end if;
    return true;
end
$function$;

CREATE OR REPLACE FUNCTION rotate_webhook_deliveries(retained integer)
 RETURNS integer
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION ulid_floor(at timestamp with time zone)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ select (lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid $function$;

CREATE OR REPLACE FUNCTION upload_audit_is_append_only()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
    raise exception 'upload_audit is append-only' using errcode = 'insufficient_privilege';
end $function$;

CREATE OR REPLACE FUNCTION user_account_deletion()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
begin
    if old.deleted_at is not null then
        raise exception 'the deletion of an account is final' using errcode = 'insufficient_privilege';
    end if;
    new.deleted_at := app_now();
    insert into key_backup_erasure (user_id, due_at) values (new.user_id, new.deleted_at + interval '7 days');
    return new;
end $function$;

create aggregate array_concat (anycompatiblearray) (sfunc = array_cat, stype = anycompatiblearray);

create table access_log (
    subject_id uuid not null,
    seq bigint not null,
    access_id uuid not null,
    agent_id uuid not null,
    conversation_id uuid,
    kind text not null,
    items bigint not null,
    from_seq bigint,
    to_seq bigint,
    at timestamp with time zone not null,
    hash bytea not null,
    constraint access_log_kind_check CHECK (kind = ANY (ARRAY['conversation_list'::text, 'conversation'::text, 'history'::text, 'poll'::text, 'push'::text, 'keys'::text, 'group_keys'::text, 'object'::text, 'tool_call'::text, 'approval'::text])),
    constraint access_log_pkey PRIMARY KEY (subject_id, seq)
);

create table access_log_digest (
    day date not null,
    digest text not null,
    chains bigint not null,
    published_at timestamp with time zone not null default app_now(),
    constraint access_log_digest_pkey PRIMARY KEY (day)
);

create table access_log_head (
    subject_id uuid not null,
    seq bigint not null,
    hash bytea not null,
    constraint access_log_head_pkey PRIMARY KEY (subject_id)
) with (fillfactor=40);

create table account_storage (
    user_id uuid not null,
    used_bytes bigint not null,
    constraint account_storage_pkey PRIMARY KEY (user_id)
);

create table agent (
    agent_id uuid not null,
    owner_user_id uuid not null,
    display_name text not null,
    description text,
    state text not null default 'registered'::text,
    delivery_mode text not null default 'pull'::text,
    manifest text,
    manifest_version integer not null default 0,
    key_list_version integer not null default 0,
    created_at timestamp with time zone not null default app_now(),
    unreachable_since timestamp with time zone,
    deleted_at timestamp with time zone,
    session_id uuid,
    constraint agent_delivery_mode_check CHECK (delivery_mode = ANY (ARRAY['pull'::text, 'webhook'::text])),
    constraint agent_pkey PRIMARY KEY (agent_id),
    constraint agent_state CHECK (state = ANY (ARRAY['registered'::text, 'active'::text, 'unreachable'::text, 'token_revoked'::text, 'deleted'::text]))
);

create table agent_grant (
    grant_id uuid not null,
    agent_id uuid not null,
    user_id uuid not null,
    conversation_id uuid not null,
    relation_id uuid not null,
    status text not null default 'pending'::text,
    requested_scopes text[] not null,
    sensitivities text[] not null,
    scopes text[] not null,
    reason text,
    ttl_seconds integer,
    created_at timestamp with time zone not null default app_now(),
    expires_at timestamp with time zone,
    decided_at timestamp with time zone,
    decided_by text,
    revoked_at timestamp with time zone,
    constraint agent_grant_pkey PRIMARY KEY (grant_id),
    constraint agent_grant_status CHECK (status = ANY (ARRAY['pending'::text, 'approved'::text, 'denied'::text, 'revoked'::text, 'expired'::text]))
);

create table agent_group (
    agent_id uuid not null,
    name text not null,
    acked_seq bigint not null,
    done int8multirange not null default '{}'::int8multirange,
    used_at timestamp with time zone not null default app_now(),
    constraint agent_group_pkey PRIMARY KEY (agent_id, name)
) with (fillfactor=40);

create table agent_group_given (
    agent_id uuid not null,
    name text not null,
    seq bigint not null,
    conversation_id uuid not null,
    connection_id uuid not null,
    place bigint generated always as identity not null,
    constraint agent_group_given_pkey PRIMARY KEY (agent_id, name, seq)
) with (autovacuum_vacuum_scale_factor=0.02);

create table agent_group_member (
    connection_id uuid not null,
    agent_id uuid not null,
    name text not null,
    is_live boolean not null default true,
    lease_until timestamp with time zone not null,
    constraint agent_group_member_pkey PRIMARY KEY (connection_id)
) with (fillfactor=40);

create table agent_key (
    agent_id uuid not null,
    key_id text not null,
    public_key bytea not null,
    signing_public_key bytea not null,
    created_at timestamp with time zone not null default app_now(),
    valid_until timestamp with time zone,
    notice_days smallint,
    constraint agent_key_notice_days_check CHECK (notice_days >= 1 AND notice_days <= 3),
    constraint agent_key_pkey PRIMARY KEY (agent_id, key_id)
);

create table agent_token (
    token_id uuid not null,
    agent_id uuid not null,
    lookup text not null,
    bcrypt_hash text,
    created_at timestamp with time zone not null default app_now(),
    last_used_at timestamp with time zone,
    valid_until timestamp with time zone,
    revoked_at timestamp with time zone,
    revoke_reason text,
    session_id uuid,
    constraint agent_token_lookup_key UNIQUE (lookup),
    constraint agent_token_pkey PRIMARY KEY (token_id),
    constraint agent_token_revoke_reason_check CHECK (revoke_reason = ANY (ARRAY['device_revoked'::text, 'logout'::text, 'password_reset'::text, 'refresh_reuse'::text, 'token_revoked'::text, 'token_regenerated'::text, 'account_deleted'::text]))
);

create table announcement (
    announcement_id bigint generated always as identity not null,
    principal_id uuid not null,
    principal_kind text not null,
    event_ids uuid[] not null,
    first_recipients uuid[] not null,
    stage text not null default 'first'::text,
    after_conversation uuid not null default '00000000-0000-0000-0000-000000000000'::uuid,
    after_principal uuid not null default '00000000-0000-0000-0000-000000000000'::uuid,
    constraint announcement_pkey PRIMARY KEY (announcement_id),
    constraint announcement_principal_kind_check CHECK (principal_kind = ANY (ARRAY['user'::text, 'agent'::text])),
    constraint announcement_stage_check CHECK (stage = ANY (ARRAY['first'::text, 'relations'::text, 'conversations'::text, 'done'::text]))
);

create table announcement_recipient (
    announcement_id bigint not null,
    principal_id uuid not null,
    constraint announcement_recipient_pkey PRIMARY KEY (announcement_id, principal_id)
);

create table approval (
    approval_id uuid not null,
    conversation_id uuid not null,
    seq bigint not null,
    agent_id uuid not null,
    kind text not null,
    digest bytea not null,
    quorum bigint not null,
    deny_quorum bigint not null,
    state text not null default 'open'::text,
    reason text,
    created_at timestamp with time zone not null,
    expires_at timestamp with time zone not null,
    closed_at timestamp with time zone,
    constraint approval_digest CHECK (octet_length(digest) = 32),
    constraint approval_kind CHECK (kind = ANY (ARRAY['approve'::text, 'ask'::text])),
    constraint approval_pkey PRIMARY KEY (approval_id),
    constraint approval_reason CHECK (reason = ANY (ARRAY['deadline'::text, 'undecidable'::text, 'nobody_left'::text, 'relation_revoked'::text, 'agent_removed'::text])),
    constraint approval_state CHECK (state = ANY (ARRAY['open'::text, 'approved'::text, 'answered'::text, 'denied'::text, 'expired'::text, 'withdrawn'::text]))
);

create table approval_asked (
    approval_id uuid not null,
    user_id uuid not null,
    agent_id uuid not null,
    is_open boolean not null default true,
    decision text,
    decided_at timestamp with time zone,
    answer_digest bytea,
    key_id text,
    signature bytea,
    message_id uuid,
    recorded_at timestamp with time zone,
    constraint approval_asked_answer CHECK (octet_length(answer_digest) = 32),
    constraint approval_asked_decision CHECK (decision = ANY (ARRAY['approved'::text, 'answered'::text, 'denied'::text])),
    constraint approval_asked_pkey PRIMARY KEY (approval_id, user_id),
    constraint approval_asked_signature CHECK (octet_length(signature) = 64)
);

create table block (
    block_id uuid not null,
    user_id uuid not null,
    blocked_id uuid not null,
    blocked_kind text not null,
    blocked_at timestamp with time zone not null default app_now(),
    constraint block_blocked_kind_check CHECK (blocked_kind = ANY (ARRAY['user'::text, 'agent'::text])),
    constraint block_pair UNIQUE (user_id, blocked_id),
    constraint block_pkey PRIMARY KEY (block_id)
);

create table cluster (
    only_row boolean not null default true,
    restores integer not null default 0,
    constraint cluster_only_row_check CHECK (only_row),
    constraint cluster_pkey PRIMARY KEY (only_row)
);

create table code_guard (
    email text not null,
    failures timestamp with time zone[] not null,
    constraint code_guard_pkey PRIMARY KEY (email)
);

create table conversation (
    conversation_id uuid not null,
    kind text not null,
    title text,
    created_by uuid not null,
    created_at timestamp with time zone not null default app_now(),
    encryption text not null default 'optional'::text,
    epoch integer not null default 0,
    rotation_required boolean not null default false,
    rules_version bigint not null default 0,
    pair_low uuid,
    pair_high uuid,
    last_seq bigint not null default 0,
    last_message_id uuid,
    last_sender_id uuid,
    last_sender_kind text,
    last_hop smallint not null default 0,
    last_activity_at timestamp with time zone not null default app_now(),
    purged_seq bigint not null default 0,
    activity_until uuid,
    constraint conversation_encryption_check CHECK (encryption = ANY (ARRAY['optional'::text, 'required'::text])),
    constraint conversation_kind_check CHECK (kind = ANY (ARRAY['direct'::text, 'agent'::text, 'group'::text])),
    constraint conversation_pair UNIQUE (pair_low, pair_high),
    constraint conversation_pkey PRIMARY KEY (conversation_id)
) with (fillfactor=60, autovacuum_vacuum_scale_factor=0.02);

create table device (
    user_id uuid not null,
    device_id text not null,
    display_name text,
    platform text,
    provisional boolean not null,
    renamed_from text,
    key_id text,
    key_version integer,
    key_since timestamp with time zone,
    created_at timestamp with time zone not null default app_now(),
    last_seen_at timestamp with time zone not null default app_now(),
    revoked_at timestamp with time zone,
    constraint device_pkey PRIMARY KEY (user_id, device_id)
);

create table email_change (
    user_id uuid not null,
    email text not null,
    session_id uuid not null,
    nonce uuid not null,
    tries_left integer not null,
    expires_at timestamp with time zone not null,
    constraint email_change_pkey PRIMARY KEY (user_id)
);

create table email_code (
    email text not null,
    scene text not null,
    nonce uuid not null,
    tries_left integer not null,
    expires_at timestamp with time zone not null,
    constraint email_code_pkey PRIMARY KEY (email, scene),
    constraint email_code_scene_check CHECK (scene = ANY (ARRAY['register'::text, 'login'::text, 'reset'::text]))
);

create table event (
    event_id uuid not null,
    kind text not null,
    conversation_id uuid,
    created_at timestamp with time zone not null default app_now(),
    data text not null,
    constraint event_pkey PRIMARY KEY (event_id)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_insert_scale_factor=0.02);

create table event_object (
    agent_id uuid not null,
    event_id uuid not null,
    conversation_id uuid,
    object_key text not null,
    constraint event_object_object_key_key UNIQUE (object_key),
    constraint event_object_pkey PRIMARY KEY (agent_id, event_id)
);

create table group_key (
    conversation_id uuid not null,
    epoch integer not null,
    principal_id uuid not null,
    device_id text not null,
    wrapped_key text not null,
    rotated_at timestamp with time zone not null default app_now(),
    constraint group_key_pkey PRIMARY KEY (conversation_id, principal_id, epoch, device_id)
);

create table idempotency (
    key uuid not null,
    sender_id uuid not null,
    conversation_id uuid not null,
    seq bigint not null,
    created_at timestamp with time zone not null default app_now(),
    constraint idempotency_pkey PRIMARY KEY (key, sender_id)
) with (autovacuum_vacuum_scale_factor=0.02);

create table inbox (
    principal_id uuid not null,
    head_seq bigint not null default 0,
    constraint inbox_pkey PRIMARY KEY (principal_id)
) with (fillfactor=40, autovacuum_vacuum_scale_factor=0.02);

create table inbox_entry (
    principal_id uuid not null,
    seq bigint not null,
    created_at timestamp with time zone not null default app_now(),
    events integer not null,
    conversation_id uuid,
    message_seq bigint,
    event_ids uuid[],
    conversation_ids uuid[],
    message_seqs bigint[],
    constraint inbox_entry_pkey PRIMARY KEY (principal_id, seq)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_insert_scale_factor=0.02);

create table inbox_reader (
    principal_id uuid not null,
    device_id text not null default ''::text,
    acked_seq bigint not null,
    logged_seq bigint not null default 0,
    constraint inbox_reader_pkey PRIMARY KEY (principal_id, device_id)
) with (fillfactor=40, autovacuum_vacuum_scale_factor=0.02);

create table job (
    job_id bigint generated always as identity not null,
    kind text not null,
    payload text not null,
    unique_key text,
    run_at timestamp with time zone not null default app_now(),
    expires_at timestamp with time zone,
    attempts integer not null default 0,
    leased_until timestamp with time zone,
    last_error text,
    failed_at timestamp with time zone,
    trace text,
    constraint job_pkey PRIMARY KEY (job_id)
);

create table key_backup (
    user_id uuid not null,
    device_id text not null,
    version integer not null,
    session_id uuid not null,
    key_id text not null,
    public_key bytea not null,
    signing_public_key bytea not null,
    backup_a bytea not null,
    backup_b bytea not null,
    argon2_salt bytea not null,
    argon2_m integer not null,
    argon2_t integer not null,
    argon2_p integer not null,
    created_at timestamp with time zone not null default app_now(),
    constraint key_backup_pkey PRIMARY KEY (user_id, device_id, version)
);

create table key_backup_erasure (
    user_id uuid not null,
    due_at timestamp with time zone not null,
    constraint key_backup_erasure_pkey PRIMARY KEY (user_id)
);

create table login_guard (
    email text not null,
    failures integer not null,
    last_failure_at timestamp with time zone not null,
    constraint login_guard_pkey PRIMARY KEY (email)
);

create table login_notice (
    user_id uuid not null,
    place integer not null,
    noticed_at timestamp with time zone not null default app_now(),
    constraint login_notice_pkey PRIMARY KEY (user_id, place)
);

create table member (
    conversation_id uuid not null,
    principal_id uuid not null,
    principal_kind text not null,
    role text not null,
    relation_id uuid,
    visibility text not null default 'all'::text,
    instance_id uuid,
    from_seq bigint not null default 0,
    all_from_seq bigint not null default 0,
    read_seq bigint not null default 0,
    joined_at timestamp with time zone not null default app_now(),
    mark_untold_since timestamp with time zone,
    session_id uuid,
    constraint member_pkey PRIMARY KEY (conversation_id, principal_id),
    constraint member_principal_kind_check CHECK (principal_kind = ANY (ARRAY['user'::text, 'agent'::text])),
    constraint member_role_check CHECK (role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'agent'::text])),
    constraint member_visibility_check CHECK (visibility = ANY (ARRAY['all'::text, 'addressed'::text]))
);

create table member_activity (
    conversation_id uuid not null,
    principal_id uuid not null,
    activity_until uuid not null,
    constraint member_activity_pkey PRIMARY KEY (conversation_id, principal_id)
);

create table message (
    conversation_id uuid not null,
    seq bigint not null,
    message_id uuid not null,
    sender_id uuid not null,
    sender_kind text not null,
    sender_device text,
    client_message_id uuid,
    in_reply_to uuid,
    hop smallint not null,
    created_at timestamp with time zone not null,
    payload text not null,
    recipients text[],
    refs uuid[],
    deleted_at timestamp with time zone,
    deleted_by text,
    constraint message_pkey PRIMARY KEY (conversation_id, seq)
) partition by HASH (conversation_id);

create table message_deletion (
    message_id uuid not null,
    deleted_at timestamp with time zone not null default app_now(),
    constraint message_deletion_pkey PRIMARY KEY (message_id)
);

create table message_ref (
    conversation_id uuid not null,
    referred_seq bigint not null,
    seq bigint not null,
    constraint message_ref_pkey PRIMARY KEY (conversation_id, referred_seq, seq)
);

create table message_token (
    conversation_id uuid not null,
    token text not null,
    seq bigint not null,
    constraint message_token_pkey PRIMARY KEY (conversation_id, seq, token)
);

create table object (
    object_key text not null,
    size bigint,
    sha256 bytea,
    writer_id uuid,
    delete_at timestamp with time zone,
    is_ending boolean not null default false,
    created_at timestamp with time zone not null default app_now(),
    multipart_id text,
    sweep_failures integer not null default 0,
    constraint object_pkey PRIMARY KEY (object_key)
);

create table passkey (
    passkey_id uuid not null,
    user_id uuid not null,
    credential_id bytea not null,
    name text not null,
    credential text not null,
    created_at timestamp with time zone not null default app_now(),
    last_used_at timestamp with time zone,
    session_id uuid,
    constraint passkey_credential_id_key UNIQUE (credential_id),
    constraint passkey_pkey PRIMARY KEY (passkey_id)
);

create table passkey_challenge (
    challenge_id uuid not null,
    user_id uuid,
    state text not null,
    expires_at timestamp with time zone not null,
    constraint passkey_challenge_pkey PRIMARY KEY (challenge_id)
);

create table passkey_device (
    passkey_id uuid not null,
    user_id uuid not null,
    device_id text not null,
    constraint passkey_device_pkey PRIMARY KEY (passkey_id, device_id)
);

create table public_key (
    principal_id uuid not null,
    principal_kind text not null,
    device_id text not null,
    key_id text not null,
    public_key bytea not null,
    signing_public_key bytea not null,
    schemes text[] not null default '{}'::text[],
    introduced_by text,
    introduction bytea,
    shown_at timestamp with time zone not null default app_now(),
    retired_at timestamp with time zone,
    constraint public_key_check CHECK ((introduced_by IS NULL) = (introduction IS NULL)),
    constraint public_key_pkey PRIMARY KEY (principal_id, device_id, key_id),
    constraint public_key_principal_kind_check CHECK (principal_kind = ANY (ARRAY['user'::text, 'agent'::text]))
);

create table push_subscription (
    session_id uuid not null,
    user_id uuid not null,
    kind text not null,
    sealed_endpoint bytea not null,
    server_key integer not null,
    revision integer not null default 0,
    epoch bigint not null,
    read_seq bigint not null,
    last_error text,
    created_at timestamp with time zone not null default app_now(),
    updated_at timestamp with time zone not null default app_now(),
    constraint push_subscription_kind_check CHECK (kind = ANY (ARRAY['webpush'::text, 'unifiedpush'::text])),
    constraint push_subscription_pkey PRIMARY KEY (session_id)
) with (fillfactor=40);

create table push_sweep (
    only_row boolean not null default true,
    swept_until timestamp with time zone not null,
    constraint push_sweep_only_row_check CHECK (only_row),
    constraint push_sweep_pkey PRIMARY KEY (only_row)
);

create table push_wake (
    session_id uuid not null,
    slot uuid not null,
    event text,
    event_id uuid,
    conversation_id uuid,
    subject_id text,
    seq bigint,
    is_urgent boolean not null,
    expires_at timestamp with time zone not null,
    attempts integer not null default 0,
    claim integer not null default 0,
    is_parked boolean not null default false,
    due_at timestamp with time zone not null default app_now(),
    constraint push_wake_pkey PRIMARY KEY (session_id, slot)
) with (fillfactor=40);

create table reconcile_log (
    log_id bigint generated always as identity not null,
    log_position bigint not null default log_position(),
    credential_id uuid,
    principal_id uuid,
    recorded_at timestamp with time zone not null default app_now(),
    constraint reconcile_log_pkey PRIMARY KEY (log_id)
);

create table relation (
    relation_id uuid not null,
    user_id uuid not null,
    agent_id uuid not null,
    state text not null default 'active'::text,
    created_at timestamp with time zone not null default app_now(),
    revoked_at timestamp with time zone,
    purge_at timestamp with time zone,
    purge_due timestamp with time zone,
    purge_through bigint,
    purge_turn_at timestamp with time zone,
    session_id uuid,
    constraint relation_pkey PRIMARY KEY (relation_id),
    constraint relation_state_check CHECK (state = ANY (ARRAY['active'::text, 'revoked'::text]))
);

create table security_notice (
    user_id uuid not null,
    kind text not null,
    noticed_at timestamp with time zone not null default app_now(),
    constraint security_notice_pkey PRIMARY KEY (user_id, kind)
);

create table session (
    session_id uuid not null,
    user_id uuid not null,
    device_id text not null,
    generation integer not null default 0,
    rotated_at timestamp with time zone not null default app_now(),
    refresh_expires_at timestamp with time zone not null,
    absolute_expires_at timestamp with time zone not null,
    authenticated_at timestamp with time zone not null default app_now(),
    revoked_at timestamp with time zone,
    revoke_reason text,
    created_at timestamp with time zone not null default app_now(),
    constraint session_pkey PRIMARY KEY (session_id),
    constraint session_revoke_reason_check CHECK (revoke_reason = ANY (ARRAY['device_revoked'::text, 'logout'::text, 'password_reset'::text, 'refresh_reuse'::text, 'token_revoked'::text, 'token_regenerated'::text, 'account_deleted'::text]))
);

create table share (
    share_hash bytea not null,
    owner_id uuid not null,
    kind text not null,
    upload_id uuid,
    agent_id uuid,
    expires_at timestamp with time zone not null,
    max_access_count integer,
    access_count integer not null default 0,
    created_at timestamp with time zone not null default app_now(),
    session_id uuid,
    constraint share_kind_check CHECK (kind = ANY (ARRAY['file'::text, 'agent'::text, 'contact'::text])),
    constraint share_pkey PRIMARY KEY (share_hash)
);

create table tool_call (
    call_id uuid not null,
    agent_id uuid not null,
    request_id text not null,
    user_id uuid not null,
    conversation_id uuid not null,
    grant_id uuid,
    tool text not null,
    scope text not null,
    sensitivity text not null,
    device_id text,
    prompt_required boolean not null,
    status text not null default 'pending'::text,
    reason text,
    result text,
    answered_by text,
    created_at timestamp with time zone not null default app_now(),
    expires_at timestamp with time zone not null,
    ended_at timestamp with time zone,
    claimed_by text,
    constraint tool_call_pkey PRIMARY KEY (call_id),
    constraint tool_call_request UNIQUE (agent_id, request_id, user_id),
    constraint tool_call_sensitivity_check CHECK (sensitivity = ANY (ARRAY['low'::text, 'medium'::text, 'high'::text])),
    constraint tool_call_status CHECK (status = ANY (ARRAY['pending'::text, 'executed'::text, 'denied'::text, 'failed'::text]))
);

create table tool_consent (
    user_id uuid not null,
    device_id text not null,
    agent_id uuid not null,
    conversation_id uuid not null,
    scope text not null,
    used_at timestamp with time zone not null,
    prompted_at timestamp with time zone not null default app_now(),
    constraint tool_consent_pkey PRIMARY KEY (user_id, device_id, agent_id, conversation_id, scope)
);

create table upload (
    upload_id uuid not null,
    conversation_id uuid not null,
    uploader_id uuid not null,
    uploader_kind text not null,
    credential_id uuid not null,
    filename text not null,
    content_type text not null,
    size bigint not null,
    state text not null default 'pending'::text,
    object_key text,
    direct_key text,
    url_expires_at timestamp with time zone not null,
    confirmed_at timestamp with time zone,
    created_at timestamp with time zone not null default app_now(),
    adopted_until timestamp with time zone,
    constraint upload_object_key_key UNIQUE (object_key),
    constraint upload_pkey PRIMARY KEY (upload_id),
    constraint upload_state_check CHECK (state = ANY (ARRAY['pending'::text, 'uploaded'::text, 'confirmed'::text, 'rejected'::text, 'expired'::text])),
    constraint upload_uploader_kind_check CHECK (uploader_kind = ANY (ARRAY['user'::text, 'agent'::text]))
);

create table upload_audit (
    audit_id bigint generated always as identity not null,
    upload_id uuid not null,
    conversation_id uuid not null,
    uploader_id uuid not null,
    announced_sha256 bytea not null,
    received_sha256 bytea not null,
    size bigint not null,
    created_at timestamp with time zone not null default app_now(),
    constraint upload_audit_pkey PRIMARY KEY (audit_id)
);

create table user_account (
    user_id uuid not null,
    email text not null,
    display_name text not null,
    device_locale text not null,
    password_hash text not null,
    key_list_version integer not null default 0,
    created_at timestamp with time zone not null default app_now(),
    deleted_at timestamp with time zone,
    constraint user_account_email_key UNIQUE (email),
    constraint user_account_pkey PRIMARY KEY (user_id)
);

create table webhook (
    agent_id uuid not null,
    url text not null,
    status text not null,
    credential_id uuid not null,
    sealed_secret bytea,
    sealed_previous bytea,
    previous_valid_until timestamp with time zone,
    last_error text,
    verified_at timestamp with time zone,
    created_at timestamp with time zone not null default app_now(),
    updated_at timestamp with time zone not null default app_now(),
    url_session_id uuid,
    secret_session_id uuid,
    max_events integer not null default 1,
    constraint webhook_max_events_check CHECK (max_events >= 1 AND max_events <= 50),
    constraint webhook_pkey PRIMARY KEY (agent_id),
    constraint webhook_status_check CHECK (status = ANY (ARRAY['pending_verification'::text, 'active'::text, 'suspended'::text]))
);

create table webhook_delivery (
    agent_id uuid not null,
    delivery_id uuid not null,
    seq bigint,
    event text not null,
    status text not null,
    attempts integer not null default 0,
    log text[] not null default '{}'::text[],
    next_attempt_at timestamp with time zone,
    is_replay boolean not null default false,
    constraint webhook_delivery_pkey PRIMARY KEY (agent_id, delivery_id),
    constraint webhook_delivery_status_check CHECK (status = ANY (ARRAY['pending'::text, 'success'::text, 'failed'::text, 'exhausted'::text]))
) partition by RANGE (delivery_id);

create table webhook_stop (
    agent_id uuid not null,
    event_id uuid not null,
    is_taken boolean not null default false,
    is_answered boolean not null default false,
    wait_until timestamp with time zone not null,
    constraint webhook_stop_pkey PRIMARY KEY (agent_id, event_id)
);

create table webhook_sweep (
    only_row boolean not null default true,
    swept_until timestamp with time zone not null,
    constraint webhook_sweep_only_row_check CHECK (only_row),
    constraint webhook_sweep_pkey PRIMARY KEY (only_row)
);

create table webhook_turn (
    agent_id uuid not null,
    is_open boolean not null default false,
    due_at timestamp with time zone,
    turn integer not null default 0,
    is_leased boolean not null default false,
    is_woken boolean not null default false,
    is_parked boolean not null default false,
    has_open boolean not null default false,
    has_replays boolean not null default false,
    not_before timestamp with time zone,
    failures integer not null default 0,
    done int8multirange not null default '{}'::int8multirange,
    traces jsonb,
    epoch bigint,
    constraint webhook_turn_pkey PRIMARY KEY (agent_id)
) with (fillfactor=40);

alter table message alter column payload set storage external;

alter table tool_call alter column result set storage external;

create table message_0 partition of message FOR VALUES WITH (modulus 8, remainder 0) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_1 partition of message FOR VALUES WITH (modulus 8, remainder 1) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_2 partition of message FOR VALUES WITH (modulus 8, remainder 2) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_3 partition of message FOR VALUES WITH (modulus 8, remainder 3) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_4 partition of message FOR VALUES WITH (modulus 8, remainder 4) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_5 partition of message FOR VALUES WITH (modulus 8, remainder 5) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_6 partition of message FOR VALUES WITH (modulus 8, remainder 6) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

create table message_7 partition of message FOR VALUES WITH (modulus 8, remainder 7) with (autovacuum_vacuum_insert_scale_factor=0.02, autovacuum_freeze_min_age=0);

alter table agent add constraint agent_owner_user_id_fkey FOREIGN KEY (owner_user_id) REFERENCES user_account(user_id);

alter table agent_grant add constraint agent_grant_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table agent_grant add constraint agent_grant_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversation(conversation_id);

alter table agent_grant add constraint agent_grant_relation_id_fkey FOREIGN KEY (relation_id) REFERENCES relation(relation_id);

alter table agent_grant add constraint agent_grant_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table agent_group add constraint agent_group_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table agent_group_given add constraint agent_group_given_connection_id_fkey FOREIGN KEY (connection_id) REFERENCES agent_group_member(connection_id) ON DELETE CASCADE;

alter table agent_group_member add constraint agent_group_member_agent_id_name_fkey FOREIGN KEY (agent_id, name) REFERENCES agent_group(agent_id, name) ON DELETE CASCADE;

alter table agent_key add constraint agent_key_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table agent_token add constraint agent_token_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table approval_asked add constraint approval_asked_approval_id_fkey FOREIGN KEY (approval_id) REFERENCES approval(approval_id) ON DELETE CASCADE;

alter table block add constraint block_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table conversation add constraint conversation_created_by_fkey FOREIGN KEY (created_by) REFERENCES user_account(user_id);

alter table device add constraint device_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table email_change add constraint email_change_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id) ON DELETE CASCADE;

alter table event_object add constraint event_object_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table event_object add constraint event_object_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversation(conversation_id);

alter table event_object add constraint event_object_object_key_fkey FOREIGN KEY (object_key) REFERENCES object(object_key) ON DELETE CASCADE;

alter table group_key add constraint group_key_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversation(conversation_id);

alter table key_backup add constraint key_backup_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table key_backup_erasure add constraint key_backup_erasure_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table login_notice add constraint login_notice_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table member add constraint member_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversation(conversation_id);

alter table member add constraint member_relation_id_fkey FOREIGN KEY (relation_id) REFERENCES relation(relation_id);

alter table member_activity add constraint member_activity_conversation_id_principal_id_fkey FOREIGN KEY (conversation_id, principal_id) REFERENCES member(conversation_id, principal_id) ON DELETE CASCADE;

alter table passkey add constraint passkey_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id) ON DELETE CASCADE;

alter table passkey_challenge add constraint passkey_challenge_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id) ON DELETE CASCADE;

alter table passkey_device add constraint passkey_device_passkey_id_fkey FOREIGN KEY (passkey_id) REFERENCES passkey(passkey_id) ON DELETE CASCADE;

alter table passkey_device add constraint passkey_device_user_id_device_id_fkey FOREIGN KEY (user_id, device_id) REFERENCES device(user_id, device_id) ON UPDATE CASCADE ON DELETE CASCADE;

alter table push_subscription add constraint push_subscription_session_id_fkey FOREIGN KEY (session_id) REFERENCES session(session_id) ON DELETE CASCADE;

alter table push_subscription add constraint push_subscription_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table push_wake add constraint push_wake_session_id_fkey FOREIGN KEY (session_id) REFERENCES push_subscription(session_id) ON DELETE CASCADE;

alter table relation add constraint relation_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table relation add constraint relation_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table security_notice add constraint security_notice_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table session add constraint session_user_id_device_id_fkey FOREIGN KEY (user_id, device_id) REFERENCES device(user_id, device_id) ON UPDATE CASCADE;

alter table share add constraint share_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table share add constraint share_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES user_account(user_id);

alter table share add constraint share_upload_id_fkey FOREIGN KEY (upload_id) REFERENCES upload(upload_id) ON DELETE CASCADE;

alter table tool_call add constraint tool_call_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table tool_call add constraint tool_call_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversation(conversation_id);

alter table tool_call add constraint tool_call_grant_id_fkey FOREIGN KEY (grant_id) REFERENCES agent_grant(grant_id);

alter table tool_call add constraint tool_call_user_id_fkey FOREIGN KEY (user_id) REFERENCES user_account(user_id);

alter table tool_consent add constraint tool_consent_user_id_device_id_fkey FOREIGN KEY (user_id, device_id) REFERENCES device(user_id, device_id) ON UPDATE CASCADE ON DELETE CASCADE;

alter table upload add constraint upload_conversation_id_fkey FOREIGN KEY (conversation_id) REFERENCES conversation(conversation_id);

alter table upload add constraint upload_direct_key_fkey FOREIGN KEY (direct_key) REFERENCES object(object_key) ON DELETE SET NULL;

alter table upload add constraint upload_object_key_fkey FOREIGN KEY (object_key) REFERENCES object(object_key) ON DELETE SET NULL;

alter table webhook add constraint webhook_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES agent(agent_id);

alter table webhook_turn add constraint webhook_turn_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES webhook(agent_id) ON DELETE CASCADE;

CREATE INDEX access_log_newest ON access_log USING btree (subject_id, access_id);

CREATE INDEX access_log_of_agent ON access_log USING btree (subject_id, agent_id, access_id);

CREATE INDEX agent_grant_agent ON agent_grant USING btree (agent_id);

CREATE INDEX agent_grant_of_agent ON agent_grant USING btree (agent_id, user_id, conversation_id) WHERE status = ANY (ARRAY['pending'::text, 'approved'::text]);

CREATE INDEX agent_grant_of_conversation ON agent_grant USING btree (conversation_id, user_id);

CREATE INDEX agent_grant_of_relation ON agent_grant USING btree (relation_id);

CREATE INDEX agent_grant_of_user ON agent_grant USING btree (user_id, grant_id);

CREATE UNIQUE INDEX agent_grant_pending ON agent_grant USING btree (agent_id, user_id, conversation_id, requested_scopes) WHERE status = 'pending'::text;

CREATE INDEX agent_grant_reason ON agent_grant USING btree (relation_id) WHERE reason IS NOT NULL;

CREATE INDEX agent_group_age ON agent_group USING btree (used_at);

CREATE INDEX agent_group_given_connection ON agent_group_given USING btree (connection_id, place);

CREATE INDEX agent_group_member_group ON agent_group_member USING btree (agent_id, name);

CREATE UNIQUE INDEX agent_key_current ON agent_key USING btree (agent_id) WHERE valid_until IS NULL;

CREATE INDEX agent_key_ending ON agent_key USING btree (valid_until) WHERE valid_until IS NOT NULL;

CREATE INDEX agent_of_owner ON agent USING btree (owner_user_id);

CREATE INDEX agent_of_session ON agent USING btree (session_id) WHERE session_id IS NOT NULL;

CREATE INDEX agent_token_ending ON agent_token USING btree (valid_until) WHERE valid_until IS NOT NULL AND revoked_at IS NULL;

CREATE INDEX agent_token_of_agent ON agent_token USING btree (agent_id);

CREATE INDEX agent_token_of_session ON agent_token USING btree (session_id) WHERE session_id IS NOT NULL AND revoked_at IS NULL;

CREATE INDEX agent_unreachable ON agent USING btree (agent_id) WHERE state = 'unreachable'::text;

CREATE INDEX announcement_of ON announcement USING btree (principal_id, announcement_id);

CREATE INDEX approval_asked_message ON approval_asked USING btree (message_id) WHERE message_id IS NOT NULL;

CREATE INDEX approval_asked_open ON approval_asked USING btree (agent_id, user_id) WHERE is_open;

CREATE INDEX approval_due ON approval USING btree (expires_at) WHERE state = 'open'::text;

CREATE INDEX approval_of_conversation ON approval USING btree (conversation_id, approval_id);

CREATE INDEX approval_open ON approval USING btree (conversation_id, approval_id) WHERE state = 'open'::text;

CREATE INDEX block_of_user ON block USING btree (user_id, block_id);

CREATE INDEX code_guard_age ON code_guard USING btree (COALESCE(failures[array_upper(failures, 1)], '-infinity'::timestamp with time zone));

CREATE INDEX conversation_of_creator ON conversation USING btree (created_by);

CREATE INDEX device_unnamed ON device USING btree (created_at) WHERE provisional;

CREATE INDEX email_change_age ON email_change USING btree (expires_at);

CREATE INDEX email_code_age ON email_code USING btree (expires_at);

CREATE INDEX event_age ON event USING btree (created_at);

CREATE INDEX event_object_of_conversation ON event_object USING btree (conversation_id) WHERE conversation_id IS NOT NULL;

CREATE INDEX group_key_of_principal ON group_key USING btree (principal_id);

CREATE INDEX idempotency_age ON idempotency USING btree (created_at);

CREATE INDEX inbox_entry_age ON inbox_entry USING btree (created_at);

CREATE INDEX inbox_reader_of_agent ON inbox_reader USING btree (principal_id) WHERE device_id = ''::text;

CREATE INDEX job_age ON job USING btree (expires_at) WHERE expires_at IS NOT NULL;

CREATE INDEX job_due ON job USING btree (kind, run_at) WHERE failed_at IS NULL;

CREATE UNIQUE INDEX job_unique ON job USING btree (kind, unique_key) WHERE unique_key IS NOT NULL AND failed_at IS NULL;

CREATE INDEX key_backup_erasure_due ON key_backup_erasure USING btree (due_at);

CREATE INDEX login_guard_age ON login_guard USING btree (last_failure_at);

CREATE INDEX login_notice_age ON login_notice USING btree (noticed_at);

CREATE INDEX member_activity_latest ON member_activity USING btree (principal_id, activity_until);

CREATE INDEX member_instance ON member USING btree (principal_id, conversation_id) WHERE instance_id IS NOT NULL;

CREATE INDEX member_mark_untold ON member USING btree (conversation_id, mark_untold_since) WHERE mark_untold_since IS NOT NULL;

CREATE INDEX member_of ON member USING btree (principal_id, conversation_id);

CREATE INDEX member_of_relation ON member USING btree (relation_id) WHERE relation_id IS NOT NULL;

CREATE INDEX member_of_session ON member USING btree (session_id) WHERE session_id IS NOT NULL;

CREATE INDEX message_addressed ON ONLY message USING btree (conversation_id, seq) WHERE recipients IS NOT NULL;

CREATE INDEX message_by_agent ON ONLY message USING btree (conversation_id, sender_id, seq) WHERE sender_kind = 'agent'::text;

CREATE UNIQUE INDEX message_by_id ON ONLY message USING btree (conversation_id, message_id);

CREATE INDEX message_deletion_age ON message_deletion USING btree (deleted_at);

CREATE INDEX message_token_found ON message_token USING btree (conversation_id, token, seq);

CREATE INDEX object_end ON object USING btree (delete_at) WHERE delete_at IS NOT NULL;

CREATE INDEX object_of_writer ON object USING btree (writer_id) WHERE sha256 IS NULL AND writer_id IS NOT NULL;

CREATE INDEX passkey_challenge_expiry ON passkey_challenge USING btree (expires_at);

CREATE INDEX passkey_challenge_of_user ON passkey_challenge USING btree (user_id) WHERE user_id IS NOT NULL;

CREATE INDEX passkey_device_of_device ON passkey_device USING btree (user_id, device_id);

CREATE INDEX passkey_of_session ON passkey USING btree (session_id) WHERE session_id IS NOT NULL;

CREATE INDEX passkey_of_user ON passkey USING btree (user_id, passkey_id);

CREATE INDEX push_subscription_of_user ON push_subscription USING btree (user_id);

CREATE INDEX push_subscription_sealed ON push_subscription USING btree (SUBSTRING(sealed_endpoint FROM 1 FOR 4));

CREATE INDEX push_wake_due ON push_wake USING btree (due_at);

CREATE INDEX reconcile_log_age ON reconcile_log USING btree (recorded_at);

CREATE INDEX reconcile_log_by_position ON reconcile_log USING btree (log_position);

CREATE UNIQUE INDEX relation_active ON relation USING btree (user_id, agent_id) WHERE state = 'active'::text;

CREATE INDEX relation_of_agent ON relation USING btree (agent_id, state, user_id);

CREATE INDEX relation_of_session ON relation USING btree (session_id) WHERE session_id IS NOT NULL;

CREATE INDEX relation_of_user ON relation USING btree (user_id, relation_id);

CREATE INDEX relation_purge ON relation USING btree (purge_due) WHERE purge_due IS NOT NULL;

CREATE INDEX relation_purge_turn ON relation USING btree (COALESCE(purge_turn_at, purge_due)) WHERE purge_due IS NOT NULL;

CREATE INDEX security_notice_age ON security_notice USING btree (noticed_at);

CREATE INDEX session_age ON session USING btree (LEAST(revoked_at, refresh_expires_at, absolute_expires_at));

CREATE INDEX session_of_any_device ON session USING btree (user_id, device_id);

CREATE INDEX share_age ON share USING btree (expires_at);

CREATE INDEX share_of_agent ON share USING btree (agent_id) WHERE agent_id IS NOT NULL;

CREATE INDEX share_of_owner ON share USING btree (owner_id);

CREATE INDEX share_of_session ON share USING btree (session_id) WHERE session_id IS NOT NULL;

CREATE INDEX share_of_upload ON share USING btree (upload_id) WHERE upload_id IS NOT NULL;

CREATE INDEX tool_call_age ON tool_call USING btree (created_at);

CREATE INDEX tool_call_due ON tool_call USING btree (expires_at) WHERE status = 'pending'::text;

CREATE INDEX tool_call_of_conversation ON tool_call USING btree (conversation_id);

CREATE INDEX tool_call_of_grant ON tool_call USING btree (grant_id) WHERE grant_id IS NOT NULL;

CREATE INDEX tool_call_of_user ON tool_call USING btree (user_id, request_id);

CREATE INDEX tool_call_result ON tool_call USING btree (user_id, agent_id, created_at) WHERE result IS NOT NULL;

CREATE INDEX tool_consent_age ON tool_consent USING btree (used_at);

CREATE INDEX upload_age ON upload USING btree (created_at) WHERE state <> 'confirmed'::text;

CREATE INDEX upload_direct ON upload USING btree (direct_key) WHERE direct_key IS NOT NULL;

CREATE INDEX upload_file ON upload USING btree (conversation_id, confirmed_at) WHERE object_key IS NOT NULL AND state = 'confirmed'::text;

CREATE INDEX upload_of_conversation ON upload USING btree (conversation_id);

CREATE INDEX upload_of_uploader ON upload USING btree (uploader_id);

CREATE INDEX upload_open ON upload USING btree (uploader_id, upload_id) WHERE state = ANY (ARRAY['pending'::text, 'uploaded'::text]);

CREATE INDEX webhook_credential ON webhook USING btree (credential_id);

CREATE INDEX webhook_delivery_by_status ON ONLY webhook_delivery USING btree (agent_id, status, delivery_id);

CREATE INDEX webhook_of_secret_session ON webhook USING btree (secret_session_id) WHERE secret_session_id IS NOT NULL;

CREATE INDEX webhook_of_url_session ON webhook USING btree (url_session_id) WHERE url_session_id IS NOT NULL;

CREATE INDEX webhook_previous_key ON webhook USING btree (SUBSTRING(sealed_previous FROM 1 FOR 4)) WHERE sealed_previous IS NOT NULL;

CREATE INDEX webhook_secret_key ON webhook USING btree (SUBSTRING(sealed_secret FROM 1 FOR 4)) WHERE sealed_secret IS NOT NULL;

CREATE INDEX webhook_stop_age ON webhook_stop USING btree (wait_until);

CREATE INDEX webhook_turn_due ON webhook_turn USING btree (due_at) WHERE due_at IS NOT NULL AND failures = 0;

CREATE INDEX webhook_turn_retry ON webhook_turn USING btree (due_at) WHERE due_at IS NOT NULL AND failures > 0;

CREATE INDEX webhook_unreadable ON webhook USING btree (agent_id) WHERE last_error = 'secret_unreadable'::text;

create view live_session as
 SELECT session.session_id,
    session.user_id,
    session.device_id,
    session.generation,
    session.rotated_at,
    session.refresh_expires_at,
    session.absolute_expires_at,
    session.authenticated_at,
    session.revoked_at,
    session.revoke_reason
   FROM session
  WHERE session.revoked_at IS NULL AND session.absolute_expires_at > app_now();

create view live_agent_token as
 SELECT agent_token.token_id,
    agent_token.agent_id,
    agent_token.lookup,
    agent_token.bcrypt_hash,
    agent_token.created_at,
    agent_token.last_used_at,
    agent_token.valid_until,
    agent_token.revoked_at,
    agent_token.revoke_reason,
    agent_token.session_id
   FROM agent_token
  WHERE agent_token.revoked_at IS NULL AND (agent_token.valid_until IS NULL OR agent_token.valid_until > app_now());

create view active_member as
 SELECT m.conversation_id,
    m.principal_id,
    m.principal_kind,
    m.role,
    m.relation_id,
    m.visibility,
    m.instance_id,
    m.from_seq,
    m.all_from_seq,
    m.read_seq,
    m.joined_at
   FROM member m
     LEFT JOIN relation r ON r.relation_id = m.relation_id
  WHERE r.state IS DISTINCT FROM 'revoked'::text;

create view agent_shown as
 SELECT a.agent_id,
    a.owner_user_id,
    a.display_name,
    a.description,
    a.state,
    a.delivery_mode,
    a.manifest,
    a.manifest_version,
    k.key_id,
    t.created_at AS token_created_at,
    t.last_used_at AS token_last_used_at,
    g.grace_until,
    COALESCE(i.head_seq, 0::bigint) AS head_seq,
    COALESCE(r.acked_seq, 0::bigint) AS acked_seq,
    a.unreachable_since,
    a.created_at
   FROM agent a
     LEFT JOIN LATERAL ( SELECT live_agent_token.created_at,
            live_agent_token.last_used_at
           FROM live_agent_token
          WHERE live_agent_token.agent_id = a.agent_id AND live_agent_token.valid_until IS NULL
         LIMIT 1) t ON true
     LEFT JOIN LATERAL ( SELECT max(live_agent_token.valid_until) AS grace_until
           FROM live_agent_token
          WHERE live_agent_token.agent_id = a.agent_id) g ON true
     LEFT JOIN LATERAL ( SELECT agent_key.key_id
           FROM agent_key
          WHERE agent_key.agent_id = a.agent_id AND (agent_key.valid_until IS NULL OR agent_key.valid_until > app_now())
          ORDER BY agent_key.valid_until DESC
         LIMIT 1) k ON true
     LEFT JOIN inbox i ON i.principal_id = a.agent_id
     LEFT JOIN inbox_reader r ON r.principal_id = a.agent_id AND r.device_id = ''::text
  WHERE a.state <> 'deleted'::text;

create view live_object as
 SELECT object.object_key,
    object.size,
    object.sha256,
    object.writer_id,
    object.delete_at,
    object.is_ending,
    object.created_at
   FROM object
  WHERE NOT object.is_ending AND (object.delete_at IS NULL OR object.delete_at > app_now());

create view agent_grant_shown as
 SELECT g.grant_id,
    g.agent_id,
    g.user_id,
    g.conversation_id,
    g.relation_id,
    g.status,
    g.requested_scopes,
    g.sensitivities,
    g.scopes,
    g.reason,
    g.ttl_seconds,
    g.created_at,
    g.expires_at,
    g.decided_at,
    g.decided_by,
    g.revoked_at,
        CASE
            WHEN g.status <> ALL (ARRAY['pending'::text, 'approved'::text]) THEN g.status
            WHEN r.state <> 'active'::text THEN 'revoked'::text
            WHEN g.expires_at <= app_now() THEN 'expired'::text
            ELSE g.status
        END AS state
   FROM agent_grant g
     JOIN relation r USING (relation_id);

create view session_change as
 SELECT a.owner_user_id AS user_id,
    a.session_id,
    'agent'::text AS kind,
    a.agent_id,
    a.agent_id AS change_id,
    NULL::uuid AS conversation_id,
    NULL::bytea AS share_hash,
    a.display_name AS name,
    a.created_at AS made_at
   FROM agent a
  WHERE a.session_id IS NOT NULL AND a.state <> 'deleted'::text
UNION ALL
 SELECT a.owner_user_id AS user_id,
    t.session_id,
    'token'::text AS kind,
    a.agent_id,
    t.token_id AS change_id,
    NULL::uuid AS conversation_id,
    NULL::bytea AS share_hash,
    a.display_name AS name,
    t.created_at AS made_at
   FROM agent_token t
     JOIN agent a ON a.agent_id = t.agent_id
  WHERE t.session_id IS NOT NULL AND t.revoked_at IS NULL AND (t.valid_until IS NULL OR t.valid_until > app_now()) AND a.session_id IS DISTINCT FROM t.session_id AND a.state <> 'deleted'::text
UNION ALL
 SELECT a.owner_user_id AS user_id,
    w.url_session_id AS session_id,
    'webhook'::text AS kind,
    a.agent_id,
    a.agent_id AS change_id,
    NULL::uuid AS conversation_id,
    NULL::bytea AS share_hash,
    a.display_name AS name,
    w.updated_at AS made_at
   FROM webhook w
     JOIN agent a ON a.agent_id = w.agent_id
  WHERE w.url_session_id IS NOT NULL AND w.status <> 'suspended'::text AND a.session_id IS DISTINCT FROM w.url_session_id AND a.state <> 'deleted'::text
UNION ALL
 SELECT a.owner_user_id AS user_id,
    w.secret_session_id AS session_id,
    'webhook'::text AS kind,
    a.agent_id,
    a.agent_id AS change_id,
    NULL::uuid AS conversation_id,
    NULL::bytea AS share_hash,
    a.display_name AS name,
    w.updated_at AS made_at
   FROM webhook w
     JOIN agent a ON a.agent_id = w.agent_id
  WHERE w.secret_session_id IS NOT NULL AND w.status <> 'suspended'::text AND w.secret_session_id IS DISTINCT FROM w.url_session_id AND a.session_id IS DISTINCT FROM w.secret_session_id AND a.state <> 'deleted'::text
UNION ALL
 SELECT r.user_id,
    r.session_id,
    'relation'::text AS kind,
    r.agent_id,
    r.relation_id AS change_id,
    NULL::uuid AS conversation_id,
    NULL::bytea AS share_hash,
    a.display_name AS name,
    r.created_at AS made_at
   FROM relation r
     JOIN agent a ON a.agent_id = r.agent_id
  WHERE r.session_id IS NOT NULL AND r.state = 'active'::text
UNION ALL
 SELECT s.user_id,
    m.session_id,
    'instance'::text AS kind,
    m.principal_id AS agent_id,
    m.instance_id AS change_id,
    m.conversation_id,
    NULL::bytea AS share_hash,
    a.display_name AS name,
    m.joined_at AS made_at
   FROM member m
     JOIN session s ON s.session_id = m.session_id
     JOIN agent a ON a.agent_id = m.principal_id
     JOIN member admin ON admin.conversation_id = m.conversation_id AND admin.principal_id = s.user_id AND (admin.role = ANY (ARRAY['owner'::text, 'admin'::text]))
  WHERE m.session_id IS NOT NULL AND m.instance_id IS NOT NULL
UNION ALL
 SELECT p.user_id,
    p.session_id,
    'passkey'::text AS kind,
    NULL::uuid AS agent_id,
    p.passkey_id AS change_id,
    NULL::uuid AS conversation_id,
    NULL::bytea AS share_hash,
    p.name,
    p.created_at AS made_at
   FROM passkey p
  WHERE p.session_id IS NOT NULL
UNION ALL
 SELECT s.owner_id AS user_id,
    s.session_id,
    'share'::text AS kind,
    s.agent_id,
    NULL::uuid AS change_id,
    NULL::uuid AS conversation_id,
    s.share_hash,
    COALESCE(u.filename, a.display_name, s.kind) AS name,
    s.created_at AS made_at
   FROM share s
     LEFT JOIN upload u ON u.upload_id = s.upload_id
     LEFT JOIN agent a ON a.agent_id = s.agent_id
  WHERE s.session_id IS NOT NULL AND s.expires_at > app_now();

CREATE TRIGGER access_log_chain BEFORE INSERT ON access_log FOR EACH ROW EXECUTE FUNCTION access_log_chain();

CREATE TRIGGER access_log_rows BEFORE DELETE OR UPDATE ON access_log FOR EACH ROW EXECUTE FUNCTION access_log_is_append_only();

CREATE TRIGGER access_log_truncate BEFORE TRUNCATE ON access_log FOR EACH STATEMENT EXECUTE FUNCTION access_log_is_append_only();

CREATE TRIGGER access_log_head_rows BEFORE INSERT OR DELETE OR UPDATE ON access_log_head FOR EACH ROW EXECUTE FUNCTION access_log_is_append_only();

CREATE TRIGGER access_log_head_truncate BEFORE TRUNCATE ON access_log_head FOR EACH STATEMENT EXECUTE FUNCTION access_log_is_append_only();

CREATE TRIGGER agent_texts_end BEFORE UPDATE ON agent FOR EACH ROW WHEN (new.state = 'deleted'::text) EXECUTE FUNCTION agent_texts_end();

CREATE TRIGGER agent_public_key AFTER INSERT OR DELETE OR UPDATE ON agent_key FOR EACH ROW EXECUTE FUNCTION public_key_of_agent();

CREATE TRIGGER agent_token_revocation AFTER UPDATE OF revoked_at ON agent_token FOR EACH ROW WHEN (old.revoked_at IS NULL AND new.revoked_at IS NOT NULL) EXECUTE FUNCTION record_revocation();

CREATE TRIGGER conversation_activity BEFORE UPDATE OF last_message_id ON conversation FOR EACH ROW WHEN (NOT COALESCE(new.last_message_id >= old.last_message_id AND new.last_message_id <= old.activity_until, false)) EXECUTE FUNCTION note_activity();

CREATE TRIGGER conversation_activity_new BEFORE INSERT ON conversation FOR EACH ROW EXECUTE FUNCTION note_activity();

CREATE TRIGGER device_public_key AFTER UPDATE OF key_id ON device FOR EACH ROW WHEN (old.key_id IS DISTINCT FROM new.key_id) EXECUTE FUNCTION public_key_of_device();

CREATE TRIGGER key_backup_appends BEFORE INSERT ON key_backup FOR EACH ROW EXECUTE FUNCTION key_backup_is_append_only();

CREATE TRIGGER key_backup_rows BEFORE DELETE OR UPDATE ON key_backup FOR EACH ROW EXECUTE FUNCTION key_backup_is_append_only();

CREATE TRIGGER key_backup_truncate BEFORE TRUNCATE ON key_backup FOR EACH STATEMENT EXECUTE FUNCTION key_backup_is_append_only();

CREATE TRIGGER member_activity_new AFTER INSERT ON member REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION note_member_activity();

CREATE TRIGGER session_revocation AFTER UPDATE OF revoked_at ON session FOR EACH ROW WHEN (old.revoked_at IS NULL AND new.revoked_at IS NOT NULL) EXECUTE FUNCTION record_revocation();

CREATE TRIGGER upload_charged_change AFTER UPDATE ON upload REFERENCING OLD TABLE AS before_rows NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION charge_uploads();

CREATE TRIGGER upload_charged_end AFTER DELETE ON upload REFERENCING OLD TABLE AS before_rows FOR EACH STATEMENT EXECUTE FUNCTION charge_uploads();

CREATE TRIGGER upload_charged_new AFTER INSERT ON upload REFERENCING NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION charge_uploads();

CREATE TRIGGER upload_audit_rows BEFORE DELETE OR UPDATE ON upload_audit FOR EACH ROW EXECUTE FUNCTION upload_audit_is_append_only();

CREATE TRIGGER upload_audit_truncate BEFORE TRUNCATE ON upload_audit FOR EACH STATEMENT EXECUTE FUNCTION upload_audit_is_append_only();

CREATE TRIGGER user_account_deletion BEFORE UPDATE ON user_account FOR EACH ROW WHEN (new.deleted_at IS DISTINCT FROM old.deleted_at) EXECUTE FUNCTION user_account_deletion();

comment on table access_log is 'owner: access_log';

comment on table access_log_digest is 'owner: features/access_log';

comment on table access_log_head is 'owner: access_log';

comment on table account_storage is 'owner: features/files';

comment on table agent is 'owner: features/agents';

comment on table agent_grant is 'owner: features/grants';

comment on table agent_group is 'owner: inbox';

comment on table agent_group_given is 'owner: inbox';

comment on table agent_group_member is 'owner: inbox';

comment on table agent_key is 'owner: features/agents';

comment on table agent_token is 'owner: features/agents';

comment on table announcement is 'owner: features/announcements';

comment on table announcement_recipient is 'owner: features/announcements';

comment on table approval is 'owner: features/approvals';

comment on table approval_asked is 'owner: features/approvals';

comment on table block is 'owner: features/blocks';

comment on table cluster is 'owner: node';

comment on table code_guard is 'owner: features/accounts';

comment on table conversation is 'owner: features/conversations';

comment on table device is 'owner: features/devices';

comment on table email_change is 'owner: features/accounts';

comment on table email_code is 'owner: features/accounts';

comment on table event is 'owner: inbox';

comment on table event_object is 'owner: objects';

comment on table group_key is 'owner: features/group_keys';

comment on table idempotency is 'owner: features/messages';

comment on table inbox is 'owner: inbox';

comment on table inbox_entry is 'owner: inbox';

comment on table inbox_reader is 'owner: inbox';

comment on table job is 'owner: jobs';

comment on table key_backup is 'owner: features/keys';

comment on table key_backup_erasure is 'owner: features/keys';

comment on table login_guard is 'owner: features/accounts';

comment on table login_notice is 'owner: features/accounts';

comment on table member is 'owner: features/conversations';

comment on table member_activity is 'owner: features/conversations';

comment on table message is 'owner: features/messages';

comment on table message_deletion is 'owner: features/messages';

comment on table message_ref is 'owner: features/messages';

comment on table message_token is 'owner: features/messages';

comment on table object is 'owner: objects';

comment on table passkey is 'owner: features/passkeys';

comment on table passkey_challenge is 'owner: features/passkeys';

comment on table passkey_device is 'owner: features/devices';

comment on table public_key is 'owner: features/keys';

comment on table push_subscription is 'owner: features/push';

comment on table push_sweep is 'owner: features/push';

comment on table push_wake is 'owner: features/push';

comment on table reconcile_log is 'owner: delivery';

comment on table relation is 'owner: features/relations';

comment on table security_notice is 'owner: features/accounts';

comment on table session is 'owner: features/devices';

comment on table share is 'owner: features/shares';

comment on table tool_call is 'owner: features/tool_calls';

comment on table tool_consent is 'owner: features/tool_calls';

comment on table upload is 'owner: features/files';

comment on table upload_audit is 'owner: features/files';

comment on table user_account is 'owner: features/accounts';

comment on table webhook is 'owner: features/webhooks';

comment on table webhook_delivery is 'owner: features/webhooks';

comment on table webhook_stop is 'owner: features/webhooks';

comment on table webhook_sweep is 'owner: features/webhooks';

comment on table webhook_turn is 'owner: features/webhooks';
