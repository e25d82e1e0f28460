//! This device's keys, and the keys of others: held, confirmed, compared, stored.

use std::sync::Arc;

use blindpipe_e2ee::{
    KeyId, PrivateKeys,
    trust::{Notice, Trust},
};
use blindpipe_protocol::ids::{AgentId, Principal};

use super::{Client, state::DeviceKeys};
use crate::{
    Error, Result,
    session::{Keys, Session, SessionParts, principal},
    shared_store::restored,
};

impl Client {
    /// The tap: this person takes the key for that principal's. False if it was never shown.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] before this device has keys, [`Error::Store`].
    pub fn confirm(&self, of: Principal, key: KeyId) -> Result<bool> {
        let done = self.session()?.confirm(of, key);
        self.save_learned()?;
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
        self.save_learned()?;
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
    /// for those that it introduced; [`Hook::Notice`](crate::Hook::Notice) names them. False if the key was never shown,
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
        self.save_learned()?;
        Ok(notices.unwrap_or_default())
    }

    fn compare(
        &self,
        of: Principal,
        compared: impl FnOnce(&mut Trust, u64) -> Option<Vec<Notice>>,
    ) -> Result<bool> {
        let done = self.session()?.compare(of, compared).is_some();
        self.save_learned()?;
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
        let (policy, me_bytes) = (self.0.policy, principal(me));
        let (trust, marks) = match &held.session {
            Some(session) => {
                let stored = session.trust.lock().store();
                let trust = Trust::restore(me_bytes, policy, own, &stored)?;
                (trust, session.marks())
            }
            None => restored(std::mem::take(&mut held.learned), me_bytes, policy, own)?,
        };
        let session = Session::new(SessionParts {
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
        });
        if let Some(earlier) = &held.session {
            session.inherit(earlier);
        }
        held.session = Some(Arc::new(session));
        held.keys = Some(keys);
        drop(held);
        self.save_keys()?;
        self.save_learned()
    }
}
