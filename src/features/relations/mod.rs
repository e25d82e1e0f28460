//! Relations: an agent's right to write to a user, and the turns of the purge after its end.
//!
//! Promises: only the user opens and ends a relation. After the answer to its end, no node accepts
//! a message from the agent under it. Seven days later the messages of the two are purged, unless
//! they are related again by then. Groups are never purged, because they have other members.

pub(crate) mod http;
mod store;

pub use blindpipe_protocol::relations::Relation;

pub(crate) use self::store::{
    active, end_next, end_purge, end_turn, end_with, is_due, is_first_with_stranger, lock_pair,
    next_due, open, revoke, step_back,
};
