-- Webhooks: the third reader of an agent's inbox. Their cursor is the agent's row in inbox_reader.

create table webhook (
    agent_id        uuid        primary key references agent,
    url             text        not null,
    status          text        not null constraint webhook_status_check
                                check (status in ('pending_verification', 'active', 'suspended')),
    credential_id   uuid        not null,                                 -- calls under way end when it is revoked; each PUT has another
    sealed_secret   bytea,                                                -- null: invalidated by a suspension
    sealed_previous bytea,                                                -- the secret before the last rotation
    previous_valid_until timestamptz,                                     -- it signs until then
    last_error      text,                                                 -- a word, without the receiver's data
    verified_at     timestamptz,
    created_at      timestamptz not null default app_now(),
    updated_at      timestamptz not null default app_now()
);

create index webhook_credential on webhook (credential_id);

-- The turn of an agent: one worker at a time delivers an agent's events. Workers claim the turns that are due. This row
-- changes with every delivery, so the webhook itself stands elsewhere.
create table webhook_turn (
    agent_id        uuid        primary key references webhook on delete cascade,
    is_open         boolean     not null default false,                   -- the webhook is active and the agent reachable
    due_at          timestamptz,                                          -- the next turn, or the end of the lease; null: nothing to do
    turn            integer     not null default 0,                       -- of the latest claim; fences off a worker that lost its lease
    is_leased       boolean     not null default false,
    is_woken        boolean     not null default false,                   -- an event came during the turn
    is_parked       boolean     not null default false,                   -- a socket is online; events do not hasten the turn
    has_open        boolean     not null default false,                   -- a retry waits in the log
    has_replays     boolean     not null default false,                   -- a delivery was asked for by hand
    not_before      timestamptz,                                          -- the receiver asked for this pause
    failures        integer     not null default 0,                       -- failed attempts since the last success
    done            int8multirange not null default '{}'                  -- finished numbers beyond the cursor
) with (fillfactor = 40);
create index webhook_turn_due on webhook_turn (due_at) where due_at is not null and failures = 0;
-- Receivers that fail have an index of their own, so that many of them do not delay the others.
create index webhook_turn_retry on webhook_turn (due_at) where due_at is not null and failures > 0;

-- How far the sweep for lost wake-ups has come.
create table webhook_sweep (
    only_row        boolean     primary key default true check (only_row),
    swept_until     timestamptz not null
);
insert into webhook_sweep (swept_until) values (app_now());

-- The log of deliveries, a partition per day. The ids are UUIDs of version 7, so their order is that of time. An open
-- delivery (pending or failed) is also the state that another worker continues from.
create table webhook_delivery (
    agent_id        uuid        not null,
    delivery_id     uuid        not null,
    seq             bigint,                                               -- the event's number in the inbox; null for webhook.test
    event           text        not null,                                 -- its name
    status          text        not null constraint webhook_delivery_status_check
                                check (status in ('pending', 'success', 'failed', 'exhausted')),
    attempts        integer     not null default 0,                       -- begun
    log             text[]      not null default '{}',                    -- finished attempts, as JSON
    next_attempt_at timestamptz,
    is_replay       boolean     not null default false,                   -- asked for by hand; moves no cursor
    primary key (agent_id, delivery_id)
) partition by range (delivery_id);
create index webhook_delivery_by_status on webhook_delivery (agent_id, status, delivery_id);

-- The least UUID of version 7 of a day.
create function first_uuid_of(day date) returns uuid language sql immutable as $$
select (lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the partitions of the days from yesterday to a week ahead and drops those that are older than `retained`
-- days. Owned by the role that migrates, because the serving role may not create tables.
create function rotate_webhook_deliveries(retained integer) returns integer language plpgsql security definer
    set search_path = public as $$
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
            and right(c.relname, 8) < to_char(today - retained, 'YYYYMMDD')
    loop
        execute format('drop table %I', part);
    end loop;
    return made;
end
$$;
revoke all on function rotate_webhook_deliveries from public;
