//! The commands of agents and the frames of listeners.

use std::sync::Arc;

use blindpipe_protocol::frames::ServerFrame;
use serde_json::value::RawValue;

use super::id::StreamTarget;

/// What an agent does to its stream, but for the end, which is a send.
pub enum StreamCommand {
    /// `stream.begin {stream_id, conversation_id, in_reply_to?}`
    Begin(StreamTarget),
    /// `stream.delta {stream_id, n, data}`
    Delta {
        /// 0, 1, 2…
        n: u64,
        /// Any JSON; usually ciphertext in a string.
        data: Box<RawValue>,
    },
    /// `stream.cancel {stream_id, reason?}`
    Cancel {
        /// For those who watch.
        reason: Option<String>,
    },
}

/// A frame as listeners are sent it.
pub(super) fn encode(frame: &ServerFrame) -> Arc<str> {
    serde_json::to_string(frame).unwrap_or_default().into()
}

/// A string counts as its characters, anything else as it is written.
pub(super) fn size(data: &RawValue) -> usize {
    serde_json::from_str::<String>(data.get()).map_or(data.get().len(), |text| text.len())
}
