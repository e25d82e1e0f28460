//! The header of an envelope, and the keys that follow from it.

use zeroize::Zeroizing;

use crate::{
    EpochKey, Error, Id, KeyId, Result, Secret, Sid,
    bytes::{Reader, TAG_BYTES, gcm_open, hkdf, label},
    content::{FRONT_BYTES, MAX_CONTENT_BYTES, padded},
    epoch::{ADDRESSED, EVERYONE},
};

pub(super) const VERSION: u8 = 1;
/// The header up to the commitment.
pub(super) const FIXED_BYTES: usize = 88;
const SLOT_BYTES: usize = 64;
/// How many `addressed` agents may read an envelope.
pub const MAX_SLOTS: usize = 32;

/// The header of an envelope: all that is not secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u8,
    pub epoch: u32,
    pub sid: Sid,
    pub sender_key: KeyId,
    /// The `addressed` agent that wrote it.
    pub writer_lane: Option<Id>,
    /// The `addressed` agents that may read it too.
    pub readers: Vec<Id>,
    pub(super) bytes: Vec<u8>,
}

impl Header {
    /// Reads the header of an envelope.
    ///
    /// # Errors
    ///
    /// `unknown_version`, `malformed`, `unknown_kind`.
    pub fn parse(envelope: &[u8]) -> Result<Self> {
        let mut at = Reader(envelope);
        if at.u8()? != VERSION {
            return Err(Error::UnknownVersion);
        }
        let (kind, lane, slots) = (at.u8()?, at.u8()?, usize::from(at.u8()?));
        if slots > MAX_SLOTS || !(lane == EVERYONE || lane == ADDRESSED && slots == 0) {
            return Err(Error::Malformed);
        }
        let (epoch, sid, sender_key) = (at.u32()?, at.array()?, at.array()?);
        at.take(48)?;
        let writer_lane = if lane == ADDRESSED {
            Some(at.array()?)
        } else {
            None
        };
        let mut readers = Vec::with_capacity(slots);
        for _ in 0..slots {
            readers.push(at.array()?);
            at.take(SLOT_BYTES - 16)?;
        }
        let rising = readers.windows(2).all(|pair| pair[0] < pair[1]);
        let most = padded(FRONT_BYTES + MAX_CONTENT_BYTES, 0) + TAG_BYTES;
        if !rising || at.0.len() < TAG_BYTES || at.0.len() > most {
            return Err(Error::Malformed);
        }
        if !(1..=4).contains(&kind) {
            return Err(Error::UnknownKind);
        }
        let bytes = envelope[..envelope.len() - at.0.len()].to_vec();
        Ok(Self {
            kind,
            epoch,
            sid,
            sender_key,
            writer_lane,
            readers,
            bytes,
        })
    }

    fn salt(&self) -> &[u8; 16] {
        self.bytes[40..56].try_into().expect("16 bytes")
    }

    /// The key of this envelope, by the reader's lane or by its slot.
    pub(super) fn message_key(&self, key: &EpochKey) -> Result<MessageKey> {
        let lane = match (self.writer_lane, key.lane_agent()) {
            (None, Some(reader)) => return self.slot(reader, key),
            (None, None) => key.everyone(),
            (Some(writer), _) => key.addressed(writer),
        };
        let lane = lane.ok_or(Error::NoEpochKey)?;
        Ok(MessageKey::derive(&lane, self.salt()))
    }

    fn slot(&self, reader: Id, key: &EpochKey) -> Result<MessageKey> {
        let at = self.readers.iter().position(|id| *id == reader);
        let start = FIXED_BYTES + SLOT_BYTES * at.ok_or(Error::NoEpochKey)? + 16;
        let sealed = &self.bytes[start..start + SLOT_BYTES - 16];
        let keys = slot_keys(key.secret(), self.salt());
        let fixed = &self.bytes[..FIXED_BYTES];
        let opened = gcm_open(&keys[..32], &keys[32..], fixed, sealed)?;
        let mut message = Zeroizing::new([0; 32]);
        message.copy_from_slice(&opened);
        Ok(MessageKey::new(message))
    }
}

pub(super) fn slot_keys(lane: &Secret, salt: &[u8; 16]) -> Zeroizing<[u8; 44]> {
    hkdf(lane.expose(), salt, &label("slot"))
}

/// The key of an envelope, and what follows from it: key, nonce, commitment.
pub(super) struct MessageKey(pub(super) Zeroizing<[u8; 32]>, Zeroizing<[u8; 76]>);

impl MessageKey {
    pub(super) fn derive(lane: &Secret, salt: &[u8; 16]) -> Self {
        Self::new(hkdf(lane.expose(), salt, &label("message")))
    }

    fn new(key: Zeroizing<[u8; 32]>) -> Self {
        let content = hkdf(&*key, &[], &label("content"));
        Self(key, content)
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.1[..32]
    }

    pub(super) fn nonce(&self) -> &[u8] {
        &self.1[32..44]
    }

    pub(super) fn commitment(&self) -> &[u8] {
        &self.1[44..]
    }
}
