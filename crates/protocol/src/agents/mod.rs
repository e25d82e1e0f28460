//! Agents: `/agents`, their tokens, keys and manifests.

mod keys;
mod manifest;
mod tokens;

use serde::{Deserialize, Serialize};

pub use self::{
    keys::{
        AgentKey, AgentKeyEnding, AgentKeyRegistration, AgentKeys, CheckAgentKey, CheckedAgentKey,
        RegisterAgentKey, RegisteredAgentKey,
    },
    manifest::{
        Manifest, ManifestUpdate, ManifestWarning, PermissionScope, Sensitivity, Tool,
        UpdateManifest, UpdatedManifest,
    },
    tokens::{AgentTokenInfo, RegenerateToken, RegeneratedToken, RevokedToken, TokenRegeneration},
};
use crate::{
    ids::{AgentId, ConnectionId, UserId},
    raw::RawJson,
    text::{Description, DisplayName, Secret},
    time::Timestamp,
};

words! {
    /// The state of an agent. Being online is not a state.
    pub enum AgentState {
        /// The agent has no key.
        Registered = "registered",
        /// The agent has a token and a key.
        Active = "active",
        /// Its webhook failed too often. Any ack makes it active again.
        Unreachable = "unreachable",
        /// Its owner has revoked its token.
        TokenRevoked = "token_revoked",
        /// Its owner has deleted it.
        Deleted = "deleted",
    }
}

words! {
    /// The way an agent gets its events.
    pub enum DeliveryMode {
        /// The agent reads by socket or poll.
        Pull = "pull",
        /// The server sends signed POSTs to the agent's address.
        Webhook = "webhook",
    }
}

words! {
    /// The events that a socket of an agent is given.
    pub enum ConnectionMode {
        /// Every event.
        All = "all",
        /// The events of its share of the conversations, within a consumer group.
        Shared = "shared",
    }
}

words! {
    /// The kind of a principal's connection.
    pub enum ConnectionKind {
        /// A WebSocket of `/ws`.
        Websocket = "websocket",
        /// A webhook call in progress.
        Webhook = "webhook",
    }
}

/// The body of `POST /agents`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateAgent {
    /// The agent's display name.
    pub display_name: DisplayName,
    /// The agent's purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Description>,
    /// A [`Manifest`] of at most 128 KB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Manifest>))]
    pub manifest: Option<RawJson>,
}

/// The body of `PATCH /agents/{agent_id}` by the owner. It changes at least one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeAgent {
    /// The agent's display name; unchanged if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<DisplayName>,
    /// The agent's purpose; unchanged if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Description>,
}

/// The body of `PATCH /agents/{agent_id}`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PatchAgent {
    /// For the agent.
    Manifest(UpdateManifest),
    /// For its owner.
    Profile(ChangeAgent),
}

/// The answer to `PATCH /agents/{agent_id}`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PatchedAgent {
    /// For the agent.
    Manifest(UpdatedManifest),
    /// For its owner.
    Agent(Box<Agent>),
}

/// The answer to `POST /agents`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreatedAgent {
    /// The agent.
    pub agent_id: AgentId,
    /// Its token, which is never shown again.
    pub token: Secret,
    /// Its display name.
    pub display_name: String,
    /// Always `registered`.
    pub state: AgentState,
    /// The time of its creation.
    pub created_at: Timestamp,
}

/// An agent as its owner and the agent itself see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Agent {
    /// The agent; the next page starts after it.
    pub agent_id: AgentId,
    /// Its owner.
    pub owner_user_id: UserId,
    /// Its display name.
    pub display_name: String,
    /// Its purpose; null if not given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub description: Option<String>,
    /// The agent's state.
    pub state: AgentState,
    /// The way it gets its events.
    pub delivery_mode: DeliveryMode,
    /// The [`Manifest`] as received; null if the agent has none.
    #[cfg_attr(feature = "schema", schema(required = true, value_type = Option<Manifest>))]
    pub manifest: Option<RawJson>,
    /// The number of the manifest. It rises with every update; 0 without a manifest.
    pub manifest_version: i32,
    /// The size of the received manifest, in bytes.
    pub manifest_size_bytes: u64,
    /// The id of its current pair of keys; null without keys.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub key_id: Option<String>,
    /// Its current token; null without a token.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub token: Option<AgentTokenInfo>,
    /// Its live connections over all nodes, the oldest first.
    pub connections: Vec<Connection>,
    /// Its reading position.
    pub inbox: InboxInfo,
    /// The time since which it is unreachable; null if it is reachable.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub unreachable_since: Option<Timestamp>,
    /// The time of its creation.
    pub created_at: Timestamp,
}

/// A live connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Connection {
    /// The connection.
    pub connection_id: ConnectionId,
    /// A socket or a webhook call.
    pub kind: ConnectionKind,
    /// The time at which it was accepted.
    pub connected_at: Timestamp,
    /// How a socket reads; absent for webhook calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ConnectionMode>,
    /// The consumer group of a shared socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The conversations of which a shared socket has events that it has not acked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversations: Option<i64>,
    /// The events behind the durable ack of a shared socket's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<i64>,
}

/// An agent's reading position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InboxInfo {
    /// The number of its newest event.
    pub head_seq: i64,
    /// The number up to which it has acknowledged.
    pub acked_seq: i64,
    /// The number of waiting events.
    pub lag: i64,
}

/// An agent as its conversation partners see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentCard {
    /// The agent.
    pub agent_id: AgentId,
    /// Its display name.
    pub display_name: String,
    /// Its purpose; null if not given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub description: Option<String>,
    /// The agent's state.
    pub state: AgentState,
    /// The [`Manifest`] as received; null if the agent has none.
    #[cfg_attr(feature = "schema", schema(required = true, value_type = Option<Manifest>))]
    pub manifest: Option<RawJson>,
    /// The number of the manifest. It rises with every update; 0 without a manifest.
    pub manifest_version: i32,
    /// The id of its current pair of keys; null without keys.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub key_id: Option<String>,
    /// The time of its creation.
    pub created_at: Timestamp,
}

/// The answer to `GET /agents/{agent_id}`: all of it for the owner and the agent, a card for
/// others.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum AgentView {
    /// The view of its owner and of the agent itself.
    Full(Box<Agent>),
    /// The view of users who have a relation or share a conversation with it.
    Card(AgentCard),
}

impl<'de> Deserialize<'de> for AgentView {
    // An untagged enum cannot hold raw JSON.
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let raw = RawJson::deserialize(from)?;
        match serde_json::from_str(raw.as_str()) {
            Ok(agent) => Ok(AgentView::Full(agent)),
            Err(_) => serde_json::from_str(raw.as_str())
                .map(AgentView::Card)
                .map_err(D::Error::custom),
        }
    }
}

/// The answer to `DELETE /agents/{agent_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedAgent {
    /// The agent.
    pub agent_id: AgentId,
    /// The time of the deletion.
    pub deleted_at: Timestamp,
    /// The number of closed sockets.
    pub connections_closed: usize,
}

/// The data of `agent.state_changed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentStateChange {
    /// The agent.
    pub agent_id: AgentId,
    /// The agent's new state.
    pub state: AgentState,
    /// The agent's previous state.
    pub previous_state: AgentState,
    /// The time of the change.
    pub at: Timestamp,
}
