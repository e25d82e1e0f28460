-- Relations, conversations, members, messages.

create table relation (
    relation_id     uuid        primary key,                              -- ULID
    user_id         uuid        not null references user_account,
    agent_id        uuid        not null references agent,
    state           text        not null default 'active' check (state in ('active', 'revoked')),
    created_at      timestamptz not null default app_now(),
    revoked_at      timestamptz,
    purge_at        timestamptz                                           -- revoked_at + 7 days
);
create unique index relation_active on relation (user_id, agent_id) where state = 'active';

-- One row a conversation, updated by every send: the lock on it is what orders the messages. fillfactor leaves room
-- for updates on the same page, and nothing that a send changes is indexed.
create table conversation (
    conversation_id  uuid        primary key,                             -- ULID
    kind             text        not null check (kind in ('direct', 'agent', 'group')),
    title            text,
    created_by       uuid        not null references user_account,
    created_at       timestamptz not null default app_now(),
    encryption       text        not null default 'optional' check (encryption in ('optional', 'required')),
    epoch            integer     not null default 0,                      -- of the group key
    rotation_required boolean    not null default false,
    pair_low         uuid,                                                -- the two of a direct or agent conversation,
    pair_high        uuid,                                                -- in order, so that a pair has one only
    last_seq         bigint      not null default 0,                      -- of its messages: 1, 2, 3 without gaps
    last_message_id  uuid,
    last_sender_id   uuid,                                                -- for the guard against agents that answer
    last_sender_kind text,                                                -- each other for ever
    last_hop         smallint    not null default 0,
    last_activity_at timestamptz not null default app_now(),
    constraint conversation_pair unique (pair_low, pair_high)
) with (fillfactor = 60);

create table member (
    conversation_id uuid        not null references conversation,
    principal_id    uuid        not null,                                 -- user or agent
    principal_kind  text        not null check (principal_kind in ('user', 'agent')),
    role            text        not null check (role in ('owner', 'admin', 'member', 'agent')),
    relation_id     uuid        references relation,                      -- what lets an agent be here
    joined_at       timestamptz not null default app_now(),
    primary key (conversation_id, principal_id)
);
create index member_of on member (principal_id, conversation_id);

-- No foreign keys: the sender's right and the conversation's existence are proven in the statement that inserts, and
-- each key would cost a lock per message.
create table message (
    conversation_id   uuid        not null,
    seq               bigint      not null,                               -- gapless; commit order
    message_id        uuid        not null constraint message_id_key unique,
    sender_id         uuid        not null,
    sender_kind       text        not null,
    sender_device     text,
    client_message_id uuid,                                               -- as the sender gave it
    in_reply_to       uuid,
    hop               smallint    not null,                               -- agents' answers since a human spoke
    created_at        timestamptz not null,
    payload           text        not null,                               -- JSON as it was sent; opaque
    primary key (conversation_id, seq)
);
-- Ciphertext does not compress; do not try.
alter table message alter column payload set storage external;

-- What a sender has sent in the last 24 hours, by the id it chose (ULID or UUID: both are 128 bits).
create table idempotency (
    sender_id       uuid        not null,
    key             uuid        not null,
    message_id      uuid        not null,
    created_at      timestamptz not null default app_now(),
    primary key (sender_id, key)
);
create index idempotency_age on idempotency using brin (created_at);
