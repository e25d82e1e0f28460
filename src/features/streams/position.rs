//! The keys of streams' ephemeral events, and what a node does with those of other nodes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    heard::HeardStreams,
    id::{StreamId, StreamKey},
};
use crate::{
    delivery::ephemeral::{EphemeralEvent, EphemeralHandler, EphemeralKey},
    ids::{AgentId, ConversationId},
};

/// A position in a stream: the key of its ephemeral events.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamPosition {
    /// The agent that streams.
    pub agent: AgentId,
    /// The agent's name for it.
    pub stream: StreamId,
    /// Its conversation.
    pub conversation: ConversationId,
    /// The change of the stream.
    pub action: StreamAction,
}

/// A change of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamAction {
    /// The stream begins, or begins again.
    Begun,
    /// The delta with this number.
    Delta(u64),
    /// Its agent's activity meanwhile.
    Status,
    /// The stream has become a message.
    Ended,
    /// The stream was cancelled.
    Cancelled,
}

impl StreamPosition {
    /// The ephemeral event of this change.
    pub fn event(self, body: Arc<str>) -> EphemeralEvent {
        let text = serde_json::to_string(&self).unwrap_or_default();
        EphemeralEvent {
            key: Some(Arc::new(EphemeralKey::new(text, self))),
            body,
        }
    }

    /// The key of its stream.
    pub fn stream_key(&self) -> StreamKey {
        StreamKey {
            agent: self.agent,
            stream: self.stream.clone(),
        }
    }
}

/// The streams' receiver of backplane messages.
pub struct StreamPeer(pub HeardStreams);

impl EphemeralHandler for StreamPeer {
    fn decode_key(&self, text: &str) -> Option<EphemeralKey> {
        let position: StreamPosition = serde_json::from_str(text).ok()?;
        Some(EphemeralKey::new(text.to_owned(), position))
    }

    fn apply_remote(&self, event: &EphemeralEvent) {
        if let Some(position) = event.key::<StreamPosition>() {
            self.0.note(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{clock::Clock, random::Random};

    #[test]
    fn nodes_read_what_nodes_write() {
        let random = Random::seeded(Clock::default(), [2; 32]);
        let heard = HeardStreams::new(Clock::default());
        let peer = StreamPeer(heard.clone());
        let position = |action| StreamPosition {
            agent: AgentId::NIL,
            stream: "s-1".parse().expect("a name"),
            conversation: ConversationId::generate(&random),
            action,
        };
        let delta = position(StreamAction::Delta(7));
        let text = json!(delta).to_string();
        assert!(peer.decode_key(&text).is_some() && peer.decode_key("{}").is_none());
        let event = delta.event("{}".into());
        let read = event.key::<StreamPosition>().expect("a position");
        assert_eq!(read.action, StreamAction::Delta(7));
        peer.apply_remote(&event);
        assert_eq!(heard.len(), 1);
        peer.apply_remote(&position(StreamAction::Cancelled).event("{}".into()));
        assert_eq!(heard.len(), 0);
    }
}
