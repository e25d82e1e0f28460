//! How streams are named, and where they belong.

pub use blindpipe_protocol::text::StreamId;

use crate::{
    error::{Code, Result},
    ids::{AgentId, ConversationId, MessageId, Principal},
};

/// One of an agent's streams.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// Whose.
    pub agent: AgentId,
    /// Which.
    pub stream: StreamId,
}

/// Where a stream belongs.
#[derive(Clone, Copy)]
pub struct StreamTarget {
    /// Where it is heard.
    pub conversation: ConversationId,
    /// What its message will answer.
    pub in_reply_to: Option<MessageId>,
}

/// The key of a stream of `who`; only agents have streams.
pub fn key_of(who: Principal, stream: StreamId) -> Result<StreamKey> {
    match who {
        Principal::Agent(agent) => Ok(StreamKey { agent, stream }),
        Principal::User(_) => Err(Code::Forbidden.into()),
    }
}
