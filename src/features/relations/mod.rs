//! Relations: what lets an agent be with a user, and what becomes of their messages when it ends.
//!
//! Promises: only the user opens and ends a relation; from the answer to its end on, no node takes a message from the
//! agent under it; seven days later what the two said to each other is purged, unless they are related again by then.
//! Groups are never purged: others were spoken to there.

pub(crate) mod http;
mod store;

use chrono::{DateTime, Utc};
use serde::Serialize;

pub use self::store::{active, end_next, open};
use crate::{
    db::Db,
    error::Result,
    ids::{AgentId, RelationId, UserId},
};

/// What ties a user and an agent.
#[derive(Clone, Debug, Serialize)]
pub struct Relation {
    pub relation_id: RelationId,
    pub user_id: UserId,
    pub agent_id: AgentId,
    pub state: String,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
    #[serde(serialize_with = "crate::clock::as_iso_or_null")]
    pub revoked_at: Option<DateTime<Utc>>,
    /// When what was said under it is purged; null if it is not.
    #[serde(serialize_with = "crate::clock::as_iso_or_null")]
    pub purge_at: Option<DateTime<Utc>>,
}

/// Purges some of what is due; true while there may be more.
pub async fn purge(db: &Db) -> Result<bool> {
    store::purge(db).await
}
