//! The `stream.sync` frames of one socket: what it has asked to hear again, and what it therefore must not hear twice.

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
    EphemeralEvents,
    table::{Key, StreamId},
};
use crate::{
    delivery::backplane::messages::{EphemeralEvent, StreamAction},
    error::{Code, Result},
    gateway::Gateway,
    ids::Principal,
};

/// Frames that may wait for their turn; then the socket is not read until one is answered.
const MAX_PENDING_REPLAYS: usize = 16;
/// Streams of which the place is remembered.
const MAX_CONVERSATIONS: usize = 64;
/// Longest wait for other nodes.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(1);

/// What the other nodes are asked for a listener within a second, on this node: streams.
const MAX_REQUESTS: usize = 16;
/// Listeners of whom that is remembered.
const REQUESTER_CACHE_CAPACITY: u64 = 10_000;

/// What has been asked for within the last second, so that nobody floods the other nodes with questions: by listener,
/// the names and the first delta. Clones share it.
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
    /// From which delta on the others are to be asked, if at all. A name is asked for twice at most: the second time
    /// from its beginning.
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

/// A question with the reference its refusal goes back with.
struct Wanted {
    reference: Value,
    stream: StreamId,
    from: u64,
}

type Finding = Pin<Box<dyn Future<Output = Result<Key>> + Send>>;

/// The answer to one question.
pub struct Found {
    /// As it came.
    pub reference: Value,
    /// Which was meant.
    pub stream: StreamId,
    /// From where.
    pub from: u64,
    /// The stream, if the socket may hear it.
    pub key: Result<Key>,
}

/// What is under way, what waits, and how far each stream has been told.
#[derive(Default)]
pub struct StreamReplays {
    finding: Option<(Wanted, Finding)>,
    pending: VecDeque<Wanted>,
    places: HashMap<Key, Option<u64>>,
}

impl StreamReplays {
    /// Whether more may come.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_REPLAYS
    }

    /// A frame that has come.
    pub fn push(&mut self, reference: Value, stream: StreamId, from: u64) {
        self.pending.push_back(Wanted {
            reference,
            stream,
            from,
        });
    }

    /// Starts the next one if none is under way.
    pub fn start_next(&mut self, gateway: &Gateway, listener: Principal) {
        if self.finding.is_some() {
            return;
        }
        let Some(wanted) = self.pending.pop_front() else {
            return;
        };
        let finding = find(gateway, listener, wanted.stream.clone(), wanted.from);
        self.finding = Some((wanted, finding));
    }

    /// The answer of the one under way; never, if there is none. Cancel safe.
    pub async fn found(&mut self) -> Found {
        let Some((_, finding)) = &mut self.finding else {
            return std::future::pending().await;
        };
        let key = finding.await;
        match self.finding.take() {
            Some((
                Wanted {
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

    /// The socket has been told everything of this stream before delta `next`; all of it, if there is none.
    pub fn told(&mut self, key: Key, next: Option<u64>) {
        if self.places.len() >= MAX_CONVERSATIONS {
            self.places.clear();
        }
        self.places.insert(key, next);
    }

    /// Whether the socket is to be told this now. What it has asked for comes with the answer, in order.
    pub fn allow(&mut self, ephemeral: &EphemeralEvent) -> bool {
        let Some(part) = &ephemeral.part else {
            return true;
        };
        let asked = |wanted: &Wanted| wanted.stream == part.stream;
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
        let key = Key {
            agent: part.agent,
            stream: part.stream.clone(),
        };
        match part.action {
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

/// Leaves out the deltas of streams that have become a message meanwhile: the message says it all, and was sent before.
pub fn without_the_past(
    ephemeral: VecDeque<EphemeralEvent>,
) -> impl Iterator<Item = EphemeralEvent> {
    let mut ended = HashSet::new();
    let mut left = Vec::with_capacity(ephemeral.len());
    for ephemeral in ephemeral.into_iter().rev() {
        if let Some(part) = &ephemeral.part {
            let key = (part.agent, part.stream.clone());
            match part.action {
                StreamAction::Ended => {
                    ended.insert(key);
                }
                StreamAction::Begin => {
                    ended.remove(&key);
                }
                StreamAction::Delta(_) if ended.contains(&key) => continue,
                _ => {}
            }
        }
        left.push(ephemeral);
    }
    left.into_iter().rev()
}

/// Finds the stream that `listener` means: the liveliest of this name that it may hear. What this node has not heard
/// from delta `from` on, the others are asked for.
fn find(gateway: &Gateway, listener: Principal, stream: StreamId, from: u64) -> Finding {
    let EphemeralEvents {
        streams,
        audience,
        backplane,
        asks,
        ..
    } = gateway.ephemeral.clone();
    let listener = listener.id();
    Box::pin(async move {
        let mut deadline = None;
        loop {
            let told = streams.told();
            let mut meant = None;
            for (key, conversation, here) in streams.named(&stream, from) {
                if audience.includes(listener, conversation).await? {
                    meant = Some((key, here));
                    break;
                }
            }
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match meant {
                Some((key, here)) if here || late => return Ok(key),
                None if late => return Err(Code::NotFound.into()),
                _ => {}
            }
            let deadline = *deadline.get_or_insert_with(|| {
                if let Some(from) = asks.ask(listener, &stream, from) {
                    backplane.ask_for_stream(listener, stream.clone(), from);
                }
                Instant::now() + REPLAY_TIMEOUT
            });
            tokio::time::timeout_at(deadline, told).await.ok();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        delivery::backplane::messages::StreamPosition,
        ids::{AgentId, ConversationId},
        random::Random,
    };

    #[test]
    fn deltas_are_not_told_after_the_message_that_they_have_become() {
        let random = Random::seeded(Clock::default(), [3; 32]);
        let (agent, conversation) = (
            AgentId::generate(&random),
            ConversationId::generate(&random),
        );
        let of = |stream: &str, action| {
            let stream = stream.parse().expect("a name");
            let part = StreamPosition {
                agent,
                stream,
                conversation,
                action,
            };
            EphemeralEvent {
                part: Some(Arc::new(part)),
                text: "".into(),
            }
        };
        let mail = [
            of("s", StreamAction::Begin),
            of("s", StreamAction::Delta(0)),
            of("t", StreamAction::Delta(0)),
            of("u", StreamAction::Delta(0)),
            of("s", StreamAction::Ended),
            of("u", StreamAction::Cancelled),
            of("s", StreamAction::Begin),
            of("s", StreamAction::Delta(0)),
        ];
        let left = without_the_past(mail.into()).filter_map(|ephemeral| ephemeral.part);
        let left: Vec<_> = left
            .map(|part| (String::from(part.stream.clone()), part.action))
            .collect();
        let of = |stream: &str, action| (stream.to_owned(), action);
        assert_eq!(
            left,
            [
                of("s", StreamAction::Begin),
                of("t", StreamAction::Delta(0)),
                of("u", StreamAction::Delta(0)),
                of("s", StreamAction::Ended),
                of("u", StreamAction::Cancelled),
                of("s", StreamAction::Begin),
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
