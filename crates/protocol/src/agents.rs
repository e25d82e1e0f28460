//! Agents: `/agents`, their tokens, keys and manifests.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AgentId, ConnectionId, UserId},
    raw::RawJson,
    text::{Description, DisplayName, Secret},
    time::Timestamp,
};

words! {
    /// What an agent is. Whether it is online is not a state.
    pub enum AgentState {
        /// It has no key yet.
        Registered = "registered",
        /// It has a token and a key.
        Active = "active",
        /// Its webhook failed too often; an ack of any kind brings it back.
        Unreachable = "unreachable",
        /// Its owner has revoked its token.
        TokenRevoked = "token_revoked",
        /// Its owner has deleted it.
        Deleted = "deleted",
    }
}

words! {
    /// How an agent gets its events.
    pub enum DeliveryMode {
        /// By socket or poll.
        Pull = "pull",
        /// By signed POSTs to its address.
        Webhook = "webhook",
    }
}

words! {
    /// What holds one of a principal's connections.
    pub enum ConnectionKind {
        /// A socket.
        Websocket = "websocket",
        /// A webhook call under way.
        Webhook = "webhook",
    }
}

words! {
    /// How much harm a permission scope can do.
    pub enum Sensitivity {
        /// Little.
        Low = "low",
        /// Asked for once a day.
        Medium = "medium",
        /// Asked for every time.
        High = "high",
    }
}

/// The body of `POST /agents`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateAgent {
    /// What the agent is called.
    pub display_name: DisplayName,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<Description>,
    /// What it can do: a [`Manifest`] of at most 128 KB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Manifest>))]
    pub manifest: Option<RawJson>,
}

/// What `POST /agents` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreatedAgent {
    /// The agent.
    pub agent_id: AgentId,
    /// Its token, which is never shown again.
    pub token: Secret,
    /// What it is called.
    pub display_name: String,
    /// Always `registered`.
    pub state: AgentState,
    /// When it was made.
    pub created_at: Timestamp,
}

/// An agent as its owner and itself see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Agent {
    /// The agent; the next page starts after it.
    pub agent_id: AgentId,
    /// Its owner.
    pub owner_user_id: UserId,
    /// What it is called.
    pub display_name: String,
    /// What it is for; null if it does not say.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub description: Option<String>,
    /// What it is.
    pub state: AgentState,
    /// How it gets its events.
    pub delivery_mode: DeliveryMode,
    /// What it can do, as it was sent; null if it has not said.
    #[cfg_attr(feature = "schema", schema(required = true, value_type = Option<Manifest>))]
    pub manifest: Option<RawJson>,
    /// Rises with every manifest; 0 without.
    pub manifest_version: i32,
    /// The manifest's size as it was sent.
    pub manifest_size_bytes: u64,
    /// Its current pair of keys; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub key_id: Option<String>,
    /// Its current token; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub token: Option<AgentTokenInfo>,
    /// Its live connections over all nodes, the oldest first.
    pub connections: Vec<Connection>,
    /// How far it has read.
    pub inbox: InboxInfo,
    /// Since when it is unreachable; null if it is not.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub unreachable_since: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What an owner may know of an agent's token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentTokenInfo {
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to the minute; null if never.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_used_at: Option<Timestamp>,
    /// Until when the token before it is good; null if there is none.
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
    /// When it was let in.
    pub connected_at: Timestamp,
}

/// How far an agent has read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InboxInfo {
    /// The number of its newest event.
    pub head_seq: i64,
    /// The number up to which it has acknowledged.
    pub acked_seq: i64,
    /// Events that wait.
    pub lag: i64,
}

/// An agent as those see it who talk with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentCard {
    /// The agent.
    pub agent_id: AgentId,
    /// What it is called.
    pub display_name: String,
    /// What it is for; null if it does not say.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub description: Option<String>,
    /// What it is.
    pub state: AgentState,
    /// What it can do, as it was sent; null if it has not said.
    #[cfg_attr(feature = "schema", schema(required = true, value_type = Option<Manifest>))]
    pub manifest: Option<RawJson>,
    /// Rises with every manifest; 0 without.
    pub manifest_version: i32,
    /// Its current pair of keys; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub key_id: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What `GET /agents/{agent_id}` answers: all of it to the owner and the agent, a card to others.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum AgentView {
    /// To its owner and itself.
    Full(Box<Agent>),
    /// To users who have a relation or share a conversation with it.
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

/// What `DELETE /agents/{agent_id}` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedAgent {
    /// The agent.
    pub agent_id: AgentId,
    /// When it ended.
    pub deleted_at: Timestamp,
    /// Sockets that it had.
    pub connections_closed: usize,
}

/// What an agent says it can do. Unknown fields are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Manifest {
    /// A name; at most 200 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200))]
    pub name: Option<String>,
    /// What the agent is for; at most 4,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 4000))]
    pub description: Option<String>,
    /// The scopes that it will ask for.
    pub permission_scopes: Vec<PermissionScope>,
    /// The tools that it has.
    pub tools: Vec<Tool>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// A permission scope that an agent declares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PermissionScope {
    /// Its name, such as `notification:send`; each once.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 128))]
    pub scope: String,
    /// How much harm it can do; not below the preset of a known scope.
    pub sensitivity: Sensitivity,
    /// Why the agent asks for it; at most 1,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 1000))]
    pub reason: Option<String>,
}

/// A tool of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Tool {
    /// Its name; each once.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200))]
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<serde_json::Map<String, serde_json::Value>>,
    /// The scope that a call needs, one of the declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 128))]
    pub scope: Option<String>,
}

/// The body of `PATCH /agents/{agent_id}`; a bare [`Manifest`] does as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UpdateManifest {
    /// A [`Manifest`] of at most 128 KB.
    #[cfg_attr(feature = "schema", schema(value_type = Manifest))]
    pub manifest: RawJson,
    /// The version that it is to replace; any if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<i32>,
}

/// What `PATCH /agents/{agent_id}` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UpdatedManifest {
    /// The version of this manifest.
    pub manifest_version: i32,
    /// Its size as it was sent.
    pub size_bytes: usize,
    /// What its author may want to know.
    pub warnings: Vec<ManifestWarning>,
    /// Scopes that were added, taken away, or given another sensitivity.
    pub changed_scopes: Vec<String>,
}

/// Something in a manifest that is allowed and probably not meant.
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
    /// ISO 8601, at most 300 s from now.
    pub timestamp: String,
    /// Base64 of 64 bytes.
    pub signature: String,
}

/// What `POST /agents/{agent_id}/keys/register` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegisteredAgentKey {
    /// The pair of keys that is current now.
    pub key_id: String,
    /// The pair before it, while it is good; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_key_id: Option<String>,
    /// Until when; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_valid_until: Option<Timestamp>,
}

/// The body of `POST /agents/{agent_id}/keys/check`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckAgentKey {
    /// The pair of keys that the caller holds.
    pub key_id: String,
}

/// What `POST /agents/{agent_id}/keys/check` answers for a key that is good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckedAgentKey {
    /// The pair of keys.
    pub key_id: String,
    /// Whether it is the current one.
    pub current: bool,
    /// Until when it is good; null for the current one.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub valid_until: Option<Timestamp>,
}

/// What `GET /agents/{agent_id}/keys` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKeys {
    /// The agent.
    pub agent_id: AgentId,
    /// Its good keys, the current one first.
    pub keys: Vec<AgentKey>,
}

/// A pair of keys of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKey {
    /// The pair.
    pub key_id: String,
    /// The X25519 public key in base64.
    pub public_key: String,
    /// The Ed25519 public key in base64.
    pub signing_public_key: String,
    /// When it was registered.
    pub created_at: Timestamp,
    /// Whether it is the current one.
    pub current: bool,
    /// Until when it is good; null for the current one.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub valid_until: Option<Timestamp>,
}

/// The body of `POST /agents/{agent_id}/token/regenerate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegenerateToken {
    /// Whether all earlier tokens and keys die at once; else the current ones are good for 7 days more.
    pub emergency: bool,
}

/// What `POST /agents/{agent_id}/token/regenerate` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegeneratedToken {
    /// The new token, which is never shown again.
    pub token: Secret,
    /// As asked for.
    pub emergency: bool,
    /// Until when the token that it replaces is good; null if it is not.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_valid_until: Option<Timestamp>,
    /// Regenerations that are left in 24 hours.
    pub remaining_today: u32,
}

/// What `DELETE /agents/{agent_id}/token` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedToken {
    /// When the token was revoked.
    pub revoked_at: Timestamp,
    /// Sockets that it had.
    pub connections_closed: usize,
}

/// The data of `agent.state_changed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentStateChange {
    /// The agent.
    pub agent_id: AgentId,
    /// What it is now.
    pub state: AgentState,
    /// What it was.
    pub previous_state: AgentState,
    /// When it changed.
    pub at: Timestamp,
}

/// The data of `agent.key_registered`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKeyRegistration {
    /// The agent.
    pub agent_id: AgentId,
    /// Its new pair of keys.
    pub key_id: String,
}

/// The data of `agent.token_regenerated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TokenRegeneration {
    /// The agent.
    pub agent_id: AgentId,
    /// Whether all earlier tokens and keys died at once.
    pub emergency: bool,
    /// Until when the token before is good; null if it is not.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_valid_until: Option<Timestamp>,
}

/// The data of `agent.manifest_updated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ManifestUpdate {
    /// The agent.
    pub agent_id: AgentId,
    /// The version that holds now.
    pub manifest_version: i32,
    /// Scopes that were added, taken away, or given another sensitivity.
    pub changed_scopes: Vec<String>,
}
