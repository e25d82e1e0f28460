//! Grants, a user's permission for an agent's scopes: `/agents/{agent_id}/grants/request`,
//! `/grants`.

use serde::{Deserialize, Serialize};

use crate::{
    agents::Sensitivity,
    ids::{AgentId, ConversationId, GrantId, UserId},
    text::{GrantReason, Scope},
    time::Timestamp,
};

words! {
    /// The status of a grant.
    pub enum GrantStatus {
        /// The user has not decided.
        Pending = "pending",
        /// The agent may use the granted scopes.
        Approved = "approved",
        /// The user has refused.
        Denied = "denied",
        /// The user has taken it back, or the relation has ended.
        Revoked = "revoked",
        /// Its time has passed, decided or not.
        Expired = "expired",
    }
}

words! {
    /// A user's decision about a request.
    pub enum Decision {
        /// All scopes or some of them are granted.
        Approve = "approve",
        /// Nothing is granted.
        Deny = "deny",
    }
}

/// The body of `POST /agents/{agent_id}/grants/request`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestGrant {
    /// The conversation in which the agent wants to use the scopes.
    pub conversation_id: ConversationId,
    /// The user to ask. Required in groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// 1 to 16 scopes of the agent's manifest.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 16))]
    pub scopes: Vec<Scope>,
    /// The reason that the user reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<GrantReason>,
    /// The life of the approval, 60 seconds to 365 days; without it until the user revokes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 60, maximum = 31_536_000))]
    pub ttl_seconds: Option<i64>,
}

/// The body of `POST /grants/{grant_id}/decision`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DecideGrant {
    /// The decision.
    pub decision: Decision,
    /// The granted scopes, some of the requested ones; all if omitted. Not with `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<Scope>>,
}

/// A requested scope with its sensitivity in the manifest at the time of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestedScope {
    /// The scope.
    pub scope: String,
    /// The harm that it can do. A later manifest may raise it, and cannot lower it for this grant.
    pub sensitivity: Sensitivity,
}

/// A grant: an item of `GET /grants`, and the data of `grant.*` events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The grant; the next page starts after it.
    pub grant_id: GrantId,
    /// The agent that asked.
    pub agent_id: AgentId,
    /// The user who decides.
    pub user_id: UserId,
    /// The conversation in which it holds.
    pub conversation_id: ConversationId,
    /// The current status.
    pub status: GrantStatus,
    /// The requested scopes.
    pub requested: Vec<RequestedScope>,
    /// The granted scopes; before the decision, the requested ones. Empty if they were denied.
    pub scopes: Vec<String>,
    /// The agent's reason; null if it gave none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub reason: Option<String>,
    /// The requested life of the approval; null if it has no end.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub ttl_seconds: Option<i64>,
    /// The time of the request.
    pub created_at: Timestamp,
    /// The end of the request while it is pending, and of the approval afterwards; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub expires_at: Option<Timestamp>,
    /// The time of the decision; null before it.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub decided_at: Option<Timestamp>,
    /// The time of the revocation; null before it.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub revoked_at: Option<Timestamp>,
}

/// The query of `GET /grants`, beside `limit` and `cursor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GrantsQuery {
    /// Only grants in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<GrantStatus>,
    /// Only grants of this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Only grants in this conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
}
