//! Reading an agent's inbox without a socket: `GET /agents/{agent_id}/messages/poll`, `POST
//! /agents/{agent_id}/ack`.

use serde::{Deserialize, Serialize};

use crate::{agents::AgentState, cursor::Cursor, events::EventObject};

/// The query of a poll.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PollQuery {
    /// Acks everything up to it and reads on after it. If omitted, the poll starts after the last
    /// ack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// The number of events of a page, 1 to 1,000; 50 if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1_000, default = 50))]
    pub limit: Option<u32>,
    /// The wait for an event if there is none, 0 to 25 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 25, default = 0))]
    pub wait: Option<u64>,
}

/// The answer to a poll.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PollPage {
    /// The events after the cursor.
    pub data: Vec<EventObject>,
    /// The start of the next poll, also after an empty page.
    pub next_cursor: Cursor,
}

/// The body of `POST /agents/{agent_id}/ack`, which may be omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Ack {
    /// The place up to which the agent has all events, as events and answers carry it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// The number up to which the agent has all events, if no cursor is given. After a failover that
    /// has lost events, a number may name another one; a cursor is refused then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to_seq: Option<i64>,
}

/// The answer to `POST /agents/{agent_id}/ack`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Acked {
    /// The agent's current state.
    pub state: AgentState,
    /// The highest acknowledged `seq`. Delivery continues after it.
    pub resumed_from_seq: i64,
    /// The number of waiting events.
    pub queued: i64,
}

/// `ack` of a client: it has processed all events up to the cursor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AckFrame {
    /// The cursor of the last processed event.
    pub cursor: Cursor,
}
