-- Relations, conversations, members, messages.

create table relation (
    relation_id     uuid        primary key,                              -- ULID
    user_id         uuid        not null references user_account,
    agent_id        uuid        not null references agent,
    state           text        not null default 'active' check (state in ('active', 'revoked')),
    created_at      timestamptz not null default app_now(),
    revoked_at      timestamptz,
    purge_at        timestamptz,                                          -- revoked_at + 7 days, as callers are told
    purge_due       timestamptz,                                          -- when the purge looks next; null: not at all
    purge_through   bigint                                                -- the purge ends here if there is a newer relation
);
create unique index relation_active on relation (user_id, agent_id) where state = 'active';
create index relation_of_user on relation (user_id, relation_id);
-- The users of an agent's relations, in order.
create index relation_of_agent on relation (agent_id, state, user_id);
create index relation_purge on relation (purge_due) where purge_due is not null;

-- A row per conversation, updated by every send: the lock on it orders the messages. fillfactor leaves room for
-- updates on the same page, and no column that a send changes is indexed.
create table conversation (
    conversation_id  uuid        primary key,                             -- ULID
    kind             text        not null check (kind in ('direct', 'agent', 'group')),
    title            text,
    created_by       uuid        not null references user_account,
    created_at       timestamptz not null default app_now(),
    encryption       text        not null default 'optional' check (encryption in ('optional', 'required')),
    epoch            integer     not null default 0,                      -- of the group key
    rotation_required boolean    not null default false,
    rules_version    bigint      not null default 0,                      -- rises when members, roles, relations or encryption change
    pair_low         uuid,                                                -- the two principals of a direct or agent
    pair_high        uuid,                                                -- conversation, sorted: a pair has only one
    last_seq         bigint      not null default 0,                      -- of its messages: 1, 2, 3 without gaps
    last_message_id  uuid,
    last_sender_id   uuid,                                                -- with last_hop: stops agents that would answer
    last_sender_kind text,                                                -- each other for ever
    last_hop         smallint    not null default 0,
    last_activity_at timestamptz not null default app_now(),
    purged_seq       bigint      not null default 0,                      -- messages up to this have lost their payload
    constraint conversation_pair unique (pair_low, pair_high)
) with (
    fillfactor = 60,
    -- Dead versions are pruned page by page. A vacuum every 2 % keeps the free space known in a table of any size.
    autovacuum_vacuum_scale_factor = 0.02
);
create index conversation_of_creator on conversation (created_by);

create table member (
    conversation_id uuid        not null references conversation,
    principal_id    uuid        not null,                                 -- user or agent
    principal_kind  text        not null check (principal_kind in ('user', 'agent')),
    role            text        not null check (role in ('owner', 'admin', 'member', 'agent')),
    relation_id     uuid        references relation,                      -- the relation that admits an agent
    visibility      text        not null default 'all' check (visibility in ('all', 'addressed')),
    instance_id     uuid,                                                 -- ULID, of an agent in a group
    from_seq        bigint      not null default 0,                       -- sees the messages after this one
    -- With visibility `all`, an agent sees the messages after this one, and of those before only the ones that name it.
    all_from_seq    bigint      not null default 0,
    read_seq        bigint      not null default 0,                       -- has read up to this one
    joined_at       timestamptz not null default app_now(),
    primary key (conversation_id, principal_id)
);
create index member_of on member (principal_id, conversation_id);
-- The groups of an agent, without its conversations with single users. Those may be many.
create index member_instance on member (principal_id, conversation_id) where instance_id is not null;
-- The conversations that the end of a relation concerns.
create index member_of_relation on member (relation_id) where relation_id is not null;

-- Partitions by hash of the conversation: this table alone grows for ever. Eight pieces are vacuumed, frozen, rebuilt and
-- restored side by side. More of them cost every read, because a plan begins with all of them (ADR 63).
-- No foreign keys: the statement that inserts proves the sender's right and the conversation's existence, and each key
-- would cost a lock per message.
create table message (
    conversation_id   uuid        not null,
    seq               bigint      not null,                               -- gapless; commit order
    message_id        uuid        not null,                               -- ULID; looked up within its conversation
    sender_id         uuid        not null,
    sender_kind       text        not null,
    sender_device     text,
    client_message_id uuid,                                               -- as the sender gave it
    in_reply_to       uuid,
    hop               smallint    not null,                               -- agents' answers since a human spoke
    created_at        timestamptz not null,
    payload           text        not null,                               -- JSON as it was sent; opaque
    recipients        text[],                                             -- principals the sender named, as wire ids; null: all
    primary key (conversation_id, seq)
) partition by hash (conversation_id);
create unique index message_by_id on message (conversation_id, message_id);
-- Ciphertext does not compress, so Postgres does not try.
alter table message alter column payload set storage external;
-- An agent with visibility `addressed` reads only these.
create index message_addressed on message (conversation_id, seq) where recipients is not null;
do $$
begin
    for n in 0..7 loop
        -- Rows do not change once they are committed. The vacuum that follows 2 % of new rows freezes them at once, so
        -- that no later one reads the whole table against wraparound.
        execute format('create table message_%s partition of message for values with (modulus 8, remainder %s) with (
            autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 0)', n, n);
    end loop;
end $$;

-- The keys that a sender chose for its messages of the last 24 hours (ULID or UUID: both are 128 bits). The primary key
-- begins with the key, not with the sender: keys rise with time, so all senders write to the same few index pages, and
-- retention empties whole pages.
create table idempotency (
    key             uuid        not null,
    sender_id       uuid        not null,
    conversation_id uuid        not null,                                 -- the message that the key was used for
    seq             bigint      not null,
    created_at      timestamptz not null default app_now(),
    primary key (key, sender_id)
) with (
    -- A day's rows go every day. Small vacuums make room before the table grows.
    autovacuum_vacuum_scale_factor = 0.02
);
-- Retention walks by age. A btree, not brin: a brin range that rows were deleted from and added to matches any age.
create index idempotency_age on idempotency (created_at);

-- Concatenates arrays: a batch can bring several conversations' messages to one inbox.
create aggregate array_concat (anycompatiblearray) (sfunc = array_cat, stype = anycompatiblearray);
