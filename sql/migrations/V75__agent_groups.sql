-- Consumer groups of an agent: its shared sockets split the conversations of a group among them. These rows alone say
-- what a socket may be given. No lease here depends on Redis.

create table agent_group (
    agent_id        uuid        not null references agent,
    name            text        not null,
    acked_seq       bigint      not null,                                 -- everything up to it is finished
    done            int8multirange not null default '{}',                 -- finished numbers beyond it
    used_at         timestamptz not null default app_now(),               -- the last time that a connection came or went
    primary key (agent_id, name)
) with (fillfactor = 40);
create index agent_group_age on agent_group (used_at);

-- The shared sockets of a group. A lease ends by the real time, because a moved clock ends no connection.
create table agent_group_member (
    connection_id   uuid        primary key,
    agent_id        uuid        not null,
    name            text        not null,
    is_live         boolean     not null default true,                    -- false: it has ended, and what it was given waits for the lease
    lease_until     timestamptz not null,
    foreign key (agent_id, name) references agent_group on delete cascade
) with (fillfactor = 40);
create index agent_group_member_group on agent_group_member (agent_id, name);

-- Events that sockets were given and have not acked. While a row of a conversation is there, no other socket gets any of it.
create table agent_group_given (
    agent_id        uuid        not null,
    name            text        not null,
    seq             bigint      not null,                                 -- in the agent's inbox
    conversation_id uuid        not null,                                 -- the agent's id for an event without a conversation
    connection_id   uuid        not null references agent_group_member on delete cascade,
    place           bigint      generated always as identity,             -- the order in which it was given
    primary key (agent_id, name, seq)
) with (
    autovacuum_vacuum_scale_factor = 0.02
);
create index agent_group_given_connection on agent_group_given (connection_id, place);
