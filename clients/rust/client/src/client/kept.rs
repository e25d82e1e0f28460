//! The store of a client: a small document, and beside it what the client learns. Processes of one device
//! share both, so each change is made to what is stored.

use std::sync::Arc;

use blindpipe_e2ee::{Principal as Owner, consent::begun_name};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use super::{
    Client,
    account::Identity,
    state::{self, Choices, DeviceKeys},
};
use crate::{
    Error, Hook, Part, Result, Store,
    shared_store::{News, Saved},
    store::Entries,
};

pub(super) struct Kept {
    store: Arc<dyn Store>,
    /// The place of what the client learns. The document itself, if the store has no other.
    learned: Arc<dyn Store>,
    is_apart: bool,
    /// The saves of this process, one after the other.
    saving: Mutex<()>,
}

/// Keeps other saves away, those of this process and of others.
type Lock<'a> = (MutexGuard<'a, ()>, Box<dyn Send>);

impl Kept {
    pub(super) fn new(store: Arc<dyn Store>, of: &Identity) -> Self {
        let learned = store.learned(&format!("{}/{}", of.user_id, of.device_id));
        Self {
            is_apart: learned.is_some(),
            learned: learned.unwrap_or_else(|| store.clone()),
            store,
            saving: Mutex::default(),
        }
    }

    fn lock(&self) -> Result<Lock<'_>> {
        let own = self.saving.lock();
        let lock = self.store.lock(Part::Document).map_err(Error::Store)?;
        Ok((own, lock))
    }

    /// Keeps other processes from renewing the session. This may wait for a call of the service.
    pub(super) fn lock_renewal(&self) -> Result<Box<dyn Send>> {
        self.store.lock(Part::Renewal).map_err(Error::Store)
    }

    /// The document; null if it is another person's or device's.
    pub(super) fn document(&self, of: &Identity) -> Result<Value> {
        let document = state::load(&*self.store)?;
        let before = state::restore_identity(&document["session"]);
        let is_own = before.is_some_and(|(before, _)| before.is(of));
        Ok(if is_own { document } else { Value::Null })
    }

    /// The document, and what earlier runs have learned. An earlier version kept that in the document:
    /// it is moved.
    pub(super) fn load(&self, of: &Identity) -> Result<(Value, Entries)> {
        let _lock = self.lock()?;
        let mut document = self.document(of)?;
        let mut learned = Entries::default();
        if document.is_null() && !self.is_apart {
            return Ok((document, learned));
        }
        if self.is_apart && !document.is_null() {
            learned = Entries::take_from(&mut document).map_err(Error::Store)?;
        }
        let is_to_be_moved = !learned.is_empty();
        let mut take = |part| learned.extend(part);
        self.learned.load_entries(&mut take).map_err(Error::Store)?;
        if is_to_be_moved {
            self.learned.save_entries(&learned).map_err(Error::Store)?;
            self.save(&document)?;
        }
        Ok((document, learned))
    }

    fn save(&self, document: &Value) -> Result<()> {
        let saved = self.store.save(document.to_string().as_bytes());
        saved.map_err(Error::Store)
    }
}

impl Client {
    /// Saves the session as it is here.
    pub(super) fn save_session(&self) -> Result<()> {
        let cookie = self.0.account.cookie().unwrap_or_default();
        let session = state::store_identity(&self.0.account.identity()?, &cookie);
        self.save_field("session", session)
    }

    pub(super) fn save_keys(&self) -> Result<()> {
        let keys = self.0.held.lock().keys.as_ref().map(DeviceKeys::store);
        self.save_field("keys", keys.into())
    }

    fn save_field(&self, name: &str, value: Value) -> Result<()> {
        let Some(kept) = &self.0.kept else {
            return Ok(());
        };
        let _lock = kept.lock()?;
        self.change(kept, |document| document[name] = value)
    }

    /// Replaces the document, if something of it is another. Its other fields stay as they are stored,
    /// perhaps by another process.
    fn change(&self, kept: &Kept, change: impl FnOnce(&mut Value)) -> Result<()> {
        let stored = kept.document(&self.0.account.identity()?)?;
        let mut document = if stored.is_null() {
            self.document()?
        } else {
            stored.clone()
        };
        change(&mut document);
        if document == stored {
            return Ok(());
        }
        kept.save(&document)
    }

    fn document(&self) -> Result<Value> {
        let identity = self.0.account.identity()?;
        let cookie = self.0.account.cookie().unwrap_or_default();
        let mut document = json!({
            "session": state::store_identity(&identity, &cookie),
            "keys": self.0.held.lock().keys.as_ref().map(DeviceKeys::store),
        });
        self.0.choices.lock().put_into(&mut document);
        Ok(document)
    }

    /// Changes this person's choices. Here the change is valid, also where the store fails.
    pub(super) fn choose<T>(&self, change: impl FnOnce(&mut Choices, u64) -> T) -> Result<T> {
        let now = self.0.clock.now_ms();
        let Some(kept) = &self.0.kept else {
            return Ok(change(&mut self.0.choices.lock(), now));
        };
        let locked = kept.lock().and_then(|lock| {
            self.take_choices(kept)?;
            Ok(lock)
        });
        let mut choices = self.0.choices.lock();
        let chosen = change(&mut choices, now);
        choices.changed();
        drop(choices);
        let _lock = locked?;
        self.save_choices(kept)?;
        Ok(chosen)
    }

    fn take_choices(&self, kept: &Kept) -> Result<()> {
        let stored = kept.document(&self.0.account.identity()?)?;
        self.0.choices.lock().take_over(&stored)
    }

    fn save_choices(&self, kept: &Kept) -> Result<()> {
        self.change(kept, |document| {
            self.0.choices.lock().put_into(document);
        })?;
        self.0.choices.lock().saved();
        Ok(())
    }

    /// Notes durably that a tool request begins. False if it began before, in whatever process.
    pub(super) fn begin(&self, agent: Owner, request_id: &str) -> Result<bool> {
        let begin = || self.consent(|it, _, _| it.begin(agent, request_id));
        let Some(kept) = &self.0.kept else {
            return Ok(begin());
        };
        let _lock = kept.lock()?;
        self.learn(kept)?;
        if !begin() {
            return Ok(false);
        }
        let begun = Entries {
            begun: [begun_name(agent, request_id)].into(),
            ..Entries::default()
        };
        let saved = kept.learned.save_entries(&begun).map_err(Error::Store);
        if saved.is_err() {
            self.consent(|it, _, _| it.not_begun(agent, request_id));
        }
        saved.map(|()| true)
    }

    /// Takes over what other processes of this device have learned.
    pub(super) fn hear(&self) {
        self.hear_by(Self::learn);
    }

    /// Takes over the choices that other processes have stored, and the requests that they have begun.
    pub(super) fn hear_choices(&self) {
        self.hear_by(|client, kept| {
            client.learn(kept)?;
            client.take_choices(kept)
        });
    }

    /// A save of this process does the same, so nobody waits for it.
    fn hear_by(&self, hear: impl FnOnce(&Self, &Kept) -> Result<()>) {
        let Some(kept) = &self.0.kept else {
            return;
        };
        let heard = match kept.saving.try_lock() {
            Some(_saving) => hear(self, kept),
            None => Ok(()),
        };
        if heard.is_err() {
            self.tell(&Hook::StoreFailed);
        }
    }

    fn learn(&self, kept: &Kept) -> Result<()> {
        let mut take = |entries| self.take_over(entries);
        kept.learned.news(&mut take).map_err(Error::Store)
    }

    fn take_over(&self, mut entries: Entries) {
        let begun = std::mem::take(&mut entries.begun);
        self.consent(|consents, _, _| {
            for name in begun {
                consents.began_before(name);
            }
        });
        // A session that begins meanwhile takes it over from the one before.
        let mut held = self.0.held.lock();
        match &held.session {
            Some(session) => session.take_over(News {
                entries,
                ..News::default()
            }),
            None => held.learned.extend(entries),
        }
    }

    /// Keeps the pins and marks that have changed. What the store does not keep is kept by the next save.
    pub(super) fn save_learned(&self) -> Result<()> {
        let session = self.0.held.lock().session.clone();
        let (Some(kept), Some(session)) = (&self.0.kept, session) else {
            return Ok(());
        };
        let saved = kept.lock().and_then(|_lock| {
            // Within the lock, so that a clean session has no save under way.
            session.take_dirty();
            let saved = self.learn(kept).and_then(|()| {
                let keep =
                    |entries: &Entries| kept.learned.save_entries(entries).map(|()| Saved::Kept);
                session.keep_changed(keep).map_err(Error::Store)
            });
            if saved.is_err() {
                session.mark_dirty();
            }
            saved
        });
        saved.map(drop)
    }

    /// Keeps what was learned, if there is something; false if the store fails. Then nothing that taught
    /// it may be acknowledged.
    pub(super) fn save_if_dirty(&self) -> bool {
        let session = self.0.held.lock().session.clone();
        let (Some(kept), Some(session)) = (&self.0.kept, session) else {
            return true;
        };
        // The outcome of a save that is under way counts too.
        let saving = kept.saving.lock();
        let is_dirty = session.is_dirty();
        drop(saving);
        let is_saved = !is_dirty || self.save_learned().is_ok();
        if !is_saved {
            self.tell(&Hook::StoreFailed);
        }
        is_saved
    }
}
