-- Keys of conversations, wrapped by a member for each device of each member. Old epochs stay: what was said under them
-- is still there to be read.
create table group_key (
    conversation_id uuid        not null references conversation,
    epoch           integer     not null,
    principal_id    uuid        not null,
    device_id       text        not null,                                 -- empty for agents
    wrapped_key     text        not null,                                 -- opaque
    rotated_at      timestamptz not null default app_now(),
    primary key (conversation_id, principal_id, epoch, device_id)
);
