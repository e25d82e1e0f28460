//! The `stream.sync` frames of one socket: the requested replays, and the filter against duplicate
//! deltas.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use moka::sync::Cache;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Streams,
    id::{StreamId, StreamKey},
    messages::{StreamAction, StreamControl, StreamPosition, StreamWanted},
};
use crate::{
    delivery::ephemeral::EphemeralEvent,
    error::{Code, Result},
    ids::{ConversationId, Principal},
};

/// The number of waiting requests. At this number, the socket is not read until one is answered.
const MAX_PENDING_REPLAYS: usize = 16;
/// The number of streams whose position is remembered.
const MAX_CONVERSATIONS: usize = 64;
/// The conversations whose members are looked up for a request.
const MAX_AUDIENCE_LOOKUPS: usize = 8;
/// The longest wait for other nodes.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of streams that this node requests from others for one listener within a second.
const MAX_REQUESTS: usize = 16;
/// The number of listeners whose requests are remembered.
const REQUESTER_CACHE_CAPACITY: u64 = 10_000;

/// The requests of the last second, which protect the other nodes from a flood. By listener: stream
/// names with the first requested delta. Clones share it.
#[derive(Clone)]
pub struct ReplayRequests(Cache<Uuid, Arc<Mutex<HashMap<StreamId, u64>>>>);

impl Default for ReplayRequests {
    fn default() -> Self {
        ReplayRequests(
            Cache::builder()
                .max_capacity(REQUESTER_CACHE_CAPACITY)
                .time_to_live(Duration::from_secs(1))
                .build(),
        )
    }
}

impl ReplayRequests {
    /// The delta from which to ask the other nodes, if at all. A name is asked for at most twice,
    /// the second time from its beginning.
    fn ask(&self, listener: Uuid, stream: &StreamId, from: u64) -> Option<u64> {
        let asked = self.0.get_with(listener, Arc::default);
        let mut asked = asked.lock();
        let from = match asked.get(stream) {
            Some(before) if *before <= from => return None,
            Some(_) => 0,
            None if asked.len() >= MAX_REQUESTS => return None,
            None => from,
        };
        asked.insert(stream.clone(), from);
        Some(from)
    }
}

/// A waiting request, with the reference for its refusal.
struct PendingReplay {
    reference: Value,
    stream: StreamId,
    from: u64,
}

type Finding = Pin<Box<dyn Future<Output = Result<StreamKey>> + Send>>;

/// The answer to one request.
pub struct Found {
    /// The reference of the request, as received.
    pub reference: Value,
    /// The requested stream.
    pub stream: StreamId,
    /// The first requested delta.
    pub from: u64,
    /// The stream's key, or the refusal for a listener that is no recipient.
    pub key: Result<StreamKey>,
}

/// The request in progress, the waiting ones, and the delivered position of each stream.
#[derive(Default)]
pub struct StreamReplays {
    finding: Option<(PendingReplay, Finding)>,
    pending: VecDeque<PendingReplay>,
    places: HashMap<StreamKey, Option<u64>>,
}

impl StreamReplays {
    /// Whether another request may be added.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_REPLAYS
    }

    /// Adds a received request.
    pub fn push(&mut self, reference: Value, stream: StreamId, from: u64) {
        self.pending.push_back(PendingReplay {
            reference,
            stream,
            from,
        });
    }

    /// Starts the next request if none is in progress.
    pub fn start_next(&mut self, streams: &Streams, listener: Principal) {
        if self.finding.is_some() {
            return;
        }
        let Some(wanted) = self.pending.pop_front() else {
            return;
        };
        let finding = find(streams, listener, wanted.stream.clone(), wanted.from);
        self.finding = Some((wanted, finding));
    }

    /// Waits for the answer to the request in progress, or forever if there is none. Cancel safe.
    pub async fn found(&mut self) -> Found {
        let Some((_, finding)) = &mut self.finding else {
            return std::future::pending().await;
        };
        let key = finding.await;
        match self.finding.take() {
            Some((
                PendingReplay {
                    reference,
                    stream,
                    from,
                },
                _,
            )) => Found {
                reference,
                stream,
                from,
                key,
            },
            None => std::future::pending().await,
        }
    }

    /// Notes that the socket has got every delta before `next`, or the whole stream if `next` is
    /// none.
    pub fn record_sent(&mut self, key: StreamKey, next: Option<u64>) {
        if self.places.len() >= MAX_CONVERSATIONS {
            self.places.clear();
        }
        self.places.insert(key, next);
    }

    /// Whether to deliver this event now. Deltas of a requested replay come with its answer, in
    /// order.
    pub fn allow(&mut self, event: &EphemeralEvent) -> bool {
        let Some(position) = event.key::<StreamPosition>() else {
            return true;
        };
        let asked = |wanted: &PendingReplay| wanted.stream == position.stream;
        if self
            .finding
            .as_ref()
            .is_some_and(|(wanted, _)| asked(wanted))
            || self.pending.iter().any(asked)
        {
            return false;
        }
        if self.places.is_empty() {
            return true;
        }
        let key = position.stream_key();
        match position.action {
            StreamAction::Delta(n) => self
                .places
                .get(&key)
                .is_none_or(|next| next.is_some_and(|next| n >= next)),
            StreamAction::Ended | StreamAction::Cancelled => self.places.remove(&key) != Some(None),
            _ => {
                self.places.remove(&key);
                true
            }
        }
    }
}

/// Drops the deltas of streams that have become a message meanwhile. The message was sent before
/// and has the whole content.
pub fn without_the_past(events: VecDeque<EphemeralEvent>) -> impl Iterator<Item = EphemeralEvent> {
    let mut ended = HashSet::new();
    let mut left = Vec::with_capacity(events.len());
    for event in events.into_iter().rev() {
        if let Some(position) = event.key::<StreamPosition>() {
            let key = position.stream_key();
            match position.action {
                StreamAction::Ended => {
                    ended.insert(key);
                }
                StreamAction::Begin(_) => {
                    ended.remove(&key);
                }
                StreamAction::Delta(_) if ended.contains(&key) => continue,
                _ => {}
            }
        }
        left.push(event);
    }
    left.into_iter().rev()
}

/// The first stream whose conversation `listener` hears. Agents choose the names of their streams,
/// so many may have the name: beyond a few, Postgres names those that count in a single statement.
pub async fn first_heard<T>(
    streams: &Streams,
    listener: Uuid,
    mut named: Vec<(ConversationId, T)>,
) -> Result<Option<T>> {
    if named.len() > MAX_AUDIENCE_LOOKUPS {
        let places: Vec<ConversationId> = named.iter().map(|(place, _)| *place).collect();
        let heard = streams.audience.of_listener(listener, &places).await?;
        named.retain(|(place, _)| heard.contains(place));
    }
    for (place, stream) in named.into_iter().take(MAX_AUDIENCE_LOOKUPS) {
        if streams.audience.includes(listener, place).await? {
            return Ok(Some(stream));
        }
    }
    Ok(None)
}

/// Finds the stream for `listener`: the most recently active one of this name that it may receive.
/// Asks the other nodes for deltas from `from` on that this node does not have.
fn find(streams: &Streams, listener: Principal, stream: StreamId, from: u64) -> Finding {
    let streams = streams.clone();
    let listener = listener.id();
    Box::pin(async move {
        let mut deadline = None;
        loop {
            let replayed = streams.table.replayed();
            let named = streams.table.named(&stream, from);
            let named = named
                .into_iter()
                .map(|(key, place, here)| (place, (key, here)));
            let meant = first_heard(&streams, listener, named.collect()).await?;
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match meant {
                Some((key, here)) if here || late => return Ok(key),
                None if late => return Err(Code::NotFound.into()),
                _ => {}
            }
            let deadline = *deadline.get_or_insert_with(|| {
                if let Some(from) = streams.requests.ask(listener, &stream, from) {
                    let (by, stream) = (streams.backplane.node, stream.clone());
                    let wanted = StreamWanted {
                        by,
                        listener,
                        stream,
                        from,
                    };
                    streams
                        .backplane
                        .publish_control(&StreamControl::Wanted(wanted));
                }
                Instant::now() + REPLAY_TIMEOUT
            });
            tokio::time::timeout_at(deadline, replayed).await.ok();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, ids::AgentId, random::Random};

    #[test]
    fn deltas_are_not_told_after_the_message_that_they_have_become() {
        let random = Random::seeded(Clock::default(), [3; 32]);
        let (agent, conversation) = (
            AgentId::generate(&random),
            ConversationId::generate(&random),
        );
        let of = |stream: &str, action| {
            let stream = stream.parse().expect("a name");
            let position = StreamPosition {
                agent,
                stream,
                conversation,
                action,
            };
            position.event("".into())
        };
        let begin = StreamAction::Begin(Clock::default().now());
        let mail = [
            of("s", begin),
            of("s", StreamAction::Delta(0)),
            of("t", StreamAction::Delta(0)),
            of("u", StreamAction::Delta(0)),
            of("s", StreamAction::Ended),
            of("u", StreamAction::Cancelled),
            of("s", begin),
            of("s", StreamAction::Delta(0)),
        ];
        let left: Vec<_> = without_the_past(mail.into())
            .map(|event| {
                let position = event.key::<StreamPosition>().expect("a position");
                (String::from(position.stream.clone()), position.action)
            })
            .collect();
        let of = |stream: &str, action| (stream.to_owned(), action);
        assert_eq!(
            left,
            [
                of("s", begin),
                of("t", StreamAction::Delta(0)),
                of("u", StreamAction::Delta(0)),
                of("s", StreamAction::Ended),
                of("u", StreamAction::Cancelled),
                of("s", begin),
                of("s", StreamAction::Delta(0)),
            ]
        );
    }

    #[test]
    fn the_others_are_asked_once_for_a_name_and_for_few_names() {
        let asks = ReplayRequests::default();
        let (me, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let name = |n: usize| format!("s{n}").parse::<StreamId>().expect("a name");
        assert_eq!(asks.ask(me, &name(0), 7), Some(7));
        assert_eq!(asks.ask(me, &name(0), 7), None);
        assert_eq!(asks.ask(me, &name(0), 9), None);
        assert_eq!(asks.ask(me, &name(0), 6), Some(0));
        assert_eq!(asks.ask(me, &name(0), 5), None);
        let granted = (1..100)
            .filter(|n| asks.ask(me, &name(*n), 0).is_some())
            .count();
        assert_eq!(granted, MAX_REQUESTS - 1);
        assert_eq!(asks.ask(other, &name(0), 7), Some(7));
    }
}
