//! Typing notices: `POST /agents/{agent_id}/typing` and the `typing` frames. The server stores none
//! of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ids::ConversationId, messages::Sender, time::Timestamp};

words! {
    /// Whether a principal writes.
    pub enum TypingState {
        /// The principal writes. It counts as stopped unless it repeats this within 10 s.
        Started = "started",
        /// The principal has stopped.
        Stopped = "stopped",
    }
}

/// The body of `POST /agents/{agent_id}/typing`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SetTyping {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Whether the agent writes.
    pub state: TypingState,
}

/// The answer to `POST /agents/{agent_id}/typing`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TypingAnswer {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Whether the agent writes.
    pub state: TypingState,
    /// The end of the notice unless it is renewed.
    pub expires_at: Timestamp,
}

/// The `typing` frame of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendTyping {
    /// A reference that a refusal repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Whether the client's user or agent writes.
    pub state: TypingState,
}

/// The `typing` frame of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TypingNotice {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The principal that writes.
    pub sender: Sender,
    /// Whether the sender writes.
    pub state: TypingState,
    /// The end of the notice unless it is renewed.
    pub expires_at: Timestamp,
}
