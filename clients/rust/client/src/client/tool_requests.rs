//! Tool calls on this device: shown, decided, executed once, signed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use blindpipe_e2ee::{
    Id, Principal as Owner,
    consent::{Decision, Sensitivity},
    envelope::{Place, Request},
    trust::{Notice, NoticeKind},
};
use blindpipe_protocol::{
    agents,
    errors::Code,
    ids::Principal,
    text::AnswerReason,
    tool_calls::{AnswerStatus, ClaimArtifact, RespondArtifact, ToolCall, ToolCallState},
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::Client;
use crate::{
    Content, Error, Hook, Result,
    session::{Found, SealOptions, envelope_of, payload_of, principal, unix_ms},
    transport::Call,
};

const NO_HANDLER: Error = Error::Usage("the tool has no handler; give one to execute_with");
const NOT_REMEMBERED: Error =
    Error::Usage("a tool of this device that is not `high` is remembered for 1 to 30 days");
const ANOTHER_IS_ASKED: Error = Error::Usage("another person or another device is asked");

/// Runs a tool of this device by its name.
pub(super) type ToolHandler =
    Arc<dyn Fn(String, Content) -> BoxFuture<'static, Result<Value>> + Send + Sync>;

/// An agent's wish to run a tool here. Show the decrypted arguments, never the prompt alone.
pub struct ToolRequest {
    client: Client,
    call: ToolCall,
    request: Request,
    arguments: Content,
    prompt: Option<String>,
    digest: [u8; 32],
    /// The person approved this request, and it was not executed yet.
    is_approved: AtomicBool,
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
    /// raise the sensitivity. A request that names another device is not for this one.
    #[must_use]
    pub fn decide(&self) -> Decision {
        if !self.is_for_me() {
            return Decision::Unable;
        }
        self.client.hear_choices();
        self.client.consent(|consents, me, now| {
            let (conversation, agent) = self.origin();
            let manifest = Some(self.manifest());
            consents.decide(me, conversation, agent, &self.request, manifest, now)
        })
    }

    /// Whether this person is asked, and no other device of theirs.
    fn is_for_me(&self) -> bool {
        let (me, own) = (self.client.user_id(), self.client.device_id());
        let named = self.request.device_id.as_ref();
        me.is_ok_and(|me| me == self.call.user_id)
            && named.is_none_or(|named| own.is_ok_and(|own| own == *named))
    }

    fn origin(&self) -> (Id, Owner) {
        let agent = principal(Principal::Agent(self.call.agent_id));
        (self.call.conversation_id.0.into_bytes(), agent)
    }

    fn manifest(&self) -> Sensitivity {
        match self.call.sensitivity {
            agents::Sensitivity::Low => Sensitivity::Low,
            agents::Sensitivity::Medium => Sensitivity::Medium,
            agents::Sensitivity::High => Sensitivity::High,
        }
    }

    /// The person agreed to this request, as it is shown, once. Later requests ask again.
    pub fn approve(&self) {
        self.is_approved.store(true, Ordering::Relaxed);
    }

    /// The person lets this agent use this tool in this conversation unasked, for 1 to 30 days.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for another number of days, a `high` tool, no tool of this device, and a request
    /// to another person or device; [`Error::Store`].
    pub fn remember(&self, days: u32) -> Result<()> {
        if !self.is_for_me() {
            return Err(ANOTHER_IS_ASKED);
        }
        let is_remembered = self.client.choose(|choices, now| {
            let (conversation, agent) = self.origin();
            let (manifest, consents) = (Some(self.manifest()), &mut choices.consents);
            consents.remember(conversation, agent, &self.request, manifest, (days, now))
        })?;
        if is_remembered {
            Ok(())
        } else {
            Err(NOT_REMEMBERED)
        }
    }

    /// Runs the handler of this device's table as [`Self::execute_with`] does.
    ///
    /// # Errors
    ///
    /// As [`Self::execute_with`]; [`Error::Usage`] if the tool has no handler.
    pub async fn execute(&self) -> Result<()> {
        if !self.may_run().await? {
            return Ok(());
        }
        let handler = self.client.tool_handler(&self.call.tool);
        let handler = handler.ok_or(NO_HANDLER)?;
        self.run(|tool, arguments| handler(tool, arguments)).await
    }

    /// Runs the tool once, and answers with its result in this device's name. `run` gets the name
    /// of the tool and the arguments. Whatever began before is not run again. A request that names
    /// no device runs on the first one that claims it; on the others nothing runs. A tool that this
    /// device does not know is answered `failed`, `unknown_tool`.
    ///
    /// # Errors
    ///
    /// [`Error::NotApproved`] if [`Self::decide`] does not say `Execute` and the person did not
    /// [`Self::approve`]; [`Error::KeyUnavailable`] and [`Error::Store`] before anything ran; every
    /// refusal of the service.
    pub async fn execute_with<F>(&self, run: impl FnOnce(String, Content) -> F) -> Result<()>
    where
        F: Future<Output = Result<Value>>,
    {
        if !self.may_run().await? {
            return Ok(());
        }
        self.run(run).await
    }

    /// Whether the tool is to run now; false if it was answered, now or before.
    async fn may_run(&self) -> Result<bool> {
        let agent = principal(Principal::Agent(self.call.agent_id));
        let session = self.client.session()?;
        let entry = session.load(self.call.conversation_id).await?;
        if !entry.room.is_member(agent) {
            // It has left since the request was opened.
            return Err(Error::NotApproved);
        }
        drop(entry);
        match self.decide() {
            Decision::Execute => Ok(true),
            Decision::Ask if self.is_approved.load(Ordering::Relaxed) => Ok(true),
            Decision::Repeated => Ok(false),
            Decision::Unable if self.is_unknown() => {
                self.answer_unknown().await?;
                Ok(false)
            }
            Decision::Ask | Decision::Unable => Err(Error::NotApproved),
        }
    }

    /// Whether it is for this person and this device, which has no such tool.
    fn is_unknown(&self) -> bool {
        let has_tool = self
            .client
            .consent(|consents, _, _| consents.has_tool(&self.call.tool));
        self.is_for_me() && !has_tool
    }

    async fn answer_unknown(&self) -> Result<()> {
        self.prepare().await?;
        if !self.begin()? {
            return Ok(());
        }
        let reason = Some("unknown_tool");
        self.respond(AnswerStatus::Failed, reason, &json!({})).await
    }

    /// Answers at once if this device has no such tool, and no other one can run it: the request names
    /// this one, or the person has no other.
    pub(super) async fn answer_if_unknown(&self) -> Result<bool> {
        if !self.is_unknown() {
            return Ok(false);
        }
        if self.request.device_id.is_none() && self.has_other_devices().await {
            return Ok(false);
        }
        self.answer_unknown().await?;
        Ok(true)
    }

    /// Whether another device of the person could run tools; true where that cannot be read.
    async fn has_other_devices(&self) -> bool {
        let (own, devices) = (self.client.device_id(), self.client.devices());
        let is_other = |id: &str| own.as_ref().is_ok_and(|own| own != id);
        let Ok(list) = devices.list().await else {
            return true;
        };
        let mut others = list.iter().filter(|device| is_other(&device.device_id));
        others.any(|device| device.has_keys)
    }

    async fn run<F>(&self, run: impl FnOnce(String, Content) -> F) -> Result<()>
    where
        F: Future<Output = Result<Value>>,
    {
        // Nothing runs whose answer could not be sealed, and another device may be able to answer.
        self.prepare().await?;
        if !self.claim().await? {
            return Ok(());
        }
        self.is_approved.store(false, Ordering::Relaxed);
        if !self.begin()? {
            return Ok(());
        }
        match run(self.call.tool.clone(), self.arguments.clone()).await {
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

    /// Keeps a request that names no device for this one. False if another device has it.
    async fn claim(&self) -> Result<bool> {
        if self.request.device_id.is_some() {
            return Ok(true);
        }
        let body = ClaimArtifact {
            agent_id: Some(self.call.agent_id),
        };
        let path = format!("/artifact-requests/{}/claim", self.call.request_id);
        let call = Call::post(path, &body).repeatable();
        match self.client.http().data::<ToolCallState>(call).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::AlreadyDecided) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses.
    ///
    /// # Errors
    ///
    /// As [`Self::execute_with`], but for [`Error::NotApproved`].
    pub async fn deny(&self, reason: &str) -> Result<()> {
        self.prepare().await?;
        if !self.begin()? {
            return Ok(());
        }
        self.respond(AnswerStatus::Denied, Some(reason), &json!({}))
            .await
    }

    /// Makes a fresh secret if one is due, so that the answer can be sealed.
    async fn prepare(&self) -> Result<()> {
        let id = self.call.conversation_id;
        Box::pin(self.client.rotate_if_due(id, None)).await
    }

    /// Noted durably before anything is executed. False if it began before.
    fn begin(&self) -> Result<bool> {
        let (_, agent) = self.origin();
        self.client.begin(agent, &self.call.request_id)
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
        // Members may have changed while the tool ran.
        self.prepare().await?;
        let bytes = content.to_string();
        let sealed = session.seal(id, &place, bytes.as_bytes(), SealOptions::default());
        let body = RespondArtifact {
            agent_id: Some(self.call.agent_id),
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
    /// Opens a request; none by an agent that is no member. No device executes a request that does
    /// not open.
    pub(super) async fn open_tool_request(&self, call: ToolCall) -> Result<Option<ToolRequest>> {
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
        let foreign = |notice: &&Notice| notice.kind == NoticeKind::NotMember;
        if let Some(notice) = shown.notices.iter().find(foreign) {
            self.tell(&Hook::Notice {
                notice: *notice,
                conversation_id: Some(call.conversation_id),
            });
            return Ok(None);
        }
        let opened = shown.opened.ok_or(blindpipe_e2ee::Error::Clear)?;
        let conversation = call.conversation_id.0.into_bytes();
        let agent = call.agent_id.0.into_bytes();
        let digest = request.digest(conversation, agent, &opened.content)?;
        let arguments = opened.json.get("arguments").and_then(Value::as_object);
        let prompt = opened.json.get("prompt").and_then(Value::as_str);
        Ok(Some(ToolRequest {
            client: self.clone(),
            arguments: arguments.cloned().unwrap_or_default(),
            prompt: prompt.map(str::to_owned),
            request,
            digest,
            call,
            is_approved: AtomicBool::default(),
        }))
    }
}
