//! Changes of keys, members and secrets: told by events, by taps, or missed.

use blindpipe_e2ee::{KeyId, Principal as Owner};
use blindpipe_protocol::{
    events::Event,
    group_keys::KeyRotation,
    ids::{ConversationId, Principal},
};
use tracing::warn;

use super::{Change, InboxEvent, Session, principal, server_epoch};
use crate::Result;

impl Session {
    /// Takes note of what an event says about keys and members, before anybody handles it.
    pub(crate) async fn observe(&self, event: &InboxEvent) {
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

    /// Nobody can say what happened meanwhile, so every conversation is read again.
    pub(crate) fn missed_events(&self) {
        for slot in self.slots.lock().values() {
            slot.changes.lock().push(Change::Stale);
        }
    }

    /// A conversation has changed by one's own act, whose event comes later.
    pub(crate) fn forget(&self, id: ConversationId) {
        self.stale(Some(id));
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
    pub(super) fn keys_changed(&self, of: Owner) {
        for slot in self.slots.lock().values() {
            slot.changes.lock().push(Change::KeysChanged(of));
        }
    }

    /// The tap: a person takes the key for that principal's.
    pub(crate) fn confirm(&self, of: Principal, key: KeyId) -> bool {
        let now = self.clock.now_ms();
        let done = self.trust.lock().confirm(principal(of), key, now);
        self.reconsider(principal(of));
        done
    }

    /// People compared the key.
    pub(crate) fn verify(&self, of: Principal, key: KeyId) -> bool {
        let now = self.clock.now_ms();
        let done = self.trust.lock().verify(principal(of), key, now);
        self.reconsider(principal(of));
        done
    }

    /// Reads again the messages that waited for a key.
    fn reconsider(&self, of: Owner) {
        self.keys_changed(of);
        for slot in self.slots.lock().values() {
            slot.changes.lock().push(Change::ListChanged(of));
        }
        self.mark_dirty();
    }
}
