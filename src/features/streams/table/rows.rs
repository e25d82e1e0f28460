//! The rows of the table: the streams, their deltas and their quotas.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};

use super::super::id::{StreamId, StreamKey, StreamTarget};
use crate::{
    error::{Error, Result},
    ids::AgentId,
    limits::quotas::{
        MAX_STREAM_BACKLOG_BYTES, MAX_STREAM_BACKLOG_DELTAS, MAX_STREAM_DELTAS_PER_SECOND,
    },
};

/// The most entries of one agent's own streams, ended ones included. Beyond that its oldest ended
/// stream is forgotten early.
pub(super) const MAX_OWN_STREAMS: usize = 64;

/// A stream that this node knows.
pub(super) struct Stream {
    pub home: StreamTarget,
    pub own: bool,
    pub begun_at: DateTime<Utc>,
    /// From this delta on, the table has every delta that any node still keeps.
    pub whole_from: Option<u64>,
    pub next: u64,
    pub deltas: BTreeMap<u64, (DateTime<Utc>, Arc<str>)>,
    /// The frame of its end.
    pub over: Option<Arc<str>>,
    pub active_at: DateTime<Utc>,
    /// The times of its recent deltas, for its rate limit.
    pub recent: VecDeque<DateTime<Utc>>,
}

impl Stream {
    pub fn new(home: StreamTarget, own: bool, now: DateTime<Utc>) -> Self {
        Stream {
            home,
            own,
            begun_at: now,
            whole_from: own.then_some(0),
            next: 0,
            deltas: BTreeMap::new(),
            over: None,
            active_at: now,
            recent: VecDeque::new(),
        }
    }

    /// Whether a begin on another node at this time ends it. News of an older begin may come late.
    /// Where the nodes' clocks disagree, the older one may go on until it is idle.
    pub fn is_before(&self, elsewhere: DateTime<Utc>) -> bool {
        !self.own || self.begun_at < elsewhere
    }

    /// Charges a delta to the rate limit of the stream.
    pub fn charge(&mut self, now: DateTime<Utc>) -> Result<()> {
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

/// All known streams, by name and agent.
#[derive(Default)]
pub(super) struct Rows {
    pub streams: HashMap<StreamId, HashMap<AgentId, Stream>>,
    /// The names of the streams that began here, oldest first: a few per agent.
    own: HashMap<AgentId, VecDeque<StreamId>>,
    pub known: usize,
    pub bytes: usize,
}

impl Rows {
    pub fn get(&self, key: &StreamKey) -> Option<&Stream> {
        self.streams.get(&key.stream)?.get(&key.agent)
    }

    pub fn get_mut(&mut self, key: &StreamKey) -> Option<&mut Stream> {
        self.streams.get_mut(&key.stream)?.get_mut(&key.agent)
    }

    /// The number of an agent's open streams, except this one.
    pub fn count_open(&self, key: &StreamKey) -> usize {
        let names = self.own.get(&key.agent).into_iter().flatten();
        let others = names.filter(|name| **name != key.stream);
        let streams = others.filter_map(|name| self.streams.get(name)?.get(&key.agent));
        streams.filter(|stream| stream.over.is_none()).count()
    }

    /// Forgets an agent's oldest ended stream if it has too many entries for another one.
    pub fn make_room(&mut self, key: &StreamKey) {
        let names = self.own.get(&key.agent);
        let Some(names) = names.filter(|names| names.len() >= MAX_OWN_STREAMS) else {
            return;
        };
        let has_ended = |name: &&StreamId| {
            let stream = self
                .streams
                .get(*name)
                .and_then(|agents| agents.get(&key.agent));
            stream.is_some_and(|stream| stream.over.is_some())
        };
        if let Some(stream) = names.iter().find(has_ended).cloned() {
            let agent = key.agent;
            self.remove(&StreamKey { agent, stream });
        }
    }

    pub fn insert(&mut self, key: &StreamKey, stream: Stream) {
        self.remove(key);
        self.known += 1;
        if stream.own {
            let names = self.own.entry(key.agent).or_default();
            names.push_back(key.stream.clone());
        }
        self.streams
            .entry(key.stream.clone())
            .or_default()
            .insert(key.agent, stream);
    }

    pub fn remove(&mut self, key: &StreamKey) {
        let Some(agents) = self.streams.get_mut(&key.stream) else {
            return;
        };
        if let Some(stream) = agents.remove(&key.agent) {
            if let Some(names) = self.own.get_mut(&key.agent)
                && stream.own
            {
                names.retain(|name| *name != key.stream);
                if names.is_empty() {
                    self.own.remove(&key.agent);
                }
            }
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

    /// Keeps a delta, and drops the oldest ones above the quota.
    pub fn keep(&mut self, key: &StreamKey, n: u64, now: DateTime<Utc>, text: &Arc<str>) {
        let Rows { streams, bytes, .. } = self;
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

/// The error for one stream's rate limit, which is counted where the stream lives.
pub(super) fn too_many(limit: String, wait: Duration) -> Error {
    Error::too_many(limit, "agent_stream_delta", wait)
}
