//! The public keys of agents: `/agents/{agent_id}/keys`.

use serde::{Deserialize, Serialize};

use crate::{ids::AgentId, keys::Introduction, text::Scheme, time::Timestamp};

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

/// The data of `agent.key_ending`. The agent keeps the key by registering it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentKeyEnding {
    /// The agent.
    pub agent_id: AgentId,
    /// The id of the pair of keys.
    pub key_id: String,
    /// The end of its grace.
    pub valid_until: Timestamp,
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
