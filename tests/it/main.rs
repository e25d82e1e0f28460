//! Everything through the public interface, against real Postgres and Redis, mostly on two nodes.

mod accounts;
mod agents;
mod catalogues;
mod conversations;
mod faults;
mod garbage;
mod gateway;
mod house;
mod messages;
mod operations;
mod passkeys;
mod slots;
mod streaming;
mod support;
