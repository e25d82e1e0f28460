-- Messages that refer to others, and messages that were deleted.
alter table message
    add column if not exists refs       uuid[],                           -- messages of the conversation, as the sender named them
    add column if not exists deleted_at timestamptz,                      -- the payload is empty from then on
    add column if not exists deleted_by text;                             -- a principal, as a wire id

-- The messages that refer to a message, newest last.
create table message_ref (
    conversation_id uuid        not null,
    referred_seq    bigint      not null,
    seq             bigint      not null,                                 -- of the message that refers
    primary key (conversation_id, referred_seq, seq)
);
