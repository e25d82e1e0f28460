-- Approvals: questions of agents to people. Each stands beside its message, which has the sealed question.

create table approval (
    approval_id     uuid        primary key,                              -- the message
    conversation_id uuid        not null,
    seq             bigint      not null,                                 -- of the message
    agent_id        uuid        not null,
    kind            text        not null constraint approval_kind check (kind in ('approve', 'ask')),
    digest          bytea       not null constraint approval_digest check (octet_length(digest) = 32), -- of the plaintext
    quorum          bigint      not null,                                 -- yes of so many people
    deny_quorum     bigint      not null,                                 -- no of so many people
    state           text        not null default 'open' constraint approval_state check (state in (
        'open', 'approved', 'answered', 'denied', 'expired', 'withdrawn')),
    reason          text        constraint approval_reason check (reason in (
        'deadline', 'undecidable', 'nobody_left', 'relation_revoked', 'agent_removed')),
    created_at      timestamptz not null,
    expires_at      timestamptz not null,
    closed_at       timestamptz
);
-- The lists of callers and the purge look in a conversation.
create index approval_of_conversation on approval (conversation_id, approval_id);
create index approval_open on approval (conversation_id, approval_id) where state = 'open';
create index approval_due on approval (expires_at) where state = 'open';

-- The people of an approval: those who are asked, and their decisions. Who leaves undecided is asked no longer.
create table approval_asked (
    approval_id     uuid        not null references approval on delete cascade,
    user_id         uuid        not null,
    agent_id        uuid        not null,                                 -- of the approval
    is_open         boolean     not null default true,                    -- whether the approval is
    decision        text        constraint approval_asked_decision check (decision in ('approved', 'answered', 'denied')),
    decided_at      timestamptz,                                          -- as the device signed it
    answer_digest   bytea       constraint approval_asked_answer check (octet_length(answer_digest) = 32),
    key_id          text,
    signature       bytea       constraint approval_asked_signature check (octet_length(signature) = 64),
    message_id      uuid,                                                 -- the sealed answer
    recorded_at     timestamptz,                                          -- the order of decisions
    primary key (approval_id, user_id)
);
-- The open approvals of an agent with a user are counted.
create index approval_asked_open on approval_asked (agent_id, user_id) where is_open;
create index approval_asked_message on approval_asked (message_id) where message_id is not null;

-- Agents' reads of decisions have rows in the access log. The next migration validates the check.
alter table access_log drop constraint access_log_kind_check;
alter table access_log add constraint access_log_kind_check check (kind in (
    'conversation_list', 'conversation', 'history', 'poll', 'push', 'keys', 'group_keys', 'object', 'tool_call', 'approval'))
    not valid;
