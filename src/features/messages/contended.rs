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
use crate::{
    db::Db,
    delivery::Backplane,
    error::{Code, Error},
    ids::ConversationId,
    metrics,
};

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
    /// Whether the next send of a conversation has been tried before.
    fn has_failed(&self, conversation: ConversationId) -> bool {
        let sends = self.sends.get(&conversation);
        sends
            .and_then(|sends| sends.first())
            .is_some_and(|send| send.attempts > 0)
    }

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

    /// Commits waiting sends until closed: those of several conversations together, and each
    /// conversation that failed before in its turn.
    pub async fn run(&self, db: &Db, backplane: &Backplane) {
        self.waiting.lock().reschedule();
        loop {
            let Some(mut turn) = self.next() else {
                if self.waiting.lock().closed {
                    return;
                }
                self.notify.notified().await;
                continue;
            };
            let taken = turn.sends.len();
            let mut rest = commit_next(db, backplane, &mut turn.sends).await;
            rest.append(&mut turn.sends);
            self.settle(&turn.conversations, rest, taken);
        }
    }

    /// The next turn. New sends of its conversations still wait behind it.
    fn next(&self) -> Option<Turn> {
        let mut waiting = self.waiting.lock();
        let first = waiting.order.pop_front()?;
        let mut conversations = vec![first];
        // A conversation that failed before goes alone, so that its lock holds up no other.
        if !waiting.has_failed(first) {
            let (alone, together): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut waiting.order)
                .into_iter()
                .partition(|conversation| waiting.has_failed(*conversation));
            waiting.order = alone;
            conversations.extend(together);
        }
        let mut sends = Vec::new();
        for conversation in &conversations {
            if let Some(waiting) = waiting.sends.get_mut(conversation) {
                sends.append(waiting);
            }
        }
        Some(Turn {
            conversations,
            sends,
        })
    }

    /// Puts undecided sends back, in front of newer ones. A conversation without any is no longer
    /// contended.
    fn settle(&self, conversations: &[ConversationId], rest: Vec<PendingSend>, taken: usize) {
        let mut waiting = self.waiting.lock();
        waiting.count = waiting.count + rest.len() - taken;
        let mut undecided: HashMap<ConversationId, Vec<PendingSend>> = HashMap::new();
        for send in rest {
            let conversation = send.request.conversation;
            undecided.entry(conversation).or_default().push(send);
        }
        for conversation in conversations {
            let mut sends = undecided.remove(conversation).unwrap_or_default();
            sends.extend(waiting.sends.remove(conversation).unwrap_or_default());
            if !sends.is_empty() {
                waiting.sends.insert(*conversation, sends);
                waiting.order.push_back(*conversation);
            }
        }
    }
}

/// Conversations whose sends are tried together.
struct Turn {
    conversations: Vec<ConversationId>,
    /// Their sends; those of a conversation are in order.
    sends: Vec<PendingSend>,
}

/// Commits sends of a turn. Returns those that must be tried again.
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
        // Postgres refuses one of them. The others must still commit.
        Err(error) if size > 1 && error.code() == Code::InternalError => {
            error.log_in("messages.send", "the sends are stored one by one");
            again(batch)
        }
        Err(error) => {
            refuse_failed(backplane, batch, &error);
            Vec::new()
        }
    }
}

/// Marks sends as tried, so that each goes alone.
pub(super) fn again(mut batch: Vec<PendingSend>) -> Vec<PendingSend> {
    for send in &mut batch {
        // Not counted up: only a conversation that keeps changing may end a send.
        send.attempts = send.attempts.max(1);
    }
    batch
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{super::batch::tests::waiting, *};
    use crate::ids::{Principal, UserId};

    fn send(conversation: u128) -> PendingSend {
        let user = Principal::User(UserId(Uuid::from_u128(1)));
        waiting(user, conversation, None, None)
    }

    /// The conversations of a turn, and its number of sends.
    fn shown(turn: &Turn) -> (Vec<u128>, usize) {
        let ids = turn.conversations.iter().map(|id| id.0.as_u128());
        (ids.collect(), turn.sends.len())
    }

    #[test]
    fn a_conversation_that_failed_goes_alone_and_the_others_together() {
        let contended = ContendedSends::default();
        contended.add(vec![send(1), send(2), send(1), send(3)]);
        let turn = contended.next().expect("a turn");
        assert_eq!(shown(&turn), (vec![1, 2, 3], 4));
        // A later send of a conversation that is being committed follows it.
        let mut held = vec![send(2), send(9)];
        contended.take_followers(&mut held);
        assert_eq!(held.len(), 1);
        // The first and the second met a lock; the third is stored.
        let mut rest = turn.sends;
        rest.retain(|send| send.request.conversation.0.as_u128() < 3);
        contended.settle(&turn.conversations, again(rest), 4);
        contended.add(vec![send(4), send(5)]);
        let turns: Vec<_> = std::iter::from_fn(|| contended.next()).collect();
        let turns: Vec<_> = turns.iter().map(shown).collect();
        assert_eq!(turns, [(vec![1], 2), (vec![2], 2), (vec![4, 5], 2)]);
        assert_eq!(contended.waiting.lock().count, 6);
    }
}
