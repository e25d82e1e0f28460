-- The inbox: one durable, numbered sequence of events per principal, read by sockets, polls and webhooks alike.

-- The head of each inbox. The lock on this row, held to commit, is what makes numbers gapless and in commit order.
create table inbox (
    principal_id    uuid        primary key,                              -- user or agent
    head_seq        bigint      not null default 0
) with (fillfactor = 40);

-- What an event says, unless it is a message (then the message row says it).
create table event (
    event_id        uuid        primary key,                              -- ULID
    kind            text        not null,                                 -- a name of the event catalogue
    conversation_id uuid,
    created_at      timestamptz not null default app_now(),
    data            text        not null                                  -- JSON
);

create table inbox_entry (
    principal_id    uuid        not null,
    seq             bigint      not null,
    event_id        uuid        not null,                                 -- an event, or the message it announces
    created_at      timestamptz not null default app_now(),
    primary key (principal_id, seq)
);
-- Retention walks by age; brin costs a send next to nothing.
create index inbox_entry_age on inbox_entry using brin (created_at);

-- How far a reader has come: one row per agent (all its connections share it), one per device of a user.
create table inbox_reader (
    principal_id    uuid        not null,
    device_id       text        not null default '',                      -- empty for agents
    acked_seq       bigint      not null,
    primary key (principal_id, device_id)
) with (fillfactor = 40);

-- What an operator raises after restoring a backup, so that every cursor given out before is refused.
create table cluster (
    only_row        boolean     primary key default true check (only_row),
    restores        integer     not null default 0
);
insert into cluster default values;
