-- Events for an audience without a bound: everybody who shares a conversation with a user, or has to do with an agent.
-- The transaction that makes such an event true writes it here and commits alone. A job tells the audience in pieces.

-- The audience is walked in stages: those who are told first, then users with a relation, then members of conversations.
-- A stage's place and its recipients are written in the transaction that appends to their inboxes.
create table announcement (
    announcement_id    bigint      generated always as identity primary key, -- the order of one principal's announcements
    principal_id       uuid        not null,                              -- the user or agent that the events are about
    principal_kind     text        not null check (principal_kind in ('user', 'agent')),
    event_ids          uuid[]      not null,                              -- rows of event, in the order of delivery
    first_recipients   uuid[]      not null,
    stage              text        not null default 'first'
        check (stage in ('first', 'relations', 'conversations', 'done')),
    after_conversation uuid        not null default '00000000-0000-0000-0000-000000000000', -- where the stage goes on
    after_principal    uuid        not null default '00000000-0000-0000-0000-000000000000'
);
create index announcement_of on announcement (principal_id, announcement_id);

-- Whom an announcement has reached: a recipient in ten conversations is told once. No foreign key: it would cost a lock
-- per recipient. The end of the walk deletes these rows.
create table announcement_recipient (
    announcement_id bigint      not null,
    principal_id    uuid        not null,
    primary key (announcement_id, principal_id)
);
