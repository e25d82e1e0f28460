//! Blocks: principals whom a user does not want to meet in new conversations.
//!
//! Promises: after the answer to a block, the blocked user opens no conversation with the blocker
//! and adds them to no group, and is answered as if the blocker did not exist. A blocked agent gets
//! no relation. Conversations that exist go on.
//!
//! Both sides lock the blocker's account row: a block for itself, an opening for sharing. The
//! opening reads the blocks in a later statement, so the two come one after the other.

pub(crate) mod http;
mod store;

pub use self::store::{blockers, end_all, is_blocked};
