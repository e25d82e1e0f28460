//! The envelope: a signed and encrypted payload, for a message, a delta, a tool request or its
//! response.

mod header;
mod place;

use rand_core::CryptoRng;
use serde_json::Value;
use zeroize::Zeroizing;

use self::header::{FIXED_BYTES, MessageKey, VERSION, slot_keys};
pub use self::{
    header::{Header, MAX_SLOTS},
    place::{Place, Request},
};
use crate::{
    EpochKey, Error, Id, KeyId, Principal, PrivateKeys, PublicKeys, Result, Secret, Sid,
    bytes::{Reader, gcm_open, gcm_seal, label, sha256},
    content::{self, FRONT_BYTES, padded},
    epoch::{ADDRESSED, EVERYONE},
};

/// The sender's own key list as it sees it; zeros if not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub list_version: u32,
    pub keys_hash: [u8; 16],
}

impl View {
    /// The version and the hash, 20 bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&self.list_version.to_be_bytes());
        bytes[4..].copy_from_slice(&self.keys_hash);
        bytes
    }
}

/// The input of a seal.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    pub key: &'a EpochKey,
    pub sender: Principal,
    pub sender_keys: &'a PrivateKeys,
    pub place: &'a Place,
    /// The `addressed` agents that may read it too.
    pub readers: &'a [Id],
    /// Unix milliseconds.
    pub time: u64,
    pub view: View,
    /// The payload that would have gone in clear, as JSON.
    pub content: &'a [u8],
}

/// An envelope that opened.
#[derive(Clone, PartialEq, Eq)]
pub struct Opened {
    pub header: Header,
    /// Unix milliseconds by the sender's clock.
    pub time: u64,
    pub view: View,
    /// The content, as it was signed.
    pub content: Vec<u8>,
    /// The content, parsed.
    pub json: Value,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Opened");
        debug
            .field("header", &self.header)
            .field("time", &self.time);
        debug.finish_non_exhaustive()
    }
}

/// Seals a draft under a fresh salt.
///
/// # Errors
///
/// `unknown_kind` if this sender may not write this kind, `not_json`, and `malformed` for what does
/// not fit.
pub fn seal(draft: &Draft<'_>, rng: &mut impl CryptoRng) -> Result<Vec<u8>> {
    let mut salt = [0; 16];
    rng.fill_bytes(&mut salt);
    seal_with_salt(draft, salt)
}

/// As [`seal`], under a given salt: a salt used twice gives the content away.
pub(crate) fn seal_with_salt(draft: &Draft<'_>, salt: [u8; 16]) -> Result<Vec<u8>> {
    let Draft {
        key, sender, place, ..
    } = *draft;
    if !place.may_be_by(sender) {
        return Err(Error::UnknownKind);
    }
    content::parse(draft.content)?;
    let (lane, lane_secret) = writer_lane(key, sender, draft.readers)?;
    let message = MessageKey::derive(&lane_secret, &salt);
    let slots = u8::try_from(draft.readers.len()).map_err(|_| Error::Malformed)?;
    let mut header = vec![VERSION, place.kind(), lane, slots];
    header.extend_from_slice(&key.epoch().to_be_bytes());
    header.extend_from_slice(&key.sid());
    header.extend_from_slice(&draft.sender_keys.key_id());
    header.extend_from_slice(&salt);
    header.extend_from_slice(message.commitment());
    header.extend_from_slice(key.lane_agent().as_ref().map_or(&[], |id| &id[..]));
    header.extend(slots_of(draft, &salt, &header, &message)?);
    let aad = associated(&header, key.conversation(), sender, place)?;
    let text = signed(&aad, draft.time, draft.view, draft.content);
    let length = padded(FRONT_BYTES + draft.content.len(), place.least_padded());
    let mut plaintext = Zeroizing::new(Vec::with_capacity(length));
    plaintext.extend_from_slice(&draft.sender_keys.sign(&text));
    plaintext.extend_from_slice(&draft.time.to_be_bytes());
    plaintext.extend_from_slice(&draft.view.to_bytes());
    let size = u32::try_from(draft.content.len()).map_err(|_| Error::Malformed)?;
    plaintext.extend_from_slice(&size.to_be_bytes());
    plaintext.extend_from_slice(draft.content);
    plaintext.resize(length, 0);
    header.extend(gcm_seal(message.key(), message.nonce(), &aad, &plaintext));
    Ok(header)
}

/// The lane that a holder of `key` writes in, and its secret.
fn writer_lane(key: &EpochKey, sender: Principal, readers: &[Id]) -> Result<(u8, Secret)> {
    let rising = readers.windows(2).all(|pair| pair[0] < pair[1]);
    if readers.len() > MAX_SLOTS || !rising {
        return Err(Error::Malformed);
    }
    match key.lane_agent() {
        None => Ok((EVERYONE, key.everyone().ok_or(Error::Malformed)?)),
        Some(agent) if sender == Principal::Agent(agent) && readers.is_empty() => {
            Ok((ADDRESSED, key.secret().clone()))
        }
        Some(_) => Err(Error::Malformed),
    }
}

fn slots_of(
    draft: &Draft<'_>,
    salt: &[u8; 16],
    fixed: &[u8],
    message: &MessageKey,
) -> Result<Vec<u8>> {
    let mut slots = Vec::new();
    for agent in draft.readers {
        let lane = draft.key.addressed(*agent).ok_or(Error::Malformed)?;
        let keys = slot_keys(&lane, salt);
        slots.extend_from_slice(agent);
        slots.extend(gcm_seal(&keys[..32], &keys[32..], fixed, &*message.0));
    }
    Ok(slots)
}

fn associated(
    header: &[u8],
    conversation: Id,
    sender: Principal,
    place: &Place,
) -> Result<Vec<u8>> {
    let context = place.context()?;
    Ok([
        &label("aad"),
        header,
        &conversation,
        &sender.to_bytes(),
        &context,
    ]
    .concat())
}

fn signed(aad: &[u8], time: u64, view: View, content: &[u8]) -> Zeroizing<Vec<u8>> {
    let (hash, time) = (sha256(&[aad]), time.to_be_bytes());
    Zeroizing::new([&label("sign"), &hash[..], &time, &view.to_bytes(), content].concat())
}

/// Opens an envelope that was found at `place` in `conversation`, said to be by `sender`.
/// `epoch_key` answers the secret that the reader holds for an epoch and a `sid`; `signer` answers
/// what keys the sender has under a key id.
///
/// # Errors
///
/// Every reason but `retired_key`, `stale` and `clear`, which are for [`crate::room::Room`] to say.
pub fn open<'k>(
    envelope: &[u8],
    conversation: Id,
    sender: Principal,
    place: &Place,
    epoch_key: impl FnOnce(u32, Sid) -> Option<&'k EpochKey>,
    signer: impl FnOnce(KeyId) -> Option<PublicKeys>,
) -> Result<Opened> {
    let header = Header::parse(envelope)?;
    if header
        .writer_lane
        .is_some_and(|agent| sender != Principal::Agent(agent))
    {
        return Err(Error::Malformed);
    }
    if header.kind != place.kind() || !place.may_be_by(sender) {
        return Err(Error::UnknownKind);
    }
    let key = epoch_key(header.epoch, header.sid).ok_or(Error::NoEpochKey)?;
    let message = header.message_key(key)?;
    if message.commitment() != &header.bytes[56..FIXED_BYTES] {
        return Err(Error::WrongKey);
    }
    let aad = associated(&header.bytes, conversation, sender, place)?;
    let ciphertext = &envelope[header.bytes.len()..];
    let plaintext = gcm_open(message.key(), message.nonce(), &aad, ciphertext)?;
    let parts = Parts::read(&plaintext, place)?;
    let keys = signer(header.sender_key).filter(|keys| keys.key_id() == header.sender_key);
    let text = signed(&aad, parts.time, parts.view, parts.content);
    keys.ok_or(Error::UnknownSenderKey)?
        .verify(&text, &parts.signature)?;
    Ok(Opened {
        header,
        time: parts.time,
        view: parts.view,
        content: parts.content.to_vec(),
        json: content::parse(parts.content)?,
    })
}

/// A plaintext, taken apart.
struct Parts<'a> {
    signature: [u8; 64],
    time: u64,
    view: View,
    content: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(plaintext: &'a [u8], place: &Place) -> Result<Self> {
        Self::fields(plaintext, place).map_err(|_| Error::BadPadding)
    }

    fn fields(plaintext: &'a [u8], place: &Place) -> Result<Self> {
        let mut at = Reader(plaintext);
        let (signature, time) = (at.array()?, at.u64()?);
        let view = View {
            list_version: at.u32()?,
            keys_hash: at.array()?,
        };
        let size = usize::try_from(at.u32()?).map_err(|_| Error::BadPadding)?;
        let content = at.take(size)?;
        let exact = padded(FRONT_BYTES + size, place.least_padded()) == plaintext.len();
        if !exact || at.0.iter().any(|byte| *byte != 0) {
            return Err(Error::BadPadding);
        }
        Ok(Self {
            signature,
            time,
            view,
            content,
        })
    }
}

/// The field `re` of a payload that answers an envelope: it names that envelope.
#[must_use]
pub fn fingerprint(envelope: &[u8]) -> [u8; 32] {
    sha256(&[envelope])
}
