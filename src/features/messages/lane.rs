//! One writer: gathers what waits, commits it as one transaction, answers each, tells all.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use uuid::Uuid;

use super::{Entrance, Outgoing, Sent, Waiting, store};
use crate::{
    backplane::Backplane,
    db::Db,
    error::{Code, Error, Result},
    events::Message,
    features::inbox::Told,
    ids::{ConversationId, Principal},
    limits::quotas::HOPS,
    metrics as series,
};

/// Messages of one transaction,
const BATCH: usize = 64;
/// and bytes of their payloads, after which no more are added.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Batches a send may be in without a decision (its conversation changed meanwhile, or its key was to be freed first).
const TRIES: u32 = 5;

/// Commits batch after batch until all senders are gone.
pub async fn run(db: Db, backplane: Backplane, mut entrance: Entrance) {
    let mut held: VecDeque<Waiting> = VecDeque::new();
    let mut rivalry = Rivalry::default();
    loop {
        if held.is_empty() {
            if !entrance.wait(&mut held).await {
                return;
            }
        } else {
            entrance.look(&mut held);
        }
        entrance.settle(&mut held).await;
        let mut batch = Batch::default();
        batch.fill(&mut held, true);
        if batch.messages.is_empty() {
            continue;
        }
        commit(&db, &backplane, batch, &mut entrance, &mut held, &mut rivalry).await;
    }
}

/// Conversations that another node was just sending into, too.
#[derive(Default)]
struct Rivalry(HashMap<ConversationId, Instant>);

impl Rivalry {
    /// How long a conversation stays here, and how many do.
    const MEMORY: Duration = Duration::from_secs(2);
    const MOST: usize = 4096;

    fn concerns(&self, batch: &[Waiting]) -> bool {
        let recent = |at: &Instant| at.elapsed() < Self::MEMORY;
        batch.iter().any(|one| one.tries > 0 || self.0.get(&one.message.conversation).is_some_and(recent))
    }

    fn note(&mut self, undecided: &VecDeque<Waiting>) {
        if self.0.len() > Self::MOST {
            self.0.clear();
        }
        self.0.extend(undecided.iter().map(|one| (one.message.conversation, Instant::now())));
    }
}

/// What shares a transaction.
#[derive(Default)]
struct Batch {
    messages: Vec<Waiting>,
    company: Company,
}

impl Batch {
    /// Takes from the front what may join. The rest stays in order, and what follows something that stays in its
    /// conversation stays too. Once the conversations are locked no other may join: locks are taken in order.
    fn fill(&mut self, held: &mut VecDeque<Waiting>, any_conversation: bool) {
        self.company.held.clear();
        let mut rest = VecDeque::new();
        // Whoever has given up waiting is not answered any more, so nothing is stored for them.
        for one in held.drain(..).filter(|one| !one.answer.is_closed()) {
            let may = any_conversation || self.company.senders.contains_key(&one.message.conversation);
            if may && self.messages.len() < BATCH && self.company.admits(&one.message) {
                self.messages.push(one);
            } else {
                self.company.held.insert(one.message.conversation);
                rest.push_back(one);
            }
        }
        *held = rest;
        // As the statement numbers them, so that what one inbox gets is told in its order.
        self.messages.sort_by_key(|one| one.message.conversation);
    }
}

/// What is already in a batch, as far as it decides what may join.
#[derive(Default)]
struct Company {
    keys: HashSet<(Uuid, Uuid)>,
    /// By conversation: its sender if all of its messages leave an agent's `hop` as Postgres will compute it.
    senders: HashMap<ConversationId, Option<Principal>>,
    held: HashSet<ConversationId>,
    bytes: usize,
}

impl Company {
    fn admits(&mut self, message: &Outgoing) -> bool {
        let Outgoing { sender, conversation, draft, .. } = message;
        if self.held.contains(conversation) || self.bytes > BATCH_BYTES {
            return false;
        }
        // The same id twice in one statement cannot be told apart; the second finds the first in the next batch.
        let key = draft.key.map(|key| (sender.id(), key));
        if key.is_some_and(|key| self.keys.contains(&key)) {
            return false;
        }
        // An agent's hop counts from the conversation's latest message as Postgres knows it, so nothing else may
        // come before it in its batch but messages of its own that count the same.
        let alike = (matches!(sender, Principal::Agent(_)) && draft.in_reply_to.is_none()).then_some(*sender);
        match self.senders.get(conversation) {
            Some(before)
                if matches!(sender, Principal::Agent(_)) && (alike.is_none() || *before != alike) =>
            {
                return false;
            }
            Some(_) => {
                if alike.is_none() {
                    self.senders.insert(*conversation, None);
                }
            }
            None => {
                self.senders.insert(*conversation, alike);
            }
        }
        self.keys.extend(key);
        self.bytes += draft.payload.len();
        true
    }
}

async fn commit(
    db: &Db,
    backplane: &Backplane,
    mut batch: Batch,
    entrance: &mut Entrance,
    held: &mut VecDeque<Waiting>,
    rivalry: &mut Rivalry,
) {
    let started = Instant::now();
    let outcome = if rivalry.concerns(&batch.messages) {
        // Locked first: two executions of the statement, of which one finds it all stale, cost more. What comes while
        // the other node has the lock joins the batch.
        let locked = store::lock(db, &batch.messages).await;
        entrance.look(held);
        batch.fill(held, false);
        match locked {
            Ok(locked) => store::send(db, &batch.messages, Some(locked)).await,
            Err(error) => Err(error),
        }
    } else {
        store::send(db, &batch.messages, None).await
    };
    let batch = batch.messages;
    let n = batch.len();
    match outcome {
        Ok(decisions) => {
            series::send_batch(n, started.elapsed());
            let undecided = answer(backplane, batch, decisions);
            rivalry.note(&undecided);
            hold(undecided, held);
        }
        Err(error) if n > 1 && (error.code() == Code::InternalError || error.is_out_of_time()) => {
            // One of them is something that Postgres refuses, waits for a lock, or has too many recipients: let the
            // others through.
            error.log();
            one_by_one(db, backplane, batch, held).await;
        }
        Err(error) => refuse_all(batch, &error),
    }
}

/// Each in a transaction of its own. What comes after one that is undecided waits behind it, and what comes after one
/// that took too long is not tried: nor would it be in time.
async fn one_by_one(db: &Db, backplane: &Backplane, batch: Vec<Waiting>, held: &mut VecDeque<Waiting>) {
    let mut undecided: VecDeque<Waiting> = VecDeque::new();
    let mut slow = HashSet::new();
    for one in batch {
        let conversation = one.message.conversation;
        if undecided.iter().any(|before| before.message.conversation == conversation) {
            undecided.push_back(one);
        } else if slow.contains(&conversation) {
            refuse_all(vec![one], &Error::unavailable("the conversation is too slow"));
        } else if !one.answer.is_closed() {
            let single = vec![one];
            match store::send(db, &single, None).await {
                Ok(decisions) => undecided.extend(answer(backplane, single, decisions)),
                Err(error) => {
                    if error.is_out_of_time() {
                        slow.insert(conversation);
                    }
                    refuse_all(single, &error);
                }
            }
        }
    }
    hold(undecided, held);
}

/// Puts what is undecided back in front.
fn hold(mut undecided: VecDeque<Waiting>, held: &mut VecDeque<Waiting>) {
    undecided.append(held);
    *held = undecided;
}

fn refuse_all(batch: Vec<Waiting>, error: &Error) {
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
fn answer(backplane: &Backplane, batch: Vec<Waiting>, decisions: Vec<store::Decision>) -> VecDeque<Waiting> {
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
            store::Decision::Undecided if one.tries < TRIES => {
                one.tries += 1;
                undecided.push_back(one);
                continue;
            }
            store::Decision::Undecided => Err(Error::unavailable("its conversation stays contended")),
        };
        answers.push((one.answer, outcome));
    }
    backplane.tell_all(&news);
    for (answer, outcome) in answers {
        answer.send(outcome).ok();
    }
    undecided
}

fn sent(one: &Waiting, stored: &store::Stored) -> Sent {
    Sent {
        message_id: one.id,
        conversation_id: one.message.conversation,
        seq: stored.seq,
        created_at: stored.created_at,
        client_message_id: one.message.draft.client_message_id,
        duplicate: false,
    }
}

fn told(one: &Waiting, stored: store::Stored) -> Told {
    let draft = &one.message.draft;
    let recipients: Option<Vec<String>> =
        draft.recipients.as_ref().map(|named| named.iter().map(|who| who.wire_id()).collect());
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
    Told { tail: message.tail(), deliveries: stored.deliveries }
}

/// The first send's answer, if this is the same message; compared by meaning, so spacing and key order do not matter.
fn replay(one: &Waiting, prior: store::Prior) -> Result<Sent> {
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
        created_at: prior.created_at,
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
        (store::Refusal::Plaintext, _) => {
            Error::field("payload.type", "encryption", "this conversation takes encrypted payloads only")
        }
        (store::Refusal::UnknownReference, _) => {
            Error::field("in_reply_to", "reference", "is no message of this conversation")
        }
        (store::Refusal::Loop, _) => Error::from(Code::AgentLoopDetected).with("limit", HOPS),
        (store::Refusal::UnknownRecipient, _) => {
            Error::field("recipients", "member", "names someone who is no member of this conversation")
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        features::messages::Draft,
        ids::{AgentId, MessageId, UserId},
    };

    /// A send that somebody waits for.
    pub fn waiting(
        sender: Principal,
        conversation: u128,
        key: Option<u128>,
        in_reply_to: Option<u128>,
    ) -> Waiting {
        let draft = Draft {
            payload: "{}".to_owned(),
            encrypted: false,
            key: key.map(Uuid::from_u128),
            client_message_id: None,
            in_reply_to: in_reply_to.map(|id| MessageId(Uuid::from_u128(id))),
            recipients: None,
        };
        let conversation = ConversationId(Uuid::from_u128(conversation));
        let message = Outgoing { sender, credential: Uuid::nil(), conversation, draft };
        Waiting { id: MessageId(Uuid::nil()), message, answer: kept_open(), tries: 0, place: None }
    }

    /// An answer that somebody waits for, as long as the test runs.
    fn kept_open() -> oneshot::Sender<Result<Sent>> {
        let (answer, answered) = oneshot::channel();
        std::mem::forget(answered);
        answer
    }

    fn sizes(sends: Vec<Waiting>) -> Vec<usize> {
        let mut held = VecDeque::from(sends);
        let mut sizes = Vec::new();
        while !held.is_empty() {
            let mut batch = Batch::default();
            batch.fill(&mut held, true);
            sizes.push(batch.messages.len());
        }
        sizes
    }

    #[test]
    fn what_cannot_share_a_statement_waits_in_order() {
        let user = Principal::User(UserId(Uuid::from_u128(1)));
        let agent = Principal::Agent(AgentId(Uuid::from_u128(2)));
        let other = Principal::Agent(AgentId(Uuid::from_u128(3)));
        let of = |sender, conversation| waiting(sender, conversation, None, None);
        assert_eq!(sizes(vec![of(user, 1), of(user, 1), of(user, 2), of(agent, 3)]), [4]);
        assert_eq!(sizes(vec![of(agent, 1), of(agent, 1), of(user, 1)]), [3]);
        // An agent after a human, or after another agent, in one conversation.
        assert_eq!(sizes(vec![of(user, 1), of(agent, 1), of(user, 1), of(agent, 2)]), [2, 2]);
        assert_eq!(sizes(vec![of(agent, 1), of(other, 1), of(agent, 1)]), [1, 1, 1]);
        // An answer to a certain message.
        assert_eq!(sizes(vec![waiting(agent, 1, None, Some(9)), of(agent, 1)]), [1, 1]);
        // One id twice; what follows in the conversation waits behind it.
        assert_eq!(
            sizes(vec![
                waiting(user, 1, Some(5), None),
                waiting(user, 1, Some(5), None),
                of(user, 1),
                of(user, 2)
            ]),
            [2, 2]
        );
    }
    #[test]
    fn only_what_is_for_locked_conversations_joins_later() {
        let user = Principal::User(UserId(Uuid::from_u128(1)));
        let agent = Principal::Agent(AgentId(Uuid::from_u128(2)));
        let of = |sender, conversation| waiting(sender, conversation, None, None);
        let (mut batch, mut held) =
            (Batch::default(), VecDeque::from([of(user, 2), of(user, 1), of(agent, 1)]));
        batch.fill(&mut held, true);
        held.extend([of(user, 1), of(user, 3), of(user, 2)]);
        batch.fill(&mut held, false);
        let conversations = |messages: &mut dyn Iterator<Item = &Waiting>| -> Vec<u128> {
            messages.map(|one| one.message.conversation.0.as_u128()).collect()
        };
        assert_eq!(conversations(&mut batch.messages.iter()), [1, 2, 2]);
        // The agent's turn in the first conversation is in the next batch, and so is what follows it there.
        assert_eq!(conversations(&mut held.iter()), [1, 1, 3]);
    }
}
