//! Tool calls: a device executes and signs, or nobody does.

use std::{collections::HashMap, time::Duration};

use blindpipe_e2ee::{
    consent::Asked,
    envelope::{Place, Request},
};
use blindpipe_protocol::{
    ids::{ConversationId, Principal, UserId},
    raw::RawJson,
    text::{DeviceId, RequestId, Scope, ToolName},
    tool_calls::{RequestArtifact, ToolCallOutcome, ToolCallState, ToolCallStatus},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::{
    Content, Error, Result, content,
    session::{Found, SealOptions, envelope_of, payload_of, raw},
    transport::Call,
};

/// Events bring answers at once; this look is for answers that come another way.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

/// A request to a device.
#[derive(Clone, Debug, Default)]
pub struct ToolCall {
    /// The tool.
    pub tool: String,
    /// The scope that the tool needs.
    pub scope: String,
    /// Its arguments.
    pub arguments: Content,
    /// The words that the person reads beside the arguments.
    pub prompt: Option<String>,
    /// The device that is asked; all devices of the person without it.
    pub device: Option<String>,
    /// The user who is asked; by default the one who was spoken to.
    pub user: Option<UserId>,
    /// A name of this call within the event, instead of its number.
    pub key: Option<String>,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// `executed` counts only with an envelope of the person asked, for exactly this request.
    pub status: CallStatus,
    /// The reason, if one was given; `unproven` where `executed` was said without proof.
    pub reason: Option<String>,
    /// The device's result; null unless executed.
    pub result: Value,
    /// The device's words.
    pub message: Option<String>,
}

/// The ways in which a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// The device has executed it, and has signed that.
    Executed,
    /// The person, the time or a missing grant has refused it.
    Denied,
    /// The device has failed, or nothing proves what is said.
    Failed,
}

struct Outcome {
    status: ToolCallStatus,
    reason: Option<String>,
    payload: Option<RawJson>,
}

impl From<ToolCallState> for Outcome {
    fn from(state: ToolCallState) -> Self {
        Self {
            status: state.status,
            reason: state.reason,
            payload: state.payload,
        }
    }
}

/// The calls that wait for their outcome.
#[derive(Default)]
pub(super) struct ToolCalls {
    waiting: Mutex<HashMap<String, oneshot::Sender<Outcome>>>,
}

impl ToolCalls {
    /// Gives an outcome to its call, before any queue.
    pub(super) fn deliver(&self, outcome: ToolCallOutcome) {
        let waiting = self.waiting.lock().remove(&outcome.request_id);
        let outcome = Outcome {
            status: outcome.status,
            reason: outcome.reason,
            payload: outcome.payload,
        };
        if let Some(waiting) = waiting {
            waiting.send(outcome).ok();
        }
    }
}

/// A call that is being made.
struct Asking<'a> {
    core: &'a Core,
    conversation_id: ConversationId,
    user: UserId,
    request: Request,
    content: Vec<u8>,
    sealed: bool,
}

impl Core {
    pub(super) async fn call(
        &self,
        conversation_id: ConversationId,
        user: UserId,
        request_id: String,
        call: ToolCall,
        stopping: &CancellationToken,
    ) -> Result<CallResult> {
        let mut given = Content::new();
        given.insert("arguments".to_owned(), Value::Object(call.arguments));
        given.extend(
            call.prompt
                .map(|prompt| ("prompt".to_owned(), prompt.into())),
        );
        let content = content::encode(&given)?;
        let clear = self.clear_allowed;
        let sealed = self.session.is_to_be_sealed(conversation_id, clear).await?;
        let asking = Asking {
            core: self,
            conversation_id,
            user,
            request: Request {
                asked: user.0.into_bytes(),
                request_id,
                tool: call.tool,
                scope: call.scope,
                device_id: call.device,
            },
            content,
            sealed,
        };
        let payload = asking.payload(given).await?;
        let outcome = asking.outcome(payload, stopping).await?;
        asking.judge(outcome).await
    }
}

impl Asking<'_> {
    async fn payload(&self, mut given: Content) -> Result<RawJson> {
        if !self.sealed {
            given.insert("type".to_owned(), "tool_call".into());
            return Ok(raw(&given));
        }
        let place = Place::Request(self.request.clone());
        let (session, id) = (&self.core.session, self.conversation_id);
        let sealed = session.seal(id, &place, &self.content, SealOptions::default());
        Ok(payload_of(&sealed.await?))
    }

    async fn outcome(&self, payload: RawJson, stopping: &CancellationToken) -> Result<Outcome> {
        let (sender, answer) = oneshot::channel();
        let waiting = &self.core.tool_calls.waiting;
        let request_id = &self.request.request_id;
        waiting.lock().insert(request_id.clone(), sender);
        let outcome = async {
            let state = self.ask(&payload).await?;
            if state.status != ToolCallStatus::Pending {
                return Ok(state.into());
            }
            tokio::select! {
                Ok(outcome) = answer => Ok(outcome),
                outcome = self.look(&payload) => outcome,
                () = stopping.cancelled() => Err(Error::closed()),
            }
        };
        let outcome = outcome.await;
        waiting.lock().remove(request_id);
        outcome
    }

    /// A request that was made before answers its present state.
    async fn ask(&self, payload: &RawJson) -> Result<ToolCallState> {
        let Request {
            request_id,
            tool,
            scope,
            device_id,
            ..
        } = self.request.clone();
        let body = RequestArtifact {
            request_id: RequestId(request_id),
            conversation_id: self.conversation_id,
            user_id: Some(self.user),
            tool: ToolName(tool),
            scope: Scope(scope),
            device_id: device_id.map(DeviceId),
            payload: payload.clone(),
        };
        let path = format!("/agents/{}/artifact-requests", self.core.agent_id);
        let call = Call::post(path, &body).repeatable();
        self.core.http.data(call).await
    }

    /// Looks until there is an outcome, or a refusal that lasts.
    async fn look(&self, payload: &RawJson) -> Result<Outcome> {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            match self.ask(payload).await {
                Ok(state) if state.status != ToolCallStatus::Pending => return Ok(state.into()),
                Err(error) if !error.is_retryable() => return Err(error),
                _ => {}
            }
        }
    }

    async fn judge(&self, outcome: Outcome) -> Result<CallResult> {
        if !self.sealed {
            let payload = outcome.payload.as_ref().map(RawJson::as_str);
            let content = payload.and_then(|payload| serde_json::from_str(payload).ok());
            return Ok(result_of(&outcome, &content.unwrap_or_default()));
        }
        match self.open(&outcome).await {
            Ok(content) => Ok(result_of(&outcome, &content)),
            Err(Error::Decrypt(_)) if outcome.status == ToolCallStatus::Executed => {
                Ok(CallResult {
                    status: CallStatus::Failed,
                    reason: Some("unproven".to_owned()),
                    result: Value::Null,
                    message: None,
                })
            }
            Err(Error::Decrypt(_)) => Ok(result_of(&outcome, &Content::new())),
            Err(error) => Err(error),
        }
    }

    async fn open(&self, outcome: &Outcome) -> Result<Content> {
        let conversation = self.conversation_id.0.into_bytes();
        let agent = self.core.agent_id.0.into_bytes();
        let asked = Asked::new(conversation, agent, &self.request, &self.content)?;
        let place = Place::Response {
            digest: asked.digest,
            request_id: self.request.request_id.clone(),
            status: outcome.status.as_str().to_owned(),
            reason: outcome.reason.clone(),
        };
        let envelope = envelope_of(outcome.payload.as_ref())?;
        let found = Found {
            conversation_id: self.conversation_id,
            sender: Principal::User(self.user),
            place: &place,
            envelope: &envelope,
            created_at: self.core.session.clock.now_ms(),
            live: true,
        };
        let shown = self.core.session.prove(&asked, &found).await?;
        match shown.opened.map(|opened| opened.json) {
            Some(Value::Object(content)) => Ok(content),
            _ => Err(blindpipe_e2ee::Error::NotJson.into()),
        }
    }
}

fn result_of(outcome: &Outcome, content: &Content) -> CallResult {
    let status = match outcome.status {
        ToolCallStatus::Executed => CallStatus::Executed,
        ToolCallStatus::Denied => CallStatus::Denied,
        ToolCallStatus::Failed | ToolCallStatus::Pending => CallStatus::Failed,
    };
    let executed = status == CallStatus::Executed;
    let result = content.get("result").filter(|_| executed);
    let message = content.get("message").and_then(Value::as_str);
    CallResult {
        status,
        reason: outcome.reason.clone(),
        result: result.cloned().unwrap_or_default(),
        message: message.map(str::to_owned),
    }
}
