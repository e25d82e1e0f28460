//! An agent's manifest.

use blindpipe_protocol::agents::{UpdateManifest, UpdatedManifest};
use serde_json::Value;

use super::Agent;
use crate::{Result, session::raw, transport::Call};

impl Agent {
    /// Replaces the agent's manifest.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn update_manifest(&self, manifest: &Value) -> Result<UpdatedManifest> {
        let core = self.start().await?;
        let body = UpdateManifest {
            manifest: raw(manifest),
            if_version: None,
        };
        let path = format!("/agents/{}", self.id());
        core.http.data(Call::patch(path, &body)).await
    }
}
