//! One writer: gathers what waits, commits it as one transaction, answers each, tells all.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use super::{
    Outgoing, PendingSend, Sent,
    ahead::{Ahead, Outcome},
    batch::Batch,
    entrance::Entrance,
    store,
};
use crate::{
    backplane::Backplane,
    db::Db,
    error::{Code, Error, Result},
    events::Message,
    features::inbox::Told,
    ids::{ConversationId, Principal},
    limits::quotas::MAX_HOPS,
    metrics,
};

/// Batches a send may be in without a decision (its conversation changed meanwhile, or its key was to be freed first).
const MAX_ATTEMPTS: u32 = 5;

/// How often all tasks that can run have their turn before a batch is made: those who are about to send join it, and then
/// the limiter has been asked. Where cores are few, Redis would else wait for one until Postgres has done its part.
const YIELDS: u32 = 2;

/// Commits batch after batch until all senders are gone.
pub async fn run(db: Db, backplane: Backplane, entrance: Entrance) {
    let (held, rivalry, ahead) = (
        VecDeque::new(),
        ContentionTracker::default(),
        Ahead::default(),
    );
    let mut lane = WriterShard {
        db,
        backplane,
        entrance,
        held,
        rivalry,
        ahead,
    };
    while lane.step().await {}
}

struct WriterShard {
    db: Db,
    backplane: Backplane,
    entrance: Entrance,
    /// Those who are inside, in order.
    held: VecDeque<PendingSend>,
    rivalry: ContentionTracker,
    ahead: Ahead,
}

impl WriterShard {
    /// One batch; false once there will be none any more.
    async fn step(&mut self) -> bool {
        let open = self.ahead.may();
        if self.held.is_empty() && !self.entrance.wait(&mut self.held, open).await {
            return false;
        }
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        self.entrance.look(&mut self.held, open);
        let mut batch = self.next_batch();
        let started = Instant::now();
        if self.rivalry.concerns(&batch.messages) {
            // Locks that others wait for, too, are not held for the limiter.
            self.hold(batch.messages.into());
            self.entrance.look(&mut self.held, false);
            batch = self.next_batch();
            if !batch.messages.is_empty() {
                self.commit_locked(batch, started).await;
            }
        } else if batch.messages.iter().any(|one| one.pass.is_pending()) {
            match self.ahead.send(&self.db, batch.messages).await {
                Outcome::Tried(batch, outcome) => self.conclude(batch, outcome, started).await,
                Outcome::Waits(batch) => batch
                    .into_iter()
                    .for_each(|one| self.entrance.put_back(one)),
            }
        } else if !batch.messages.is_empty() {
            let outcome = store::send(&self.db, &batch.messages, None).await;
            self.conclude(batch.messages, outcome, started).await;
        }
        true
    }

    fn next_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        batch.fill(&mut self.held, true);
        batch
    }

    /// Locked first: two executions of the statement, of which one finds it all stale, cost more. What comes while the
    /// other node has the lock joins the batch.
    async fn commit_locked(&mut self, mut batch: Batch, started: Instant) {
        let locked = store::lock(&self.db, &batch.messages).await;
        self.entrance.look(&mut self.held, false);
        batch.fill(&mut self.held, false);
        let outcome = match locked {
            Ok(locked) => store::send(&self.db, &batch.messages, Some(locked)).await,
            Err(error) => Err(error),
        };
        self.conclude(batch.messages, outcome, started).await;
    }

    /// Answers what is decided. What is not is held, or tried once more by itself.
    async fn conclude(
        &mut self,
        batch: Vec<PendingSend>,
        outcome: Result<Vec<store::Decision>>,
        started: Instant,
    ) {
        let n = batch.len();
        match outcome {
            Ok(decisions) => {
                metrics::send_batch(n, started.elapsed());
                let undecided = answer(&self.backplane, batch, decisions);
                self.rivalry.note(&undecided);
                self.hold(undecided);
            }
            Err(error)
                if n > 1 && (error.code() == Code::InternalError || error.is_out_of_time()) =>
            {
                // One of them is something that Postgres refuses, waits for a lock, or has too many recipients: let the
                // others through.
                error.log();
                self.one_by_one(batch).await;
            }
            Err(error) => refuse_all(batch, &error),
        }
    }

    /// Each in a transaction of its own. What comes after one that is undecided waits behind it, and what comes after one
    /// that took too long is not tried: nor would it be in time.
    async fn one_by_one(&mut self, batch: Vec<PendingSend>) {
        let mut undecided: VecDeque<PendingSend> = VecDeque::new();
        let mut slow = HashSet::new();
        for one in batch {
            let conversation = one.message.conversation;
            if undecided
                .iter()
                .any(|before| before.message.conversation == conversation)
            {
                undecided.push_back(one);
            } else if slow.contains(&conversation) {
                refuse_all(
                    vec![one],
                    &Error::unavailable("the conversation is too slow"),
                );
            } else if !one.answer.is_closed() {
                let single = vec![one];
                match store::send(&self.db, &single, None).await {
                    Ok(decisions) => undecided.extend(answer(&self.backplane, single, decisions)),
                    Err(error) => {
                        if error.is_out_of_time() {
                            slow.insert(conversation);
                        }
                        refuse_all(single, &error);
                    }
                }
            }
        }
        self.hold(undecided);
    }

    /// Puts what is undecided back in front.
    fn hold(&mut self, mut undecided: VecDeque<PendingSend>) {
        undecided.append(&mut self.held);
        self.held = undecided;
    }
}

/// Conversations that another node was just sending into, too.
#[derive(Default)]
struct ContentionTracker(HashMap<ConversationId, Instant>);

impl ContentionTracker {
    /// How long a conversation stays here, and how many do.
    const CONTENTION_MEMORY: Duration = Duration::from_secs(2);
    const MAX_TRACKED_CONVERSATIONS: usize = 4096;

    fn concerns(&self, batch: &[PendingSend]) -> bool {
        let recent = |at: &Instant| at.elapsed() < Self::CONTENTION_MEMORY;
        batch
            .iter()
            .any(|one| one.tries > 0 || self.0.get(&one.message.conversation).is_some_and(recent))
    }

    fn note(&mut self, undecided: &VecDeque<PendingSend>) {
        if self.0.len() > Self::MAX_TRACKED_CONVERSATIONS {
            self.0.clear();
        }
        self.0.extend(
            undecided
                .iter()
                .map(|one| (one.message.conversation, Instant::now())),
        );
    }
}

fn refuse_all(batch: Vec<PendingSend>, error: &Error) {
    error.log();
    for one in batch {
        let failure = match error.code() {
            Code::ServiceUnavailable => Error::unavailable("the batch failed"),
            code => code.into(),
        };
        // Nobody waits any more if the request was cut.
        one.answer.send(Err(failure)).ok();
    }
}

/// Tells and answers what is decided, and returns the rest.
fn answer(
    backplane: &Backplane,
    batch: Vec<PendingSend>,
    decisions: Vec<store::Decision>,
) -> VecDeque<PendingSend> {
    let mut undecided = VecDeque::new();
    let mut news = Vec::new();
    let mut answers = Vec::with_capacity(batch.len());
    for (mut one, decision) in batch.into_iter().zip(decisions) {
        let outcome = match decision {
            store::Decision::Stored(stored) => {
                let sent = sent(&one, &stored);
                news.push(told(&one, stored));
                Ok(sent)
            }
            store::Decision::Replay(prior) => replay(&one, prior),
            store::Decision::Refused(refusal) => Err(refused(&one.message, refusal)),
            store::Decision::Undecided if one.tries < MAX_ATTEMPTS => {
                one.tries += 1;
                undecided.push_back(one);
                continue;
            }
            store::Decision::Undecided => {
                Err(Error::unavailable("its conversation stays contended"))
            }
        };
        answers.push((one.answer, outcome));
    }
    backplane.tell_all(&news);
    for (answer, outcome) in answers {
        answer.send(outcome).ok();
    }
    undecided
}

fn sent(one: &PendingSend, stored: &store::Stored) -> Sent {
    Sent {
        message_id: one.id,
        conversation_id: one.message.conversation,
        seq: stored.seq,
        created_at: stored.created_at.into(),
        client_message_id: one.message.draft.client_message_id,
        duplicate: false,
    }
}

fn told(one: &PendingSend, stored: store::Stored) -> Told {
    let draft = &one.message.draft;
    let recipients: Option<Vec<String>> = draft
        .recipients
        .as_ref()
        .map(|named| named.iter().map(|who| who.wire_id()).collect());
    let message = Message {
        id: one.id,
        conversation: one.message.conversation,
        seq: stored.seq,
        sender: one.message.sender,
        device_id: stored.device_id.as_deref(),
        payload: &draft.payload,
        recipients: recipients.as_deref(),
        client_message_id: draft.client_message_id,
        in_reply_to: draft.in_reply_to,
        hop: stored.hop,
        created_at: stored.created_at,
    };
    Told {
        encoded: message.encoded(),
        deliveries: stored.deliveries,
    }
}

/// The first send's answer, if this is the same message; compared by meaning, so spacing and key order do not matter.
fn replay(one: &PendingSend, prior: store::Prior) -> Result<Sent> {
    let meaning = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let same = prior.conversation == one.message.conversation
        && (prior.payload == one.message.draft.payload
            || meaning(&prior.payload) == meaning(&one.message.draft.payload));
    if !same {
        return Err(Code::IdempotencyConflict.into());
    }
    Ok(Sent {
        message_id: prior.id,
        conversation_id: prior.conversation,
        seq: prior.seq,
        created_at: prior.created_at.into(),
        client_message_id: prior.client_message_id,
        duplicate: true,
    })
}

fn refused(message: &Outgoing, refusal: store::Refusal) -> Error {
    match (refusal, message.sender) {
        (store::Refusal::Credential, Principal::User(_)) => Code::Unauthorized.into(),
        (store::Refusal::Credential, Principal::Agent(_)) => Code::AgentTokenInvalid.into(),
        (store::Refusal::NotMember, _) => Code::NotConversationMember.into(),
        (store::Refusal::RelationRevoked, _) => Code::RelationRevoked.into(),
        (store::Refusal::Plaintext, _) => Error::field(
            "payload.type",
            "encryption",
            "this conversation takes encrypted payloads only",
        ),
        (store::Refusal::UnknownReference, _) => Error::field(
            "in_reply_to",
            "reference",
            "is no message of this conversation",
        ),
        (store::Refusal::Loop, _) => Error::from(Code::AgentLoopDetected).with("limit", MAX_HOPS),
        (store::Refusal::UnknownRecipient, _) => Error::field(
            "recipients",
            "member",
            "names someone who is no member of this conversation",
        ),
    }
}
