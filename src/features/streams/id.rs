//! The identity of streams and their conversations.

pub use blindpipe_protocol::text::StreamId;

use crate::{
    error::{Code, Result},
    ids::{AgentId, ConversationId, MessageId, Principal},
};

/// The cluster-wide key of an agent's stream.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The agent that streams.
    pub agent: AgentId,
    /// The agent's name for the stream.
    pub stream: StreamId,
}

/// The target of a stream.
#[derive(Clone, Copy)]
pub struct StreamTarget {
    /// The conversation whose members get its deltas.
    pub conversation: ConversationId,
    /// The message that the final message answers.
    pub in_reply_to: Option<MessageId>,
}

/// The key of a stream of `who`. Only agents have streams.
pub fn key_of(who: Principal, stream: StreamId) -> Result<StreamKey> {
    match who {
        Principal::Agent(agent) => Ok(StreamKey { agent, stream }),
        Principal::User(_) => Err(Code::Forbidden.into()),
    }
}
