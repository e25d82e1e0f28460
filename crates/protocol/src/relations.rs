//! Relations: what lets an agent be with a user. `/relations`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AgentId, RelationId, UserId},
    time::Timestamp,
};

words! {
    /// Whether a relation holds.
    pub enum RelationState {
        /// It holds.
        Active = "active",
        /// The user has ended it.
        Revoked = "revoked",
    }
}

/// What ties a user and an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Relation {
    /// The relation; the next page starts after it.
    pub relation_id: RelationId,
    /// The user.
    pub user_id: UserId,
    /// The agent.
    pub agent_id: AgentId,
    /// Whether it holds.
    pub state: RelationState,
    /// When it began.
    pub created_at: Timestamp,
    /// When it ended; null while it holds.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub revoked_at: Option<Timestamp>,
    /// When what was said under it is purged; null if it is not.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub purge_at: Option<Timestamp>,
}
