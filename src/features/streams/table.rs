//! The streams that this node knows: those that began on a socket of its own, and what it overhears of others because
//! members listen here.
//!
//! A stream is ephemeral: it lives on the node on which it began, and dies with it. What was said lately is kept for
//! those who join late; a node that has not heard all of it asks the others.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    clock::Clock,
    delivery::backplane::messages::{EphemeralEvent, StreamAction, StreamPosition},
    error::{Code, Error, Result},
    ids::{AgentId, ConversationId, MessageId},
    limits::quotas::{
        MAX_OPEN_STREAMS, MAX_STREAM_BACKLOG_BYTES, MAX_STREAM_BACKLOG_DELTAS,
        MAX_STREAM_DELTAS_PER_SECOND, STREAM_BACKLOG_TTL, STREAM_IDLE_TIMEOUT,
    },
    metrics,
};

/// Streams known at most; what is overheard beyond that is passed on and not kept.
const MAX_STREAMS: usize = 20_000;
/// What is only overheard is given this much longer before it counts as idle: its own node may still say so.
const UNHEARD_GRACE: Duration = Duration::from_secs(5);

/// An agent's name for a stream: 1 to 64 of `A-Z a-z 0-9 . _ : -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StreamId(Arc<str>);

/// A string that is no name of a stream.
#[derive(Debug)]
pub struct BadName;

impl fmt::Display for BadName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("format|must be 1 to 64 of A-Z a-z 0-9 . _ : -")
    }
}

impl FromStr for StreamId {
    type Err = BadName;

    fn from_str(text: &str) -> std::result::Result<Self, BadName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
            Ok(StreamId(text.into()))
        } else {
            Err(BadName)
        }
    }
}

impl TryFrom<String> for StreamId {
    type Error = BadName;

    fn try_from(text: String) -> std::result::Result<Self, BadName> {
        text.parse()
    }
}

impl From<StreamId> for String {
    fn from(id: StreamId) -> String {
        id.0.as_ref().to_owned()
    }
}

/// One of an agent's streams.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// Whose.
    pub agent: AgentId,
    /// Which.
    pub stream: StreamId,
}

/// Where a stream belongs.
#[derive(Clone, Copy)]
pub struct StreamTarget {
    /// Where it is heard.
    pub conversation: ConversationId,
    /// What its message will answer.
    pub in_reply_to: Option<MessageId>,
}

/// A stream that has been silent for too long.
pub struct Silent {
    /// Which.
    pub key: Key,
    /// Where it is heard.
    pub conversation: ConversationId,
    /// Whether it began here, so that everybody is to be told.
    pub own: bool,
}

/// What is kept of a stream, from some delta on.
pub struct ReplayChunk {
    /// The deltas' frames, and at last how it ended if it has.
    pub frames: Vec<Arc<str>>,
    /// The number of the first delta that is not among them; none will come if it has ended.
    pub next: Option<u64>,
}

struct Stream {
    home: StreamTarget,
    own: bool,
    /// From this delta on, all that is still kept anywhere is kept here.
    whole_from: Option<u64>,
    next: u64,
    deltas: BTreeMap<u64, (DateTime<Utc>, Arc<str>)>,
    /// How it ended.
    over: Option<Arc<str>>,
    active_at: DateTime<Utc>,
    /// When its last deltas were said, as far as they count for its budget.
    recent: VecDeque<DateTime<Utc>>,
}

#[derive(Default)]
struct Table {
    streams: HashMap<StreamId, HashMap<AgentId, Stream>>,
    known: usize,
    bytes: usize,
}

/// The streams known here; clones share them.
#[derive(Clone)]
pub struct Streams {
    clock: Clock,
    table: Arc<Mutex<Table>>,
    /// Rung when what was asked for has been told.
    told: Arc<Notify>,
}

impl Streams {
    /// None yet.
    pub fn new(clock: Clock) -> Self {
        Streams {
            clock,
            table: Arc::default(),
            told: Arc::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// A stream begins here, or begins anew.
    pub fn begin(&self, key: &Key, home: StreamTarget) -> Result<()> {
        let mut table = self.table();
        let open = table.streams.iter().filter(|(id, _)| **id != key.stream);
        let open = open.filter_map(|(_, agents)| agents.get(&key.agent));
        if open
            .filter(|stream| stream.own && stream.over.is_none())
            .count()
            >= MAX_OPEN_STREAMS
        {
            return Err(too_many(
                format!("{MAX_OPEN_STREAMS} open"),
                STREAM_IDLE_TIMEOUT,
            ));
        }
        table.insert(key, Stream::new(home, true, self.clock.now()));
        Ok(())
    }

    /// Where a stream that began here belongs, if it is not over.
    pub fn open(&self, key: &Key) -> Option<StreamTarget> {
        self.table()
            .get(key)
            .filter(|stream| stream.own && stream.over.is_none())
            .map(|stream| stream.home)
    }

    /// The same, also shortly after its end: its message may be sent again.
    pub fn home(&self, key: &Key) -> Option<StreamTarget> {
        self.table()
            .get(key)
            .filter(|stream| stream.own)
            .map(|stream| stream.home)
    }

    /// Takes the next delta of an open stream.
    pub fn push(&self, key: &Key, n: u64, text: &Arc<str>) -> Result<()> {
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

    /// The stream is over; `text` says how. False if it was not open.
    pub fn finish(&self, key: &Key, text: &Arc<str>) -> bool {
        let mut table = self.table();
        let Some(stream) = table.get_mut(key).filter(|stream| stream.over.is_none()) else {
            return false;
        };
        stream.over = Some(text.clone());
        stream.active_at = self.clock.now();
        true
    }

    /// Whether it began here, if it is known.
    pub fn is_own(&self, key: &Key) -> Option<bool> {
        self.table().get(key).map(|stream| stream.own)
    }

    /// Notes what another node says of a stream of its own.
    pub fn apply_remote(&self, ephemeral: &EphemeralEvent) {
        let Some(part) = &ephemeral.part else { return };
        let key = Key {
            agent: part.agent,
            stream: part.stream.clone(),
        };
        let home = StreamTarget {
            conversation: part.conversation,
            in_reply_to: None,
        };
        let now = self.clock.now();
        let mut table = self.table();
        let known = table.get(&key).map(|stream| stream.own);
        if known == Some(true) || (known.is_none() && table.known >= MAX_STREAMS) {
            return;
        }
        if part.action == StreamAction::Begin || known.is_none() {
            let whole_from = (part.action == StreamAction::Begin).then_some(0);
            table.insert(
                &key,
                Stream {
                    whole_from,
                    ..Stream::new(home, false, now)
                },
            );
        }
        let Some(stream) = table.get_mut(&key) else {
            return;
        };
        match part.action {
            StreamAction::Begin => {}
            StreamAction::Delta(n) | StreamAction::Earlier(n) => {
                stream.active_at = now;
                table.keep(&key, n, now, &ephemeral.text);
            }
            StreamAction::Ended | StreamAction::Cancelled => {
                stream.active_at = now;
                stream.over = Some(ephemeral.text.clone());
            }
            StreamAction::Replayed(from) => {
                stream.whole_from = Some(stream.whole_from.map_or(from, |known| known.min(from)));
                self.told.notify_waiters();
            }
        }
    }

    /// What is kept from delta `from` on of a stream that began here, for a node that asks.
    pub fn recall(&self, key: &Key, from: u64) -> Vec<EphemeralEvent> {
        let table = self.table();
        let Some(stream) = table.get(key).filter(|stream| stream.own) else {
            return Vec::new();
        };
        let ephemeral = |action, text| {
            let conversation = stream.home.conversation;
            let part = StreamPosition {
                agent: key.agent,
                stream: key.stream.clone(),
                conversation,
                action,
            };
            EphemeralEvent {
                part: Some(Arc::new(part)),
                text,
            }
        };
        let deltas = stream
            .deltas
            .range(from..)
            .map(|(n, (_, text))| ephemeral(StreamAction::Earlier(*n), text.clone()));
        // For the node that hears it, over is over.
        let over = stream
            .over
            .iter()
            .map(|text| ephemeral(StreamAction::Cancelled, text.clone()));
        deltas
            .chain(over)
            .chain([ephemeral(StreamAction::Replayed(from), "".into())])
            .collect()
    }

    /// Streams of this name that began here, the liveliest first.
    pub fn own(&self, id: &StreamId) -> Vec<(Key, ConversationId)> {
        let mut named = self.named(id, 0);
        named.retain(|(key, ..)| self.is_own(key) == Some(true));
        named
            .into_iter()
            .map(|(key, conversation, _)| (key, conversation))
            .collect()
    }

    /// Streams of this name, the liveliest first, and whether all that can be had of each from `n` on is here.
    pub fn named(&self, id: &StreamId, n: u64) -> Vec<(Key, ConversationId, bool)> {
        let table = self.table();
        let mut found: Vec<_> = table.streams.get(id).into_iter().flatten().collect();
        found.sort_by_key(|(_, stream)| std::cmp::Reverse(stream.active_at));
        let described = found.into_iter().map(|(agent, stream)| {
            let first = stream.deltas.keys().next();
            let whole = stream.own || stream.whole_from.is_some_and(|from| from <= n);
            let here = whole || first.is_some_and(|first| *first <= n);
            (
                Key {
                    agent: *agent,
                    stream: id.clone(),
                },
                stream.home.conversation,
                here,
            )
        });
        described.collect()
    }

    /// Returns when a node has told what it was asked for, from this call on.
    pub fn told(&self) -> impl Future<Output = ()> + '_ {
        self.told.notified()
    }

    /// What is kept from delta `n` on.
    pub fn from(&self, key: &Key, n: u64) -> ReplayChunk {
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

    /// Forgets a stream that has moved to another node.
    pub fn forget(&self, agent: AgentId, id: &StreamId) {
        self.table().remove(&Key {
            agent,
            stream: id.clone(),
        });
    }

    /// Lets go of what is old, and returns the streams that have been silent for too long.
    pub fn tidy(&self) -> Vec<Silent> {
        let now = self.clock.now();
        let mut table = self.table();
        let mut silent = Vec::new();
        let mut gone = Vec::new();
        let mut freed = 0;
        let mut open = 0;
        for (id, agents) in &mut table.streams {
            for (agent, stream) in agents {
                let key = Key {
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

/// The budget of one stream is counted where the stream lives.
fn too_many(limit: String, wait: Duration) -> Error {
    let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
    let error = Error::from(Code::RateLimited).with("retry_after_ms", ms);
    error
        .with("limit", limit)
        .with("scope", "agent_stream_delta")
}

impl Stream {
    fn new(home: StreamTarget, own: bool, now: DateTime<Utc>) -> Self {
        Stream {
            home,
            own,
            whole_from: own.then_some(0),
            next: 0,
            deltas: BTreeMap::new(),
            over: None,
            active_at: now,
            recent: VecDeque::new(),
        }
    }

    fn charge(&mut self, now: DateTime<Utc>) -> Result<()> {
        let second = Duration::from_secs(1);
        while self.recent.front().is_some_and(|at| *at + second <= now) {
            self.recent.pop_front();
        }
        if let Some(first) = self
            .recent
            .front()
            .filter(|_| self.recent.len() >= MAX_STREAM_DELTAS_PER_SECOND as usize)
        {
            let wait = (*first + second - now).to_std().unwrap_or(second);
            return Err(too_many(format!("{MAX_STREAM_DELTAS_PER_SECOND}/s"), wait));
        }
        self.recent.push_back(now);
        self.active_at = now;
        Ok(())
    }
}

impl Table {
    fn get(&self, key: &Key) -> Option<&Stream> {
        self.streams.get(&key.stream)?.get(&key.agent)
    }

    fn get_mut(&mut self, key: &Key) -> Option<&mut Stream> {
        self.streams.get_mut(&key.stream)?.get_mut(&key.agent)
    }

    fn insert(&mut self, key: &Key, stream: Stream) {
        self.remove(key);
        self.known += 1;
        self.streams
            .entry(key.stream.clone())
            .or_default()
            .insert(key.agent, stream);
    }

    fn remove(&mut self, key: &Key) {
        let Some(agents) = self.streams.get_mut(&key.stream) else {
            return;
        };
        if let Some(stream) = agents.remove(&key.agent) {
            self.known -= 1;
            self.bytes -= stream
                .deltas
                .values()
                .map(|(_, text)| text.len())
                .sum::<usize>();
        }
        if agents.is_empty() {
            self.streams.remove(&key.stream);
        }
    }

    /// Keeps a delta, and lets the oldest ones go that are too many.
    fn keep(&mut self, key: &Key, n: u64, now: DateTime<Utc>, text: &Arc<str>) {
        let Table { streams, bytes, .. } = self;
        let Some(stream) = streams
            .get_mut(&key.stream)
            .and_then(|agents| agents.get_mut(&key.agent))
        else {
            return;
        };
        stream.next = stream.next.max(n + 1);
        if let std::collections::btree_map::Entry::Vacant(place) = stream.deltas.entry(n) {
            place.insert((now, text.clone()));
            *bytes += text.len();
        }
        while stream.deltas.len() > MAX_STREAM_BACKLOG_DELTAS
            || (*bytes > MAX_STREAM_BACKLOG_BYTES && !stream.deltas.is_empty())
        {
            *bytes -= stream
                .deltas
                .pop_first()
                .map_or(0, |(_, (_, text))| text.len());
        }
    }
}
