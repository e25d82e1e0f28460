//! Messages: sending and histories.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ids::{ConversationId, MessageId, Principal, PrincipalKind},
    raw::RawJson,
    search::SearchToken,
    time::Timestamp,
};

/// The body of a send. The route of a conversation ignores `conversation_id`; the route of an agent
/// requires it.
///
/// A bare payload with the ids beside its own fields is accepted too. It cannot name recipients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendMessage {
    /// The target conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// An object with a string `type`, at most 1 MB. `encrypted` marks ciphertext.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub payload: RawJson,
    /// The sender's own id, which readers see. An id sends a single message within 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<MessageId>,
    /// The sender's own id under another name, like the header `Idempotency-Key`: a UUID of version
    /// 4. Readers do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Uuid>,
    /// The message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The members that the message names, 1 to 500. An agent with the visibility `addressed` gets
    /// no other messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<Principal>>,
    /// Keyed hashes by which the members' clients find the message, at most 64. Beside a bare
    /// payload they are part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_tokens: Option<Vec<SearchToken>>,
    /// The messages of the conversation that this one concerns, at most 8. The server gives them no
    /// meaning. Beside a bare payload they are part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refs: Option<Vec<MessageId>>,
}

impl SendMessage {
    /// A message without anything beside its payload.
    pub fn new(payload: RawJson) -> Self {
        SendMessage {
            conversation_id: None,
            payload,
            client_message_id: None,
            idempotency_key: None,
            in_reply_to: None,
            recipients: None,
            search_tokens: None,
            refs: None,
        }
    }
}

/// The answer to a sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sent {
    /// The message.
    pub message_id: MessageId,
    /// The conversation of the message.
    pub conversation_id: ConversationId,
    /// Its number in the conversation, without gaps.
    pub seq: i64,
    /// The time at which it was stored.
    pub created_at: Timestamp,
    /// The sender's own id; null if it gave none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub client_message_id: Option<MessageId>,
    /// Whether this id was sent before. The answer then repeats the first one.
    pub duplicate: bool,
}

/// A sender as all members see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sender {
    /// Whether it is a user or an agent.
    pub r#type: PrincipalKind,
    /// The principal.
    pub id: Principal,
    /// A user's device; absent for agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
}

impl Sender {
    /// A principal, and the device of a user.
    pub fn of(who: Principal, device_id: Option<String>) -> Self {
        Sender {
            r#type: who.kind(),
            id: who,
            device_id,
        }
    }
}

/// A message as all members see it: an item of a history, and the data of `message.created`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Message {
    /// The message.
    pub message_id: MessageId,
    /// The conversation of the message.
    pub conversation_id: ConversationId,
    /// Its number in the conversation.
    pub seq: i64,
    /// The sender.
    pub sender: Sender,
    /// An object with a string `type`, as received; null once it is purged or deleted.
    #[cfg_attr(feature = "schema", schema(required = true, value_type = Option<Object>))]
    pub payload: Option<RawJson>,
    /// Whether the payload was purged; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purged: bool,
    /// The time of its deletion; absent if it was not deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// The principal that deleted it; absent if it was not deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_by: Option<Principal>,
    /// The members that the sender named; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<Principal>>,
    /// The sender's own id; absent if it gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<MessageId>,
    /// The message that this one answers; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The messages of the conversation that it concerns; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refs: Option<Vec<MessageId>>,
    /// The number of agents' answers to each other since a user spoke, at most 8.
    pub hop: i16,
    /// The time at which it was stored.
    pub created_at: Timestamp,
}

/// The deletion of a message: the answer to it, and the data of `message.deleted`. The message keeps
/// its number and loses its payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MessageDeletion {
    /// The message.
    pub message_id: MessageId,
    /// The conversation of the message.
    pub conversation_id: ConversationId,
    /// The principal that deleted it.
    pub by: Principal,
    /// The time of the deletion.
    pub at: Timestamp,
}

words! {
    /// What a history adds to its page.
    pub enum HistoryInclude {
        /// The messages that refer to one of the page.
        Refs = "refs",
    }
}

/// A page of a history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HistoryPage {
    /// The messages, in the order that the query asks for.
    pub data: Vec<Message>,
    /// The cursor of the next page; null if there is none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub next_cursor: Option<MessageId>,
    /// With `include=refs`: the messages that the reader can see and that refer to one of the page,
    /// by rising `seq`, the newest 200.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refs: Option<Vec<Message>>,
    /// With `include=refs`: whether there are more of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refs_truncated: Option<bool>,
}

words! {
    /// The direction of a walk through a history.
    #[derive(Default)]
    pub enum Direction {
        /// From the newest message, or the cursor, to older ones.
        #[default]
        Backward = "backward",
        /// From the oldest message, or the cursor, to newer ones.
        Forward = "forward",
    }
}

/// The query of a history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HistoryQuery {
    /// The number of messages of a page, 1 to 100; 50 if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100, default = 50))]
    pub limit: Option<u32>,
    /// The last message seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<MessageId>,
    /// The direction of the walk.
    #[serde(default)]
    pub direction: Direction,
    /// `refs` adds the messages that refer to one of the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<HistoryInclude>,
}
