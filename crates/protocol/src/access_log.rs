//! The access log, what agents have read: `GET /grants/access-log`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AccessId, AgentId, ConversationId},
    time::Timestamp,
};

words! {
    /// The kind of data that an agent has read.
    pub enum AccessKind {
        /// The conversation in the agent's list of conversations.
        ConversationList = "conversation_list",
        /// A conversation with its members.
        Conversation = "conversation",
        /// Messages of a conversation's history.
        History = "history",
        /// Events of a conversation, by a poll.
        Poll = "poll",
        /// Events of a conversation that a socket or webhook delivered and the agent acked.
        Push = "push",
        /// The public keys of the user's devices.
        Keys = "keys",
        /// The agent's wrapped keys of a conversation.
        GroupKeys = "group_keys",
        /// A file.
        Object = "object",
        /// The result of a tool call, by a repeated request.
        ToolCall = "tool_call",
        /// People's decisions on the agent's approvals.
        Approval = "approval",
    }
}

/// A read of user data by an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Access {
    /// The row; the next page starts after it.
    pub access_id: AccessId,
    /// The agent that has read.
    pub agent_id: AgentId,
    /// The conversation of the data; null if the data belongs to none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub conversation_id: Option<ConversationId>,
    /// The kind of data.
    pub kind: AccessKind,
    /// The number of messages, events, keys, files or approvals.
    pub items: i64,
    /// The first of them: a message's number in the conversation for `history`, an event's number
    /// in the agent's inbox for `poll` and `push`; otherwise null.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub from_seq: Option<i64>,
    /// The last of them, likewise.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub to_seq: Option<i64>,
    /// The time of the read; for `push`, of the ack.
    pub at: Timestamp,
    /// The same time in microseconds since 1970, as the hash covers it.
    pub at_us: i64,
    /// The user or the group whose chain it is, as a UUID.
    pub subject_id: String,
    /// The row's number in that chain.
    pub seq: i64,
    /// The row's hash in hex: SHA-256 of the previous hash and the row.
    pub hash: String,
}

/// The query of `GET /grants/access-log`, beside `limit` and `cursor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AccessQuery {
    /// Only reads by this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// Only reads in this conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// Only reads at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Only reads before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}
