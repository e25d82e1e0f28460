//! Everything through the public interface, against real Postgres and Redis, mostly on two nodes.

mod api;
mod auth;
mod delivery;
mod faults;
mod house;
mod limits;
mod support;
