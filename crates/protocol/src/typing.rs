//! Typing notices: `POST /agents/{agent_id}/typing` and the `typing` frames. Nothing of it is stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ids::ConversationId, messages::Sender, time::Timestamp};

words! {
    /// Whether a principal writes.
    pub enum TypingState {
        /// It writes; it says so again within 10 s or counts as stopped.
        Started = "started",
        /// It has stopped.
        Stopped = "stopped",
    }
}

/// The body of `POST /agents/{agent_id}/typing`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SetTyping {
    /// Where.
    pub conversation_id: ConversationId,
    /// Whether the agent writes.
    pub state: TypingState,
}

/// What `POST /agents/{agent_id}/typing` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TypingAnswer {
    /// Where.
    pub conversation_id: ConversationId,
    /// Whether the agent writes.
    pub state: TypingState,
    /// When the notice ends unless it is renewed.
    pub expires_at: Timestamp,
}

/// The `typing` frame of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendTyping {
    /// Comes back in a refusal.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// Where.
    pub conversation_id: ConversationId,
    /// Whether the client's user or agent writes.
    pub state: TypingState,
}

/// The `typing` frame of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TypingNotice {
    /// Where.
    pub conversation_id: ConversationId,
    /// The principal that writes.
    pub sender: Sender,
    /// Whether it writes.
    pub state: TypingState,
    /// When the notice ends unless it is renewed.
    pub expires_at: Timestamp,
}
