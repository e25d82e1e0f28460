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
/// A removed device may know the secrets of conversations that were active in this time.
const ROTATED_AFTER_REVOCATION_MS: u64 = 7 * 24 * 3_600_000;

/// Whether a conversation needs a fresh secret before anything is sent.
pub(super) fn is_due(session: &Session, entry: &Entry, answering: Option<u32>) -> bool {
    let me = principal(session.me);
    let sealing = entry.room.sealing(me, answering, session.clock.now_ms());
    !matches!(sealing, Sealing::With { .. })
}

impl Client {
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
                    if entry.room.sealable().is_some() {
                        return Ok(());
                    }
                }
                Some(Code::RecipientsMismatch) => entry.is_stale = true,
                Some(Code::RateLimited) if entry.room.sealable().is_some() => return Ok(()),
                _ => return Err(error),
            }
            if attempt >= MAX_TRIES {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Fresh secrets where a device that was removed could read what is sent now. Where this fails,
    /// the next send rotates: the server asks for it.
    pub(super) async fn rotate_recent(&self) {
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
                    && let Err(error) = self.rotate_anew(info.conversation_id).await
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

    async fn rotate_anew(&self, id: ConversationId) -> Result<()> {
        self.session()?.forget(id);
        self.rotate(id).await
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
            time: session.clock.now_ms().max(entry.room.marks().time + 1),
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

const fn principal_id(who: Principal) -> blindpipe_e2ee::Id {
    match principal(who) {
        Owner::User(id) | Owner::Agent(id) => id,
    }
}
