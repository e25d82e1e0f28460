//! Wraps: a secret of an epoch, sealed for one device or agent and signed by the rotator.

use std::fmt;

use hpke::{
    Deserializable, OpModeR, OpModeS, Serializable, aead::AesGcm256, kdf::HkdfSha256,
    kem::X25519HkdfSha256, single_shot_open, single_shot_seal_with_rng,
};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use crate::{
    EpochKey, Error, Id, KeyId, Principal, PrivateKeys, PublicKeys, Result, Secret, Sid,
    bytes::{Reader, label},
    keys::kem_private,
};

/// The length of a wrap.
pub const WRAP_BYTES: usize = 235;
/// The wrap of a recipient who is given nothing.
pub const NOT_GIVEN: [u8; 1] = [0];

const VERSION: u8 = 1;
const EPOCH_SECRET: u8 = 1;
const LANE_SECRET: u8 = 2;
/// The number of bytes before the signature in the plaintext.
const SIGNED_BYTES: usize = 106;

/// The one a wrap is for.
#[derive(Clone, Copy, Debug)]
pub struct Recipient<'a> {
    pub principal: Principal,
    pub keys: &'a PublicKeys,
    /// An `addressed` agent: it is given its lane only.
    pub addressed: bool,
}

/// A rotation, as it is written into every wrap.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// The epoch's secret.
    pub key: &'a EpochKey,
    /// The `sid` of the epoch before; zeros if there is none or the rotator does not know it.
    pub previous: Sid,
    pub rotator: Id,
    pub rotator_keys: &'a PrivateKeys,
    /// Unix milliseconds.
    pub time: u64,
}

/// The content of a wrap.
#[derive(Clone)]
pub struct Wrap {
    pub key: EpochKey,
    pub previous: Sid,
    pub rotator: Principal,
    pub rotator_key: KeyId,
    /// Unix milliseconds by the rotator's clock.
    pub time: u64,
    signed: Zeroizing<Vec<u8>>,
    signature: [u8; 64],
}

impl fmt::Debug for Wrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Wrap");
        debug
            .field("key", &self.key)
            .field("rotator", &self.rotator);
        debug.field("time", &self.time).finish_non_exhaustive()
    }
}

impl Wrap {
    /// Whether the rotator signed this wrap with `keys`.
    ///
    /// # Errors
    ///
    /// `bad_signature`.
    pub fn verify(&self, keys: &PublicKeys) -> Result<()> {
        keys.verify(&self.signed, &self.signature)
    }
}

/// # Errors
///
/// `malformed` if an `addressed` recipient is no agent or the key is a lane's; `wrong_key` if the
/// recipient's key cannot be used.
pub fn seal(
    rotation: &Rotation<'_>,
    to: &Recipient<'_>,
    rng: &mut impl CryptoRng,
) -> Result<Vec<u8>> {
    let key = rotation.key;
    if key.lane_agent().is_some() {
        return Err(Error::Malformed);
    }
    let (kind, secret) = match to.principal {
        Principal::Agent(id) if to.addressed => {
            (LANE_SECRET, key.addressed(id).ok_or(Error::Malformed)?)
        }
        _ if to.addressed => return Err(Error::Malformed),
        _ => (EPOCH_SECRET, key.secret().clone()),
    };
    let info = info(
        key.conversation(),
        key.epoch(),
        to.principal,
        to.keys.key_id(),
    );
    let mut plaintext = Zeroizing::new(Vec::with_capacity(SIGNED_BYTES + 64));
    plaintext.push(kind);
    plaintext.extend_from_slice(secret.expose());
    plaintext.extend_from_slice(&key.sid());
    plaintext.extend_from_slice(&rotation.previous);
    plaintext.extend_from_slice(&Principal::User(rotation.rotator).to_bytes());
    plaintext.extend_from_slice(&rotation.rotator_keys.key_id());
    plaintext.extend_from_slice(&rotation.time.to_be_bytes());
    let signature = rotation.rotator_keys.sign(&signed(&info, &plaintext));
    plaintext.extend_from_slice(&signature);
    let public = Deserializable::from_bytes(to.keys.public_key()).map_err(|_| Error::WrongKey)?;
    let (enc, ciphertext) = single_shot_seal_with_rng::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeS::Base,
        &public,
        &info,
        &plaintext,
        &[],
        rng,
    )
    .map_err(|_| Error::WrongKey)?;
    Ok([
        &[VERSION],
        &to.keys.key_id()[..],
        &enc.to_bytes(),
        &ciphertext,
    ]
    .concat())
}

/// The private keys that open wraps: a device's own, or earlier ones from a backup.
#[derive(Clone, Debug)]
pub struct OpeningKey {
    pub key_id: KeyId,
    pub x25519: Secret,
}

impl From<&PrivateKeys> for OpeningKey {
    fn from(keys: &PrivateKeys) -> Self {
        Self {
            key_id: keys.key_id(),
            x25519: keys.x25519().clone(),
        }
    }
}

impl From<PrivateKeys> for OpeningKey {
    fn from(keys: PrivateKeys) -> Self {
        Self::from(&keys)
    }
}

/// The key that a wrap was made for, so that a holder of several finds the right one.
///
/// # Errors
///
/// `no_epoch_key` for the wrap of one who is given nothing, `unknown_version`, `malformed`.
pub fn recipient_key(wrap: &[u8]) -> Result<KeyId> {
    match wrap {
        [0] => Err(Error::NoEpochKey),
        [VERSION, rest @ ..] if wrap.len() == WRAP_BYTES => Reader(rest).array(),
        [VERSION, ..] | [] => Err(Error::Malformed),
        _ => Err(Error::UnknownVersion),
    }
}

/// Opens a wrap. `rotator_keys` answers what keys a principal has under a key id; an answer is
/// needed for a lane's secret only, since its `sid` proves nothing.
///
/// # Errors
///
/// `no_epoch_key` if it is for another key, `bad_ciphertext`, `unknown_kind` if the recipient may
/// not be given this kind, `malformed` if the rotator is no user, `wrong_key` if the `sid` is not
/// the secret's, `unknown_sender_key` and `bad_signature` for a lane.
pub fn open(
    wrap: &[u8],
    conversation: Id,
    epoch: u32,
    recipient: Principal,
    key: &OpeningKey,
    rotator_keys: impl FnOnce(Principal, KeyId) -> Option<PublicKeys>,
) -> Result<Wrap> {
    if recipient_key(wrap)? != key.key_id {
        return Err(Error::NoEpochKey);
    }
    let info = info(conversation, epoch, recipient, key.key_id);
    let enc = Deserializable::from_bytes(&wrap[17..49]).map_err(|_| Error::BadCiphertext)?;
    let plaintext = single_shot_open::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &kem_private(&key.x25519),
        &enc,
        &info,
        &wrap[49..],
        &[],
    )
    .map(Zeroizing::new)
    .map_err(|_| Error::BadCiphertext)?;
    let mut at = Reader(&plaintext);
    let kind = at.u8()?;
    let secret = Secret::new(at.array()?);
    let sid = at.array()?;
    let key = match (kind, recipient) {
        (EPOCH_SECRET, _) => EpochKey::new(conversation, epoch, secret),
        (LANE_SECRET, Principal::Agent(id)) => EpochKey::lane(conversation, epoch, id, secret, sid),
        _ => return Err(Error::UnknownKind),
    };
    let previous = at.array()?;
    let rotator = Principal::from_bytes(at.array()?)?;
    if !rotator.is_user() {
        return Err(Error::Malformed);
    }
    if key.sid() != sid {
        return Err(Error::WrongKey);
    }
    let opened = Wrap {
        key,
        previous,
        rotator,
        rotator_key: at.array()?,
        time: at.u64()?,
        signed: signed(&info, &plaintext[..SIGNED_BYTES]),
        signature: at.array()?,
    };
    if kind == LANE_SECRET {
        let signer = rotator_keys(rotator, opened.rotator_key).ok_or(Error::UnknownSenderKey)?;
        opened.verify(&signer)?;
    }
    Ok(opened)
}

fn info(conversation: Id, epoch: u32, recipient: Principal, key_id: KeyId) -> Vec<u8> {
    let epoch = epoch.to_be_bytes();
    [
        &label("wrap"),
        &conversation[..],
        &epoch,
        &recipient.to_bytes(),
        &key_id,
    ]
    .concat()
}

/// The bytes that the rotator signs. The secret is among them.
fn signed(info: &[u8], plaintext: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new([&label("wrap-sign"), info, &plaintext[..SIGNED_BYTES]].concat())
}
