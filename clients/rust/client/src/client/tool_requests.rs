//! Tool calls on this device: shown, decided, executed once, signed.

use blindpipe_e2ee::{
    consent::{Decision, Sensitivity},
    envelope::{Place, Request},
};
use blindpipe_protocol::{
    agents,
    ids::Principal,
    text::AnswerReason,
    tool_calls::{AnswerStatus, RespondArtifact, ToolCall, ToolCallState},
};
use serde_json::{Value, json};

use super::Client;
use crate::{
    Content, Result,
    session::{Found, SealOptions, envelope_of, payload_of, principal, unix_ms},
    transport::Call,
};

/// An agent's wish to run a tool here. Show the decrypted arguments, never the prompt alone.
pub struct ToolRequest {
    client: Client,
    call: ToolCall,
    request: Request,
    arguments: Content,
    prompt: Option<String>,
    digest: [u8; 32],
}

impl ToolRequest {
    /// The call as the server tells it.
    #[must_use]
    pub const fn call(&self) -> &ToolCall {
        &self.call
    }

    /// The decrypted arguments.
    #[must_use]
    pub const fn arguments(&self) -> &Content {
        &self.arguments
    }

    /// The agent's words beside them.
    #[must_use]
    pub fn prompt(&self) -> Option<&str> {
        self.prompt.as_deref()
    }

    /// Decides by this device's own table of tools and its own records: the server's word can only
    /// raise the sensitivity.
    #[must_use]
    pub fn decide(&self) -> Decision {
        let manifest = match self.call.sensitivity {
            agents::Sensitivity::Low => Sensitivity::Low,
            agents::Sensitivity::Medium => Sensitivity::Medium,
            agents::Sensitivity::High => Sensitivity::High,
        };
        self.client.consent(|consents, me, now| {
            let agent = principal(Principal::Agent(self.call.agent_id));
            let conversation = self.call.conversation_id.0.into_bytes();
            consents.decide(me, conversation, agent, &self.request, Some(manifest), now)
        })
    }

    /// The person agreed: this agent may use the scope here, by the rules of its sensitivity.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Store`].
    pub fn approve(&self) -> Result<()> {
        self.client.consent(|consents, _, now| {
            let agent = principal(Principal::Agent(self.call.agent_id));
            let conversation = self.call.conversation_id.0.into_bytes();
            consents.approve(conversation, agent, &self.call.scope, now);
        });
        self.client.save()
    }

    /// Runs the tool once, and answers with its result in this device's name. Whatever began before
    /// is not run again.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Store`] before anything ran; every refusal of the service.
    pub async fn execute<F>(&self, run: impl FnOnce(&Content) -> F) -> Result<()>
    where
        F: Future<Output = Result<Value>>,
    {
        if !self.begin()? {
            return Ok(());
        }
        match run(&self.arguments).await {
            Ok(result) => {
                let content = json!({ "result": result });
                self.respond(AnswerStatus::Executed, None, &content).await
            }
            Err(error) => {
                let content = json!({ "message": error.to_string() });
                let reason = Some("tool_failed");
                self.respond(AnswerStatus::Failed, reason, &content).await
            }
        }
    }

    /// Refuses.
    ///
    /// # Errors
    ///
    /// As [`Self::execute`].
    pub async fn deny(&self, reason: &str) -> Result<()> {
        if !self.begin()? {
            return Ok(());
        }
        self.respond(AnswerStatus::Denied, Some(reason), &json!({}))
            .await
    }

    /// Noted durably before anything is executed. False if it began before.
    fn begin(&self) -> Result<bool> {
        let agent = principal(Principal::Agent(self.call.agent_id));
        let id = &self.call.request_id;
        let is_new = self
            .client
            .consent(|consents, _, _| consents.begin(agent, id));
        self.client.save()?;
        Ok(is_new)
    }

    async fn respond(
        &self,
        status: AnswerStatus,
        reason: Option<&str>,
        content: &Value,
    ) -> Result<()> {
        let session = self.client.session()?;
        let place = Place::Response {
            digest: self.digest,
            request_id: self.call.request_id.clone(),
            status: status.as_str().to_owned(),
            reason: reason.map(str::to_owned),
        };
        let id = self.call.conversation_id;
        let bytes = content.to_string();
        let sealed = session.seal(id, &place, bytes.as_bytes(), SealOptions::default());
        let body = RespondArtifact {
            status,
            reason: reason.map(|reason| AnswerReason(reason.to_owned())),
            payload: Some(payload_of(&sealed.await?)),
        };
        let path = format!("/artifact-requests/{}/response", self.call.request_id);
        let call = Call::post(path, &body).repeatable();
        session.http.data::<ToolCallState>(call).await?;
        Ok(())
    }
}

impl Client {
    /// Opens a request. No device executes a request that does not open.
    pub(super) async fn open_tool_request(&self, call: ToolCall) -> Result<ToolRequest> {
        let session = self.session()?;
        let request = Request {
            asked: call.user_id.0.into_bytes(),
            request_id: call.request_id.clone(),
            tool: call.tool.clone(),
            scope: call.scope.clone(),
            device_id: call.device_id.clone(),
        };
        let envelope = envelope_of(Some(&call.payload))?;
        let place = Place::Request(request.clone());
        let found = Found {
            conversation_id: call.conversation_id,
            sender: Principal::Agent(call.agent_id),
            place: &place,
            envelope: &envelope,
            created_at: unix_ms(call.created_at),
            live: true,
        };
        let shown = Box::pin(session.open(&found)).await?;
        let opened = shown.opened.ok_or(blindpipe_e2ee::Error::Clear)?;
        let conversation = call.conversation_id.0.into_bytes();
        let agent = call.agent_id.0.into_bytes();
        let digest = request.digest(conversation, agent, &opened.content)?;
        let arguments = opened.json.get("arguments").and_then(Value::as_object);
        let prompt = opened.json.get("prompt").and_then(Value::as_str);
        Ok(ToolRequest {
            client: self.clone(),
            arguments: arguments.cloned().unwrap_or_default(),
            prompt: prompt.map(str::to_owned),
            request,
            digest,
            call,
        })
    }
}
