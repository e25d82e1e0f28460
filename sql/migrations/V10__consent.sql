-- Consent: what users let agents do, the agents' calls of tools, and the log of what agents read.

-- A user's answer to an agent that asked for permission scopes in a conversation.
create table agent_grant (
    grant_id         uuid        primary key,                             -- ULID
    agent_id         uuid        not null references agent,
    user_id          uuid        not null references user_account,        -- is asked, decides, and holds the grant
    conversation_id  uuid        not null references conversation,
    relation_id      uuid        not null references relation,            -- the grant ends with it
    status           text        not null default 'pending'
        constraint agent_grant_status check (status in ('pending', 'approved', 'denied', 'revoked', 'expired')),
    requested_scopes text[]      not null,                                -- sorted, each once
    sensitivities    text[]      not null,                                -- of those, when they were requested
    scopes           text[]      not null,                                -- requested, from the decision on granted
    reason           text,
    ttl_seconds      integer,                                             -- life of an approval; null: until it is revoked
    created_at       timestamptz not null default app_now(),
    expires_at       timestamptz,                                         -- end of the status pending or approved
    decided_at       timestamptz,
    decided_by       text,                                                -- device_id of the deciding device
    revoked_at       timestamptz
);
create index agent_grant_of_user on agent_grant (user_id, grant_id);
create index agent_grant_of_agent on agent_grant (agent_id, user_id, conversation_id) where status in ('pending', 'approved');
create index agent_grant_agent on agent_grant (agent_id);
create index agent_grant_of_conversation on agent_grant (conversation_id, user_id);
create index agent_grant_of_relation on agent_grant (relation_id);
-- A request that is repeated while it waits finds itself.
create unique index agent_grant_pending on agent_grant (agent_id, user_id, conversation_id, requested_scopes)
    where status = 'pending';

-- Grants with the state that counts now: a time may have passed, or the relation may have ended.
create view agent_grant_shown as
    select g.*, case when g.status not in ('pending', 'approved') then g.status
                     when r.state <> 'active' then 'revoked'
                     when g.expires_at <= app_now() then 'expired'
                     else g.status end as state
    from agent_grant g join relation r using (relation_id);

-- A call of a tool. Its arguments are in the event that announced it; here is what happened to it.
create table tool_call (
    call_id         uuid        primary key,                              -- ULID
    agent_id        uuid        not null references agent,
    request_id      text        not null,                                 -- the agent's name for the call
    user_id         uuid        not null references user_account,         -- is asked
    conversation_id uuid        not null references conversation,
    grant_id        uuid        references agent_grant,                   -- allowed it; null: none did
    tool            text        not null,
    scope           text        not null,
    sensitivity     text        not null check (sensitivity in ('low', 'medium', 'high')),
    device_id       text,                                                 -- is asked; null: all devices of the user
    prompt_required boolean     not null,
    status          text        not null default 'pending'
        constraint tool_call_status check (status in ('pending', 'executed', 'denied', 'failed')),
    reason          text,                                                 -- why it was denied or failed
    result          text,                                                 -- JSON: the device's payload
    answered_by     text,                                                 -- device_id
    created_at      timestamptz not null default app_now(),
    expires_at      timestamptz not null,                                 -- denied then, unless a device answered
    ended_at        timestamptz,
    constraint tool_call_request unique (agent_id, request_id),
    constraint tool_call_of_user unique (user_id, request_id)
);
-- Ciphertext does not compress, so Postgres does not try.
alter table tool_call alter column result set storage external;
create index tool_call_of_conversation on tool_call (conversation_id);
create index tool_call_of_grant on tool_call (grant_id) where grant_id is not null;
create index tool_call_due on tool_call (expires_at) where status = 'pending';
create index tool_call_age on tool_call (created_at);

-- A person agreed to a call of medium sensitivity on this device. For 24 hours after the last call, the next one runs
-- without a prompt there.
create table tool_consent (
    user_id         uuid        not null,
    device_id       text        not null,
    agent_id        uuid        not null,
    conversation_id uuid        not null,
    scope           text        not null,
    used_at         timestamptz not null,
    primary key (user_id, device_id, agent_id, conversation_id, scope),
    foreign key (user_id, device_id) references device on update cascade on delete cascade
);
create index tool_consent_age on tool_consent (used_at);

-- The access log: a row for each read of user data by an agent, never changed, never deleted. Rows of a subject are
-- chained: each holds the SHA-256 of the previous row's hash and its own columns. The subject is the user whose data it
-- is; for a group it is the group, because a row per member and read would be hundreds.
create table access_log (
    subject_id      uuid        not null,
    seq             bigint      not null,                                 -- 1, 2, 3 per subject
    access_id       uuid        not null,                                 -- ULID
    agent_id        uuid        not null,
    conversation_id uuid,                                                 -- null: data of no conversation
    kind            text        not null check (kind in (
        'conversation_list', 'conversation', 'history', 'poll', 'push', 'keys', 'group_keys', 'object', 'tool_call')),
    items           bigint      not null,                                 -- messages, events, keys ... that it got
    from_seq        bigint,                                               -- the first and the last of them: of messages
    to_seq          bigint,                                               -- in a history, of events in the agent's inbox
    at              timestamptz not null,
    hash            bytea       not null,
    primary key (subject_id, seq)
);
create index access_log_newest on access_log (subject_id, access_id);
create index access_log_of_agent on access_log (subject_id, agent_id, access_id);

-- The end of each chain. The lock on it orders the rows of a subject, and a dropped tail is missed here.
create table access_log_head (
    subject_id      uuid        primary key,
    seq             bigint      not null,
    hash            bytea       not null
) with (fillfactor = 40);

-- The first ULID of a millisecond.
create function ulid_floor(at timestamptz) returns uuid language sql immutable parallel safe as
    $$ select (lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid $$;

-- Numbers, dates and chains a row. It runs with its owner's rights, so a role that inserts cannot touch the heads.
create function access_log_chain() returns trigger language plpgsql
    security definer set search_path = public, pg_temp as $$
declare
    previous bytea;
begin
    insert into access_log_head as head (subject_id, seq, hash) values (new.subject_id, 1, decode(repeat('00', 32), 'hex'))
    on conflict (subject_id) do update set seq = head.seq + 1
    returning head.seq, head.hash into new.seq, previous;
    new.at := app_now();
    new.access_id := (left(replace(ulid_floor(new.at)::text, '-', ''), 12)
        || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid;
    new.hash := sha256(previous || convert_to(concat_ws('|', new.subject_id, new.seq, new.access_id, new.agent_id,
        coalesce(new.conversation_id::text, '-'), new.kind, new.items, coalesce(new.from_seq::text, '-'),
        coalesce(new.to_seq::text, '-'), (extract(epoch from new.at) * 1000000)::bigint), 'UTF8'));
    update access_log_head set hash = new.hash where subject_id = new.subject_id;
    return new;
end $$;
revoke all on function access_log_chain from public;

create function access_log_is_append_only() returns trigger language plpgsql as $$
begin
    -- The chain's own trigger moves a head.
    if tg_table_name = 'access_log_head' and tg_op in ('INSERT', 'UPDATE') and pg_trigger_depth() > 1 then
        return new;
    end if;
    raise exception 'the access log is append-only' using errcode = 'insufficient_privilege';
end $$;

create trigger access_log_chain before insert on access_log
    for each row execute function access_log_chain();
create trigger access_log_rows before update or delete on access_log
    for each row execute function access_log_is_append_only();
create trigger access_log_truncate before truncate on access_log
    for each statement execute function access_log_is_append_only();
create trigger access_log_head_rows before insert or update or delete on access_log_head
    for each row execute function access_log_is_append_only();
create trigger access_log_head_truncate before truncate on access_log_head
    for each statement execute function access_log_is_append_only();
