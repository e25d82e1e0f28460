//! This device's keys, and the keys of others: held, confirmed, compared, stored.

use std::sync::Arc;

use blindpipe_e2ee::{
    KeyId, PrivateKeys,
    trust::{Notice, Trust},
};
use blindpipe_protocol::ids::{AgentId, Principal};
use serde_json::{Value, json};

use super::{
    Client,
    state::{self, DeviceKeys},
};
use crate::{
    Error, Hook, Part, Result,
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

    /// 60 digits to compare with somebody: of all accepted keys of both, as the service lists them
    /// now. Where a side has none, of those that wait.
    ///
    /// # Errors
    ///
    /// As [`Self::confirm`]; [`Error::Api`]; `unknown_sender_key` if a side has no keys.
    pub async fn safety_number(&self, of: Principal) -> Result<String> {
        let number = self.session()?.safety_number(of).await?;
        self.save()?;
        Ok(number)
    }

    /// People compared these digits: all keys of `of` that they stand for are verified. False if
    /// they are not, or no longer, the digits of [`Self::safety_number`].
    ///
    /// # Errors
    ///
    /// As [`Self::confirm`].
    pub fn verify(&self, of: Principal, number: &str) -> Result<bool> {
        let whose = principal(of);
        self.compare(of, |trust, now| trust.verify_number(whose, number, now))
    }

    /// People compared this key alone, for example by its id. All other keys wait from now on, but
    /// for those that it introduced; [`Hook::Notice`] names them. False if the key was never shown,
    /// or is retired.
    ///
    /// # Errors
    ///
    /// As [`Self::confirm`].
    pub fn verify_key(&self, of: Principal, key: KeyId) -> Result<bool> {
        let whose = principal(of);
        self.compare(of, |trust, now| trust.verify(whose, key, now))
    }

    /// Follows an agent's link, which names its key. While the service does not list that key, all
    /// keys that nobody verified wait.
    ///
    /// # Errors
    ///
    /// As [`Self::confirm`].
    pub fn link(&self, agent_id: AgentId, key: KeyId) -> Result<Vec<Notice>> {
        let of = Principal::Agent(agent_id);
        let followed = |trust: &mut Trust, now| Some(trust.link(principal(of), key, now));
        let notices = self.session()?.compare(of, followed);
        self.save()?;
        Ok(notices.unwrap_or_default())
    }

    fn compare(
        &self,
        of: Principal,
        compared: impl FnOnce(&mut Trust, u64) -> Option<Vec<Notice>>,
    ) -> Result<bool> {
        let done = self.session()?.compare(of, compared).is_some();
        self.save()?;
        Ok(done)
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
                (
                    document["pins"].clone(),
                    state::restore_marks(&document["marks"]),
                )
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

    /// Stores everything that this client must not forget. Another process may have renewed the
    /// session meanwhile, so a stored one stays.
    pub(super) fn save(&self) -> Result<()> {
        self.store(true)
    }

    /// Stores everything, with the session as it is here.
    pub(super) fn save_session(&self) -> Result<()> {
        self.store(false)
    }

    fn store(&self, keeps_session: bool) -> Result<()> {
        let Some(store) = &self.0.store else {
            return Ok(());
        };
        let mut document = self.document()?;
        let _lock = store.lock(Part::Document).map_err(Error::Store)?;
        if keeps_session {
            let identity = self.0.account.identity()?;
            let stored = state::read(store.load().map_err(Error::Store)?)?;
            let before = state::restore_identity(&stored["session"]);
            if before.is_some_and(|(before, _)| before.is(&identity)) {
                document["session"] = stored["session"].clone();
            }
        }
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
            "marks": session.map(|session| state::store_marks(&session.marks())),
            "clear_chosen": choices.clear,
            "consents": choices.consents.store(),
        }))
    }
}
