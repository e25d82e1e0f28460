//! The stream commands of agents and the frames for listeners.

use std::sync::Arc;

use blindpipe_protocol::frames::ServerFrame;
use serde_json::value::RawValue;

use super::id::StreamTarget;

/// A change of an agent's stream. Its end is a send instead.
pub enum StreamCommand {
    /// `stream.begin {stream_id, conversation_id, in_reply_to?}`
    Begin(StreamTarget),
    /// `stream.delta {stream_id, n, data}`
    Delta {
        /// The number of the delta: 0, 1, 2…
        n: u64,
        /// Any JSON, usually ciphertext in a string.
        data: Box<RawValue>,
    },
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

/// The size of a delta in bytes: a string's content, or the text of any other JSON.
pub(super) fn size(data: &RawValue) -> usize {
    serde_json::from_str::<String>(data.get()).map_or(data.get().len(), |text| text.len())
}
