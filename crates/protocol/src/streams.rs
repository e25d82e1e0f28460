//! Streams: deltas of a message that an agent is composing. The server stores only the final
//! message.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    ids::{AgentId, ConversationId, MessageId, Principal},
    messages::Sender,
    raw::RawJson,
    text::StreamId,
    time::Timestamp,
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
    /// 0 for a new stream. A client that has lost its node begins again with one more, within 10
    /// minutes of the last sign.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
}

fn is_zero(generation: &u32) -> bool {
    *generation == 0
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

/// `stream.checkpoint` of an agent: the whole text so far. Listeners get it when they ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendCheckpoint {
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// The number of the last delta that the text contains.
    pub n: u64,
    /// Any JSON of at most 256 KB, usually ciphertext in a string.
    pub data: RawJson,
}

/// `stream.status` of an agent: what it does meanwhile, such as a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendStatus {
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
    /// Any JSON of at most 2 KB, usually ciphertext in a string.
    pub data: RawJson,
}

/// `stream.keepalive` of an agent: the stream goes on although nothing is said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeepStreamAlive {
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The stream.
    pub stream_id: StreamId,
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
    /// The target conversation, if the server no longer knows the stream.
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
    /// The messages of the conversation that this one concerns, at most 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refs: Option<Vec<MessageId>>,
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
    /// The number of the first wanted delta. If omitted, the newest checkpoint comes first, and the
    /// deltas after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_n: Option<u64>,
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
    /// How often the stream has begun again. A listener of an earlier generation asks for the
    /// stream again, with `stream.sync` without `from_n`.
    #[serde(default)]
    pub generation: u32,
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

/// `stream.checkpoint` of the server, in the answer to a `stream.sync`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamCheckpoint {
    /// The stream.
    pub stream_id: StreamId,
    /// The conversation of the stream.
    pub conversation_id: ConversationId,
    /// The number of the last delta that the text contains.
    pub n: u64,
    /// The text as the agent sent it.
    pub data: RawJson,
    /// The agent.
    pub sender: Sender,
}

/// `stream.status` of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamStatus {
    /// The stream.
    pub stream_id: StreamId,
    /// The conversation of the stream.
    pub conversation_id: ConversationId,
    /// The status as the agent sent it. The next delta ends it.
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
    /// The agent's reason, or `idle`, `not_member` or `user_stopped`; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The agent.
    pub sender: Sender,
}

/// A stream that goes on, as `GET /conversations/{conversation_id}/streams` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LiveStream {
    /// The stream, for `stream.sync`.
    pub stream_id: StreamId,
    /// The agent.
    pub agent_id: AgentId,
    /// The message that the stream's final message answers; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// How often the stream has begun again.
    pub generation: u32,
    /// The number of the next delta: 0 before the first.
    pub n: u64,
    /// When the stream began for the first time.
    pub started_at: Timestamp,
}
