//! Everything through the public interface, against real Postgres and Redis, mostly on two nodes.

#![allow(
    clippy::too_many_lines,
    reason = "a test is a story, and rustfmt gives each step of a chain a line"
)]

mod api;
mod auth;
mod consent;
mod delivery;
mod egress;
mod faults;
mod files;
mod limits;
mod push;
mod repository;
mod support;
mod webhooks;
