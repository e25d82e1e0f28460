//! The open streams that this node has published or received.
//!
//! Redis may lose the state of a stream, and the message about its end may be lost. A stream that
//! is not heard of for longer than a silent one may last is therefore looked up, and ended for the
//! listeners of this node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;

use super::{
    id::StreamKey,
    position::{StreamAction, StreamPosition},
};
use crate::{clock::Clock, ids::ConversationId, limits::quotas::STREAM_IDLE_TIMEOUT};

/// The most streams in the table. Those beyond it end for their listeners by messages only.
const MAX_HEARD_STREAMS: usize = 20_000;
/// The time after which a silent stream is looked up. Its end may still be on its way.
const LOOK_UP_AFTER: Duration = Duration::from_secs(STREAM_IDLE_TIMEOUT.as_secs() + 5);
/// The streams that are looked up at once.
const MAX_LOOK_UPS: usize = 100;

struct HeardStream {
    conversation: ConversationId,
    at: DateTime<Utc>,
}

/// The streams heard here. Clones share them.
#[derive(Clone)]
pub struct HeardStreams {
    clock: Clock,
    streams: Arc<Mutex<HashMap<StreamKey, HeardStream>>>,
}

impl HeardStreams {
    pub fn new(clock: Clock) -> Self {
        HeardStreams {
            clock,
            streams: Arc::default(),
        }
    }

    /// Notes a change of a stream.
    pub fn note(&self, position: &StreamPosition) {
        let key = position.stream_key();
        let mut streams = self.streams.lock();
        match position.action {
            StreamAction::Ended | StreamAction::Cancelled => {
                streams.remove(&key);
            }
            _ if streams.len() >= MAX_HEARD_STREAMS && !streams.contains_key(&key) => {}
            StreamAction::Begun | StreamAction::Delta(_) | StreamAction::Status => {
                let heard = HeardStream {
                    conversation: position.conversation,
                    at: self.clock.now(),
                };
                streams.insert(key, heard);
            }
        }
    }

    /// Whether the stream is open, as far as this node knows.
    pub fn is_open(&self, key: &StreamKey, conversation: ConversationId) -> bool {
        let streams = self.streams.lock();
        let heard = streams.get(key);
        heard.is_some_and(|heard| heard.conversation == conversation)
    }

    /// Some streams that this node has not heard of for a while. It has now.
    pub fn take_silent(&self) -> Vec<(StreamKey, ConversationId)> {
        let now = self.clock.now();
        let mut streams = self.streams.lock();
        let silent = streams
            .iter_mut()
            .filter(|(_, heard)| now >= heard.at + LOOK_UP_AFTER)
            .take(MAX_LOOK_UPS);
        silent
            .map(|(key, heard)| {
                heard.at = now;
                (key.clone(), heard.conversation)
            })
            .collect()
    }

    /// Forgets a stream. False if it was not known.
    pub fn forget(&self, key: &StreamKey) -> bool {
        self.streams.lock().remove(key).is_some()
    }

    /// The number of streams.
    pub fn len(&self) -> usize {
        self.streams.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::AgentId, random::Random};

    #[test]
    fn a_stream_is_looked_up_once_it_is_silent_for_longer_than_it_may_last() {
        let random = Random::seeded(Clock::default(), [4; 32]);
        let clock = Clock::default();
        let heard = HeardStreams::new(clock.clone());
        let position = |action| StreamPosition {
            agent: AgentId::NIL,
            stream: "s".parse().expect("a name"),
            conversation: ConversationId::NIL,
            action,
        };
        let key = position(StreamAction::Begun).stream_key();
        heard.note(&position(StreamAction::Begun));
        clock.advance(Duration::from_secs(64));
        assert!(heard.take_silent().is_empty());
        clock.advance(Duration::from_secs(2));
        assert_eq!(heard.take_silent().len(), 1);
        assert!(heard.take_silent().is_empty(), "it is looked up once");
        clock.advance(Duration::from_secs(64));
        heard.note(&position(StreamAction::Delta(3)));
        clock.advance(Duration::from_secs(64));
        assert!(heard.take_silent().is_empty());
        assert!(heard.is_open(&key, ConversationId::NIL));
        assert!(!heard.is_open(&key, ConversationId::generate(&random)));
        heard.note(&position(StreamAction::Ended));
        assert!(!heard.forget(&key));
    }
}
