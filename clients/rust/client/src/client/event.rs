//! The events that a person sees.

use blindpipe_protocol::{
    ids::{ConversationId, Principal},
    typing::TypingNotice,
};

use super::{Conversation, Received, ToolRequest};
use crate::InboxEvent;

/// Something that a person sees happen.
#[non_exhaustive]
pub enum ClientEvent {
    /// A message, opened if it opens.
    Message {
        /// The event.
        event: InboxEvent,
        /// Where it stands.
        conversation: Conversation,
        /// The message.
        received: Box<Received>,
    },
    /// An agent asks this device to run a tool. A request that names this device and that this device
    /// does not have was answered `unknown_tool`, and comes as [`ClientEvent::Event`].
    ToolRequest(Box<ToolRequest>),
    /// Any other event.
    Event(InboxEvent),
    /// A piece of a message that an agent is writing. It is shown and never acted on.
    Delta {
        /// Where it is written.
        conversation_id: ConversationId,
        /// The `client_message_id` of the message that will end it.
        stream_id: String,
        /// The number of the piece.
        n: u64,
        /// The text to add.
        append: String,
        /// The agent.
        sender: Principal,
    },
    /// All that an agent has written so far. It replaces the pieces before.
    Checkpoint {
        /// Where it is written.
        conversation_id: ConversationId,
        /// The `client_message_id` of the message that will end it.
        stream_id: String,
        /// The number of the last piece in it.
        n: u64,
        /// The whole text.
        text: String,
        /// The agent.
        sender: Principal,
    },
    /// The activity of an agent that writes nothing, such as a search. The next piece ends it.
    Status {
        /// Where it is shown.
        conversation_id: ConversationId,
        /// The stream.
        stream_id: String,
        /// The activity in words.
        text: String,
        /// The agent.
        sender: Principal,
    },
    /// A stream ended without a message.
    StreamCancelled {
        /// Where it was written.
        conversation_id: ConversationId,
        /// The stream.
        stream_id: String,
        /// The agent's reason, or the server's.
        reason: Option<String>,
        /// The agent.
        sender: Principal,
    },
    /// A member writes, or has stopped.
    Typing(TypingNotice),
    /// All that waited has come.
    CaughtUp,
}
