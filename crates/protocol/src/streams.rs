//! Streams: deltas of a message in the making. Nothing of them is stored but the message they end in.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    ids::{ConversationId, MessageId, Principal},
    messages::Sender,
    raw::RawJson,
    text::StreamId,
};

/// `stream.begin` of an agent: announces a stream in a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BeginStream {
    /// Comes back in a refusal.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The agent's name for the stream.
    pub stream_id: StreamId,
    /// Where it is heard.
    pub conversation_id: ConversationId,
    /// The message that the final one will answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
}

/// `stream.delta` of an agent: the next piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendDelta {
    /// Comes back in a refusal.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// The number of the delta: 0, 1, 2 and so on.
    pub n: u64,
    /// Any JSON of at most 16 KB, usually ciphertext in a string.
    pub data: RawJson,
}

/// `stream.cancel` of an agent: ends a stream without a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CancelStream {
    /// Comes back in a refusal.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// Why, for those who watch; at most 200 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 200))]
    pub reason: Option<String>,
}

/// `stream.end` of an agent: ends a stream with its message, as `message.send` sends one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndStream {
    /// Comes back in the answer.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// Where to, if the node does not know the stream any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// An object with a string `type`, at most 1 MB.
    pub payload: RawJson,
    /// The sender's own id; the same id sends one message within 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<MessageId>,
    /// The same under another name; readers are not shown it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Uuid>,
    /// The message that this one answers; that of `stream.begin` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// Members that the message names, 1 to 500.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<Principal>>,
}

/// `stream.sync` of a client: asks for the deltas of a stream again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SyncStream {
    /// Comes back in a refusal.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// The number of the first delta wanted.
    pub from_n: u64,
}

/// `stream.begin` of the server: an agent has begun a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamBegin {
    /// The stream.
    pub stream_id: StreamId,
    /// Where it is heard.
    pub conversation_id: ConversationId,
    /// The message that the final one will answer; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The agent.
    pub sender: Sender,
}

/// `stream.delta` of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamDelta {
    /// The stream.
    pub stream_id: StreamId,
    /// Where it is heard.
    pub conversation_id: ConversationId,
    /// The number of the delta.
    pub n: u64,
    /// As the agent sent it.
    pub data: RawJson,
    /// The agent.
    pub sender: Sender,
}

/// `stream.end` of the server: the stream has become a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamEnd {
    /// The stream.
    pub stream_id: StreamId,
    /// Where it was heard.
    pub conversation_id: ConversationId,
    /// The message, which comes as an event of its own.
    pub message_id: MessageId,
    /// The agent.
    pub sender: Sender,
}

/// `stream.cancel` of the server: the stream has ended without a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamCancel {
    /// The stream.
    pub stream_id: StreamId,
    /// Where it was heard.
    pub conversation_id: ConversationId,
    /// The agent's words, or `idle` or `not_member`; absent if it gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The agent.
    pub sender: Sender,
}
