//! Approvals as the service shows them, and the receipts of their decisions.

use std::collections::BTreeMap;

use blindpipe_e2ee::{
    PublicKeys,
    approval::{Proof, ReceiptError, question_digest, verify_receipt},
    to_base64,
    trust::Standing,
};
use blindpipe_protocol::{
    ids::{AgentId, ConversationId, MessageId, Principal, UserId},
    messages::Message,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Error, OpenedMessage, Result,
    session::{Session, principal, unhex},
};

/// The state of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// It waits for decisions.
    Open,
    /// Enough have said yes.
    Approved,
    /// Enough have answered.
    Answered,
    /// Enough have said no.
    Denied,
    /// The deadline has passed, or nobody is left to decide.
    Expired,
    /// The agent has taken it back.
    Withdrawn,
}

/// A person's decision, as the service shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// The decider.
    pub user_id: UserId,
    /// `approved`, `answered` or `denied`.
    pub decision: String,
    /// The time by the decider's clock, signed.
    pub decided_at: Timestamp,
    /// The digest of the answer, base64.
    pub answer_digest: Option<String>,
    /// The key that has signed, in hex.
    pub key_id: String,
    /// Ed25519, base64.
    pub signature: String,
    /// The message with the words of the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
}

/// An approval, as the service shows it. Its question stands in the message of the same id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// The approval, and its message.
    pub approval_id: MessageId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The agent that asks.
    pub agent_id: AgentId,
    /// The number of its message.
    pub seq: i64,
    /// `approve` or `ask`.
    pub kind: String,
    /// The digest of the question, base64.
    pub digest: String,
    /// The people who are asked.
    pub asked: Vec<UserId>,
    /// How many of them must say yes.
    pub quorum: u32,
    /// How many of them end it with a no.
    pub deny_quorum: u32,
    /// The decisions, the earliest first.
    pub decisions: Vec<ApprovalDecision>,
    /// Its state.
    pub state: ApprovalState,
    /// Why it has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was asked.
    pub created_at: Timestamp,
    /// Its deadline.
    pub expires_at: Timestamp,
    /// When it was closed; none while it is open.
    pub closed_at: Option<Timestamp>,
}

/// An approval with the texts that its signatures are of. It is proof without the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The approval.
    pub approval: Value,
    /// The question's content, as it was sealed.
    pub question: String,
    /// The answers' contents by user, as they were sealed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<UserId, String>,
}

impl Receipt {
    /// Verifies the receipt. `key_of` answers the keys of a user under a key id in hex.
    ///
    /// # Errors
    ///
    /// The reason why it does not hold.
    pub fn verify(
        &self,
        key_of: impl Fn(&str, &str) -> Option<PublicKeys>,
    ) -> std::result::Result<Proof, ReceiptError> {
        let receipt = serde_json::to_value(self).map_err(|_| ReceiptError::Malformed)?;
        verify_receipt(&receipt, key_of)
    }
}

impl Approval {
    /// Whether this content is the question that was asked.
    pub(crate) fn is_of(&self, question: &OpenedMessage) -> bool {
        let digest = to_base64(&question_digest(&question.source));
        let author = question.sender.principal;
        digest == self.digest && author == Principal::Agent(self.agent_id)
    }

    fn deciders(&self) -> impl Iterator<Item = (MessageId, UserId)> {
        let told = |decision: &ApprovalDecision| Some((decision.message_id?, decision.user_id));
        self.decisions.iter().filter_map(told)
    }
}

/// The surroundings of an approval in its conversation.
pub(crate) struct ApprovalMessages {
    pub(crate) question: Option<Message>,
    answers: Vec<(UserId, Message)>,
}

impl Session {
    /// Reads the messages of an approval and of its decisions.
    pub(crate) async fn approval_messages(&self, approval: &Approval) -> Result<ApprovalMessages> {
        let mut wanted: Vec<_> = approval.deciders().map(|(id, _)| id).collect();
        wanted.push(approval.approval_id);
        let id = approval.conversation_id;
        let mut found = self.messages_since(id, approval.seq, &wanted).await?;
        let answers = approval.deciders();
        let answers = answers.filter_map(|(id, user)| Some((user, found.remove(&id)?)));
        let answers = answers.collect();
        Ok(ApprovalMessages {
            question: found.remove(&approval.approval_id),
            answers,
        })
    }

    /// The receipt of an approval whose question was opened. Answers that do not open are left out.
    pub(crate) async fn receipt(
        &self,
        approval: &Approval,
        question: &OpenedMessage,
        messages: &ApprovalMessages,
        may_be_clear: bool,
    ) -> Result<Receipt> {
        let mut answers = BTreeMap::new();
        for (user, message) in &messages.answers {
            let opened = self.open_either(message, may_be_clear).await?;
            let opened = opened.filter(|it| it.sender.principal == Principal::User(*user));
            answers.extend(opened.map(|opened| (*user, opened.source)));
        }
        Ok(Receipt {
            approval: serde_json::to_value(approval).map_err(Error::other)?,
            question: question.source.clone(),
            answers,
        })
    }

    /// Verifies a receipt with the keys that are accepted here.
    pub(crate) async fn verify_receipt(
        &self,
        approval: &Approval,
        receipt: &Receipt,
    ) -> Result<std::result::Result<Proof, ReceiptError>> {
        for decision in &approval.decisions {
            let who = Principal::User(decision.user_id);
            let key_id = unhex(&decision.key_id).unwrap_or_default();
            let is_known = self.trust.lock().pin(principal(who), key_id).is_some();
            if !is_known {
                self.read_speaker(approval.conversation_id, who).await?;
            }
        }
        let trust = self.trust.lock();
        Ok(receipt.verify(|user, key_id| {
            let user = principal(Principal::User(user.parse().ok()?));
            let pin = trust.pin(user, unhex(key_id)?)?;
            (pin.standing > Standing::Waiting).then_some(pin.keys)
        }))
    }
}
