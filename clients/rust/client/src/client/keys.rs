//! This device's keys, and the keys of others: held, confirmed, compared, stored.

use std::sync::Arc;

use blindpipe_e2ee::{
    KeyId, PrivateKeys, safety,
    trust::{Notice, Trust},
};
use blindpipe_protocol::ids::{AgentId, Principal};
use serde_json::{Value, json};

use super::{
    Client,
    state::{self, DeviceKeys},
};
use crate::{
    Error, Hook, Result,
    agent::{restore_marks, store_marks},
    session::{Keys, Session, SessionParts, principal},
};

impl Client {
    /// The tap: this person takes the key for that principal's. False if it was never shown.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] before this device has keys, [`Error::Store`].
    pub fn confirm(&self, of: Principal, key: KeyId) -> Result<bool> {
        let done = self.session()?.confirm(of, key);
        self.save()?;
        Ok(done)
    }

    /// People compared the key. Keys that it introduced are verified with it.
    ///
    /// # Errors
    ///
    /// As [`Self::confirm`].
    pub fn verify(&self, of: Principal, key: KeyId) -> Result<bool> {
        let done = self.session()?.verify(of, key);
        self.save()?;
        Ok(done)
    }

    /// Follows an agent's link, which names its key.
    ///
    /// # Errors
    ///
    /// As [`Self::confirm`].
    pub fn link(&self, agent_id: AgentId, key: KeyId) -> Result<Vec<Notice>> {
        let agent = principal(Principal::Agent(agent_id));
        let session = self.session()?;
        let now = session.clock.now_ms();
        let notices = session.trust.lock().link(agent, key, now);
        self.save()?;
        Ok(notices)
    }

    /// 60 digits to compare with somebody, of this device's key and one of theirs.
    ///
    /// # Errors
    ///
    /// `unknown_sender_key` if the key was never shown.
    pub fn safety_number(&self, of: Principal, key: KeyId) -> Result<String> {
        let session = self.session()?;
        let trust = session.trust.lock();
        let pin = trust.pin(principal(of), key);
        let pin = pin.ok_or(blindpipe_e2ee::Error::UnknownSenderKey)?;
        let keys = session.keys.as_ref().map(|keys| keys.signer.public());
        let keys = keys.ok_or(Error::KeyUnavailable("this device has no keys yet"))?;
        let (me, other) = (principal(session.me), principal(of));
        Ok(safety::number((me, keys), (other, &pin.keys)))
    }

    /// The id of this device's key.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] before this device has keys.
    pub fn key_id(&self) -> Result<KeyId> {
        let keys = self
            .0
            .held
            .lock()
            .keys
            .as_ref()
            .map(|keys| keys.signer.clone());
        let keys = keys.as_ref().map(PrivateKeys::key_id);
        keys.ok_or(Error::KeyUnavailable("this device has no keys yet"))
    }

    /// Keeps keys, and opens and seals with them from now on.
    pub(super) fn hold(&self, keys: DeviceKeys) -> Result<()> {
        let me = Principal::User(self.user_id()?);
        let opening: Vec<_> =
            std::iter::once((&keys.signer).into())
                .chain(keys.earlier.iter().map(|(key_id, x25519)| {
                    blindpipe_e2ee::wrap::OpeningKey {
                        key_id: *key_id,
                        x25519: x25519.clone(),
                    }
                }))
                .collect();
        let own: Vec<KeyId> = opening.iter().map(|key| key.key_id).collect();
        let mut held = self.0.held.lock();
        let (trust, marks) = match &held.session {
            Some(session) => (session.trust.lock().store(), session.marks()),
            None => {
                let document = &held.document;
                (document["pins"].clone(), restore_marks(&document["marks"]))
            }
        };
        let (policy, me_bytes) = (self.0.policy, principal(me));
        let trust = match trust {
            Value::Null => Trust::new(me_bytes, policy, own),
            stored => Trust::restore(me_bytes, policy, own, &stored)?,
        };
        held.session = Some(Arc::new(Session::new(SessionParts {
            http: self.0.http.clone(),
            me,
            keys: Some(Keys {
                signer: keys.signer.clone(),
                opening,
            }),
            trust,
            marks,
            handled: Vec::new(),
            clear_allowed: false,
            max_message_age: None,
            hooks: self.0.hooks.clone(),
            clock: self.0.clock.clone(),
        })));
        held.keys = Some(keys);
        drop(held);
        self.save()
    }

    /// Stores everything that this client must not forget.
    pub(super) fn save(&self) -> Result<()> {
        let Some(store) = &self.0.store else {
            return Ok(());
        };
        let document = self.document()?;
        store
            .save(document.to_string().as_bytes())
            .map_err(Error::Store)
    }

    pub(super) fn save_if_dirty(&self) {
        let session = self.0.held.lock().session.clone();
        let Some(session) = session.filter(|session| session.take_dirty()) else {
            return;
        };
        if self.save().is_err() {
            session.mark_dirty();
            self.tell(&Hook::StoreFailed);
        }
    }

    fn document(&self) -> Result<Value> {
        let identity = self.0.account.identity()?;
        let cookie = self.0.account.cookie().unwrap_or_default();
        let held = self.0.held.lock();
        let choices = self.0.choices.lock();
        let session = held.session.as_ref();
        Ok(json!({
            "session": state::store_identity(&identity, &cookie),
            "keys": held.keys.as_ref().map(DeviceKeys::store),
            "pins": session.map(|session| session.trust.lock().store()),
            "marks": session.map(|session| store_marks(&session.marks())),
            "clear_chosen": choices.clear,
            "consents": choices.consents.store(),
        }))
    }
}
