//! Lost processes, lost networks, lost data, hostile input.

mod cleartext;
mod closed_connections;
mod early_answers;
mod failover;
mod forged_messages;
mod half_open;
mod hostile_clients;
mod load;
mod locks;
mod malformed_input;
mod non_readers;
mod outages;
mod panics;
mod pauses;
mod pooler;
mod popular_agent;
mod postgres_switch_over;
mod postgres_timeline_loss;
mod redis_cluster;
mod redis_sentinel;
mod redis_slots;
mod rolling_restart;
mod sqlstates;
mod stalled_standby;
mod sweeps;
