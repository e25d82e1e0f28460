//! The `stream.sync` frames of one socket: what it has asked to hear again, and what it therefore must not hear twice.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    Gateway,
    asides::Asides,
    streams::{Key, StreamId},
};
use crate::{
    backplane::message::{Act, Aside},
    error::{Code, Result},
    ids::Principal,
};

/// Frames that may wait for their turn; then the socket is not read until one is answered.
const PENDING: usize = 16;
/// Streams of which the place is remembered.
const PLACES: usize = 64;
/// Longest wait for other nodes.
const PATIENCE: Duration = Duration::from_secs(1);

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
pub struct Syncs {
    finding: Option<(Wanted, Finding)>,
    pending: VecDeque<Wanted>,
    places: HashMap<Key, Option<u64>>,
}

impl Syncs {
    /// Whether more may come.
    pub fn has_room(&self) -> bool {
        self.pending.len() < PENDING
    }

    /// A frame that has come.
    pub fn push(&mut self, reference: Value, stream: StreamId, from: u64) {
        self.pending.push_back(Wanted { reference, stream, from });
    }

    /// Starts the next one if none is under way.
    pub fn start_next(&mut self, gateway: &Gateway, listener: Principal) {
        if self.finding.is_some() {
            return;
        }
        let Some(wanted) = self.pending.pop_front() else { return };
        let finding = find(gateway, listener, wanted.stream.clone(), wanted.from);
        self.finding = Some((wanted, finding));
    }

    /// The answer of the one under way; never, if there is none. Cancel safe.
    pub async fn found(&mut self) -> Found {
        let Some((_, finding)) = &mut self.finding else { return std::future::pending().await };
        let key = finding.await;
        match self.finding.take() {
            Some((Wanted { reference, stream, from }, _)) => Found { reference, stream, from, key },
            None => std::future::pending().await,
        }
    }

    /// The socket has been told everything of this stream before delta `next`; all of it, if there is none.
    pub fn told(&mut self, key: Key, next: Option<u64>) {
        if self.places.len() >= PLACES {
            self.places.clear();
        }
        self.places.insert(key, next);
    }

    /// Whether the socket is to be told this now. What it has asked for comes with the answer, in order.
    pub fn lets_through(&mut self, aside: &Aside) -> bool {
        let Some(part) = &aside.part else { return true };
        let asked = |wanted: &Wanted| wanted.stream == part.stream;
        if self.finding.as_ref().is_some_and(|(wanted, _)| asked(wanted)) || self.pending.iter().any(asked) {
            return false;
        }
        if self.places.is_empty() {
            return true;
        }
        let key = Key { agent: part.agent, stream: part.stream.clone() };
        match part.act {
            Act::Delta(n) => self.places.get(&key).is_none_or(|next| next.is_some_and(|next| n >= next)),
            Act::Over => self.places.remove(&key) != Some(None),
            _ => {
                self.places.remove(&key);
                true
            }
        }
    }
}

/// Finds the stream that `listener` means: the liveliest of this name that it may hear. What this node has not heard
/// from delta `from` on, the others are asked for.
fn find(gateway: &Gateway, listener: Principal, stream: StreamId, from: u64) -> Finding {
    let Asides { streams, audience, backplane, .. } = gateway.asides.clone();
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
                backplane.ask_for_stream(stream.clone());
                Instant::now() + PATIENCE
            });
            tokio::time::timeout_at(deadline, told).await.ok();
        }
    })
}
