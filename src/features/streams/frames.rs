//! The stream commands of agents and the frames for listeners.

use std::sync::Arc;

use blindpipe_protocol::{
    frames::ServerFrame,
    messages::Sender,
    streams::{StreamCancel, StreamEnd},
};
use serde_json::value::RawValue;

use super::{
    id::{StreamKey, StreamTarget},
    state::Ending,
};
use crate::ids::{ConversationId, Principal};

/// A change of an agent's stream. Its end is a send instead.
pub enum StreamCommand {
    /// `stream.begin {stream_id, conversation_id, in_reply_to?, generation?}`
    Begin(StreamTarget, u32),
    /// `stream.delta {stream_id, n, data}`
    Delta {
        /// The number of the delta: 0, 1, 2…
        n: u64,
        /// Any JSON, usually ciphertext in a string.
        data: Box<RawValue>,
    },
    /// `stream.checkpoint {stream_id, n, data}`
    Checkpoint {
        /// The last delta that the text contains.
        n: u64,
        /// Any JSON, usually ciphertext in a string.
        data: Box<RawValue>,
    },
    /// `stream.status {stream_id, data}`
    Status {
        /// Any JSON, usually ciphertext in a string.
        data: Box<RawValue>,
    },
    /// `stream.keepalive {stream_id}`
    KeepAlive,
    /// `stream.cancel {stream_id, reason?}`
    Cancel {
        /// The reason that listeners see.
        reason: Option<String>,
    },
}

/// Encodes a frame for listeners.
pub(super) fn encode(frame: &ServerFrame) -> Arc<str> {
    serde_json::to_string(frame).unwrap_or_default().into()
}

/// The frame about the end of a stream.
pub(super) fn ended(key: &StreamKey, conversation: ConversationId, ending: &Ending) -> Arc<str> {
    let stream_id = key.stream.clone();
    let sender = sender(key);
    encode(&match ending {
        Ending::Message(message_id) => ServerFrame::StreamEnd(StreamEnd {
            stream_id,
            conversation_id: conversation,
            message_id: *message_id,
            sender,
        }),
        Ending::Cancelled(reason) => ServerFrame::StreamCancel(StreamCancel {
            stream_id,
            conversation_id: conversation,
            reason: reason.clone(),
            sender,
        }),
    })
}

/// The agent of a stream, as its listeners see it.
pub(super) fn sender(key: &StreamKey) -> Sender {
    Sender::of(Principal::Agent(key.agent), None)
}

/// The size of a delta in bytes: a string's content, or the text of any other JSON.
pub(super) fn size(data: &RawValue) -> usize {
    serde_json::from_str::<String>(data.get()).map_or(data.get().len(), |text| text.len())
}
