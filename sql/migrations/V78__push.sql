-- Push: wakes for devices without a socket. A subscription belongs to a session, and dies with it.

create table push_subscription (
    session_id      uuid        primary key references session on delete cascade,
    user_id         uuid        not null references user_account,
    kind            text        not null constraint push_subscription_kind_check check (kind in ('webpush', 'unifiedpush')),
    sealed_endpoint bytea       not null,                                 -- address and keys; the first four bytes name the sealing key
    server_key      integer     not null,                                 -- names the server's key that the push service knows
    revision        integer     not null default 0,                       -- of the PUT; fences off calls to an earlier address
    epoch           bigint      not null,                                 -- of read_seq
    read_seq        bigint      not null,                                 -- events up to this number are wakes already, or need none
    last_error      text,                                                 -- a word, without the push service's data
    created_at      timestamptz not null default app_now(),
    updated_at      timestamptz not null default app_now()
) with (fillfactor = 40);
create index push_subscription_of_user on push_subscription (user_id);
create index push_subscription_sealed on push_subscription (substring(sealed_endpoint from 1 for 4));
comment on table push_subscription is 'owner: features/push';

-- Events to push, one row per device and slot. A row without an event is the rest of a window, in which nothing is
-- pushed. Workers claim the rows that are due.
create table push_wake (
    session_id      uuid        not null references push_subscription on delete cascade,
    slot            uuid        not null,                                 -- the conversation; the event, if it shares no push
    event           text,                                                 -- its name; null: nothing waits
    event_id        uuid,
    conversation_id uuid,
    subject_id      text,                                                 -- the approval, request or grant
    seq             bigint,                                               -- the event's number in the inbox
    is_urgent       boolean     not null,
    expires_at      timestamptz not null,                                 -- from then on it is worth no push
    attempts        integer     not null default 0,                       -- failed
    claim           integer     not null default 0,                       -- of the latest worker; fences off a worker that lost its lease
    is_parked       boolean     not null default false,                   -- a socket of the device may still ack it
    due_at          timestamptz not null default app_now(),               -- the next look, or the end of the lease
    primary key (session_id, slot)
) with (fillfactor = 40);
create index push_wake_due on push_wake (due_at);
comment on table push_wake is 'owner: features/push';

-- How far the sweep for lost hints has come.
create table push_sweep (
    only_row        boolean     primary key default true check (only_row),
    swept_until     timestamptz not null
);
insert into push_sweep (swept_until) values (app_now());
comment on table push_sweep is 'owner: features/push';
