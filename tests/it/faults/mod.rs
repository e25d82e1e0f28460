//! Lost processes, lost networks, lost data, hostile input.

mod cleartext;
mod closed_connections;
mod early_answers;
mod failover;
mod forged_messages;
mod half_open;
mod hostile_clients;
mod locks;
mod malformed_input;
mod non_readers;
mod outages;
mod panics;
mod poolers;
mod postgres_timeline_loss;
mod redis_cluster;
mod rolling_restart;
mod sweeps;
