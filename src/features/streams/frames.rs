//! The commands of agents and the frames of listeners.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::id::{StreamId, StreamTarget};
use crate::{
    events::Sender,
    ids::{ConversationId, MessageId},
};

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

/// The frames that listeners are sent.
#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Frame<'a> {
    #[serde(rename = "stream.begin")]
    Begin {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        #[serde(skip_serializing_if = "Option::is_none")]
        in_reply_to: Option<MessageId>,
        sender: Sender<'a>,
    },
    #[serde(rename = "stream.delta")]
    Delta {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        n: u64,
        data: &'a RawValue,
        sender: Sender<'a>,
    },
    #[serde(rename = "stream.end")]
    End {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        message_id: MessageId,
        sender: Sender<'a>,
    },
    #[serde(rename = "stream.cancel")]
    Cancel {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        sender: Sender<'a>,
    },
}

impl Frame<'_> {
    /// As text.
    pub(super) fn encode(&self) -> Arc<str> {
        serde_json::to_string(self).unwrap_or_default().into()
    }
}

/// A string counts as its characters, anything else as it is written.
pub(super) fn size(data: &RawValue) -> usize {
    serde_json::from_str::<String>(data.get()).map_or(data.get().len(), |text| text.len())
}
