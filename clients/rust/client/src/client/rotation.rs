//! A fresh secret for a conversation: its recipients, and what the server's refusals mean.

use blindpipe_e2ee::{
    EpochKey, Principal as Owner, PublicKeys,
    room::{Given, Sealing},
    to_base64,
    trust::{DirectoryKey, Notice},
    wrap::{self, NOT_GIVEN, Rotation},
};
use blindpipe_protocol::{
    errors::Code,
    group_keys::{RecipientKey, RotateKey, RotatedKey, WrappedKey},
    ids::{ConversationId, Principal},
    text::{RecipientDevice, WrappedKeyText},
};

use tracing::warn;

use super::Client;
use crate::{
    Error, Hook, Result,
    session::{Entry, Session, principal, unix_ms},
    transport::{Call, rng},
};

const MAX_TRIES: u32 = 3;
const TOO_MANY_REQUESTS: u16 = 429;
/// For so long after the first refusal, a secret that is merely old or used much goes on.
const MAX_REFUSED_MS: u64 = 10 * 60_000;
/// A removed device may know the secrets of conversations that were active in this time.
const ROTATED_AFTER_REVOCATION_MS: u64 = 7 * 24 * 3_600_000;

/// Whether a conversation needs a fresh secret before anything is sent.
fn is_due(session: &Session, entry: &Entry, answering: Option<u32>) -> bool {
    let me = principal(session.me);
    let sealing = entry.room.sealing(me, answering, session.clock.now_ms());
    !matches!(sealing, Sealing::With { .. })
}

impl Client {
    /// Before anything is sealed: the secret of the moment, or a fresh one.
    pub(super) async fn rotate_if_due(
        &self,
        id: ConversationId,
        answering: Option<u32>,
    ) -> Result<()> {
        let session = self.session()?;
        let entry = session.load(id).await?;
        let is_due = is_due(&session, &entry, answering);
        drop(entry);
        // A due rotation stays due, also if this program ends now.
        self.save_if_dirty();
        if is_due {
            self.rotate(id).await?;
        }
        Ok(())
    }

    /// Makes the next epoch. Of two that rotate at once, both go on with the one that won.
    pub(super) async fn rotate(&self, id: ConversationId) -> Result<()> {
        let session = self.session()?;
        for attempt in 1.. {
            let mut entry = session.load(id).await?;
            let Err(error) = self.rotate_once(&session, &mut entry).await else {
                self.save_if_dirty();
                return Ok(());
            };
            match error.code() {
                Some(Code::VersionMismatch) => {
                    session.read_wraps(&mut entry, None).await?;
                    // Somebody else has rotated; if not, what is due stays due.
                    if entry.room.sealable().is_some() && !entry.room.must_rotate() {
                        return Ok(());
                    }
                }
                Some(Code::RecipientsMismatch) => entry.is_stale = true,
                _ if is_limited(&error) => return self.not_rotated(&session, &mut entry),
                _ => return Err(error),
            }
            if attempt >= MAX_TRIES {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The effect of a limit of rotations. A used-up limit stops no conversation for a while, but
    /// nobody keeps a secret from whom it was taken.
    fn not_rotated(&self, session: &Session, entry: &mut Entry) -> Result<()> {
        let now = session.clock.now_ms();
        if let Some(epoch) = entry.room.sealable().map(EpochKey::epoch) {
            let (of, since) = *entry.refused.get_or_insert((epoch, now));
            let since = if of == epoch { since } else { now };
            entry.refused = Some((epoch, since));
            if !entry.room.must_rotate() && now.saturating_sub(since) < MAX_REFUSED_MS {
                return Ok(());
            }
        }
        let conversation_id = entry.id;
        self.tell(&Hook::NotRotated { conversation_id });
        Err(Error::KeyUnavailable(
            "the server takes no fresh secret now",
        ))
    }

    /// Makes the next epoch, because this client took the secret from somebody.
    pub(super) async fn rotate_away(&self, id: ConversationId) -> Result<()> {
        let session = self.session()?;
        session.forget(id);
        let mut entry = session.load(id).await?;
        entry.room.require_rotation();
        session.note_marks(&entry);
        drop(entry);
        self.save_if_dirty();
        self.rotate(id).await
    }

    /// Fresh secrets where a device that was removed could read what is sent now. Everywhere else, and
    /// where this fails, the next send rotates: that is noted here, and needs no word of the server.
    pub(super) async fn rotate_recent(&self) {
        if let Ok(session) = self.session() {
            session.keys_changed(principal(session.me));
            self.save_if_dirty();
        }
        let since = self.0.clock.now_ms();
        let since = since.saturating_sub(ROTATED_AFTER_REVOCATION_MS);
        let mut cursor = None;
        loop {
            let Ok((page, next)) = self.conversations(cursor).await else {
                return;
            };
            for info in page {
                if unix_ms(info.last_activity_at) < since {
                    return;
                }
                if info.epoch > 0
                    && let Err(error) = self.rotate_away(info.conversation_id).await
                {
                    warn!(
                        error = error.kind(),
                        "a conversation has no fresh secret yet"
                    );
                }
            }
            if next.is_none() {
                return;
            }
            cursor = next;
        }
    }

    async fn rotate_once(&self, session: &Session, entry: &mut Entry) -> Result<()> {
        let base = i32::try_from(entry.room.server().epoch).map_err(Error::other)?;
        let epoch = base + 1;
        let wrapped_keys = self.wraps(session, entry, epoch)?;
        let device_id = self.device_id()?;
        let own = wrapped_keys.iter().find(|wrap| {
            let device = wrap.device_id.as_ref().map(|device| &device.0);
            wrap.principal_id == session.me && device == Some(&device_id)
        });
        let own = own.map(|wrap| WrappedKey {
            device_id: Some(device_id.clone()),
            wrapped_key: wrap.wrapped_key.0.clone(),
        });
        let body = RotateKey {
            base_epoch: base,
            reason: None,
            wrapped_keys,
        };
        let call = Call::post(format!("/keys/groups/{}/rotate", entry.id), &body);
        let made: RotatedKey = session.http.data(call).await?;
        if made.epoch != epoch {
            return Err(Error::KeyUnavailable(
                "the server numbered the epoch otherwise",
            ));
        }
        if let Some(own) = own {
            session.rotated(entry, epoch, own);
        }
        Ok(())
    }

    fn wraps(&self, session: &Session, entry: &Entry, epoch: i32) -> Result<Vec<RecipientKey>> {
        let keys = session.keys.as_ref();
        let keys = keys.ok_or(Error::KeyUnavailable("this device has no keys"))?;
        let number = u32::try_from(epoch).map_err(Error::other)?;
        let secret = EpochKey::random(entry.id.0.into_bytes(), number, &mut rng());
        let previous = entry.room.newest().map(EpochKey::sid);
        let rotation = Rotation {
            key: &secret,
            previous: previous.unwrap_or_default(),
            rotator: principal_id(session.me),
            rotator_keys: &keys.signer,
            time: session.clock.now_ms().max(entry.room.latest_time() + 1),
        };
        let mut wraps = Vec::new();
        for recipient in &entry.recipients {
            for key in &recipient.keys {
                let wrapped = self.wrap(session, entry, &rotation, recipient.principal, key)?;
                let device_id = key.device_id.clone().map(RecipientDevice);
                wraps.push(RecipientKey {
                    principal_id: recipient.principal,
                    device_id,
                    wrapped_key: WrappedKeyText(to_base64(&wrapped)),
                });
            }
        }
        Ok(wraps)
    }

    fn wrap(
        &self,
        session: &Session,
        entry: &Entry,
        rotation: &Rotation<'_>,
        to: Principal,
        key: &DirectoryKey,
    ) -> Result<Vec<u8>> {
        let owner = principal(to);
        let now = session.clock.now_ms();
        let given = entry.room.give(&session.trust.lock(), owner, key, now);
        if let Given::Nothing(kind) = given {
            let notice = Notice {
                kind,
                about: owner,
                key: None,
            };
            self.tell(&Hook::Notice {
                notice,
                conversation_id: Some(entry.id),
            });
            return Ok(NOT_GIVEN.to_vec());
        }
        let keys = PublicKeys::new(key.public_key, key.signing_public_key)?;
        let recipient = wrap::Recipient {
            principal: owner,
            keys: &keys,
            addressed: given == Given::Lane,
        };
        Ok(wrap::seal(rotation, &recipient, &mut rng())?)
    }
}

/// A limit, as the service or something on the way tells it.
fn is_limited(error: &Error) -> bool {
    error
        .api()
        .is_some_and(|error| error.status == TOO_MANY_REQUESTS)
}

const fn principal_id(who: Principal) -> blindpipe_e2ee::Id {
    match principal(who) {
        Owner::User(id) | Owner::Agent(id) => id,
    }
}
