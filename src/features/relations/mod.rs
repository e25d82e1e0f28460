//! Relations: what lets an agent be with a user, and what becomes of their messages when it ends.
//!
//! Promises: only the user opens and ends a relation; from the answer to its end on, no node takes a message from the
//! agent under it; seven days later what the two said to each other is purged, unless they are related again by then.
//! Groups are never purged: others were spoken to there.

pub(crate) mod http;
mod store;

pub use blindpipe_protocol::relations::Relation;

pub(crate) use self::store::{active, end_next, open};
use crate::{db::Db, error::Result};

/// Purges some of what is due; true while there may be more.
pub async fn purge(db: &Db) -> Result<bool> {
    store::purge(db).await
}
