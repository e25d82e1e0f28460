//! The handlers that run: stopped by people, and told what arrives meanwhile.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use blindpipe_protocol::{
    ids::{ConversationId, EventId, MessageId},
    messages::Message,
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{handlers::MESSAGE, outbox::Answered};
use crate::{Content, InboxEvent, OpenedSender, content::text_of};

/// The event of a stop.
pub(super) const STOP: &str = "turn.stop";

/// The fate of a message that comes while a handler runs in its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyPolicy {
    /// It waits, or is taken by [`super::Context::steer`].
    #[default]
    Queue,
    /// It stops the handler.
    Interrupt,
    /// It is not handled.
    Drop,
}

/// A message that arrived while a handler ran, and that the handler has taken.
#[derive(Clone, Debug)]
pub struct SteerMessage(Answered);

impl SteerMessage {
    /// The message as the server stores it.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.0.message
    }

    /// The opened content.
    #[must_use]
    pub const fn content(&self) -> &Content {
        &self.0.opened.content
    }

    /// The text of a text message, else "".
    #[must_use]
    pub fn text(&self) -> &str {
        text_of(self.content())
    }

    /// The sender, as far as it is proven.
    #[must_use]
    pub const fn sender(&self) -> &OpenedSender {
        &self.0.opened.sender
    }
}

/// One run of the handlers of an event.
pub(super) struct Turn {
    event_id: EventId,
    seq: i64,
    conversation_id: Option<ConversationId>,
    message_id: Option<MessageId>,
    /// Cancelled when a person, or a newer message, has stopped it.
    pub(super) stopped: CancellationToken,
    messages: Mutex<Messages>,
}

#[derive(Default)]
struct Messages {
    /// Those of the conversation that came meanwhile.
    arrived: VecDeque<InboxEvent>,
    /// Those of them that the handler has taken.
    taken: Vec<(InboxEvent, Answered)>,
}

impl Turn {
    fn new(event: &InboxEvent) -> Self {
        Self {
            event_id: event.event_id,
            seq: event.seq,
            conversation_id: event.conversation_id,
            message_id: event.message().ok().map(|message| message.message_id),
            stopped: CancellationToken::new(),
            messages: Mutex::default(),
        }
    }

    /// The next message that nobody has taken.
    pub(super) fn next_arrived(&self) -> Option<InboxEvent> {
        self.messages.lock().arrived.pop_front()
    }

    pub(super) fn take(&self, event: InboxEvent, answered: Answered) -> SteerMessage {
        let taken = SteerMessage(answered.clone());
        self.messages.lock().taken.push((event, answered));
        taken
    }
}

/// A stop of what came before it.
struct Stop {
    seq: i64,
    in_reply_to: Option<MessageId>,
}

impl Stop {
    fn read(event: &InboxEvent) -> Self {
        #[derive(Default, Deserialize)]
        struct Data {
            #[serde(default)]
            in_reply_to: Option<MessageId>,
        }
        let Data { in_reply_to } = event.data().unwrap_or_default();
        Self {
            seq: event.seq,
            in_reply_to,
        }
    }

    fn concerns(&self, turn: &Turn) -> bool {
        let is_meant = self
            .in_reply_to
            .is_none_or(|id| turn.message_id == Some(id));
        turn.message_id.is_some() && turn.seq < self.seq && is_meant
    }
}

/// The turns of all conversations.
pub(super) struct Turns {
    policy: BusyPolicy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_conversation: HashMap<ConversationId, Arc<Turn>>,
    stops: HashMap<ConversationId, Stop>,
    /// Events that are not handled any more: others have handled them, or nobody is to.
    done: HashSet<EventId>,
}

impl Turns {
    pub(super) fn new(policy: BusyPolicy) -> Self {
        Self {
            policy,
            state: Mutex::default(),
        }
    }

    /// Looks at an event before its turn: a stop is heard while handlers run.
    pub(super) fn arrive(&self, event: &InboxEvent) {
        let Some(id) = event.conversation_id else {
            return;
        };
        let mut state = self.state.lock();
        let turn = state.by_conversation.get(&id).cloned();
        if event.event == STOP {
            let stop = Stop::read(event);
            if let Some(turn) = turn.filter(|turn| stop.concerns(turn)) {
                turn.stopped.cancel();
            }
            state.stops.insert(id, stop);
        } else if let Some(turn) = turn
            && event.event == MESSAGE
            && !is_change(event)
        {
            match self.policy {
                BusyPolicy::Queue => turn.messages.lock().arrived.push_back(event.clone()),
                BusyPolicy::Interrupt => turn.stopped.cancel(),
                BusyPolicy::Drop => {
                    state.done.insert(event.event_id);
                }
            }
        }
    }

    /// The turn of an event; none if it is not handled any more.
    pub(super) fn begin(&self, event: &InboxEvent) -> Option<Arc<Turn>> {
        let mut state = self.state.lock();
        let turn = Turn::new(event);
        let is_done = state.done.remove(&event.event_id);
        let Some(id) = event.conversation_id else {
            return Some(Arc::new(turn));
        };
        let stop = state.stops.get(&id);
        let is_stopped = stop.is_some_and(|stop| stop.concerns(&turn));
        if stop.is_some_and(|stop| stop.seq <= event.seq) {
            state.stops.remove(&id);
        }
        if is_done || is_stopped {
            return None;
        }
        let before = state.by_conversation.get(&id);
        if let Some(before) = before.filter(|before| before.event_id == event.event_id) {
            // It failed before: what it took then is there again.
            let mut messages = before.messages.lock();
            let taken: Vec<_> = messages.taken.drain(..).map(|taken| taken.0).collect();
            let arrived = taken.into_iter().chain(messages.arrived.drain(..));
            turn.messages.lock().arrived = arrived.collect();
        }
        let turn = Arc::new(turn);
        if turn.message_id.is_some() {
            state.by_conversation.insert(id, turn.clone());
        }
        Some(turn)
    }

    /// Messages that came meanwhile are given up, and come again.
    pub(super) fn give_up(&self) {
        for turn in self.state.lock().by_conversation.values() {
            turn.messages.lock().arrived.clear();
        }
    }

    /// The handlers of the event were cut off.
    pub(super) fn cut_off(&self, event: &InboxEvent) {
        let Some(id) = event.conversation_id else {
            return;
        };
        let mut state = self.state.lock();
        let turn = state.by_conversation.get(&id);
        if turn.is_some_and(|turn| turn.event_id == event.event_id) {
            state.by_conversation.remove(&id);
        }
    }

    /// The turn was handled, and so were the messages that it took.
    pub(super) fn end(&self, turn: &Arc<Turn>) -> Vec<Answered> {
        let mut state = self.state.lock();
        if let Some(id) = turn.conversation_id {
            let current = state.by_conversation.get(&id);
            if current.is_some_and(|current| Arc::ptr_eq(current, turn)) {
                state.by_conversation.remove(&id);
            }
        }
        let taken = std::mem::take(&mut turn.messages.lock().taken);
        state
            .done
            .extend(taken.iter().map(|(event, _)| event.event_id));
        taken.into_iter().map(|(_, answered)| answered).collect()
    }
}

/// Whether a message refers to others in clear: it changes them, and asks nothing.
fn is_change(event: &InboxEvent) -> bool {
    #[derive(Deserialize)]
    struct Refs {
        #[serde(default)]
        refs: Option<Vec<MessageId>>,
    }
    let refs = event.data::<Refs>().and_then(|data| data.refs);
    refs.is_some_and(|refs| !refs.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CONVERSATION: &str = "01K9ZZZZZZ0000000000000009";

    fn id(seq: i64) -> String {
        format!("01K9ZZZZZZ00000000000000{seq:02}")
    }

    fn event(seq: i64, name: &str, data: Value) -> InboxEvent {
        serde_json::from_value(json!({
            "event_id": id(seq),
            "event": name,
            "cursor": format!("1-{seq}"),
            "seq": seq,
            "conversation_id": CONVERSATION,
            "created_at": "2026-03-01T12:00:00.000Z",
            "data": data,
        }))
        .expect("an event")
    }

    fn message(seq: i64, refs: &[String]) -> InboxEvent {
        let sender = json!({"type": "user", "id": "01K9ZZZZZZ000000000000000A"});
        let data = json!({
            "message_id": id(seq), "conversation_id": CONVERSATION, "seq": seq, "sender": sender,
            "payload": {"type": "text"}, "hop": 0, "created_at": "2026-03-01T12:00:00.000Z",
            "refs": refs,
        });
        event(seq, MESSAGE, data)
    }

    #[test]
    fn a_stop_cancels_what_runs_and_what_came_before_it() {
        let turns = Turns::new(BusyPolicy::Queue);
        let turn = turns.begin(&message(1, &[])).expect("a turn");
        turns.arrive(&message(2, &[]));
        turns.arrive(&event(3, STOP, json!({"in_reply_to": id(2)})));
        assert!(!turn.stopped.is_cancelled(), "another one is meant");
        turns.arrive(&event(4, STOP, json!({})));
        assert!(turn.stopped.is_cancelled());
        turns.end(&turn);
        assert!(turns.begin(&message(2, &[])).is_none());
        assert!(turns.begin(&event(4, STOP, json!({}))).is_some());
        let next = turns.begin(&message(5, &[])).expect("a turn");
        assert!(!next.stopped.is_cancelled());
    }

    #[test]
    fn a_message_meanwhile_waits_interrupts_or_is_dropped() {
        for policy in [BusyPolicy::Queue, BusyPolicy::Interrupt, BusyPolicy::Drop] {
            let turns = Turns::new(policy);
            let turn = turns.begin(&message(1, &[])).expect("a turn");
            turns.arrive(&message(3, &[id(1)]));
            assert!(!turn.stopped.is_cancelled(), "a change is no message");
            turns.arrive(&message(2, &[]));
            let is_stopped = turn.stopped.is_cancelled();
            assert_eq!(is_stopped, policy == BusyPolicy::Interrupt);
            assert_eq!(turn.next_arrived().is_some(), policy == BusyPolicy::Queue);
            turns.end(&turn);
            let is_gone = turns.begin(&message(2, &[])).is_none();
            assert_eq!(is_gone, policy == BusyPolicy::Drop);
            assert!(turns.begin(&message(3, &[])).is_some());
        }
    }

    #[test]
    fn a_handler_that_fails_finds_what_arrived_again() {
        let turns = Turns::new(BusyPolicy::Queue);
        let failing = turns.begin(&message(1, &[])).expect("a turn");
        turns.arrive(&message(2, &[]));
        let turn = turns.begin(&message(1, &[])).expect("a turn");
        assert!(failing.next_arrived().is_none());
        let arrived = turn.next_arrived().expect("a message");
        assert_eq!(arrived.seq, 2);
        assert!(turns.end(&turn).is_empty());
        assert!(
            turns.begin(&message(2, &[])).is_some(),
            "nobody has taken it"
        );
    }
}
