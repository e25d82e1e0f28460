//! Which sends share a transaction.

use std::collections::{HashMap, HashSet, VecDeque};

use uuid::Uuid;

use super::{Outgoing, PendingSend};
use crate::ids::{ConversationId, Principal};

/// Messages of one transaction,
const MAX_BATCH_MESSAGES: usize = 64;
/// and bytes of their payloads, after which no more are added.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// What shares a transaction.
#[derive(Default)]
pub struct Batch {
    /// In the order in which they are numbered.
    pub messages: Vec<PendingSend>,
    company: Company,
}

impl Batch {
    /// Takes from the front what may join. The rest stays in order, and what follows something that stays in its
    /// conversation stays too. Once the conversations are locked no other may join: locks are taken in order.
    pub fn fill(&mut self, held: &mut VecDeque<PendingSend>, any_conversation: bool) {
        self.company.held.clear();
        let mut rest = VecDeque::new();
        // Whoever has given up waiting is not answered any more, so nothing is stored for them.
        for one in held.drain(..).filter(|one| !one.answer.is_closed()) {
            let may =
                any_conversation || self.company.senders.contains_key(&one.message.conversation);
            if may && self.messages.len() < MAX_BATCH_MESSAGES && self.company.admits(&one.message)
            {
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
        let Outgoing {
            sender,
            conversation,
            draft,
            ..
        } = message;
        if self.held.contains(conversation) || self.bytes > MAX_BATCH_BYTES {
            return false;
        }
        // The same id twice in one statement cannot be told apart; the second finds the first in the next batch.
        let key = draft.key.map(|key| (sender.id(), key));
        if key.is_some_and(|key| self.keys.contains(&key)) {
            return false;
        }
        // An agent's hop counts from the conversation's latest message as Postgres knows it, so nothing else may
        // come before it in its batch but messages of its own that count the same.
        let alike = (matches!(sender, Principal::Agent(_)) && draft.in_reply_to.is_none())
            .then_some(*sender);
        match self.senders.get(conversation) {
            Some(before)
                if matches!(sender, Principal::Agent(_))
                    && (alike.is_none() || *before != alike) =>
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

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::oneshot;

    use super::{
        super::{Draft, Sent},
        *,
    };
    use crate::{
        error::Result,
        ids::{AgentId, MessageId, UserId},
        limits::Pass,
    };

    /// A send that somebody waits for.
    pub fn waiting(
        sender: Principal,
        conversation: u128,
        key: Option<u128>,
        in_reply_to: Option<u128>,
    ) -> PendingSend {
        let draft = Draft {
            payload: "{}".to_owned(),
            encrypted: false,
            key: key.map(Uuid::from_u128),
            client_message_id: None,
            in_reply_to: in_reply_to.map(|id| MessageId(Uuid::from_u128(id))),
            recipients: None,
        };
        let conversation = ConversationId(Uuid::from_u128(conversation));
        let message = Outgoing {
            sender,
            credential: Uuid::nil(),
            conversation,
            draft,
        };
        PendingSend {
            id: MessageId(Uuid::nil()),
            message,
            answer: kept_open(),
            pass: Pass::Admitted,
            tries: 0,
            place: None,
        }
    }

    /// The same send, which the limiter is still being asked about.
    pub fn decided_by(
        decision: impl Future<Output = Result<()>> + Send + 'static,
        one: PendingSend,
    ) -> PendingSend {
        PendingSend {
            pass: Pass::pending(decision),
            ..one
        }
    }

    /// An answer that somebody waits for, as long as the test runs.
    fn kept_open() -> oneshot::Sender<Result<Sent>> {
        let (answer, answered) = oneshot::channel();
        std::mem::forget(answered);
        answer
    }

    fn sizes(sends: Vec<PendingSend>) -> Vec<usize> {
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
        assert_eq!(
            sizes(vec![of(user, 1), of(user, 1), of(user, 2), of(agent, 3)]),
            [4]
        );
        assert_eq!(sizes(vec![of(agent, 1), of(agent, 1), of(user, 1)]), [3]);
        // An agent after a human, or after another agent, in one conversation.
        assert_eq!(
            sizes(vec![of(user, 1), of(agent, 1), of(user, 1), of(agent, 2)]),
            [2, 2]
        );
        assert_eq!(
            sizes(vec![of(agent, 1), of(other, 1), of(agent, 1)]),
            [1, 1, 1]
        );
        // An answer to a certain message.
        assert_eq!(
            sizes(vec![waiting(agent, 1, None, Some(9)), of(agent, 1)]),
            [1, 1]
        );
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
        let (mut batch, mut held) = (
            Batch::default(),
            VecDeque::from([of(user, 2), of(user, 1), of(agent, 1)]),
        );
        batch.fill(&mut held, true);
        held.extend([of(user, 1), of(user, 3), of(user, 2)]);
        batch.fill(&mut held, false);
        let conversations = |messages: &mut dyn Iterator<Item = &PendingSend>| -> Vec<u128> {
            messages
                .map(|one| one.message.conversation.0.as_u128())
                .collect()
        };
        assert_eq!(conversations(&mut batch.messages.iter()), [1, 2, 2]);
        // The agent's turn in the first conversation is in the next batch, and so is what follows it there.
        assert_eq!(conversations(&mut held.iter()), [1, 1, 3]);
    }
}
