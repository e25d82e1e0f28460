//! Reading an agent's inbox without a socket: `GET /agents/{agent_id}/messages/poll`, `POST /agents/{agent_id}/ack`.

use serde::{Deserialize, Serialize};

use crate::{agents::AgentState, cursor::Cursor, events::EventObject};

/// The query of a poll.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PollQuery {
    /// Acks everything up to it and reads on after it; after the last ack if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// Events of a page, 1 to 100; 50 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100, default = 50))]
    pub limit: Option<u32>,
    /// Seconds to wait for an event if there is none, 0 to 25.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 25, default = 0))]
    pub wait: Option<u64>,
}

/// What a poll answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PollPage {
    /// The events after the cursor.
    pub data: Vec<EventObject>,
    /// Where the next poll starts, also if there was nothing.
    pub next_cursor: Cursor,
}

/// The body of `POST /agents/{agent_id}/ack`, which may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Ack {
    /// The number up to which the agent has everything; nothing is acked without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_seq: Option<i64>,
}

/// What `POST /agents/{agent_id}/ack` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Acked {
    /// What the agent is now.
    pub state: AgentState,
    /// Everything up to here is acknowledged; what is delivered next comes after it.
    pub resumed_from_seq: i64,
    /// Events that wait.
    pub queued: i64,
}

/// `ack` of a client: everything up to the cursor has been taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AckFrame {
    /// The cursor of the last event taken.
    pub cursor: Cursor,
}
