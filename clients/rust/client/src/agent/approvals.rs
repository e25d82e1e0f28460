//! Approvals: asked by one process, decided by people days later, acted on by any process.

use std::time::Duration;

use blindpipe_e2ee::{approval::question_digest, envelope::Place, to_base64};
use blindpipe_protocol::{
    errors::Code,
    ids::{ConversationId, MessageId, UserId},
    time::Timestamp,
};
use rand::RngExt;
use serde_json::{Value, json};

use super::{core::Core, outbox::Draft};
use crate::{
    Content, Error, InboxEvent, Result,
    approvals::{Approval, ApprovalState, Receipt},
    content,
    session::{SealOptions, payload_of, raw},
    transport::{Call, rng},
};

/// The event of an approval's end.
pub(super) const APPROVAL_CLOSED: &str = "approval.closed";

const DEFAULT_EXPIRY: Duration = Duration::from_secs(3 * 24 * 3600);

/// A question whose decision is signed, and which may wait for days.
#[derive(Clone, Debug)]
pub struct ApprovalDraft {
    /// The handler of [`super::AgentBuilder::on_decision`] with this name gets the decision.
    pub name: String,
    /// The subject of the approval. People read it.
    pub arguments: Content,
    /// The question; the name without it.
    pub text: Option<String>,
    /// The answers to choose from. With any, people answer instead of saying yes.
    pub choices: Vec<String>,
    /// Without choices, people answer in their own words instead of saying yes.
    pub in_words: bool,
    /// Comes back with the decision. Everybody who can read the question can read it.
    pub state: Content,
    /// The people who are asked; all of the conversation without any.
    pub of: Vec<UserId>,
    /// How many must say yes.
    pub quorum: u32,
    /// How many end it with a no.
    pub deny_quorum: u32,
    /// The time until the deadline, 1 minute to 30 days.
    pub expires_in: Duration,
    /// A name of this send within the event, instead of its number.
    pub key: Option<String>,
}

impl ApprovalDraft {
    /// One yes of anybody within 3 days approves.
    #[must_use]
    pub fn new(name: impl Into<String>, arguments: Content) -> Self {
        Self {
            name: name.into(),
            arguments,
            text: None,
            choices: Vec::new(),
            in_words: false,
            state: Content::new(),
            of: Vec::new(),
            quorum: 1,
            deny_quorum: 1,
            expires_in: DEFAULT_EXPIRY,
            key: None,
        }
    }

    const fn kind(&self) -> &'static str {
        if self.choices.is_empty() && !self.in_words {
            "approve"
        } else {
            "ask"
        }
    }

    /// A digest of a question that can be guessed would tell it, so it has a nonce.
    fn content(&self) -> Content {
        let nonce: [u8; 16] = rng().random();
        let text = self.text.as_ref().unwrap_or(&self.name);
        let content = json!({
            "type": "approval",
            "kind": self.kind(),
            "name": self.name,
            "text": text,
            "arguments": self.arguments,
            "choices": self.choices,
            "state": self.state,
            "of": self.of,
            "quorum": self.quorum,
            "deny_quorum": self.deny_quorum,
            "nonce": to_base64(&nonce),
            "fallback": text,
        });
        match content {
            Value::Object(content) => content,
            _ => unreachable!("an object"),
        }
    }
}

/// A decision that is proven, or the end of an approval that nobody decided.
#[derive(Clone, Debug)]
pub struct ApprovalResult {
    /// `Approved`, `Answered` and `Denied` are proven by signatures. `Expired` and `Withdrawn` are
    /// the service's word.
    pub outcome: ApprovalState,
    /// The name of the question.
    pub name: String,
    /// The question's words.
    pub question: String,
    /// The subject of the approval.
    pub arguments: Content,
    /// The question's state.
    pub state: Content,
    /// The choice of the earliest answer.
    pub choice: Option<String>,
    /// The words of the earliest answer or refusal.
    pub text: Option<String>,
    /// The approval, as the service shows it.
    pub approval: Approval,
    /// The proof, to be kept.
    pub receipt: Receipt,
}

impl Core {
    /// Asks for an approval. Asked again under the same id, it answers the first one.
    pub(super) async fn approve(
        &self,
        conversation_id: ConversationId,
        id: MessageId,
        caused_at: Timestamp,
        approval: &ApprovalDraft,
    ) -> Result<Approval> {
        let content = approval.content();
        let draft = Draft {
            conversation_id,
            content: &content,
            client_message_id: id,
            answered: None,
            caused_at,
            to: &[],
            refs: &[],
        };
        if self.outbox().is_old(&draft)
            && let Some(earlier) = self.outbox().find(&draft).await?
        {
            return self.approval(earlier.message_id).await;
        }
        let call = self.approval_call(&draft, approval).await?;
        match self.http.data(call.repeatable()).await {
            Err(Error::Api(error)) if error.code == Some(Code::IdempotencyConflict) => {
                let earlier = self.outbox().earlier_run(&draft, &error).await?;
                self.approval(earlier.message_id).await
            }
            asked => asked,
        }
    }

    async fn approval_call(&self, draft: &Draft<'_>, approval: &ApprovalDraft) -> Result<Call> {
        let (session, id) = (&self.session, draft.conversation_id);
        let bytes = content::encode(draft.content)?;
        let digest = question_digest(content::text_of_bytes(&bytes)?);
        let payload = if session.is_to_be_sealed(id, self.clear_allowed).await? {
            let place = Place::Message {
                client_message_id: draft.client_message_id.0.into_bytes(),
                in_reply_to: None,
            };
            let sealed = session.seal(id, &place, &bytes, SealOptions::default());
            payload_of(&sealed.await?)
        } else {
            raw(draft.content)
        };
        let of = (!approval.of.is_empty()).then_some(&approval.of);
        let body = json!({
            "payload": payload,
            "client_message_id": draft.client_message_id,
            "kind": approval.kind(),
            "digest": to_base64(&digest),
            "of": of,
            "quorum": approval.quorum,
            "deny_quorum": approval.deny_quorum,
            "expires_in_seconds": approval.expires_in.as_secs(),
        });
        let agent_id = self.agent_id;
        let path = format!("/agents/{agent_id}/conversations/{id}/approvals");
        Ok(Call::post(path, &body))
    }

    pub(super) async fn approval(&self, id: MessageId) -> Result<Approval> {
        self.http.data(Call::get(format!("/approvals/{id}"))).await
    }

    pub(super) async fn withdraw(&self, id: MessageId) -> Result<Approval> {
        let call = Call::post(format!("/approvals/{id}/withdraw"), &json!({}));
        self.http.data(call.repeatable()).await
    }

    /// The result that an event of an end brings; none for a question of another program.
    ///
    /// # Errors
    ///
    /// `bad_signature` if the signatures do not prove what is said.
    pub(super) async fn approval_result(
        &self,
        event: &InboxEvent,
    ) -> Result<Option<ApprovalResult>> {
        let approval = event.data::<Approval>();
        self.result_of(approval.ok_or(blindpipe_e2ee::Error::Malformed)?)
            .await
    }

    /// As [`Self::approval_result`], of the approval itself.
    pub(super) async fn result_of(&self, approval: Approval) -> Result<Option<ApprovalResult>> {
        let messages = self.session.approval_messages(&approval).await?;
        let Some(message) = &messages.question else {
            return Ok(None);
        };
        let Some(question) = self.outbox().open_own(message).await? else {
            return Ok(None);
        };
        if !approval.is_of(&question) || !is_asked_so(&question.content, &approval) {
            return Err(blindpipe_e2ee::Error::BadSignature.into());
        }
        let clear = self.clear_allowed;
        let receipt = self
            .session
            .receipt(&approval, &question, &messages, clear)
            .await?;
        let proof = self.session.verify_receipt(&approval, &receipt).await?;
        proof.map_err(|_| blindpipe_e2ee::Error::BadSignature)?;
        Ok(result_of(&question.content, approval, receipt))
    }
}

/// The service asks those, and so many, as the agent has said.
fn is_asked_so(question: &Content, approval: &Approval) -> bool {
    let number = |name: &str| question.get(name).and_then(Value::as_u64);
    let of = question.get("of").and_then(Value::as_array);
    let is_named = |user: &UserId| of.is_some_and(|of| of.iter().any(|id| *id == user.to_string()));
    let is_open = of.is_some_and(Vec::is_empty);
    question.get("kind").and_then(Value::as_str) == Some(&approval.kind)
        && number("quorum") == Some(approval.quorum.into())
        && number("deny_quorum") == Some(approval.deny_quorum.into())
        && (is_open || approval.asked.iter().all(is_named))
}

fn result_of(question: &Content, approval: Approval, receipt: Receipt) -> Option<ApprovalResult> {
    let object = |name: &str| question.get(name).and_then(Value::as_object).cloned();
    let decider = approval.decisions.iter().filter(|decision| {
        let wants_no = approval.state == ApprovalState::Denied;
        (decision.decision == "denied") == wants_no
    });
    let mut answers = decider.filter_map(|decision| receipt.answers.get(&decision.user_id));
    let answer = answers
        .next()
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let word = |name: &str| Some(answer.as_ref()?.get(name)?.as_str()?.to_owned());
    Some(ApprovalResult {
        outcome: approval.state,
        name: question.get("name")?.as_str()?.to_owned(),
        question: question.get("text")?.as_str()?.to_owned(),
        arguments: object("arguments").unwrap_or_default(),
        state: object("state").unwrap_or_default(),
        choice: word("choice"),
        text: word("text"),
        approval,
        receipt,
    })
}
