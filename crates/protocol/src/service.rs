//! `GET /health`, `GET /version`.

use serde::{Deserialize, Serialize};

/// The answer to `GET /health` while the node accepts traffic; `SERVICE_UNAVAILABLE` while it
/// drains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// The answer to `GET /version`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Version {
    /// The supported versions of the interface.
    pub supported: Vec<String>,
    /// The version of paths without a version.
    pub default: String,
    /// The version of the server.
    pub build: String,
}
