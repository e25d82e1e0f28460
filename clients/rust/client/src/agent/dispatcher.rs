//! Events in order: one of a conversation at a time, several conversations at once.

use std::collections::{HashMap, HashSet, VecDeque};

use blindpipe_protocol::{cursor::Cursor, ids::ConversationId};

use crate::InboxEvent;

/// Events of a conversation; those without one form a line of their own.
pub(super) type Line = Option<ConversationId>;

/// An event whose turn it is.
pub(super) struct Turn {
    pub(super) line: Line,
    pub(super) event: InboxEvent,
    number: u64,
}

/// The order of the events that were taken in.
#[derive(Default)]
pub(super) struct Dispatcher {
    lines: HashMap<Line, VecDeque<(u64, InboxEvent)>>,
    busy: HashSet<Line>,
    /// Lines with something to do and nobody on it, in the order of their events.
    ready: VecDeque<Line>,
    /// The events in the order in which they came, and whether they are handled.
    slots: VecDeque<(Cursor, bool)>,
    /// The number of the first slot.
    first: u64,
}

impl Dispatcher {
    pub(super) fn push(&mut self, event: InboxEvent) {
        let number = self.first + self.slots.len() as u64;
        self.slots.push_back((event.cursor, false));
        let name = event.conversation_id;
        let line = self.lines.entry(name).or_default();
        line.push_back((number, event));
        if line.len() == 1 && !self.busy.contains(&name) {
            self.ready.push_back(name);
        }
    }

    /// The next event that may be handled now.
    pub(super) fn next(&mut self) -> Option<Turn> {
        let line = self.ready.pop_front()?;
        let (number, event) = self.lines.get_mut(&line)?.pop_front()?;
        self.busy.insert(line);
        Some(Turn {
            line,
            event,
            number,
        })
    }

    /// The event is handled. Answers the highest cursor below which every event is, if it rose.
    pub(super) fn done(&mut self, line: Line, number: u64) -> Option<Cursor> {
        self.busy.remove(&line);
        match self.lines.get(&line) {
            Some(waiting) if waiting.is_empty() => {
                self.lines.remove(&line);
            }
            Some(_) => self.ready.push_back(line),
            None => {}
        }
        // An event that was given up has no slot any more.
        let index = number.checked_sub(self.first);
        let index = index.and_then(|index| usize::try_from(index).ok());
        if let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) {
            slot.1 = true;
        }
        let mut reached = None;
        while let Some((cursor, true)) = self.slots.front() {
            reached = Some(*cursor);
            self.slots.pop_front();
            self.first += 1;
        }
        reached
    }

    /// Forgets all events, and answers those that wait. Those that are being handled stay alone in
    /// their lines, and are not counted any more.
    pub(super) fn give_up(&mut self) -> Vec<InboxEvent> {
        self.ready.clear();
        self.first += self.slots.len() as u64;
        self.slots.clear();
        let waiting = self.lines.drain().flat_map(|(_, line)| line);
        waiting.map(|(_, event)| event).collect()
    }
}

impl Turn {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: i64, conversation: Option<u128>) -> InboxEvent {
        let conversation = conversation.map(|id| ConversationId(uuid::Uuid::from_u128(id)));
        let text = serde_json::json!({
            "event_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "event": "message.created",
            "cursor": format!("1-{seq}"),
            "seq": seq,
            "conversation_id": conversation,
            "created_at": "2026-03-01T12:00:00.000Z",
            "data": {},
        });
        serde_json::from_str(&text.to_string()).expect("an event")
    }

    #[test]
    fn a_conversation_is_handled_in_order_and_others_beside_it() {
        let mut dispatcher = Dispatcher::default();
        for (seq, conversation) in [(1, Some(7)), (2, Some(7)), (3, None), (4, Some(8))] {
            dispatcher.push(event(seq, conversation));
        }
        let turns: Vec<_> = std::iter::from_fn(|| dispatcher.next()).collect();
        let begun: Vec<_> = turns.iter().map(|turn| turn.event.seq).collect();
        assert_eq!(begun, [1, 3, 4], "the second of a conversation waits");
        let done = |dispatcher: &mut Dispatcher, turn: &Turn| {
            let reached = dispatcher.done(turn.line, turn.number());
            reached.map(|cursor| cursor.seq)
        };
        assert_eq!(done(&mut dispatcher, &turns[1]), None, "1 is not handled");
        assert_eq!(done(&mut dispatcher, &turns[0]), Some(1));
        let second = dispatcher.next().expect("the second");
        assert_eq!(second.event.seq, 2);
        assert_eq!(done(&mut dispatcher, &turns[2]), None, "2 is not handled");
        assert_eq!(done(&mut dispatcher, &second), Some(4));
        assert!(dispatcher.next().is_none() && dispatcher.slots.is_empty());
    }

    #[test]
    fn what_is_given_up_comes_again_behind_what_runs() {
        let mut dispatcher = Dispatcher::default();
        for (seq, conversation) in [(1, Some(7)), (2, Some(7)), (3, Some(8)), (4, None)] {
            dispatcher.push(event(seq, conversation));
        }
        let first = dispatcher.next().expect("the first");
        let other = dispatcher.next().expect("another conversation's");
        assert_eq!(dispatcher.done(other.line, other.number()), None);
        let mut waiting: Vec<_> = dispatcher.give_up().iter().map(|it| it.seq).collect();
        waiting.sort_unstable();
        assert_eq!(waiting, [2, 4]);
        for (seq, conversation) in [(1, Some(7)), (2, Some(7)), (9, Some(8))] {
            dispatcher.push(event(seq, conversation));
        }
        let beside = dispatcher.next().expect("another conversation's");
        assert_eq!(beside.event.seq, 9);
        assert!(dispatcher.next().is_none(), "the first one still runs");
        assert_eq!(dispatcher.done(first.line, first.number()), None);
        let again = dispatcher.next().expect("the first, again");
        assert_eq!(again.event.seq, 1);
        let reached = dispatcher.done(again.line, again.number());
        assert_eq!(reached.map(|cursor| cursor.seq), Some(1));
    }
}
