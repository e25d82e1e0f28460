//! A person's agents.

use blindpipe_protocol::{
    agents::{
        Agent, AgentKeys, AgentView, ChangeAgent, CreateAgent, CreatedAgent, DeletedAgent,
        Manifest, RegenerateToken, RegeneratedToken, RevokedToken,
    },
    ids::AgentId,
    text::DisplayName,
};

use super::Client;
use crate::{Result, session::raw, transport::Call};

impl Client {
    /// Creates an agent of this person. Its token is never shown again.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn create_agent(
        &self,
        name: &str,
        manifest: Option<&Manifest>,
    ) -> Result<CreatedAgent> {
        let body = CreateAgent {
            display_name: DisplayName(name.to_owned()),
            description: None,
            manifest: manifest.map(raw),
        };
        self.http().data(Call::post("/agents", &body)).await
    }

    /// A page of this person's agents, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn agents(&self, cursor: Option<String>) -> Result<(Vec<Agent>, Option<String>)> {
        let call = Call::get("/agents").query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// An agent: whole for its owner, its card for others.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn agent(&self, id: AgentId) -> Result<AgentView> {
        self.http().data(Call::get(format!("/agents/{id}"))).await
    }

    /// Changes the name or the purpose of an agent of this person.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn update_agent(&self, id: AgentId, change: &ChangeAgent) -> Result<Agent> {
        let call = Call::patch(format!("/agents/{id}"), change);
        self.http().data(call).await
    }

    /// The public keys of an agent.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn agent_keys(&self, id: AgentId) -> Result<AgentKeys> {
        let call = Call::get(format!("/agents/{id}/keys"));
        self.http().data(call).await
    }

    /// A new token for an agent of this person. The old one ends after its grace, or at once in an
    /// emergency, which also suspends the webhook.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn regenerate_token(&self, id: AgentId, emergency: bool) -> Result<RegeneratedToken> {
        let path = format!("/agents/{id}/token/regenerate");
        let call = Call::post(path, &RegenerateToken { emergency });
        self.http().data(call).await
    }

    /// Ends the token and the keys of an agent of this person at once, without another one.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn revoke_token(&self, id: AgentId) -> Result<RevokedToken> {
        let call = Call::delete(format!("/agents/{id}/token"));
        self.http().data(call).await
    }

    /// Deletes an agent of this person for good.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn delete_agent(&self, id: AgentId) -> Result<DeletedAgent> {
        let call = Call::delete(format!("/agents/{id}"));
        self.http().data(call).await
    }
}
