//! `GET /health`, `GET /version`.

use serde::{Deserialize, Serialize};

/// What `GET /health` answers while the node takes traffic; `SERVICE_UNAVAILABLE` while it drains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// What `GET /version` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Version {
    /// Versions of the interface that are served.
    pub supported: Vec<String>,
    /// The version of paths without a version.
    pub default: String,
    /// The version of the server.
    pub build: String,
}
