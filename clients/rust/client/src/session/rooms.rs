//! The rooms in memory. Of all other conversations, the marks and the handled messages are kept.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};

use blindpipe_e2ee::room::Room;
use blindpipe_protocol::{group_keys::KeyRotation, ids::ConversationId};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::{Entry, Session};

/// The conversations in memory, beside those that somebody uses.
const MAX_ROOMS: usize = 1_000;
/// So many more come in before the oldest are let go, all at once.
const SPARE_ROOMS: usize = MAX_ROOMS / 10;

#[derive(Default)]
pub(super) struct Rooms {
    /// Each with the number of its last use.
    slots: HashMap<ConversationId, (u64, Arc<Slot>)>,
    uses: u64,
    /// Of those that were let go, the last change of keys that each was shown.
    seen_changes: HashMap<ConversationId, u64>,
}

impl Rooms {
    pub(super) fn get(&self, id: ConversationId) -> Option<Arc<Slot>> {
        self.slots.get(&id).map(|(_, slot)| slot.clone())
    }
}

pub(super) struct Slot {
    /// The conversation has changed: who learns that may hold another conversation's lock.
    pub(super) is_stale: AtomicBool,
    /// Rotations that came while somebody had the conversation.
    pub(super) rotations: Mutex<Vec<KeyRotation>>,
    pub(super) entry: Arc<AsyncMutex<Entry>>,
}

impl Slot {
    /// Nobody has it, and a start anew would forget nothing. Asked while nobody can take it.
    fn is_free(self: &Arc<Self>) -> bool {
        let is_unused = Arc::strong_count(self) == 1 && Arc::strong_count(&self.entry) == 1;
        // The time of a refusal ends its grace.
        is_unused && self.entry.try_lock().is_ok_and(|it| it.refused.is_none())
    }
}

impl Session {
    /// The conversation's place in memory. Those that were used last have one.
    pub(super) fn slot(&self, id: ConversationId) -> Arc<Slot> {
        let mut rooms = self.rooms.lock();
        rooms.uses += 1;
        let now = rooms.uses;
        if let Some((used, slot)) = rooms.slots.get_mut(&id) {
            *used = now;
            return slot.clone();
        }
        let mut room = Room::new(id.0.into_bytes(), self.clear_allowed);
        if let Some(age) = self.max_message_age {
            room = room.with_max_message_age(age);
        }
        let marks = self.marks.lock().get(&id).cloned();
        let mut entry = Entry::new(id, room.with_marks(marks.unwrap_or_default()));
        entry.seen_changes = rooms.seen_changes.remove(&id).unwrap_or_default();
        let slot = Arc::new(Slot {
            is_stale: AtomicBool::default(),
            rotations: Mutex::default(),
            entry: Arc::new(AsyncMutex::new(entry)),
        });
        rooms.slots.insert(id, (now, slot.clone()));
        if rooms.slots.len() > MAX_ROOMS + SPARE_ROOMS {
            self.let_go(&mut rooms);
        }
        slot
    }

    fn let_go(&self, rooms: &mut Rooms) {
        let free = rooms.slots.iter().filter(|(_, (_, slot))| slot.is_free());
        let mut oldest: Vec<_> = free.map(|(id, (used, _))| (*used, *id)).collect();
        oldest.sort_unstable();
        oldest.truncate(rooms.slots.len() - MAX_ROOMS);
        for (_, id) in oldest {
            let Some((_, slot)) = rooms.slots.remove(&id) else {
                continue;
            };
            let Ok(entry) = slot.entry.try_lock() else {
                continue;
            };
            self.note_marks(&entry);
            if entry.seen_changes > 0 {
                rooms.seen_changes.insert(id, entry.seen_changes);
            }
            let mut remembered: Vec<_> = entry.room.remembered().collect();
            if !remembered.is_empty() {
                let mut handled = self.handled.lock();
                let later = handled.entry(id).or_default();
                remembered.append(later);
                *later = remembered;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use blindpipe_e2ee::{
        Principal as Owner,
        room::Visibility,
        trust::{Policy, Trust},
    };
    use blindpipe_protocol::ids::{AgentId, Principal};
    use uuid::Uuid;

    use super::*;
    use crate::{
        Clock, Server, hooks::Hooks, session::SessionParts, store::Handled, transport::Http,
    };

    const BOB: Owner = Owner::User([7; 16]);

    fn conversation(number: usize) -> ConversationId {
        ConversationId(Uuid::from_u128(number as u128))
    }

    fn session(handled: Vec<Handled>) -> Session {
        let http = Http::new(
            Server::from("http://127.0.0.1")
                .http_client()
                .expect("a client"),
            "http://127.0.0.1",
            Hooks::default(),
            None,
        );
        Session::new(SessionParts {
            http,
            me: Principal::Agent(AgentId(Uuid::from_u128(1))),
            keys: None,
            trust: Trust::new(Owner::Agent([1; 16]), Policy::Tofu, []),
            marks: HashMap::new(),
            handled,
            clear_allowed: true,
            max_message_age: None,
            hooks: Hooks::default(),
            clock: Clock::default(),
        })
    }

    #[tokio::test]
    async fn rooms_are_let_go_and_come_back_as_they_were() {
        let count = 3 * MAX_ROOMS;
        let handled = (0..count).map(|number| Handled {
            at: 1,
            conversation_id: conversation(number),
            sender: BOB,
            client_message_id: [1; 16],
        });
        let session = session(handled.collect());
        let kept = session.lock(conversation(0)).await;
        for number in 1..count {
            let mut entry = session.lock(conversation(number)).await;
            let _ = entry.room.remember((BOB, [2; 16]), 1, 1);
            entry.room.members(&[(BOB, Visibility::All)]);
            entry.room.sealed();
            session.note_marks(&entry);
            drop(entry);
        }
        assert!(session.rooms.lock().slots.len() <= MAX_ROOMS + SPARE_ROOMS);
        drop(kept);
        for number in 1..count {
            let entry = session.lock(conversation(number)).await;
            assert!(entry.room.is_member(BOB) && entry.is_stale);
            for id in [[1; 16], [2; 16]] {
                assert!(entry.room.is_remembered(BOB, id));
            }
            assert!(!entry.room.is_remembered(BOB, [3; 16]));
        }
        assert_eq!(session.take_changed().0.len(), count - 1);
    }

    #[tokio::test]
    async fn somebody_who_has_a_room_keeps_it_and_others_find_it_there() {
        let session = session(Vec::new());
        let mut kept = session.lock(conversation(0)).await;
        kept.refused = Some((1, 1));
        let used = session.slot(conversation(1));
        for number in 2..3 * MAX_ROOMS {
            drop(session.lock(conversation(number)).await);
        }
        assert!(Arc::ptr_eq(&used, &session.slot(conversation(1))));
        drop(kept);
        for number in 2..3 * MAX_ROOMS {
            drop(session.lock(conversation(number)).await);
        }
        assert!(session.lock(conversation(0)).await.refused.is_some());
    }
}
