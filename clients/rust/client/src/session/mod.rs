//! A principal's conversations: the secrets that it can open with, and may seal with.

mod answered;
mod directory;
mod opening;
mod types;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use blindpipe_e2ee::{
    EpochKey, Id, PrivateKeys,
    envelope::{self, Draft, Place, View},
    room::{Marks, Room, ServerEpoch, Visibility},
    trust::{Notice, Trust},
    wrap::OpeningKey,
};
use blindpipe_protocol::{
    conversations::{Conversation, Member},
    group_keys::{KeyRotation, OwnGroupKeys, WrappedKey},
    groups,
    ids::{ConversationId, Principal},
};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tracing::warn;

use self::answered::Envelopes;
pub use self::types::{InboxEvent, OpenedMessage, OpenedSender};
pub(crate) use self::{
    directory::{Recipient, hex},
    opening::{Found, foreign},
    types::{
        clear_message, envelope_of, is_sealed, message_id, payload_of, principal, raw, unix_ms,
    },
};
use crate::{
    Error, Result,
    hooks::{Hook, Hooks},
    transport::{Call, Clock, Http, is_missing, rng},
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
    clear_allowed: bool,
    max_message_age: Option<u64>,
    hooks: Hooks,
    slots: Mutex<HashMap<ConversationId, Arc<Slot>>>,
    /// Pins or marks have changed since they were stored.
    dirty: AtomicBool,
}

/// Waits for the next look at a conversation: who learns it may hold another conversation's lock.
enum Change {
    KeysChanged(blindpipe_e2ee::Principal),
    /// The directory has another list of this principal.
    ListChanged(blindpipe_e2ee::Principal),
    Stale,
}

struct Slot {
    changes: Mutex<Vec<Change>>,
    entry: Arc<AsyncMutex<Entry>>,
}

/// A conversation as it is known here.
pub(crate) struct Entry {
    pub(crate) id: ConversationId,
    pub(crate) room: Room,
    pub(crate) info: Option<Conversation>,
    pub(crate) recipients: Vec<Recipient>,
    /// Members or their keys have changed since they were read.
    pub(crate) is_stale: bool,
    envelopes: Envelopes,
}

pub(crate) type EntryGuard = OwnedMutexGuard<Entry>;

/// The options of a seal, beside place and content.
#[derive(Clone, Copy, Default)]
pub(crate) struct SealOptions<'a> {
    /// The epoch of the message that is answered.
    pub(crate) answering: Option<u32>,
    /// The `addressed` agents that may read it.
    pub(crate) readers: &'a [Principal],
}

impl Session {
    pub(crate) fn new(parts: SessionParts) -> Self {
        Self {
            http: parts.http,
            me: parts.me,
            keys: parts.keys,
            trust: Mutex::new(parts.trust),
            clock: parts.clock,
            marks: Mutex::new(parts.marks),
            clear_allowed: parts.clear_allowed,
            max_message_age: parts.max_message_age,
            hooks: parts.hooks,
            slots: Mutex::default(),
            dirty: AtomicBool::default(),
        }
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
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

    fn slot(&self, id: ConversationId) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let slot = slots.entry(id).or_insert_with(|| {
            let mut room = Room::new(id.0.into_bytes(), self.clear_allowed);
            if let Some(age) = self.max_message_age {
                room = room.with_max_message_age(age);
            }
            let marks = self.marks.lock().get(&id).copied();
            let entry = Entry {
                id,
                room: room.with_marks(marks.unwrap_or_default()),
                info: None,
                recipients: Vec::new(),
                is_stale: true,
                envelopes: Envelopes::default(),
            };
            Arc::new(Slot {
                changes: Mutex::default(),
                entry: Arc::new(AsyncMutex::new(entry)),
            })
        });
        slot.clone()
    }

    /// The conversation as it is known, for one task at a time.
    async fn lock(&self, id: ConversationId) -> EntryGuard {
        let slot = self.slot(id);
        let mut entry = slot.entry.clone().lock_owned().await;
        for change in std::mem::take(&mut *slot.changes.lock()) {
            match change {
                Change::KeysChanged(of) => entry.room.keys_changed(of),
                Change::ListChanged(of) => entry.is_stale |= entry.room.is_member(of),
                Change::Stale => entry.is_stale = true,
            }
        }
        entry
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
        server_epoch(entry, info.epoch, info.rotation_required);
        let members = info.members.take().unwrap_or_default();
        let shown: Vec<_> = members.iter().map(shown_member).collect();
        info.members = Some(members);
        let notices = entry.room.members(&shown);
        self.tell(&notices, Some(id));
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
        self.marks.lock().insert(entry.id, entry.room.marks());
        self.mark_dirty();
    }

    /// A rotation of one's own has been accepted.
    pub(crate) fn rotated(&self, entry: &mut Entry, epoch: i32, own: WrappedKey) {
        server_epoch(entry, epoch, false);
        self.take_wraps(entry, epoch, &[own]);
    }

    /// Takes note of what an event says about keys and members, before anybody handles it.
    pub(crate) async fn observe(&self, event: &InboxEvent) {
        use blindpipe_protocol::events::Event;
        let observed = match event.known() {
            Some(Event::KeyRotated(rotation)) => self.observe_rotation(&rotation).await,
            Some(Event::KeyDeviceAdded(change) | Event::KeyDeviceRemoved(change)) => {
                self.observe_keys(Principal::User(change.user_id)).await
            }
            Some(Event::AgentKeyRegistered(registration)) => {
                self.observe_keys(Principal::Agent(registration.agent_id))
                    .await
            }
            Some(
                Event::MemberAdded(_)
                | Event::MemberRemoved(_)
                | Event::ConversationUpdated(_)
                | Event::RelationCreated(_)
                | Event::RelationRevoked(_),
            ) => {
                self.stale(event.conversation_id);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = observed {
            // A read that failed is repeated when something needs its answer.
            self.stale(event.conversation_id);
            warn!(error = error.kind(), "an event could not be looked into");
        }
    }

    fn stale(&self, id: Option<ConversationId>) {
        let slots = self.slots.lock();
        if let Some(slot) = id.and_then(|id| slots.get(&id)) {
            slot.changes.lock().push(Change::Stale);
        }
    }

    async fn observe_rotation(&self, rotation: &KeyRotation) -> Result<()> {
        let id = rotation.conversation_id;
        // An epoch that was never read is read when it is needed.
        if !self.has_keys() || !self.slots.lock().contains_key(&id) {
            return Ok(());
        }
        let mut entry = self.lock(id).await;
        if entry.is_stale {
            return Ok(());
        }
        let known = i32::try_from(entry.room.server().epoch).unwrap_or(i32::MAX);
        server_epoch(&mut entry, known.max(rotation.epoch), false);
        let rotator = Principal::User(rotation.by);
        let is_new = !self.trust.lock().is_known(principal(rotator));
        if is_new && entry.room.is_member(principal(rotator)) {
            self.read_speaker(id, rotator).await?;
        }
        self.take_wraps(&mut entry, rotation.epoch, &rotation.wrapped_keys);
        Ok(())
    }

    async fn observe_keys(&self, of: Principal) -> Result<()> {
        for slot in self.slots.lock().values() {
            slot.changes.lock().push(Change::ListChanged(principal(of)));
        }
        let is_known = self.trust.lock().is_known(principal(of));
        if is_known {
            self.read_keys(of).await
        } else {
            Ok(())
        }
    }

    /// The keys of somebody changed, in the directory or by a tap.
    fn keys_changed(&self, of: blindpipe_e2ee::Principal) {
        for slot in self.slots.lock().values() {
            slot.changes.lock().push(Change::KeysChanged(of));
        }
    }

    /// The tap: a person takes the key for that principal's. What waited is read again.
    pub(crate) fn confirm(&self, of: Principal, key: blindpipe_e2ee::KeyId) -> bool {
        let of = principal(of);
        let done = self.trust.lock().confirm(of, key);
        self.keys_changed(of);
        for slot in self.slots.lock().values() {
            slot.changes.lock().push(Change::ListChanged(of));
        }
        self.mark_dirty();
        done
    }

    /// Whether a conversation has, or ever had, an epoch.
    pub(crate) async fn is_encrypted(&self, id: ConversationId) -> Result<bool> {
        let entry = self.load(id).await?;
        Ok(entry.room.server().epoch > 0 || entry.room.was_encrypted())
    }

    /// Seals with the newest secret.
    pub(crate) async fn seal(
        &self,
        id: ConversationId,
        place: &Place,
        content: &[u8],
        options: SealOptions<'_>,
    ) -> Result<Vec<u8>> {
        let mut entry = self.load(id).await?;
        if entry.room.server().epoch > entry.room.marks().epoch {
            self.read_wraps(&mut entry, None).await?;
        }
        // A person rotates before a send; where the limit forbids that, the newest goes on.
        let key = entry.room.sealable();
        let key = key.filter(|key| options.answering.is_none_or(|epoch| epoch <= key.epoch()));
        let key = key.ok_or(Error::KeyUnavailable(
            "nobody has given this member a secret",
        ))?;
        let keys = self.keys.as_ref();
        let keys = keys.ok_or(Error::KeyUnavailable("this client has no keys"))?;
        let readers = readers_of(key, options.readers);
        let draft = Draft {
            key,
            sender: principal(self.me),
            sender_keys: &keys.signer,
            place,
            readers: &readers,
            time: self.clock.now_ms(),
            view: View::default(),
            content,
        };
        Ok(envelope::seal(&draft, &mut rng())?)
    }
}

/// The `addressed` agents in rising order; an agent in a lane of its own names nobody.
fn readers_of(key: &EpochKey, named: &[Principal]) -> Vec<Id> {
    let agents = named.iter().filter_map(|reader| match reader {
        Principal::Agent(id) => Some(id.0.into_bytes()),
        Principal::User(_) => None,
    });
    let mut readers: Vec<Id> = agents.filter(|_| key.lane_agent().is_none()).collect();
    readers.sort_unstable();
    readers.dedup();
    readers
}

fn server_epoch(entry: &mut Entry, epoch: i32, rotation_required: bool) {
    // Messages of an epoch are not counted by the server; its age bounds it.
    entry.room.server_epoch(ServerEpoch {
        epoch: u32::try_from(epoch).unwrap_or_default(),
        rotation_required,
        messages: 0,
    });
}

fn shown_member(member: &Member) -> (blindpipe_e2ee::Principal, Visibility) {
    let visibility = match member.visibility {
        Some(groups::Visibility::Addressed) => Visibility::Addressed,
        Some(groups::Visibility::All) | None => Visibility::All,
    };
    (principal(member.principal_id), visibility)
}
