-- The inbox: one durable, numbered sequence of events per principal. Sockets, polls and webhooks all read it.

-- The head of each inbox. The lock on this row, held to commit, makes the numbers gapless and puts them in commit order.
create table inbox (
    principal_id    uuid        primary key,                              -- user or agent
    head_seq        bigint      not null default 0
) with (
    fillfactor = 40,
    -- Dead versions are pruned page by page. A vacuum every 2 % keeps the free space known in a table of any size.
    autovacuum_vacuum_scale_factor = 0.02
);

-- The content of an event. An event that announces a message has no row here: the message row is its content.
create table event (
    event_id        uuid        primary key,                              -- ULID
    kind            text        not null,                                 -- a name of the event catalogue
    conversation_id uuid,
    created_at      timestamptz not null default app_now(),
    data            text        not null                                  -- JSON
) with (
    -- A thirtieth of the rows goes every day. Small vacuums make room before the table grows.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02
);
create index event_age on event (created_at);

-- All events that one statement brings to one inbox are one row: a burst of messages into a large group costs a row per
-- member, not one per member and message. A row holds events, or a run of messages with rising numbers in a single
-- conversation, or other messages.
create table inbox_entry (
    principal_id    uuid        not null,
    seq             bigint      not null,                                 -- of its last event
    created_at      timestamptz not null default app_now(),
    events          integer     not null,                                 -- how many
    conversation_id uuid,                                                 -- a run's conversation
    message_seq     bigint,                                               -- the number of its last message there
    event_ids       uuid[],                                               -- rows of event
    conversation_ids uuid[],                                              -- other messages: their conversations,
    message_seqs    bigint[],                                             -- and their numbers there
    primary key (principal_id, seq)
) with (
    -- A thirtieth of the rows goes every day. Small vacuums make room before the table grows.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02
);
-- Retention walks by age, oldest first. This btree grows at its right edge only.
create index inbox_entry_age on inbox_entry (created_at);

-- How far a reader has come: one row per agent (all its connections share it), one per device of a user.
create table inbox_reader (
    principal_id    uuid        not null,
    device_id       text        not null default '',                      -- empty for agents
    acked_seq       bigint      not null,
    -- The events that an agent got by socket or webhook are in the access log up to here. Those up to its ack are still to
    -- be logged.
    logged_seq      bigint      not null default 0,
    primary key (principal_id, device_id)
) with (
    fillfactor = 40,
    -- As for inbox.
    autovacuum_vacuum_scale_factor = 0.02
);

create index inbox_reader_of_agent on inbox_reader (principal_id) where device_id = '';

-- An operator raises `restores` after restoring a backup; every cursor given out before is then refused.
create table cluster (
    only_row        boolean     primary key default true check (only_row),
    restores        integer     not null default 0
);
insert into cluster default values;

-- Rises whenever committed events may have been lost: the timeline that Postgres writes (16 bits up), and the restores.
-- Every statement asks this function, so an engine without timelines needs another body here and nothing else.
create function inbox_epoch() returns bigint language plpgsql stable as $$
begin
    return (select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint << 16 | (restores & 65535)
            from cluster);
end
$$;
