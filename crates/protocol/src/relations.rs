//! Relations of users and agents: `/relations`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AgentId, RelationId, UserId},
    time::Timestamp,
};

words! {
    /// The state of a relation.
    pub enum RelationState {
        /// The agent may write to the user.
        Active = "active",
        /// The user has ended it.
        Revoked = "revoked",
    }
}

/// The relation of a user and an agent, which lets the agent write to the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Relation {
    /// The relation; the next page starts after it.
    pub relation_id: RelationId,
    /// The user.
    pub user_id: UserId,
    /// The agent.
    pub agent_id: AgentId,
    /// The state of the relation.
    pub state: RelationState,
    /// The time of the start.
    pub created_at: Timestamp,
    /// The end of the relation; null while it is active.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub revoked_at: Option<Timestamp>,
    /// The time of its messages' purge; null if none is due.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub purge_at: Option<Timestamp>,
}
