//! Stops: `POST /conversations/{conversation_id}/stop`, the frames `turn.stop` and `turn.stopped`,
//! and the event `turn.stop`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ids::{AgentId, ConversationId, MessageId},
    messages::Sender,
    time::Timestamp,
};

/// The body of `POST /conversations/{conversation_id}/stop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StopTurn {
    /// The agent to stop; all agents of the conversation if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The message whose answer is to stop; whatever the agents do there if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
}

/// The answer to a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoppedTurns {
    /// The number of agents that were told.
    pub stopped: u32,
}

/// The `turn.stop` frame of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StopTurnFrame {
    /// A reference that the answer repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The agent to stop; all agents of the conversation if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The message whose answer is to stop; whatever the agents do there if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
}

/// `turn.stopped`: the answer to the frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnStopped {
    /// The reference from the frame; null if it had none.
    #[serde(default)]
    pub r#ref: Value,
    /// The agents that were told.
    pub data: StoppedTurns,
}

/// The data of the event `turn.stop`: an agent is to end what it does in a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnStop {
    /// The user who stops it, without a device.
    pub by: Sender,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The message whose answer is to stop; absent if whatever the agent does there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The time of the stop.
    pub at: Timestamp,
}
