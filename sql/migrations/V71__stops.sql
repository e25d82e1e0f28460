-- Stops that a webhook's receiver gets by a call of their own, beside the deliveries in order. A row goes once the
-- deliveries have passed its event, or once the call has failed.
create table webhook_stop (
    agent_id        uuid        not null,
    event_id        uuid        not null,                                 -- turn.stop
    is_taken        boolean     not null default false,                   -- a worker makes the call
    is_answered     boolean     not null default false,                   -- with 2xx: the deliveries leave the event out
    wait_until      timestamptz not null,                                 -- the deliveries wait for the answer until then
    primary key (agent_id, event_id)
);
create index webhook_stop_age on webhook_stop (wait_until);
