//! The messages about streams between nodes. The backplane carries them and does not read them.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{
    id::{StreamId, StreamKey},
    table::StreamTable,
};
use crate::{
    delivery::ephemeral::{EphemeralEvent, EphemeralHandler, EphemeralKey},
    ids::{AgentId, ConversationId, NodeId},
    metrics,
};

/// The number of other nodes' requests that may wait. More are dropped.
const REQUEST_QUEUE_CAPACITY: usize = 256;

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
    /// The stream begins, or begins anew, at this time.
    Begin(DateTime<Utc>),
    /// The delta with this number.
    Delta(u64),
    /// The stream has become a message.
    Ended,
    /// The stream was cancelled.
    Cancelled,
    /// An earlier delta, for a node that asked. Sockets do not get it.
    Earlier(u64),
    /// The end of an answer that began with this delta.
    Replayed(u64),
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

/// A message about a stream to every node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum StreamControl {
    /// A stream begins on the node `to`. A node on which it began earlier drops it.
    #[serde(rename = "stream_moved")]
    Moved {
        to: NodeId,
        agent: AgentId,
        stream: StreamId,
        begun_at: DateTime<Utc>,
    },
    /// A stream has become a message on a node that does not hold the stream.
    #[serde(rename = "stream_ended")]
    Ended {
        by: NodeId,
        agent: AgentId,
        stream: StreamId,
        conversation: ConversationId,
        /// The text of the `stream.end` frame.
        text: String,
        /// Whether the sending node has published the frame to the listeners.
        listeners_have_end: bool,
    },
    /// The node that holds the stream is to send its earlier deltas to the node `by`.
    #[serde(rename = "stream_wanted")]
    Wanted(StreamWanted),
}

/// A request for the earlier deltas of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamWanted {
    /// The node that asks.
    pub by: NodeId,
    /// The listener that asks. It must be a recipient of the stream.
    pub listener: Uuid,
    /// The stream's name.
    pub stream: StreamId,
    /// The number of the first wanted delta.
    pub from: u64,
}

/// The streams' receiver of backplane messages.
pub struct StreamPeer {
    node: NodeId,
    table: StreamTable,
    requests: mpsc::Sender<StreamControl>,
}

impl StreamPeer {
    /// The peer of this node. The receiver gets the messages that need more than the table.
    pub fn new(node: NodeId, table: StreamTable) -> (Self, mpsc::Receiver<StreamControl>) {
        let (requests, receiver) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        let peer = StreamPeer {
            node,
            table,
            requests,
        };
        (peer, receiver)
    }

    fn request(&self, control: StreamControl) {
        if self.requests.try_send(control).is_err() {
            metrics::hints("dropped", 1);
        }
    }

    fn handle(&self, control: StreamControl) {
        match &control {
            StreamControl::Moved {
                to,
                agent,
                stream,
                begun_at,
            } if *to != self.node => {
                self.table.forget(*agent, stream, *begun_at);
            }
            StreamControl::Wanted(wanted) if wanted.by != self.node => self.request(control),
            StreamControl::Ended {
                by,
                agent,
                stream,
                conversation,
                text,
                listeners_have_end,
            } if *by != self.node => {
                let key = StreamKey {
                    agent: *agent,
                    stream: stream.clone(),
                };
                let open = self.table.open(&key);
                if open.is_some_and(|target| target.conversation == *conversation)
                    && self.table.finish(&key, &text.as_str().into())
                    && !listeners_have_end
                {
                    self.request(control);
                }
            }
            _ => {}
        }
    }
}

impl EphemeralHandler for StreamPeer {
    fn decode_key(&self, text: &str) -> Option<EphemeralKey> {
        let position: StreamPosition = serde_json::from_str(text).ok()?;
        Some(EphemeralKey::new(text.to_owned(), position))
    }

    fn apply_remote(&self, event: &EphemeralEvent) {
        self.table.apply_remote(event);
    }

    fn handle_control(&self, text: &str) -> bool {
        let control = serde_json::from_str(text);
        control.map(|control| self.handle(control)).is_ok()
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
        let table = StreamTable::new(Clock::default());
        let (node, agent) = (NodeId::generate(&random), AgentId::generate(&random));
        let (peer, mut requests) = StreamPeer::new(node, table);
        let position = StreamPosition {
            agent,
            stream: "s-1".parse().expect("a name"),
            conversation: ConversationId::generate(&random),
            action: StreamAction::Delta(7),
        };
        let text = json!(position).to_string();
        assert!(peer.decode_key(&text).is_some() && peer.decode_key("{}").is_none());
        let event = position.event("{}".into());
        assert_eq!(
            event
                .key::<StreamPosition>()
                .map(|position| position.action),
            Some(StreamAction::Delta(7))
        );

        let moved = json!({
            "type": "stream_moved", "to": node, "agent": agent, "stream": "s-1",
            "begun_at": "2026-01-02T03:04:05Z",
        });
        let wanted = |by| json!({ "type": "stream_wanted", "by": by, "listener": Uuid::nil(), "stream": "s-1", "from": 3 });
        assert!(peer.handle_control(&moved.to_string()));
        assert!(peer.handle_control(&wanted(node).to_string()));
        assert!(
            requests.try_recv().is_err(),
            "this node asks itself nothing"
        );
        let other = NodeId::generate(&random);
        assert!(peer.handle_control(&wanted(other).to_string()));
        let request = requests.try_recv().expect("a request");
        assert_eq!(json!(request), wanted(other));
        assert!(!peer.handle_control(r#"{"type":"invalidate","credentials":[],"reason":""}"#));
    }
}
