//! The `stream.sync` frames of one socket: the requested replays, and the filter against duplicate
//! deltas.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures_util::future::try_join_all;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Streams, away,
    frames::ended,
    id::{StreamId, StreamKey},
    position::{StreamAction, StreamPosition},
    state::Content,
};
use crate::{
    delivery::ephemeral::{EphemeralEvent, EphemeralQueue},
    error::{Code, Result},
    ids::{ConversationId, Principal, PrincipalId},
};

/// The number of waiting requests. At this number, the socket is not read until one is answered.
const MAX_PENDING_SYNCS: usize = 16;
/// The number of streams whose position is remembered.
const MAX_PLACES: usize = 64;
/// The conversations whose members are looked up for a request.
const MAX_AUDIENCE_LOOKUPS: usize = 8;
/// The longest wait for the checkpoint of a stream that has just begun again.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(1);
/// The first pause between two looks meanwhile. Each is twice as long as the one before.
const CHECKPOINT_POLL: Duration = Duration::from_millis(50);
/// The time from the start of a request to that of the next: 16 a second. An answer may have
/// megabytes.
const SYNC_INTERVAL: Duration = Duration::from_micros(62_500);

/// A waiting request, with the reference for its refusal.
struct PendingSync {
    reference: Value,
    stream: StreamId,
    from: Option<u64>,
}

type Finding = Pin<Box<dyn Future<Output = Result<Replay>> + Send>>;

/// The part of a stream that a listener gets at once. Live events follow.
pub struct Replay {
    /// The stream's key.
    pub key: StreamKey,
    /// The frames.
    pub frames: Vec<Arc<str>>,
    /// The number of the next delta, or none if the stream has ended.
    pub next: Option<u64>,
}

/// The answer to one request.
pub struct SyncAnswer {
    /// The reference of the request, as received.
    pub reference: Value,
    /// The requested stream.
    pub stream: StreamId,
    /// The replay, or the refusal for a listener that is no recipient.
    pub replay: Result<Replay>,
}

/// The request in progress, the waiting ones, and the delivered position of each stream.
#[derive(Default)]
pub struct StreamSyncs {
    finding: Option<Box<(PendingSync, Finding)>>,
    pending: VecDeque<PendingSync>,
    next_at: Option<Instant>,
    places: HashMap<StreamKey, Option<u64>>,
    /// Events of streams that are being replayed, for after the replay.
    held: EphemeralQueue,
}

impl StreamSyncs {
    /// Whether another request may be added.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_SYNCS
    }

    /// Adds a received request.
    pub fn push(&mut self, reference: Value, stream: StreamId, from: Option<u64>) {
        self.pending.push_back(PendingSync {
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
        let now = Instant::now();
        let start = self.next_at.map_or(now, |next| next.max(now));
        self.next_at = Some(start + SYNC_INTERVAL);
        let found = find(
            streams.clone(),
            listener.id(),
            wanted.stream.clone(),
            wanted.from,
        );
        let finding = Box::pin(async move {
            tokio::time::sleep_until(start).await;
            found.await
        });
        self.finding = Some(Box::new((wanted, finding)));
    }

    /// Waits for the answer to the request in progress, or forever if there is none. Cancel safe.
    pub async fn found(&mut self) -> SyncAnswer {
        let Some(finding) = &mut self.finding else {
            return std::future::pending().await;
        };
        let replay = (&mut finding.1).await;
        let Some(found) = self.finding.take() else {
            return std::future::pending().await;
        };
        let PendingSync {
            reference, stream, ..
        } = found.0;
        SyncAnswer {
            reference,
            stream,
            replay,
        }
    }

    /// Notes that the socket has got every delta before `next`, or the whole stream if `next` is
    /// none.
    pub fn record_sent(&mut self, key: StreamKey, next: Option<u64>) {
        if self.places.len() >= MAX_PLACES {
            self.places.clear();
        }
        self.places.insert(key, next);
    }

    /// The events that have waited for a replay, in their order. Those whose stream is asked for
    /// again are [held back](Self::allow) again.
    pub fn take_held(&mut self) -> VecDeque<EphemeralEvent> {
        self.held.take()
    }

    /// Whether to deliver this event now. Events of a requested stream come after its replay.
    pub fn allow(&mut self, event: &EphemeralEvent) -> bool {
        let Some(position) = event.key::<StreamPosition>() else {
            return true;
        };
        let asked = |wanted: &PendingSync| wanted.stream == position.stream;
        if self
            .finding
            .as_ref()
            .is_some_and(|finding| asked(&finding.0))
            || self.pending.iter().any(asked)
        {
            self.held.push(event, false);
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
            StreamAction::Status => self.places.get(&key) != Some(&None),
            StreamAction::Ended | StreamAction::Cancelled => self.places.remove(&key) != Some(None),
            StreamAction::Begun => {
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
                StreamAction::Begun => {
                    ended.remove(&key);
                }
                StreamAction::Delta(_) | StreamAction::Status if ended.contains(&key) => continue,
                _ => {}
            }
        }
        left.push(event);
    }
    left.into_iter().rev()
}

/// The streams whose conversations `listener` hears. Agents choose the names of their streams, so
/// many may have the name: beyond a few, Postgres names those that count in a single statement.
async fn heard_by(
    streams: &Streams,
    listener: PrincipalId,
    mut named: Vec<(StreamKey, ConversationId)>,
) -> Result<Vec<(StreamKey, ConversationId)>> {
    if named.len() > MAX_AUDIENCE_LOOKUPS {
        let places: Vec<ConversationId> = named.iter().map(|(_, place)| *place).collect();
        let heard = streams.audience.of_listener(listener, &places).await?;
        named.retain(|(_, place)| heard.contains(place));
    }
    let mut heard = Vec::new();
    for (key, place) in named.into_iter().take(MAX_AUDIENCE_LOOKUPS) {
        if streams.audience.includes(listener, place).await? {
            heard.push((key, place));
        }
    }
    Ok(heard)
}

/// The liveliest stream of this name that `listener` may receive.
async fn choose(
    streams: &Streams,
    listener: PrincipalId,
    stream: &StreamId,
) -> Result<Option<(StreamKey, ConversationId)>> {
    let named = streams.state.of_name(stream).await.map_err(away)?;
    let heard = heard_by(streams, listener, named).await?;
    if heard.len() <= 1 {
        return Ok(heard.into_iter().next());
    }
    let loads = heard.iter().map(|(key, _)| streams.state.load(key));
    let loaded = try_join_all(loads).await.map_err(away)?;
    let known = heard.into_iter().zip(loaded);
    let known = known.filter_map(|(found, (_, known))| {
        let known = known.filter(|known| known.home.conversation == found.1)?;
        Some((found, (known.ending.is_none(), known.sign_ms)))
    });
    Ok(known.max_by_key(|(_, life)| *life).map(|(found, _)| found))
}

/// Finds a stream for `listener`, and reads what it gets. A stream that has just begun again is
/// given a moment to say where its text stands.
async fn find(
    streams: Streams,
    listener: PrincipalId,
    stream: StreamId,
    from: Option<u64>,
) -> Result<Replay> {
    let deadline = Instant::now() + CHECKPOINT_TIMEOUT;
    let mut pause = CHECKPOINT_POLL;
    let chosen = choose(&streams, listener, &stream).await?;
    let (key, place) = chosen.ok_or(Code::NotFound)?;
    if from.is_none() {
        while is_waiting(&streams, &key).await? && Instant::now() < deadline {
            tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
            pause *= 2;
        }
    }
    let content = streams.state.content(&key, from).await.map_err(away)?;
    let content = content.filter(|content| content.known.home.conversation == place);
    // The membership may have ended during the wait.
    if !streams.audience.includes(listener, place).await? {
        return Err(Code::NotFound.into());
    }
    Ok(replay(key, content.ok_or(Code::NotFound)?))
}

/// Whether a stream has begun again without a checkpoint yet.
async fn is_waiting(streams: &Streams, key: &StreamKey) -> Result<bool> {
    let (_, known) = streams.state.load(key).await.map_err(away)?;
    Ok(known.is_some_and(|known| known.is_waiting && known.ending.is_none()))
}

fn replay(key: StreamKey, content: Content) -> Replay {
    let Content {
        known,
        checkpoint,
        deltas,
        status,
    } = content;
    let end = known.ending.as_ref();
    let end = end.map(|ending| ended(&key, known.home.conversation, ending));
    let next = end.is_none().then_some(known.next);
    let status = status.filter(|_| end.is_none());
    let texts = checkpoint.into_iter().chain(deltas).chain(status);
    let frames = texts.map(Arc::from).chain(end).collect();
    Replay { key, frames, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, ids::AgentId, random::Random};

    /// Makes events of streams of an agent in a conversation.
    fn events() -> impl Fn(&str, StreamAction) -> EphemeralEvent {
        let random = Random::seeded(Clock::default(), [3; 32]);
        let agent = AgentId::generate(&random);
        let conversation = ConversationId::generate(&random);
        move |stream, action| {
            let position = StreamPosition {
                agent,
                stream: stream.parse().expect("a name"),
                conversation,
                action,
            };
            position.event("".into())
        }
    }

    fn action(event: &EphemeralEvent) -> StreamAction {
        event.key::<StreamPosition>().expect("a position").action
    }

    #[test]
    fn deltas_are_not_told_after_the_message_that_they_have_become() {
        let of = events();
        let mail = [
            of("s", StreamAction::Begun),
            of("s", StreamAction::Delta(0)),
            of("t", StreamAction::Delta(0)),
            of("u", StreamAction::Delta(0)),
            of("s", StreamAction::Status),
            of("s", StreamAction::Ended),
            of("u", StreamAction::Cancelled),
            of("s", StreamAction::Begun),
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
                of("s", StreamAction::Begun),
                of("t", StreamAction::Delta(0)),
                of("u", StreamAction::Delta(0)),
                of("s", StreamAction::Ended),
                of("u", StreamAction::Cancelled),
                of("s", StreamAction::Begun),
                of("s", StreamAction::Delta(0)),
            ]
        );
    }

    #[test]
    fn live_events_wait_for_the_replay_and_come_once() {
        let of = events();
        let mut syncs = StreamSyncs::default();
        let name: StreamId = "s".parse().expect("a name");
        syncs.push(Value::Null, name, None);
        assert!(!syncs.allow(&of("s", StreamAction::Delta(1))));
        assert!(syncs.allow(&of("t", StreamAction::Delta(1))));
        assert!(!syncs.allow(&of("s", StreamAction::Delta(2))));
        assert!(!syncs.allow(&of("s", StreamAction::Status)));
        syncs.pending.clear();
        // The replay had delta 1.
        let key = StreamPosition::stream_key(
            of("s", StreamAction::Begun)
                .key::<StreamPosition>()
                .expect("a position"),
        );
        syncs.record_sent(key, Some(2));
        let held = syncs.take_held();
        let allowed: Vec<_> = held.iter().filter(|event| syncs.allow(event)).collect();
        let allowed: Vec<_> = allowed.into_iter().map(action).collect();
        assert_eq!(allowed, [StreamAction::Delta(2), StreamAction::Status]);
    }
}
