//! The tokens of agents: `/agents/{agent_id}/token`.

use serde::{Deserialize, Serialize};

use crate::{ids::AgentId, text::Secret, time::Timestamp};

/// The part of an agent's token that its owner may see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentTokenInfo {
    /// The time of its creation.
    pub created_at: Timestamp,
    /// The time of its last use, to the minute; null if it was never used.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_used_at: Option<Timestamp>,
    /// The end of the previous token's grace; null without a token in grace.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub grace_until: Option<Timestamp>,
}

/// The body of `POST /agents/{agent_id}/token/regenerate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegenerateToken {
    /// Whether to revoke all earlier tokens and keys at once. Otherwise the current ones stay valid
    /// for 7 days.
    pub emergency: bool,
}

/// The answer to `POST /agents/{agent_id}/token/regenerate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegeneratedToken {
    /// The new token, which is never shown again.
    pub token: Secret,
    /// The value from the request.
    pub emergency: bool,
    /// The end of the replaced token's grace; null if it was revoked.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_valid_until: Option<Timestamp>,
    /// The remaining regenerations in 24 hours.
    pub remaining_today: u32,
}

/// The answer to `DELETE /agents/{agent_id}/token`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedToken {
    /// The time of the revocation.
    pub revoked_at: Timestamp,
    /// The number of closed sockets.
    pub connections_closed: usize,
}

/// The data of `agent.token_regenerated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TokenRegeneration {
    /// The agent.
    pub agent_id: AgentId,
    /// Whether all earlier tokens and keys were revoked at once.
    pub emergency: bool,
    /// The end of the previous token's grace; null if it was revoked.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_valid_until: Option<Timestamp>,
}
