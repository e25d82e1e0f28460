//! A principal's conversations: the secrets that it can open with, and may seal with.

mod answered;
mod changes;
mod directory;
mod history;
mod large;
mod opening;
mod rooms;
mod sealing;
mod search;
mod shared;
mod types;

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
};

use blindpipe_e2ee::{
    Id, Principal as Owner, PrivateKeys,
    room::{Marks, Room, ServerEpoch, Visibility},
    trust::{Notice, Trust},
    wrap::OpeningKey,
};
use blindpipe_protocol::{
    conversations::{Conversation, ConversationKind, Member},
    group_keys::{OwnGroupKeys, WrappedKey},
    groups,
    ids::{ConversationId, Principal},
};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

pub use self::types::{InboxEvent, OpenedMessage, OpenedSender};
use self::{
    answered::Envelopes,
    changes::Changes,
    rooms::{Rooms, Slot},
};
pub(crate) use self::{
    directory::{Recipient, hex, unhex},
    opening::{Found, foreign},
    sealing::SealOptions,
    types::{
        clear_message, envelope_of, is_gone, is_sealed, message_id, payload_of, principal, raw,
        unix_ms,
    },
};
use crate::{
    Result,
    hooks::{Hook, Hooks},
    store::Handled,
    transport::{Call, Clock, Http, is_missing},
};

/// The private keys that sign and open.
pub(crate) struct Keys {
    pub(crate) signer: PrivateKeys,
    /// The keys that open wraps, the signer's own first.
    pub(crate) opening: Vec<OpeningKey>,
}

pub(crate) struct SessionParts {
    pub(crate) http: Http,
    pub(crate) me: Principal,
    /// None for a principal that speaks clear.
    pub(crate) keys: Option<Keys>,
    pub(crate) trust: Trust,
    pub(crate) marks: HashMap<ConversationId, Marks>,
    /// The messages that an earlier run has handled, oldest first.
    pub(crate) handled: Vec<Handled>,
    /// An agent's developer takes clear text.
    pub(crate) clear_allowed: bool,
    /// An agent's bound for the age of messages, milliseconds.
    pub(crate) max_message_age: Option<u64>,
    pub(crate) hooks: Hooks,
    pub(crate) clock: Clock,
}

pub(crate) struct Session {
    pub(crate) http: Http,
    pub(crate) me: Principal,
    pub(crate) keys: Option<Keys>,
    pub(crate) trust: Mutex<Trust>,
    pub(crate) clock: Clock,
    marks: Mutex<HashMap<ConversationId, Marks>>,
    /// The conversations whose marks have changed since a shared store took them.
    changed_marks: Mutex<HashSet<ConversationId>>,
    /// Marks of another process, until the conversation is looked at.
    taken_marks: Mutex<HashMap<ConversationId, Marks>>,
    /// Messages that an earlier run or another process has handled, until the first look.
    handled: Mutex<HashMap<ConversationId, Vec<Remembered>>>,
    clear_allowed: bool,
    max_message_age: Option<u64>,
    hooks: Hooks,
    rooms: Mutex<Rooms>,
    changes: Mutex<Changes>,
    /// Pins or marks have changed since they were stored.
    dirty: AtomicBool,
}

/// A message that was handled, and the time of [`Room::remember`].
type Remembered = ((Owner, Id), u64);

/// A conversation as it is known here.
pub(crate) struct Entry {
    pub(crate) id: ConversationId,
    pub(crate) room: Room,
    pub(crate) info: Option<Conversation>,
    pub(crate) recipients: Vec<Recipient>,
    /// Members or their keys have changed since they were read.
    pub(crate) is_stale: bool,
    /// The epoch that the server did not let a person replace, and since when, Unix milliseconds.
    pub(crate) refused: Option<(u32, u64)>,
    /// The number of the last change of keys that this conversation knows of.
    seen_changes: u64,
    envelopes: Envelopes,
}

impl Entry {
    fn new(id: ConversationId, room: Room) -> Self {
        Self {
            id,
            room,
            info: None,
            recipients: Vec::new(),
            is_stale: true,
            refused: None,
            seen_changes: 0,
            envelopes: Envelopes::default(),
        }
    }
}

pub(crate) type EntryGuard = OwnedMutexGuard<Entry>;

impl Session {
    pub(crate) fn new(parts: SessionParts) -> Self {
        let mut handled = HashMap::<_, Vec<_>>::new();
        for each in parts.handled {
            let of = handled.entry(each.conversation_id).or_default();
            of.push(((each.sender, each.client_message_id), each.at));
        }
        Self {
            handled: Mutex::new(handled),
            http: parts.http,
            me: parts.me,
            keys: parts.keys,
            trust: Mutex::new(parts.trust),
            clock: parts.clock,
            marks: Mutex::new(parts.marks),
            changed_marks: Mutex::default(),
            taken_marks: Mutex::default(),
            clear_allowed: parts.clear_allowed,
            max_message_age: parts.max_message_age,
            hooks: parts.hooks,
            rooms: Mutex::default(),
            changes: Mutex::default(),
            dirty: AtomicBool::default(),
        }
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    pub(crate) fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Whether there is something to store since the last question.
    pub(crate) fn take_dirty(&self) -> bool {
        self.dirty.swap(false, Ordering::Relaxed)
    }

    /// Epochs and times, for a store.
    pub(crate) fn marks(&self) -> HashMap<ConversationId, Marks> {
        self.marks.lock().clone()
    }

    fn tell(&self, notices: &[Notice], conversation_id: Option<ConversationId>) {
        for notice in notices {
            self.hooks.call(&Hook::Notice {
                notice: *notice,
                conversation_id,
            });
        }
    }

    /// The conversation as it is known, for one task at a time.
    async fn lock(&self, id: ConversationId) -> EntryGuard {
        let slot = self.slot(id);
        let entry = slot.entry.clone().lock_owned().await;
        self.up_to_date(&slot, entry)
    }

    /// The conversation with what came while somebody else had it.
    fn up_to_date(&self, slot: &Slot, mut entry: EntryGuard) -> EntryGuard {
        self.show_taken(&mut entry);
        let has_changed = entry.room.must_rotate();
        self.changes.lock().show(&mut entry);
        if entry.room.must_rotate() != has_changed {
            self.note_marks(&entry);
        }
        entry.is_stale |= slot.is_stale.swap(false, Ordering::Relaxed);
        let rotations = std::mem::take(&mut *slot.rotations.lock());
        for rotation in rotations {
            // A rotator is judged by the members, so a reading comes first where one is due.
            entry.is_stale |= !self.knows_rotator(&entry, &rotation);
            if !entry.is_stale {
                self.take_rotation(&mut entry, &rotation);
            }
        }
        entry
    }

    /// Keeps what outlives the program. A change of keys that the conversation was not shown yet
    /// counts.
    pub(crate) fn note_marks(&self, entry: &Entry) {
        let mut noted = entry.room.marks();
        noted.changed |= self.changes.lock().has_more_for(entry);
        if let Some(taken) = self.taken_marks.lock().get(&entry.id) {
            noted = noted.merged(taken.clone());
        }
        let mut marks = self.marks.lock();
        let before = marks.get(&entry.id);
        if before.map_or(noted != Marks::default(), |before| *before != noted) {
            marks.insert(entry.id, noted);
            drop(marks);
            self.changed_marks.lock().insert(entry.id);
            self.mark_dirty();
        }
    }

    /// An envelope came, whether or not it opens.
    fn note_envelope_seen(&self, entry: &mut Entry) {
        if !entry.room.was_encrypted() {
            entry.room.saw_envelope();
            self.note_marks(entry);
        }
    }

    /// The conversation with its members, their keys, and this member's newest wrap.
    pub(crate) async fn load(&self, id: ConversationId) -> Result<EntryGuard> {
        let mut entry = self.lock(id).await;
        if entry.is_stale {
            Box::pin(self.read(&mut entry)).await?;
            // Notices of this reading are about this conversation too.
            drop(entry);
            entry = self.lock(id).await;
        }
        Ok(entry)
    }

    async fn read(&self, entry: &mut Entry) -> Result<()> {
        let id = entry.id;
        let call = Call::get(format!("/conversations/{id}"));
        let mut info: Conversation = self.http.data(call).await?;
        let members = info.members.take().unwrap_or_default();
        let shown: Vec<_> = members.iter().map(shown_member).collect();
        info.members = Some(members);
        let me = principal(self.me);
        // Two people, or a person and an agent: nobody joins them.
        if info.r#type != ConversationKind::Group
            && (shown.len() > 2 || !shown.iter().any(|(who, _)| *who == me))
        {
            return Err(blindpipe_e2ee::Error::Malformed.into());
        }
        server_epoch(entry, info.epoch, info.rotation_required);
        let notices = entry.room.members(&shown);
        self.tell(&notices, Some(id));
        self.note_marks(entry);
        if self.has_keys() {
            entry.recipients = self.read_recipients(id).await?;
            if info.epoch > 0 {
                self.read_wraps(entry, None).await?;
            }
        }
        entry.info = Some(info);
        entry.is_stale = false;
        Ok(())
    }

    /// Reads this member's wraps of an epoch; of the current one without a number.
    pub(crate) async fn read_wraps(&self, entry: &mut Entry, epoch: Option<u32>) -> Result<()> {
        let call = Call::get(format!("/keys/groups/{}", entry.id)).query("epoch", epoch);
        let found: OwnGroupKeys = match self.http.data(call).await {
            Ok(found) => found,
            // A wrap that is not there is an answer; a read that failed is none.
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        server_epoch(entry, found.current_epoch, found.rotation_required);
        self.take_wraps(entry, found.epoch, &found.wrapped_keys);
        Ok(())
    }

    /// Takes what opens; restored keys also open what was wrapped for the devices of before.
    fn take_wraps(&self, entry: &mut Entry, epoch: i32, wraps: &[WrappedKey]) {
        let Some(keys) = &self.keys else { return };
        let epoch = u32::try_from(epoch).unwrap_or_default();
        let now = self.clock.now_ms();
        for wrap in wraps {
            let Ok(bytes) = blindpipe_e2ee::from_base64(&wrap.wrapped_key) else {
                continue;
            };
            let mut trust = self.trust.lock();
            let taken = entry
                .room
                .wrap(&mut trust, &keys.opening, epoch, &bytes, now);
            drop(trust);
            // A secret that does not open is found missing when it is needed.
            if let Ok(taken) = taken {
                self.tell(&taken.notices, Some(entry.id));
            }
        }
        self.note_marks(entry);
        self.mark_dirty();
    }

    /// A rotation of one's own has been accepted.
    pub(crate) fn rotated(&self, entry: &mut Entry, epoch: i32, own: WrappedKey) {
        server_epoch(entry, epoch, false);
        self.take_wraps(entry, epoch, &[own]);
    }

    /// Whether a conversation has, or ever had, an epoch.
    pub(crate) async fn is_encrypted(&self, id: ConversationId) -> Result<bool> {
        let entry = self.load(id).await?;
        Ok(entry.room.server().epoch > 0 || entry.room.was_encrypted())
    }

    /// An envelope came that this client cannot look into: nothing goes in clear there any more.
    pub(crate) async fn saw_envelope(&self, id: ConversationId) {
        let mut entry = self.lock(id).await;
        self.note_envelope_seen(&mut entry);
    }
}

fn server_epoch(entry: &mut Entry, epoch: i32, rotation_required: bool) {
    if let Some(info) = &mut entry.info {
        (info.epoch, info.rotation_required) = (epoch, rotation_required);
    }
    let epoch = u32::try_from(epoch).unwrap_or_default();
    let before = entry.room.server();
    let messages = if before.epoch == epoch {
        before.messages
    } else {
        0
    };
    entry.room.server_epoch(ServerEpoch {
        epoch,
        rotation_required,
        messages,
    });
}

/// The server does not count the messages of an epoch, so those that pass here are counted.
fn count(entry: &mut Entry, epoch: u32) {
    let server = entry.room.server();
    if server.epoch == epoch {
        entry.room.server_epoch(ServerEpoch {
            messages: server.messages + 1,
            ..server
        });
    }
}

fn shown_member(member: &Member) -> (blindpipe_e2ee::Principal, Visibility) {
    let visibility = match member.visibility {
        Some(groups::Visibility::Addressed) => Visibility::Addressed,
        Some(groups::Visibility::All) | None => Visibility::All,
    };
    (principal(member.principal_id), visibility)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_an_epoch_are_counted_and_a_new_epoch_begins_anew() {
        let id = ConversationId(uuid::Uuid::from_u128(7));
        let mut entry = Entry::new(id, Room::new(id.0.into_bytes(), false));
        server_epoch(&mut entry, 3, false);
        for epoch in [3, 3, 2] {
            count(&mut entry, epoch);
        }
        server_epoch(&mut entry, 3, true);
        assert_eq!(entry.room.server().messages, 2, "of the current epoch");
        server_epoch(&mut entry, 4, false);
        assert_eq!(entry.room.server().messages, 0);
    }
}
