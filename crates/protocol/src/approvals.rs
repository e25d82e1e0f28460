//! Approvals, an agent's questions to people: `/agents/{agent_id}/conversations/{conversation_id}/approvals`,
//! `/agents/{agent_id}/approvals`, `/approvals`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ids::{AgentId, ConversationId, MessageId, Principal, UserId},
    raw::RawJson,
    search::SearchToken,
    text::{Key32, KeyId, Signature},
    time::Timestamp,
};

words! {
    /// The kind of a question.
    pub enum ApprovalKind {
        /// People approve or deny.
        Approve = "approve",
        /// People answer or deny.
        Ask = "ask",
    }
}

words! {
    /// A person's decision.
    pub enum ApprovalDecision {
        /// Yes, to `approve`.
        Approved = "approved",
        /// An answer, to `ask`.
        Answered = "answered",
        /// No.
        Denied = "denied",
    }
}

words! {
    /// The state of an approval. It leaves `open` once.
    pub enum ApprovalState {
        /// People are asked.
        Open = "open",
        /// Enough people have approved.
        Approved = "approved",
        /// Enough people have answered.
        Answered = "answered",
        /// Enough people have denied.
        Denied = "denied",
        /// It ended without enough decisions; `reason` says why.
        Expired = "expired",
        /// The agent has withdrawn it, or lost its place in the conversation.
        Withdrawn = "withdrawn",
    }
}

words! {
    /// The reason why an approval ended without enough decisions.
    pub enum ApprovalReason {
        /// Its deadline has passed.
        Deadline = "deadline",
        /// Neither quorum can be reached any more.
        Undecidable = "undecidable",
        /// Nobody who was asked is left, and nobody has decided.
        NobodyLeft = "nobody_left",
        /// The relation that admits the agent has ended.
        RelationRevoked = "relation_revoked",
        /// The agent was removed from the group, or deleted.
        AgentRemoved = "agent_removed",
    }
}

words! {
    /// The approvals of a list.
    #[derive(Default)]
    pub enum ApprovalFilter {
        /// Those that are open.
        #[default]
        Open = "open",
        /// Those in any other state.
        Closed = "closed",
    }
}

/// The body of `POST /agents/{agent_id}/conversations/{conversation_id}/approvals`. The fields of a
/// message mean what they mean in a send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestApproval {
    /// The question: an object with a string `type`, at most 1 MB. `encrypted` marks ciphertext.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub payload: RawJson,
    /// The agent's own id of the message. A repeat answers the same approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<MessageId>,
    /// The same under another name: a UUID of version 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Uuid>,
    /// The message that the question follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The members that the message names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<Principal>>,
    /// Keyed hashes by which the members' clients find the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_tokens: Option<Vec<SearchToken>>,
    /// Whether people approve or answer.
    pub kind: ApprovalKind,
    /// A digest of the plaintext question, which the agent's client makes.
    pub digest: Key32,
    /// The users who are asked; every member who is a user if omitted or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<UserId>>,
    /// The number of people who must say yes, 1 to the number asked; 1 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, default = 1))]
    pub quorum: Option<i64>,
    /// The number of people whose no ends it, 1 to the number asked; 1 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, default = 1))]
    pub deny_quorum: Option<i64>,
    /// The time until the deadline, 60 seconds to 30 days; 3 days if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(minimum = 60, maximum = 2_592_000, default = 259_200)
    )]
    pub expires_in_seconds: Option<i64>,
}

/// The body of `POST /approvals/{approval_id}/decision`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DecideApproval {
    /// `approved` or `denied` for `approve`; `answered` or `denied` for `ask`.
    pub decision: ApprovalDecision,
    /// The answer, which becomes a message: an object with a string `type`, at most 1 MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub payload: Option<RawJson>,
    /// A digest of the plaintext answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_digest: Option<Key32>,
    /// The device's time, at most 300 seconds away from the server's.
    pub decided_at: Timestamp,
    /// A current key of the user's.
    pub key_id: KeyId,
    /// The signature over the decision's bytes by that key.
    pub signature: Signature,
}

/// A person's decision as everybody in the conversation sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignedDecision {
    /// The person.
    pub user_id: UserId,
    /// The decision.
    pub decision: ApprovalDecision,
    /// The time that the person's device signed.
    pub decided_at: Timestamp,
    /// The digest of the plaintext answer; null without one.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub answer_digest: Option<Key32>,
    /// The key that signed.
    pub key_id: KeyId,
    /// The signature.
    pub signature: Signature,
    /// The message with the answer; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
}

/// An approval: an item of the lists, and the data of `approval.*` events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Approval {
    /// The approval, by the id of its message; the next page starts after it.
    pub approval_id: MessageId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The agent that asks.
    pub agent_id: AgentId,
    /// The number of its message in the conversation.
    pub seq: i64,
    /// The kind of the question.
    pub kind: ApprovalKind,
    /// The digest of the plaintext question.
    pub digest: Key32,
    /// The users who are asked, and those who have decided, by id.
    pub asked: Vec<UserId>,
    /// The number of people who must say yes.
    pub quorum: i64,
    /// The number of people whose no ends it.
    pub deny_quorum: i64,
    /// The decisions, in the order of their arrival.
    pub decisions: Vec<SignedDecision>,
    /// The present state.
    pub state: ApprovalState,
    /// The reason of `expired`, or of `withdrawn` by somebody else than the agent; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ApprovalReason>,
    /// The time of the request.
    pub created_at: Timestamp,
    /// The deadline.
    pub expires_at: Timestamp,
    /// The time at which it left `open`; null before.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub closed_at: Option<Timestamp>,
}

/// The answer to a request for an approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestedApproval {
    /// The approval in its present state.
    #[serde(flatten)]
    pub approval: Approval,
    /// Whether the agent has made this request before.
    pub duplicate: bool,
}

/// The query of `GET /approvals` and `GET /agents/{agent_id}/approvals`, beside `limit` and
/// `cursor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ApprovalsQuery {
    /// Open or closed ones; open if omitted.
    #[serde(default)]
    pub state: ApprovalFilter,
}
