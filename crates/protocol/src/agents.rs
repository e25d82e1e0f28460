//! Agents: `/agents`, their tokens, keys and manifests.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AgentId, ConnectionId, UserId},
    keys::Introduction,
    raw::RawJson,
    text::{Description, DisplayName, Scheme, Secret},
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
    /// The kind of a principal's connection.
    pub enum ConnectionKind {
        /// A WebSocket of `/ws`.
        Websocket = "websocket",
        /// A webhook call in progress.
        Webhook = "webhook",
    }
}

words! {
    /// The harm that a permission scope can do.
    pub enum Sensitivity {
        /// Little harm.
        Low = "low",
        /// Users are asked once a day.
        Medium = "medium",
        /// Users are asked every time.
        High = "high",
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

/// An agent's declaration of its tools and scopes. Unknown fields are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Manifest {
    /// The agent's name, at most 200 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200))]
    pub name: Option<String>,
    /// The agent's purpose, at most 4,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 4000))]
    pub description: Option<String>,
    /// The scopes that it will ask for.
    pub permission_scopes: Vec<PermissionScope>,
    /// The tools of the agent.
    pub tools: Vec<Tool>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// A permission scope that an agent declares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionScope {
    /// Its name, such as `notification:send`. No two scopes have the same name.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 128))]
    pub scope: String,
    /// The harm that it can do, at least the preset of a known scope.
    pub sensitivity: Sensitivity,
    /// The agent's reason for the scope, at most 1,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 1000))]
    pub reason: Option<String>,
}

/// A tool of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Tool {
    /// Its name. No two tools have the same name.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200))]
    pub name: String,
    /// A description of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<serde_json::Map<String, serde_json::Value>>,
    /// The scope that a call needs; the manifest must declare it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 128))]
    pub scope: Option<String>,
}

/// The body of `PATCH /agents/{agent_id}`; a bare [`Manifest`] is accepted too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UpdateManifest {
    /// A [`Manifest`] of at most 128 KB.
    #[cfg_attr(feature = "schema", schema(value_type = Manifest))]
    pub manifest: RawJson,
    /// The version that it replaces; any if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<i32>,
}

/// The answer to `PATCH /agents/{agent_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UpdatedManifest {
    /// The version of this manifest.
    pub manifest_version: i32,
    /// The size of the received manifest, in bytes.
    pub size_bytes: usize,
    /// Hints for the author.
    pub warnings: Vec<ManifestWarning>,
    /// Scopes that were added, removed, or given another sensitivity.
    pub changed_scopes: Vec<String>,
}

/// An allowed but probably unintended part of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ManifestWarning {
    /// `large` or `scope_not_declared`.
    pub code: String,
    /// The place in the body.
    pub path: String,
    /// English text for developers.
    pub message: String,
}

/// The body of `POST /agents/{agent_id}/keys/register`.
///
/// The signature is Ed25519 by the new signing key over
/// `keys-register|<agent_id>|<public_key>|<signing_public_key>|<timestamp>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegisterAgentKey {
    /// The X25519 public key: base64 of 32 bytes.
    pub public_key: String,
    /// The Ed25519 public key: base64 of 32 bytes.
    pub signing_public_key: String,
    /// The time of signing in ISO 8601, at most 300 s from the server's time.
    pub timestamp: String,
    /// The signature: base64 of 64 bytes.
    pub signature: String,
    /// The signature of an earlier key of the agent, for its readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub introduction: Option<Introduction>,
    /// The encryption schemes that the agent speaks, at most 8; unchanged if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemes: Option<Vec<Scheme>>,
}

/// The answer to `POST /agents/{agent_id}/keys/register`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegisteredAgentKey {
    /// The id of the current pair of keys.
    pub key_id: String,
    /// The id of the previous pair of keys while it is valid; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_key_id: Option<String>,
    /// The end of the previous pair's grace; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_valid_until: Option<Timestamp>,
}

/// The body of `POST /agents/{agent_id}/keys/check`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckAgentKey {
    /// The id of the pair of keys that the caller holds.
    pub key_id: String,
}

/// The answer to `POST /agents/{agent_id}/keys/check` for a valid key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckedAgentKey {
    /// The id of the pair of keys.
    pub key_id: String,
    /// Whether it is the current one.
    pub current: bool,
    /// The end of its grace; null for the current pair.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub valid_until: Option<Timestamp>,
}

/// The answer to `GET /agents/{agent_id}/keys`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKeys {
    /// The agent.
    pub agent_id: AgentId,
    /// The version of the list. It rises with every change.
    pub list_version: i32,
    /// Its valid keys, the current pair first.
    pub keys: Vec<AgentKey>,
}

/// A pair of keys of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKey {
    /// The id of the pair.
    pub key_id: String,
    /// The X25519 public key in base64.
    pub public_key: String,
    /// The Ed25519 public key in base64.
    pub signing_public_key: String,
    /// The encryption schemes that the agent speaks.
    pub schemes: Vec<String>,
    /// The signature of an earlier key; absent if none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub introduction: Option<Introduction>,
    /// The time of the registration.
    pub created_at: Timestamp,
    /// Whether it is the current one.
    pub current: bool,
    /// The end of its grace; null for the current pair.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub valid_until: Option<Timestamp>,
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

/// The data of `agent.key_registered`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKeyRegistration {
    /// The agent.
    pub agent_id: AgentId,
    /// The id of its new pair of keys.
    pub key_id: String,
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

/// The data of `agent.manifest_updated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ManifestUpdate {
    /// The agent.
    pub agent_id: AgentId,
    /// The current version of the manifest.
    pub manifest_version: i32,
    /// Scopes that were added, removed, or given another sensitivity.
    pub changed_scopes: Vec<String>,
}
