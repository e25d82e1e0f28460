//! Changes of keys, members and secrets: told by events, by taps, or missed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::Ordering,
};

use blindpipe_e2ee::{
    KeyId, Principal as Owner,
    trust::{Notice, Trust},
};
use blindpipe_protocol::{
    events::{Event, EventKind},
    group_keys::KeyRotation,
    ids::{ConversationId, Principal},
};
use tracing::warn;

use super::{Entry, InboxEvent, Session, principal, server_epoch};
use crate::Result;

/// Changes of keys since the start, each under a rising number: conversations take them up at their
/// next look. A principal has one entry, however often its keys change.
#[derive(Default)]
pub(super) struct Changes {
    latest: u64,
    of: HashMap<Owner, Numbers>,
    /// Events were missed, so anything may have changed.
    all: u64,
}

/// The numbers of a principal's latest changes.
#[derive(Clone, Copy, Default)]
struct Numbers {
    /// Its keys are other ones here, by the directory or by a tap.
    keys: u64,
    /// The directory has another list of it.
    list: u64,
}

impl Changes {
    fn next(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    fn keys(&mut self, of: Owner) {
        let number = self.next();
        self.of.entry(of).or_default().keys = number;
    }

    fn list(&mut self, of: Owner) {
        let number = self.next();
        self.of.entry(of).or_default().list = number;
    }

    fn all(&mut self) {
        self.all = self.next();
    }

    /// Whether a member's keys have changed since the conversation was shown anything.
    pub(super) fn has_more_for(&self, entry: &Entry) -> bool {
        let mut changed = self.of.iter();
        self.latest > entry.seen_changes
            && changed
                .any(|(of, numbers)| numbers.keys > entry.seen_changes && entry.room.is_member(*of))
    }

    /// Gives a conversation what it has not seen.
    pub(super) fn show(&self, entry: &mut Entry) {
        let seen = std::mem::replace(&mut entry.seen_changes, self.latest);
        if seen == self.latest {
            return;
        }
        entry.is_stale |= self.all > seen;
        for (of, numbers) in &self.of {
            if numbers.keys > seen {
                entry.room.keys_changed(*of);
            }
            entry.is_stale |= numbers.list > seen && entry.room.is_member(*of);
        }
    }
}

impl Session {
    /// Takes note of what an event says about keys and members, before anybody handles it. Reads nothing,
    /// so no event waits for another one's keys.
    pub(crate) fn observe(&self, event: &InboxEvent) {
        match event.known() {
            Some(Event::KeyRotated(rotation)) => self.observe_rotation(rotation),
            Some(
                Event::MemberAdded(_)
                | Event::MemberRemoved(_)
                | Event::ConversationUpdated(_)
                | Event::RelationCreated(_)
                | Event::RelationRevoked(_),
            ) => self.stale(event.conversation_id),
            Some(known) => {
                if let Some(of) = owner_of_changed_keys(&known) {
                    self.changes.lock().list(principal(of));
                }
            }
            None if EventKind::from_name(&event.event).is_some() => {
                self.stale(event.conversation_id);
                warn!(event = event.event, "an event could not be looked into");
            }
            None => {}
        }
    }

    /// The principal whose keys an event says have changed, if any are known here.
    pub(crate) fn changed_keys(&self, event: &InboxEvent) -> Option<Principal> {
        let of = match EventKind::from_name(&event.event)? {
            EventKind::KeyDeviceAdded
            | EventKind::KeyDeviceRemoved
            | EventKind::AgentKeyRegistered => owner_of_changed_keys(&event.known()?)?,
            _ => return None,
        };
        self.trust.lock().is_known(principal(of)).then_some(of)
    }

    /// Reads keys that have changed. If that fails, the owner's conversations read them when they need
    /// them.
    pub(crate) async fn read_changed_keys(&self, of: Principal) {
        if let Err(error) = self.read_keys(of).await {
            warn!(error = error.kind(), "changed keys could not be read");
        }
    }

    /// Nobody can say what happened meanwhile, so every conversation is read again.
    pub(crate) fn missed_events(&self) {
        self.changes.lock().all();
    }

    /// A conversation has changed by one's own act, whose event comes later.
    pub(crate) fn forget(&self, id: ConversationId) {
        self.stale(Some(id));
    }

    fn stale(&self, id: Option<ConversationId>) {
        let slot = id.and_then(|id| self.rooms.lock().get(id));
        if let Some(slot) = slot {
            slot.is_stale.store(true, Ordering::Relaxed);
        }
    }

    fn observe_rotation(&self, rotation: KeyRotation) {
        // An epoch that was never read is read when it is needed.
        let slot = self.rooms.lock().get(rotation.conversation_id);
        let Some(slot) = slot.filter(|_| self.has_keys()) else {
            return;
        };
        slot.rotations.lock().push(rotation);
        // A task that has the conversation may be reading it for long. The events of others do not wait.
        if let Ok(entry) = slot.entry.clone().try_lock_owned() {
            drop(self.up_to_date(&slot, entry));
        }
    }

    /// Whether a rotation can be judged without the keys of a member that has none here.
    pub(super) fn knows_rotator(&self, entry: &Entry, rotation: &KeyRotation) -> bool {
        let rotator = principal(Principal::User(rotation.by));
        self.trust.lock().is_known(rotator) || !entry.room.is_member(rotator)
    }

    pub(super) fn take_rotation(&self, entry: &mut Entry, rotation: &KeyRotation) {
        let known = i32::try_from(entry.room.server().epoch).unwrap_or(i32::MAX);
        server_epoch(entry, known.max(rotation.epoch), false);
        self.take_wraps(entry, rotation.epoch, &rotation.wrapped_keys);
    }

    /// The keys of somebody changed, in the directory or by a tap.
    pub(crate) fn keys_changed(&self, of: Owner) {
        self.changes.lock().keys(of);
        self.note_changed(of);
        self.mark_dirty();
    }

    /// A rotation is due where `of` reads, also after a restart before the next look.
    fn note_changed(&self, of: Owner) {
        let mut changed = self.changed_marks.lock();
        for (id, marks) in self.marks.lock().iter_mut().filter(|(_, it)| !it.changed) {
            let members = marks.members.as_ref();
            if members.is_some_and(|members| members.contains_key(&of)) {
                marks.changed = true;
                changed.insert(*id);
            }
        }
    }

    /// The tap: a person takes the key for that principal's.
    pub(crate) fn confirm(&self, of: Principal, key: KeyId) -> bool {
        let now = self.clock.now_ms();
        let done = self.trust.lock().confirm(principal(of), key, now);
        self.reconsider(principal(of));
        done
    }

    /// People compared keys, or followed a link: told, and shown to the conversations. Notices stand
    /// in no single one.
    pub(crate) fn compare(
        &self,
        of: Principal,
        compared: impl FnOnce(&mut Trust, u64) -> Option<Vec<Notice>>,
    ) -> Option<Vec<Notice>> {
        let notices = compared(&mut self.trust.lock(), self.clock.now_ms())?;
        self.tell(&notices, None);
        self.reconsider(principal(of));
        Some(notices)
    }

    /// The devices of this person that another one introduced.
    pub(crate) fn introduced_by(&self, device_id: &str) -> BTreeSet<String> {
        let (me, now) = (principal(self.me), self.clock.now_ms());
        self.trust.lock().introduced_by(me, device_id, now)
    }

    /// 60 digits of all keys of this principal and of `of`, as the directory lists them now.
    pub(crate) async fn safety_number(&self, of: Principal) -> Result<String> {
        for who in [self.me, of] {
            self.read_keys(who).await?;
        }
        let number = self
            .trust
            .lock()
            .safety_number(principal(of), self.clock.now_ms());
        Ok(number.ok_or(blindpipe_e2ee::Error::UnknownSenderKey)?)
    }

    /// Reads again the messages that waited for a key.
    pub(super) fn reconsider(&self, of: Owner) {
        let mut changes = self.changes.lock();
        changes.keys(of);
        changes.list(of);
        drop(changes);
        self.note_changed(of);
        self.mark_dirty();
    }
}

const fn owner_of_changed_keys(event: &Event) -> Option<Principal> {
    match event {
        Event::KeyDeviceAdded(change) | Event::KeyDeviceRemoved(change) => {
            Some(Principal::User(change.user_id))
        }
        Event::AgentKeyRegistered(registration) => Some(Principal::Agent(registration.agent_id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use blindpipe_e2ee::room::{Room, Visibility};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn each_conversation_is_shown_a_change_once_and_nothing_grows() {
        let (bob, eve) = (Owner::User([2; 16]), Owner::User([3; 16]));
        let entry = |members: &[Owner]| {
            let id = ConversationId(Uuid::from_u128(7));
            let mut entry = Entry::new(id, Room::new(id.0.into_bytes(), false));
            let members: Vec<_> = members.iter().map(|of| (*of, Visibility::All)).collect();
            entry.room.members(&members);
            entry.is_stale = false;
            entry
        };
        let (mut with_bob, mut with_eve) = (entry(&[bob]), entry(&[eve]));
        let mut changes = Changes::default();
        for _ in 0..1000 {
            changes.list(bob);
            changes.keys(bob);
        }
        assert_eq!(changes.of.len(), 1);
        for entry in [&mut with_bob, &mut with_eve] {
            changes.show(entry);
        }
        assert!(with_bob.is_stale && !with_eve.is_stale);
        with_bob.is_stale = false;
        changes.show(&mut with_bob);
        assert!(!with_bob.is_stale, "seen");
        changes.list(eve);
        changes.show(&mut with_bob);
        assert!(!with_bob.is_stale, "another's");
        changes.all();
        changes.show(&mut with_bob);
        assert!(with_bob.is_stale);
    }
}
