//! The choice of sends that share a transaction.

use std::collections::{HashMap, HashSet};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::{SendRequest, Sent};
use crate::{
    error::Result,
    ids::{ConversationId, MessageId, Principal, PrincipalId},
    telemetry::trace::{self, TraceContext},
};

/// The most messages of one transaction.
pub const MAX_BATCH_MESSAGES: usize = 64;
/// The bytes of payloads after which a transaction takes no more messages.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// An admitted send, and the channel for its answer.
pub struct PendingSend {
    pub id: MessageId,
    pub request: SendRequest,
    pub answer: oneshot::Sender<Result<Sent>>,
    /// The trace that it is part of.
    pub trace: Option<TraceContext>,
    /// The number of batches that have left it undecided.
    pub attempts: u32,
    /// Its share of the memory for waiting sends.
    #[expect(dead_code, reason = "held, not read")]
    pub queued_bytes: Option<OwnedSemaphorePermit>,
}

impl PendingSend {
    /// A send whose caller runs the statement itself and needs no channel.
    pub fn unanswered(id: MessageId, request: SendRequest) -> Self {
        PendingSend {
            id,
            request,
            answer: oneshot::channel().0,
            trace: trace::current(),
            attempts: 0,
            queued_bytes: None,
        }
    }
}

/// The sends that one statement can judge and number together.
#[derive(Default)]
pub struct Batch {
    /// The sends, in the order in which the statement numbers them.
    pub sends: Vec<PendingSend>,
    /// The idempotency keys: senders with their own ids of the messages.
    keys: HashSet<(PrincipalId, Uuid)>,
    /// By conversation: the agent whose hop Postgres computes equally for all its messages in the
    /// batch, if there is one.
    agents: HashMap<ConversationId, Option<Principal>>,
    bytes: usize,
}

impl Batch {
    /// Moves compatible sends out of `waiting`, oldest first.
    ///
    /// A skipped send blocks later sends of its conversation, so the order within a conversation is
    /// kept.
    pub fn select(waiting: &mut Vec<PendingSend>) -> Self {
        let mut batch = Batch::default();
        batch.fill(waiting, |_, _| true);
        batch
    }

    /// Adds sends to conversations that are in the batch already. Others have to wait once the
    /// batch holds its locks, because transactions take them in the order of conversations.
    pub fn add_to_locked(&mut self, waiting: &mut Vec<PendingSend>) {
        self.fill(waiting, |batch, send| {
            batch.agents.contains_key(&send.request.conversation)
        });
    }

    fn fill(
        &mut self,
        waiting: &mut Vec<PendingSend>,
        may_join: impl Fn(&Self, &PendingSend) -> bool,
    ) {
        // A caller that has given up gets no answer, so its send is not stored.
        waiting.retain(|send| !send.answer.is_closed());
        let mut blocked = HashSet::new();
        let capacity = MAX_BATCH_MESSAGES - self.sends.len();
        let joining = waiting.extract_if(.., |send| {
            let conversation = send.request.conversation;
            let joins = !blocked.contains(&conversation)
                && may_join(self, send)
                && self.admit(&send.request);
            if !joins {
                blocked.insert(conversation);
            }
            joins
        });
        let joining: Vec<PendingSend> = joining.take(capacity).collect();
        self.sends.extend(joining);
        // Stable, as the statement numbers them: an inbox then gets its events in order.
        self.sends.sort_by_key(|send| send.request.conversation);
    }

    /// Adds a send to the batch's records. False if the statement could not judge it beside the
    /// others.
    fn admit(&mut self, request: &SendRequest) -> bool {
        let SendRequest {
            sender,
            conversation,
            draft,
            ..
        } = request;
        let key = draft.key.map(|key| (sender.id(), key));
        // Within one statement a second use of a key does not see the first one.
        if self.bytes > MAX_BATCH_BYTES || key.is_some_and(|key| self.keys.contains(&key)) {
            return false;
        }
        // An agent's hop follows from the latest message in the snapshot. So only its own messages
        // with the same hop may precede it in its batch.
        let is_agent = matches!(sender, Principal::Agent(_));
        let alike = (is_agent && draft.in_reply_to.is_none()).then_some(*sender);
        match self.agents.get_mut(conversation) {
            Some(before) if is_agent && (alike.is_none() || *before != alike) => return false,
            Some(before) => *before = before.and(alike),
            None => {
                self.agents.insert(*conversation, alike);
            }
        }
        self.keys.extend(key);
        self.bytes += draft.payload.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Draft, *};
    use crate::ids::{AgentId, Credential, SessionId, UserId};

    /// A send with an open answer.
    fn waiting(
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
            in_reply_to: in_reply_to.map(|id| MessageId::from_bytes(id.to_be_bytes())),
            recipients: None,
            search_tokens: Vec::new(),
            refs: None,
        };
        let conversation = ConversationId::from_bytes(conversation.to_be_bytes());
        let request = SendRequest {
            sender,
            credential: Credential::Session(SessionId::NIL),
            conversation,
            draft,
        };
        PendingSend {
            id: MessageId::NIL,
            request,
            answer: kept_open(),
            trace: None,
            attempts: 0,
            queued_bytes: None,
        }
    }

    /// An answer channel that stays open as long as the test runs.
    fn kept_open() -> oneshot::Sender<Result<Sent>> {
        let (answer, answered) = oneshot::channel();
        std::mem::forget(answered);
        answer
    }

    fn sizes(mut waiting: Vec<PendingSend>) -> Vec<usize> {
        let mut sizes = Vec::new();
        while !waiting.is_empty() {
            sizes.push(Batch::select(&mut waiting).sends.len());
        }
        sizes
    }

    #[test]
    fn what_cannot_share_a_statement_waits_in_order() {
        let user = Principal::User(UserId::from_bytes(1_u128.to_be_bytes()));
        let agent = Principal::Agent(AgentId::from_bytes(2_u128.to_be_bytes()));
        let other = Principal::Agent(AgentId::from_bytes(3_u128.to_be_bytes()));
        let of = |sender, conversation| waiting(sender, conversation, None, None);
        assert_eq!(
            sizes(vec![of(user, 1), of(user, 1), of(user, 2), of(agent, 3)]),
            [4]
        );
        assert_eq!(sizes(vec![of(agent, 1), of(agent, 1), of(user, 1)]), [3]);
        // An agent after a user, or after another agent, in one conversation.
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
        // A repeated id. Later sends of the conversation wait behind it.
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
        let user = Principal::User(UserId::from_bytes(1_u128.to_be_bytes()));
        let agent = Principal::Agent(AgentId::from_bytes(2_u128.to_be_bytes()));
        let of = |sender, conversation| waiting(sender, conversation, None, None);
        let mut held = vec![of(user, 2), of(user, 1), of(agent, 1)];
        let mut batch = Batch::select(&mut held);
        held.extend([of(user, 1), of(user, 3), of(user, 2)]);
        batch.add_to_locked(&mut held);
        let conversations = |sends: &[PendingSend]| -> Vec<u128> {
            sends
                .iter()
                .map(|send| u128::from_be_bytes(*send.request.conversation.as_bytes()))
                .collect()
        };
        assert_eq!(conversations(&batch.sends), [1, 2, 2]);
        // The agent's send in the first conversation is in the next batch, with all later ones
        // there.
        assert_eq!(conversations(&held), [1, 1, 3]);
    }

    #[test]
    fn a_full_batch_leaves_the_rest_in_order_and_what_nobody_waits_for_is_dropped() {
        let user = Principal::User(UserId::from_bytes(1_u128.to_be_bytes()));
        let mut held: Vec<PendingSend> = (0..MAX_BATCH_MESSAGES as u128 + 3)
            .map(|n| waiting(user, n % 2, Some(n), None))
            .collect();
        let (answer, given_up) = oneshot::channel();
        held[0].answer = answer;
        drop(given_up);
        let keys = |sends: &[PendingSend]| -> Vec<u128> {
            let keys = sends.iter().filter_map(|send| send.request.draft.key);
            keys.map(|key| key.as_u128()).collect()
        };
        let batch = Batch::select(&mut held);
        let of_first = (2..=MAX_BATCH_MESSAGES as u128).step_by(2);
        let of_second = (1..=MAX_BATCH_MESSAGES as u128).step_by(2);
        let expected: Vec<u128> = of_first.chain(of_second).collect();
        assert_eq!(keys(&batch.sends), expected);
        assert_eq!(keys(&held), [65, 66]);
    }
}
