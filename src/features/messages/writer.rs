//! The writer: gathers admitted sends, commits them batch by batch, answers each and publishes the
//! stored ones.
//!
//! Why: ADR 9.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{
    SendRequest, Sent, answer,
    batch::{Batch, PendingSend},
    contended::{ContendedSends, is_refused},
    store::{self, Decision, Locks},
};
use crate::{
    auth::revoked::RevokedCredentials,
    db::Db,
    delivery::Backplane,
    error::{Code, Error, Result},
    ids::{ConversationId, MessageId},
    metrics,
    planted::PlantedBug,
    random::Random,
    supervisor,
    telemetry::trace::{self, TraceContext},
};

/// The length of one shard's queue. A full queue refuses sends with 503.
const QUEUE_CAPACITY: usize = 4096;
/// The bytes of payloads that may wait in all shards.
const MAX_QUEUED_BYTES: usize = 128 * 1024 * 1024;
/// The number of sends that a shard takes out of its queue before it commits them.
const MAX_HELD_SENDS: usize = 1024;
/// The longest wait for an answer. The outcome is then unknown, not undone. A retry with the same
/// id reveals it.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of batches that may leave a send undecided. A conversation changed meanwhile, or a
/// key was about to expire.
const MAX_ATTEMPTS: u32 = 5;

/// Accepts sends. Clones share the shards.
#[derive(Clone)]
pub struct MessageWriter {
    random: Random,
    revoked: RevokedCredentials,
    /// The bytes that may still be queued.
    capacity: Arc<Semaphore>,
    shards: Arc<[mpsc::Sender<PendingSend>]>,
}

impl MessageWriter {
    /// Spawns `shards` shards. They end once the last clone is dropped and all sends are answered.
    pub fn start(
        db: &Db,
        backplane: &Backplane,
        random: Random,
        revoked: RevokedCredentials,
        shards: usize,
        tasks: &TaskTracker,
    ) -> Self {
        let shards = (0..shards).map(|_| {
            let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
            let contended = ContendedSends::default();
            let (lane, db, backplane) = (contended.clone(), db.clone(), backplane.clone());
            let shard = WriterShard::new(db.clone(), backplane.clone(), queue, contended);
            let shard = Arc::new(tokio::sync::Mutex::new(shard));
            supervisor::spawn(tasks, "send_writer", move || {
                let shard = shard.clone();
                async move { shard.lock().await.run().await }
            });
            supervisor::spawn(tasks, "contended_sends", move || {
                let (lane, db, backplane) = (lane.clone(), db.clone(), backplane.clone());
                async move { lane.run(&db, &backplane).await }
            });
            sender
        });
        MessageWriter {
            random,
            revoked,
            capacity: Arc::new(Semaphore::new(MAX_QUEUED_BYTES)),
            shards: shards.collect(),
        }
    }

    /// Stores and publishes a message, if its sender may send it. Returns once it is durable.
    pub async fn send(&self, request: SendRequest) -> Result<Sent> {
        let credential = request.credential;
        let span = trace::of_part("messages.send", "internal");
        let answered = self.enqueue(request, TraceContext::of(&span))?;
        let answered = tokio::time::timeout(SEND_TIMEOUT, answered).instrument(span);
        let outcome = match answered.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Error::unavailable("the writer's shard is gone")),
            Err(_) => Err(Error::unavailable("no commit in time")),
        };
        let unknown = |error: &Error| error.code() == Code::ServiceUnavailable;
        if PlantedBug::UnknownIsRefused.is_planted() && outcome.as_ref().is_err_and(unknown) {
            return Err(Code::Forbidden.into());
        }
        match &outcome {
            Ok(sent) if sent.duplicate => metrics::send("replayed"),
            Ok(_) => metrics::send("stored"),
            Err(error) => {
                if matches!(error.code(), Code::Unauthorized | Code::AgentTokenInvalid) {
                    self.revoked.mark_revoked(credential.id()).await;
                }
                metrics::send(error.code().wire());
            }
        }
        outcome
    }

    /// Puts a send into the queue of its conversation's shard.
    fn enqueue(
        &self,
        request: SendRequest,
        trace: Option<TraceContext>,
    ) -> Result<oneshot::Receiver<Result<Sent>>> {
        let bytes = u32::try_from(request.draft.payload.len()).unwrap_or(u32::MAX);
        let Ok(permit) = self.capacity.clone().try_acquire_many_owned(bytes) else {
            return Err(Error::unavailable("the waiting sends take too much memory"));
        };
        // The low half of an id is random.
        let shard = request.conversation.0.as_u64_pair().1 as usize % self.shards.len();
        let (answer, answered) = oneshot::channel();
        let send = PendingSend {
            id: MessageId::generate(&self.random),
            request,
            answer,
            trace,
            attempts: 0,
            queued_bytes: Some(permit),
        };
        match self.shards[shard].try_send(send) {
            Ok(()) => Ok(answered),
            Err(_) => Err(Error::unavailable("the writer's queue is full")),
        }
    }
}

/// Commits the sends of its conversations, one batch at a time.
struct WriterShard {
    db: Db,
    backplane: Backplane,
    queue: mpsc::Receiver<PendingSend>,
    /// Sends that the shard has taken out of its queue and no batch has decided yet, in order.
    held: Vec<PendingSend>,
    contention: ContentionTracker,
    /// Sends that wait for locks, and all later ones of their conversations.
    contended: ContendedSends,
    /// The last numbers that the shard gave out, by conversation.
    numbers: LastNumbers,
}

impl WriterShard {
    fn new(
        db: Db,
        backplane: Backplane,
        queue: mpsc::Receiver<PendingSend>,
        contended: ContendedSends,
    ) -> Self {
        WriterShard {
            db,
            backplane,
            queue,
            held: Vec::new(),
            contention: ContentionTracker::default(),
            contended,
            numbers: LastNumbers::default(),
        }
    }

    /// Runs until the queue is closed and all sends are answered.
    async fn run(&mut self) {
        while self.receive().await {
            self.contended.take_followers(&mut self.held);
            let mut batch = Batch::select(&mut self.held);
            self.move_locked(&mut batch).await;
            if batch.sends.is_empty() {
                continue;
            }
            let started = Instant::now();
            let locks_first = self.contention.has(&batch.sends);
            let outcome = if locks_first {
                self.commit_locked(&mut batch).await
            } else {
                store::commit(&self.db, &batch.sends, None).await
            };
            if outcome.is_ok() {
                metrics::send_batch(batch.sends.len(), locks_first, started.elapsed());
            }
            self.conclude(batch.sends, outcome).await;
        }
        self.contended.close();
    }

    /// Moves those sends of a batch to the contended ones that go to an inbox which is locked.
    async fn move_locked(&mut self, batch: &mut Batch) {
        let locked = self.contended.locked_inboxes();
        if locked.is_empty() || batch.sends.is_empty() {
            return;
        }
        let conversations = conversations_of(&batch.sends);
        match store::with_members(&self.db, &conversations, &locked).await {
            Ok(blocked) if blocked.is_empty() => {}
            Ok(blocked) => {
                let is_blocked =
                    |send: &mut PendingSend| blocked.contains(&send.request.conversation);
                let blocked = batch.sends.extract_if(.., is_blocked).collect();
                self.contended.add(blocked);
            }
            // The batch meets the lock and finds out by itself.
            Err(error) => error.log_in("messages.with_members", "the batch is tried as it is"),
        }
    }

    /// Divides the sends of a batch that a lock has held up. Those that need a locked row wait apart,
    /// and the others are held again.
    async fn move_contended(&mut self, sends: Vec<PendingSend>) {
        let locks = match store::locks(&self.db, &conversations_of(&sends)).await {
            Ok(locks) => locks,
            Err(error) => {
                error.log_in("messages.locks", "every send of the batch waits apart");
                Locks::default()
            }
        };
        let (blocked, free): (Vec<_>, Vec<_>) = sends
            .into_iter()
            .partition(|send| locks.conversations.contains(&send.request.conversation));
        // No row explains the wait: a key, the statement itself, or a lock that is gone.
        if blocked.is_empty() {
            return self.contended.add_suspect(free);
        }
        self.contended.note_locked(locks.inboxes);
        self.contended.add(blocked);
        self.requeue(free);
    }

    /// Waits for a send unless some are held, then takes all queued ones. False once the queue is
    /// closed and empty.
    async fn receive(&mut self) -> bool {
        if self.held.is_empty() && self.queue.recv_many(&mut self.held, MAX_HELD_SENDS).await == 0 {
            return false;
        }
        // Other ready tasks run first: batches grow, and on few cores the limiter's calls reach
        // Redis before Postgres is busy.
        tokio::task::yield_now().await;
        self.take_queued();
        true
    }

    fn take_queued(&mut self) {
        while self.held.len() < MAX_HELD_SENDS
            && let Ok(send) = self.queue.try_recv()
        {
            self.held.push(send);
        }
    }

    /// Locks the conversations first. That costs less than a statement that finds them changed and
    /// is repeated. Sends that arrive while another node has the locks join the batch.
    async fn commit_locked(&mut self, batch: &mut Batch) -> Result<Vec<Decision>> {
        let locked = store::lock(&self.db, &batch.sends).await?;
        self.take_queued();
        batch.add_to_locked(&mut self.held);
        store::commit(&self.db, &batch.sends, Some(locked)).await
    }

    /// Answers the decided sends. The others are held again, or go to the contended ones.
    async fn conclude(&mut self, batch: Vec<PendingSend>, outcome: Result<Vec<Decision>>) {
        let size = batch.len();
        match outcome {
            Ok(decisions) => {
                let foreign = self.numbers.record(&batch, &decisions);
                self.contention.record(foreign.into_iter());
                let undecided = publish_and_answer(&self.backplane, batch, decisions);
                self.contention
                    .record(conversations_of(&undecided).into_iter());
                self.requeue(undecided);
            }
            // A send waits for a lock or has too many recipients. The others go on without it.
            Err(error) if error.is_out_of_time() => {
                tracing::debug!(?error, "sends wait for a lock, apart from the others");
                self.move_contended(batch).await;
            }
            // Postgres refuses one of them. The others must still commit.
            Err(error) if size > 1 && is_refused(&error) => {
                error.log_in(
                    "messages.send",
                    "the batch is divided until one send fails alone",
                );
                self.contended.add_suspect(batch);
            }
            Err(error) => refuse_failed(&self.backplane, batch, &error),
        }
    }

    /// Puts undecided sends in front of later ones.
    fn requeue(&mut self, mut undecided: Vec<PendingSend>) {
        undecided.append(&mut self.held);
        self.held = undecided;
    }
}

/// The conversations that a shard remembers something of.
const MAX_TRACKED_CONVERSATIONS: usize = 4096;

/// The conversations that another node has recently written to, too.
#[derive(Default)]
struct ContentionTracker(HashMap<ConversationId, Instant>);

impl ContentionTracker {
    /// The time for which a conversation stays here.
    const CONTENTION_MEMORY: Duration = Duration::from_secs(2);

    /// Whether a batch is likely to meet another node's locks.
    fn has(&self, batch: &[PendingSend]) -> bool {
        let is_recent = |at: &Instant| at.elapsed() < Self::CONTENTION_MEMORY;
        batch.iter().any(|send| {
            send.attempts > 0
                || self
                    .0
                    .get(&send.request.conversation)
                    .is_some_and(is_recent)
        })
    }

    fn record(&mut self, conversations: impl Iterator<Item = ConversationId>) {
        if self.0.len() > MAX_TRACKED_CONVERSATIONS {
            self.0.clear();
        }
        let now = Instant::now();
        self.0
            .extend(conversations.map(|conversation| (conversation, now)));
    }
}

/// The last number that a shard gave out in each conversation. A number that does not follow it was
/// preceded by another writer's: by nothing else does a shard learn of other nodes' sends.
#[derive(Default)]
struct LastNumbers(HashMap<ConversationId, i64>);

impl LastNumbers {
    /// Notes the numbers of a batch. Returns the conversations that others write to as well.
    fn record(&mut self, batch: &[PendingSend], decisions: &[Decision]) -> Vec<ConversationId> {
        if self.0.len() > MAX_TRACKED_CONVERSATIONS {
            self.0.clear();
        }
        let mut foreign = Vec::new();
        for (send, decision) in batch.iter().zip(decisions) {
            if let Decision::Stored(stored) = decision {
                let conversation = send.request.conversation;
                let before = self.0.insert(conversation, stored.seq);
                if before.is_some_and(|before| before + 1 != stored.seq) {
                    foreign.push(conversation);
                }
            }
        }
        foreign
    }
}

fn conversations_of(sends: &[PendingSend]) -> Vec<ConversationId> {
    sends.iter().map(|send| send.request.conversation).collect()
}

/// Refuses sends whose statement failed.
pub(super) fn refuse_failed(backplane: &Backplane, batch: Vec<PendingSend>, error: &Error) {
    // The answer was lost, so the messages may be stored, and nobody publishes them.
    if error.code() == Code::ServiceUnavailable {
        backplane.note_unknown_commit();
    }
    refuse_all(batch, error);
}

pub(super) fn refuse_all(batch: Vec<PendingSend>, error: &Error) {
    error.log_in("messages.send", "the senders are refused and may try again");
    for send in batch {
        let refusal = match error.code() {
            Code::ServiceUnavailable => Error::unavailable("the batch failed"),
            code => code.into(),
        };
        // The receiver is gone if the request was cancelled.
        send.answer.send(Err(refusal)).ok();
    }
}

/// Publishes the stored sends, answers the decided ones, and returns the rest.
pub(super) fn publish_and_answer(
    backplane: &Backplane,
    batch: Vec<PendingSend>,
    decisions: Vec<Decision>,
) -> Vec<PendingSend> {
    let (mut undecided, mut events) = (Vec::new(), Vec::new());
    let mut answers = Vec::with_capacity(batch.len());
    for (mut send, decision) in batch.into_iter().zip(decisions) {
        let outcome = match decision {
            Decision::Stored(stored) => {
                let sent = answer::sent(&send, &stored);
                events.push(answer::event(&send, stored));
                Ok(sent)
            }
            Decision::Replay(prior) => answer::replay(&send.request, prior),
            Decision::Refused(refusal) => Err(answer::refused(send.request.sender, refusal)),
            Decision::Undecided if send.attempts < MAX_ATTEMPTS => {
                send.attempts += 1;
                undecided.push(send);
                continue;
            }
            Decision::Undecided => Err(Error::unavailable("its conversation stays contended")),
        };
        answers.push((send.answer, outcome));
    }
    backplane.publish(&events);
    for (answer, outcome) in answers {
        answer.send(outcome).ok();
    }
    undecided
}
