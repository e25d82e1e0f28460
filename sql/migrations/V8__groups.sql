-- The ends of relations and what is purged after them, groups, read marks, messages for some.

alter table relation
    add column purge_due     timestamptz,                                 -- when the purge looks next; null: not at all
    add column purge_through bigint;                                      -- it may go this far, if there is a newer relation
update relation set purge_due = purge_at where state = 'revoked';
create index relation_purge on relation (purge_due) where purge_due is not null;
create index relation_of_user on relation (user_id, relation_id);

alter table conversation
    add column purged_seq    bigint      not null default 0;              -- messages up to this have lost their payload

alter table member
    add column from_seq      bigint      not null default 0,              -- sees the messages after this: who joins, joins now
    add column read_seq      bigint      not null default 0,              -- has read up to this
    add column visibility    text        not null default 'all' check (visibility in ('all', 'addressed')),
    add column instance_id   uuid;                                        -- ULID, of an agent in a group
-- The conversations that the end of a relation concerns.
create index member_of_relation on member (relation_id) where relation_id is not null;

-- Whom the sender named, as the wire shows ids; an agent that is only `addressed` gets no other messages.
alter table message add column recipients text[];
create index message_addressed on message (conversation_id, seq) where recipients is not null;
