//! Manifests: an agent's tools and permission scopes.

use serde::{Deserialize, Serialize};

use crate::{ids::AgentId, raw::RawJson};

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

/// The body of `PATCH /agents/{agent_id}` by the agent; a bare [`Manifest`] is accepted too.
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

/// The answer to `PATCH /agents/{agent_id}` by the agent.
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
