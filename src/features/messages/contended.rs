//! Sends whose rows another transaction has locked. They wait here, apart from the shard's other
//! sends, so a lock on one conversation or inbox holds up nobody else.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    batch::{Batch, PendingSend},
    store,
    writer::{publish_and_answer, refuse_all, refuse_failed},
};
use crate::{db::Db, delivery::Backplane, error::Error, ids::ConversationId, metrics};

/// The number of sends that may wait for locks. More are refused.
const MAX_CONTENDED_SENDS: usize = 4096;

/// The contended sends of a shard; clones share them.
#[derive(Clone, Default)]
pub struct ContendedSends {
    waiting: Arc<Mutex<Waiting>>,
    notify: Arc<Notify>,
}

#[derive(Default)]
struct Waiting {
    /// The conversations with waiting sends, in the order of their commits. A conversation whose
    /// sends are being committed stays in `sends`.
    order: VecDeque<ConversationId>,
    sends: HashMap<ConversationId, Vec<PendingSend>>,
    count: usize,
    closed: bool,
}

impl Waiting {
    /// Counts and orders anew what a panic has left behind.
    fn reschedule(&mut self) {
        self.sends.retain(|_, sends| !sends.is_empty());
        self.order = self.sends.keys().copied().collect();
        self.count = self.sends.values().map(Vec::len).sum();
    }
}

impl ContendedSends {
    /// Adds sends, each behind the earlier ones of its conversation.
    pub fn add(&self, sends: Vec<PendingSend>) {
        let mut waiting = self.waiting.lock();
        let mut refused = Vec::new();
        for send in sends {
            if waiting.count >= MAX_CONTENDED_SENDS {
                refused.push(send);
                continue;
            }
            waiting.count += 1;
            let conversation = send.request.conversation;
            if !waiting.sends.contains_key(&conversation) {
                waiting.order.push_back(conversation);
            }
            waiting.sends.entry(conversation).or_default().push(send);
        }
        drop(waiting);
        self.notify.notify_one();
        if !refused.is_empty() {
            refuse_all(
                refused,
                &Error::unavailable("too many sends wait for locks"),
            );
        }
    }

    /// Takes the sends that must follow earlier ones of their conversations here.
    pub fn take_followers(&self, held: &mut Vec<PendingSend>) {
        let followers: Vec<PendingSend> = {
            let waiting = self.waiting.lock();
            if waiting.sends.is_empty() {
                return;
            }
            held.extract_if(.., |send| {
                waiting.sends.contains_key(&send.request.conversation)
            })
            .collect()
        };
        if !followers.is_empty() {
            self.add(followers);
        }
    }

    /// Ends [`run`](Self::run) once nothing waits any more.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.notify.notify_one();
    }

    /// Commits waiting sends, one conversation at a time and each in its turn, until closed.
    pub async fn run(&self, db: &Db, backplane: &Backplane) {
        self.waiting.lock().reschedule();
        loop {
            let Some((conversation, mut sends)) = self.next() else {
                if self.waiting.lock().closed {
                    return;
                }
                self.notify.notified().await;
                continue;
            };
            let taken = sends.len();
            let mut rest = commit_next(db, backplane, &mut sends).await;
            rest.append(&mut sends);
            self.settle(conversation, rest, taken);
        }
    }

    /// The sends of the next conversation. New ones of it still wait behind them.
    fn next(&self) -> Option<(ConversationId, Vec<PendingSend>)> {
        let mut waiting = self.waiting.lock();
        let conversation = waiting.order.pop_front()?;
        let sends = waiting.sends.get_mut(&conversation).map(std::mem::take);
        Some((conversation, sends.unwrap_or_default()))
    }

    /// Puts undecided sends back, in front of newer ones. A conversation without any is no longer
    /// contended.
    fn settle(&self, conversation: ConversationId, mut rest: Vec<PendingSend>, taken: usize) {
        let mut waiting = self.waiting.lock();
        waiting.count = waiting.count + rest.len() - taken;
        let newer = waiting.sends.remove(&conversation).unwrap_or_default();
        rest.extend(newer);
        if !rest.is_empty() {
            waiting.sends.insert(conversation, rest);
            waiting.order.push_back(conversation);
        }
    }
}

/// Commits sends of one conversation. Returns those that must be tried again.
async fn commit_next(
    db: &Db,
    backplane: &Backplane,
    sends: &mut Vec<PendingSend>,
) -> Vec<PendingSend> {
    // A send that failed before goes alone: it may be the one that takes too long.
    let behind = match sends.first() {
        Some(first) if first.attempts > 0 => sends.split_off(1),
        _ => Vec::new(),
    };
    let batch = Batch::select(sends).sends;
    sends.extend(behind);
    if batch.is_empty() {
        return Vec::new();
    }
    let (size, started) = (batch.len(), Instant::now());
    match store::commit(db, &batch, None).await {
        Ok(decisions) => {
            metrics::send_batch(size, started.elapsed());
            publish_and_answer(backplane, batch, decisions)
        }
        // It is tried again as long as its callers wait.
        Err(error) if error.is_out_of_time() => again(batch),
        Err(error) => {
            refuse_failed(backplane, batch, &error);
            Vec::new()
        }
    }
}

fn again(mut batch: Vec<PendingSend>) -> Vec<PendingSend> {
    for send in &mut batch {
        // Not counted up: only a conversation that keeps changing may end a send.
        send.attempts = send.attempts.max(1);
    }
    batch
}
