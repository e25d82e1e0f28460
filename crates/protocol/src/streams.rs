//! Streams: deltas of a message that an agent is composing. The server stores only the final
//! message.

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
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The agent's name for the stream.
    pub stream_id: StreamId,
    /// The conversation of the stream.
    pub conversation_id: ConversationId,
    /// The message that the stream's final message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
}

/// `stream.delta` of an agent: the next piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendDelta {
    /// A reference that a refusal repeats.
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
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// The reason for the listeners, at most 200 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 200))]
    pub reason: Option<String>,
}

/// `stream.end` of an agent: ends a stream with its message, as `message.send` sends one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndStream {
    /// A reference that the answer repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// The target conversation, if the node no longer knows the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// An object with a string `type`, at most 1 MB.
    pub payload: RawJson,
    /// The sender's own id. An id sends a single message within 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<MessageId>,
    /// The sender's own id under another name, a UUID of version 4. Readers do not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Uuid>,
    /// The message that this one answers; that of `stream.begin` if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The members that the message names, 1 to 500.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<Principal>>,
}

/// `stream.sync` of a client: asks for the deltas of a stream again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SyncStream {
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// The number of the first wanted delta.
    pub from_n: u64,
}

/// `stream.begin` of the server: an agent has begun a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamBegin {
    /// The stream.
    pub stream_id: StreamId,
    /// The conversation of the stream.
    pub conversation_id: ConversationId,
    /// The message that the stream's final message answers; absent if none.
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
    /// The conversation of the stream.
    pub conversation_id: ConversationId,
    /// The number of the delta.
    pub n: u64,
    /// The delta as the agent sent it.
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
    /// The conversation of the stream.
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
    /// The conversation of the stream.
    pub conversation_id: ConversationId,
    /// The agent's reason, or `idle` or `not_member`; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The agent.
    pub sender: Sender,
}
