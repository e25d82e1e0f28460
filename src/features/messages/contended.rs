//! Sends that wait for rows that another transaction has locked, or of which Postgres refuses one. They
//! wait here, apart from the shard's other sends, so none of these is held up.
//!
//! They are committed in batches of many conversations. A batch that meets a lock or is refused is
//! halved, down to a single conversation, and of that to its first send; a commit doubles it again. So
//! the sends to a popular agent are as fast as before once the lock is gone, and one that stays locked
//! ends up alone.
//!
//! Why: ADR 9.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    batch::{Batch, MAX_BATCH_MESSAGES, PendingSend},
    store,
    writer::{publish_and_answer, refuse_all, refuse_failed},
};
use crate::{
    db::Db,
    delivery::Backplane,
    error::{Code, Error},
    ids::{ConversationId, PrincipalId},
    metrics,
};

/// The number of sends that may wait for locks. More are refused.
const MAX_CONTENDED_SENDS: usize = 4096;
/// The time for which sends to a locked inbox go here without a look at the lock.
const LOCK_MEMORY: Duration = Duration::from_secs(1);

/// The contended sends of a shard; clones share them.
#[derive(Clone, Default)]
pub struct ContendedSends {
    waiting: Arc<Mutex<Waiting>>,
    locked: Arc<Mutex<LockedInboxes>>,
    notify: Arc<Notify>,
}

/// The inboxes that another transaction holds.
#[derive(Default)]
struct LockedInboxes {
    owners: Vec<PrincipalId>,
    seen_at: Option<Instant>,
}

struct Waiting {
    /// The conversations with waiting sends, in the order of their commits. A conversation whose
    /// sends are being committed stays in `sends`.
    order: VecDeque<ConversationId>,
    sends: HashMap<ConversationId, Vec<PendingSend>>,
    count: usize,
    /// The most conversations of the next batch.
    room: usize,
    closed: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Waiting {
            order: VecDeque::new(),
            sends: HashMap::new(),
            count: 0,
            room: MAX_BATCH_MESSAGES,
            closed: false,
        }
    }
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

    /// Adds sends of which one takes too long, is refused by Postgres, or waits for something that is no
    /// row of theirs. The conversations go one by one until a commit passes.
    pub fn add_suspect(&self, sends: Vec<PendingSend>) {
        self.resize(|_| 1);
        self.add(sends);
    }

    /// Notes the inboxes that hold up sends.
    pub fn note_locked(&self, owners: Vec<PrincipalId>) {
        *self.locked.lock() = LockedInboxes {
            owners,
            seen_at: Some(Instant::now()),
        };
    }

    /// The inboxes that held up sends a moment ago; none once a commit of these has passed.
    pub fn locked_inboxes(&self) -> Vec<PrincipalId> {
        let mut locked = self.locked.lock();
        if locked.seen_at.is_none_or(|at| at.elapsed() > LOCK_MEMORY) {
            locked.owners.clear();
        }
        locked.owners.clone()
    }

    /// Commits waiting sends, each conversation in its turn, until closed.
    pub async fn run(&self, db: &Db, backplane: &Backplane) {
        self.waiting.lock().reschedule();
        loop {
            let (taken, mut sends) = self.next();
            if taken.is_empty() {
                if self.waiting.lock().closed {
                    return;
                }
                self.notify.notified().await;
                continue;
            }
            let count = sends.len();
            let mut rest = self.commit_next(db, backplane, &mut sends).await;
            rest.append(&mut sends);
            self.settle(&taken, rest, count);
        }
    }

    /// The next conversations with their sends. New ones of these still wait behind them.
    fn next(&self) -> (Vec<ConversationId>, Vec<PendingSend>) {
        let mut waiting = self.waiting.lock();
        let (mut taken, mut sends) = (Vec::new(), Vec::new());
        while taken.len() < waiting.room
            && sends.len() < MAX_BATCH_MESSAGES
            && let Some(conversation) = waiting.order.pop_front()
        {
            if let Some(own) = waiting.sends.get_mut(&conversation) {
                sends.append(own);
            }
            taken.push(conversation);
        }
        (taken, sends)
    }

    /// Commits a batch out of `sends`. Returns those that must be tried again.
    async fn commit_next(
        &self,
        db: &Db,
        backplane: &Backplane,
        sends: &mut Vec<PendingSend>,
    ) -> Vec<PendingSend> {
        // Of a conversation that failed by itself, the first send goes alone: it may be the one that
        // takes too long.
        let failed = sends.first().filter(|first| first.attempts > 0);
        let behind = match failed.map(|first| first.request.conversation) {
            Some(one) if sends.iter().all(|send| send.request.conversation == one) => {
                sends.split_off(1)
            }
            _ => Vec::new(),
        };
        let mut batch = Batch::select(sends).sends;
        sends.extend(behind);
        if batch.is_empty() {
            return Vec::new();
        }
        let (size, started) = (batch.len(), Instant::now());
        match store::commit(db, &batch, None).await {
            Ok(decisions) => {
                metrics::send_batch(size, false, started.elapsed());
                self.resize(|room| room * 2);
                // The locked rows are free. Another lock shows itself.
                self.locked.lock().owners.clear();
                publish_and_answer(backplane, batch, decisions)
            }
            // They are tried again as long as their callers wait. A send that fails alone is refused.
            Err(error) if error.is_out_of_time() || (size > 1 && is_refused(&error)) => {
                let conversations: HashSet<ConversationId> =
                    batch.iter().map(|send| send.request.conversation).collect();
                self.resize(|room| room.min(conversations.len()) / 2);
                if error.is_out_of_time() {
                    self.remember_locks();
                }
                if conversations.len() == 1 {
                    // Not counted up: only a conversation that keeps changing may end a send.
                    batch
                        .iter_mut()
                        .for_each(|send| send.attempts = send.attempts.max(1));
                }
                batch
            }
            Err(error) => {
                refuse_failed(backplane, batch, &error);
                Vec::new()
            }
        }
    }

    fn resize(&self, next: impl Fn(usize) -> usize) {
        let mut waiting = self.waiting.lock();
        waiting.room = next(waiting.room).clamp(1, MAX_BATCH_MESSAGES);
    }

    /// The locks are still held, so their memory lasts on.
    fn remember_locks(&self) {
        let mut locked = self.locked.lock();
        if !locked.owners.is_empty() {
            locked.seen_at = Some(Instant::now());
        }
    }

    /// Puts undecided sends back, in front of newer ones. A conversation without any is no longer
    /// contended.
    fn settle(&self, taken: &[ConversationId], rest: Vec<PendingSend>, count: usize) {
        let mut waiting = self.waiting.lock();
        waiting.count = waiting.count + rest.len() - count;
        let mut undecided: HashMap<ConversationId, Vec<PendingSend>> = HashMap::new();
        for send in rest {
            let conversation = send.request.conversation;
            undecided.entry(conversation).or_default().push(send);
        }
        for conversation in taken {
            let mut rest = undecided.remove(conversation).unwrap_or_default();
            rest.extend(waiting.sends.remove(conversation).unwrap_or_default());
            if !rest.is_empty() {
                waiting.sends.insert(*conversation, rest);
                waiting.order.push_back(*conversation);
            }
        }
    }
}

/// Whether Postgres refused the statement, so that a smaller batch may pass.
pub(super) fn is_refused(error: &Error) -> bool {
    error.code() == Code::InternalError
}
