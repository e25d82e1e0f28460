//! The streams that this node knows: its own, which began on one of its sockets, and other nodes'
//! streams with local listeners.
//!
//! A stream is ephemeral: it lives on the node on which it began, and ends with it. The table keeps
//! recent deltas for late listeners. A node that has missed some asks the others.

mod rows;

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use self::rows::{Rows, Stream, too_many};
use super::{
    id::{StreamId, StreamKey, StreamTarget},
    messages::{StreamAction, StreamPosition},
};
use crate::{
    clock::Clock,
    delivery::ephemeral::EphemeralEvent,
    error::{Code, Error, Result},
    ids::{AgentId, ConversationId},
    limits::quotas::{MAX_OPEN_STREAMS, STREAM_BACKLOG_TTL, STREAM_IDLE_TIMEOUT},
    metrics,
};

/// The most streams in the table. Streams of other nodes beyond that are forwarded and not kept.
const MAX_STREAMS: usize = 20_000;
/// The extra time before another node's stream counts as idle. Its own node may still announce the
/// end.
const UNHEARD_GRACE: Duration = Duration::from_secs(5);

/// A stream that has been silent for too long.
pub struct Silent {
    /// The key of the stream.
    pub key: StreamKey,
    /// The conversation whose members get its frames.
    pub conversation: ConversationId,
    /// Whether it began here, so that all its recipients get the end.
    pub own: bool,
}

/// The kept deltas of a stream, from some delta on.
pub struct ReplayChunk {
    /// The deltas' frames, then the frame of its end if it has ended.
    pub frames: Vec<Arc<str>>,
    /// The number of the next delta after them, or none if the stream has ended.
    pub next: Option<u64>,
}

/// The streams known here. Clones share them.
#[derive(Clone)]
pub struct StreamTable {
    clock: Clock,
    table: Arc<Mutex<Rows>>,
    /// Woken when the answer to a request has arrived.
    replayed: Arc<Notify>,
}

impl StreamTable {
    /// An empty table.
    pub fn new(clock: Clock) -> Self {
        StreamTable {
            clock,
            table: Arc::default(),
            replayed: Arc::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Rows> {
        self.table.lock()
    }

    /// Begins a stream here, or begins it anew. Returns the time of its begin.
    pub fn begin(&self, key: &StreamKey, home: StreamTarget) -> Result<DateTime<Utc>> {
        let mut table = self.table();
        if table.count_open(key) >= MAX_OPEN_STREAMS {
            return Err(too_many(
                format!("{MAX_OPEN_STREAMS} open"),
                STREAM_IDLE_TIMEOUT,
            ));
        }
        table.make_room(key);
        let stream = Stream::new(home, true, self.clock.now());
        let begun_at = stream.begun_at;
        table.insert(key, stream);
        Ok(begun_at)
    }

    /// The target of a stream that began here, if it is open.
    pub fn open(&self, key: &StreamKey) -> Option<StreamTarget> {
        self.table()
            .get(key)
            .filter(|stream| stream.own && stream.over.is_none())
            .map(|stream| stream.home)
    }

    /// The target of a stream that began here, also shortly after its end, because its message may
    /// be sent again.
    pub fn target(&self, key: &StreamKey) -> Option<StreamTarget> {
        self.table()
            .get(key)
            .filter(|stream| stream.own)
            .map(|stream| stream.home)
    }

    /// Takes the next delta of an open stream.
    pub fn push(&self, key: &StreamKey, n: u64, text: &Arc<str>) -> Result<()> {
        let now = self.clock.now();
        let mut table = self.table();
        let Some(stream) = table
            .get_mut(key)
            .filter(|stream| stream.own && stream.over.is_none())
        else {
            return Err(Code::NotFound.into());
        };
        if n != stream.next {
            let expected = format!("the next delta is {}", stream.next);
            return Err(Error::field("n", "order", &expected));
        }
        stream.charge(now)?;
        table.keep(key, n, now, text);
        Ok(())
    }

    /// Ends a stream with the frame `text`. False if it was not open.
    pub fn finish(&self, key: &StreamKey, text: &Arc<str>) -> bool {
        let mut table = self.table();
        let Some(stream) = table.get_mut(key).filter(|stream| stream.over.is_none()) else {
            return false;
        };
        stream.over = Some(text.clone());
        stream.active_at = self.clock.now();
        true
    }

    /// Whether it began here, or none if it is unknown.
    pub fn is_own(&self, key: &StreamKey) -> Option<bool> {
        self.table().get(key).map(|stream| stream.own)
    }

    /// Applies another node's event about its own stream, or about one that began here and has
    /// begun anew or become a message there.
    pub fn apply_remote(&self, event: &EphemeralEvent) {
        let Some(position) = event.key::<StreamPosition>() else {
            return;
        };
        let key = position.stream_key();
        let home = StreamTarget {
            conversation: position.conversation,
            in_reply_to: None,
        };
        let now = self.clock.now();
        let mut table = self.table();
        let known = table.get(&key);
        // The control message about it has another channel. On a Redis Cluster it may come later.
        let is_over_here = match position.action {
            StreamAction::Begin(at) => known.is_none_or(|stream| stream.is_before(at)),
            StreamAction::Ended => {
                known.is_some_and(|stream| stream.home.conversation == position.conversation)
            }
            _ => false,
        };
        let known = known.map(|stream| stream.own);
        let is_unmoved = known == Some(true) && !is_over_here;
        if is_unmoved || (known.is_none() && table.known >= MAX_STREAMS) {
            return;
        }
        if let StreamAction::Begin(begun_at) = position.action {
            let begun = Stream {
                begun_at,
                whole_from: Some(0),
                ..Stream::new(home, false, now)
            };
            table.insert(&key, begun);
        } else if known.is_none() {
            table.insert(&key, Stream::new(home, false, now));
        }
        let Some(stream) = table.get_mut(&key) else {
            return;
        };
        match position.action {
            StreamAction::Begin(_) => {}
            StreamAction::Delta(n) | StreamAction::Earlier(n) => {
                stream.active_at = now;
                table.keep(&key, n, now, &event.body);
            }
            StreamAction::Ended | StreamAction::Cancelled => {
                stream.active_at = now;
                stream.over = Some(event.body.clone());
            }
            StreamAction::Replayed(from) => {
                stream.whole_from = Some(stream.whole_from.map_or(from, |known| known.min(from)));
                self.replayed.notify_waiters();
            }
        }
    }

    /// The kept deltas from `from` on of a stream that began here, for a node that asks.
    pub fn recall(&self, key: &StreamKey, from: u64) -> Vec<EphemeralEvent> {
        let table = self.table();
        let Some(stream) = table.get(key).filter(|stream| stream.own) else {
            return Vec::new();
        };
        let event = |action, body| {
            let position = StreamPosition {
                agent: key.agent,
                stream: key.stream.clone(),
                conversation: stream.home.conversation,
                action,
            };
            position.event(body)
        };
        let deltas = stream
            .deltas
            .range(from..)
            .map(|(n, (_, text))| event(StreamAction::Earlier(*n), text.clone()));
        // The asking node needs only that the stream is over, not how it ended.
        let over = stream
            .over
            .iter()
            .map(|text| event(StreamAction::Cancelled, text.clone()));
        deltas
            .chain(over)
            .chain([event(StreamAction::Replayed(from), "".into())])
            .collect()
    }

    /// Streams of this name that began here, the most recently active first.
    pub fn own(&self, id: &StreamId) -> Vec<(StreamKey, ConversationId)> {
        let mut named = self.named(id, 0);
        named.retain(|(key, ..)| self.is_own(key) == Some(true));
        named
            .into_iter()
            .map(|(key, conversation, _)| (key, conversation))
            .collect()
    }

    /// Streams of this name, the most recently active first. The flag is true if every available
    /// delta from `n` on is here.
    pub fn named(&self, id: &StreamId, n: u64) -> Vec<(StreamKey, ConversationId, bool)> {
        let table = self.table();
        let mut found: Vec<_> = table.streams.get(id).into_iter().flatten().collect();
        found.sort_by_key(|(_, stream)| std::cmp::Reverse(stream.active_at));
        let described = found.into_iter().map(|(agent, stream)| {
            let first = stream.deltas.keys().next();
            let whole = stream.own || stream.whole_from.is_some_and(|from| from <= n);
            let here = whole || first.is_some_and(|first| *first <= n);
            (
                StreamKey {
                    agent: *agent,
                    stream: id.clone(),
                },
                stream.home.conversation,
                here,
            )
        });
        described.collect()
    }

    /// Returns when the answer to a request arrives, counted from this call on.
    pub fn replayed(&self) -> impl Future<Output = ()> + '_ {
        self.replayed.notified()
    }

    /// The kept deltas from `n` on.
    pub fn from(&self, key: &StreamKey, n: u64) -> ReplayChunk {
        let table = self.table();
        let Some(stream) = table.get(key) else {
            return ReplayChunk {
                frames: Vec::new(),
                next: Some(n),
            };
        };
        let deltas = stream.deltas.range(n..).map(|(_, (_, text))| text.clone());
        let next = stream.over.is_none().then_some(stream.next);
        ReplayChunk {
            frames: deltas.chain(stream.over.clone()).collect(),
            next,
        }
    }

    /// Drops a stream that has begun anew on another node at `begun_at`.
    pub fn forget(&self, agent: AgentId, id: &StreamId, begun_at: DateTime<Utc>) {
        let stream = id.clone();
        let key = StreamKey { agent, stream };
        let mut table = self.table();
        if table
            .get(&key)
            .is_some_and(|known| known.is_before(begun_at))
        {
            table.remove(&key);
        }
    }

    /// Drops old streams and deltas. Returns the streams that have been silent for too long.
    pub fn tidy(&self) -> Vec<Silent> {
        let now = self.clock.now();
        let mut table = self.table();
        let mut silent = Vec::new();
        let mut gone = Vec::new();
        let mut freed = 0;
        let mut open = 0;
        for (id, agents) in &mut table.streams {
            for (agent, stream) in agents {
                let key = StreamKey {
                    agent: *agent,
                    stream: id.clone(),
                };
                while stream
                    .deltas
                    .first_key_value()
                    .is_some_and(|(_, (at, _))| now - at > kept_for())
                {
                    freed += stream
                        .deltas
                        .pop_first()
                        .map_or(0, |(_, (_, text))| text.len());
                }
                let patience = if stream.own {
                    STREAM_IDLE_TIMEOUT
                } else {
                    STREAM_IDLE_TIMEOUT + UNHEARD_GRACE
                };
                match stream.over {
                    Some(_) if now - stream.active_at > kept_for() => gone.push(key),
                    None if now >= stream.active_at + patience => {
                        let conversation = stream.home.conversation;
                        silent.push(Silent {
                            key,
                            conversation,
                            own: stream.own,
                        });
                    }
                    None if stream.own => open += 1,
                    _ => {}
                }
            }
        }
        table.bytes -= freed;
        gone.iter().for_each(|key| table.remove(key));
        metrics::streams_open(open);
        silent
    }
}

fn kept_for() -> chrono::TimeDelta {
    chrono::TimeDelta::from_std(STREAM_BACKLOG_TTL).unwrap_or(chrono::TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::{rows::MAX_OWN_STREAMS, *};
    use crate::random::Random;

    #[test]
    fn an_agent_that_begins_and_ends_streams_fills_its_own_places_only() {
        let random = Random::seeded(Clock::default(), [3; 32]);
        let table = StreamTable::new(Clock::default());
        let home = StreamTarget {
            conversation: ConversationId(random.ulid()),
            in_reply_to: None,
        };
        let agent = || AgentId(random.uuid_v7());
        let key = |agent, n: usize| StreamKey {
            agent,
            stream: format!("s-{n}").parse().expect("a name"),
        };
        let (quiet, busy) = (agent(), agent());
        table.begin(&key(quiet, 0), home).expect("begun");
        for n in 0..10 * MAX_OWN_STREAMS {
            table.begin(&key(busy, n), home).expect("begun");
            assert!(table.finish(&key(busy, n), &"{}".into()));
        }
        assert_eq!(table.table().known, MAX_OWN_STREAMS + 1);
        assert!(table.open(&key(quiet, 0)).is_some());
        // Ended streams do not count as open.
        for n in 0..MAX_OPEN_STREAMS {
            table.begin(&key(busy, n), home).expect("begun");
        }
        assert!(table.begin(&key(busy, 999), home).is_err());
        assert!(table.begin(&key(busy, 0), home).is_ok(), "it begins anew");
    }

    #[test]
    fn a_stream_that_goes_on_or_ends_elsewhere_is_over_here() {
        let random = Random::seeded(Clock::default(), [4; 32]);
        let home = StreamTarget {
            conversation: ConversationId(random.ulid()),
            in_reply_to: None,
        };
        let key = StreamKey {
            agent: AgentId(random.uuid_v7()),
            stream: "s".parse().expect("a name"),
        };
        let second = chrono::TimeDelta::seconds(1);
        let is_open_after = |action: &dyn Fn(DateTime<Utc>) -> StreamAction, conversation| {
            let table = StreamTable::new(Clock::default());
            let begun_at = table.begin(&key, home).expect("begun");
            let action = action(begun_at);
            let position = StreamPosition {
                agent: key.agent,
                stream: key.stream.clone(),
                conversation,
                action,
            };
            table.apply_remote(&position.event("{}".into()));
            table.open(&key).is_some()
        };
        let conversation = home.conversation;
        let begins_after = |at| StreamAction::Begin(at + second);
        let began_before = |at| StreamAction::Begin(at - second);
        assert!(!is_open_after(&begins_after, conversation));
        assert!(is_open_after(&began_before, conversation), "it comes late");
        assert!(!is_open_after(&|_| StreamAction::Ended, conversation));
        let other = ConversationId(random.ulid());
        assert!(is_open_after(&|_| StreamAction::Ended, other));
        for action in [StreamAction::Delta(0), StreamAction::Cancelled] {
            assert!(is_open_after(&|_| action, conversation), "{action:?}");
        }
        let table = StreamTable::new(Clock::default());
        let begun_at = table.begin(&key, home).expect("begun");
        table.forget(key.agent, &key.stream, begun_at - second);
        assert!(table.open(&key).is_some(), "the order comes late");
        table.forget(key.agent, &key.stream, begun_at + second);
        assert!(table.open(&key).is_none());
    }
}
