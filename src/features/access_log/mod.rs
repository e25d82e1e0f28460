//! The access log as its users read it, and its verification.
//!
//! Promises: a user sees every read of the user's data by an agent, and of groups that the user is
//! in. Nobody changes, removes or inserts a row unnoticed. A digest over all chains is published each
//! day.
//!
//! Why: ADR 35.

mod digest;
pub(crate) mod http;
mod rules;
mod store;
pub mod verify;

pub use self::digest::publish as publish_digest;
