//! Principals, their keys, key ids, introductions, and the written form of an agent's key.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use hpke::{Deserializable, Kem, Serializable, kem::X25519HkdfSha256};
use rand_core::CryptoRng;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{
    Error, Result,
    bytes::{hex, hkdf, label, prefixed, sha256, unhex},
};

/// The 16 bytes of a ULID or a UUID. Ids are compared as bytes: one id has several spellings.
pub type Id = [u8; 16];

/// A user or an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    User(Id),
    Agent(Id),
}

impl Principal {
    /// The kind (1 user, 2 agent) and the id.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 17] {
        let (kind, id) = match self {
            Self::User(id) => (1, id),
            Self::Agent(id) => (2, id),
        };
        let mut bytes = [kind; 17];
        bytes[1..].copy_from_slice(&id);
        bytes
    }

    /// # Errors
    ///
    /// `malformed` for another kind.
    pub fn from_bytes(bytes: [u8; 17]) -> Result<Self> {
        let id = bytes[1..].try_into().expect("16 bytes");
        match bytes[0] {
            1 => Ok(Self::User(id)),
            2 => Ok(Self::Agent(id)),
            _ => Err(Error::Malformed),
        }
    }

    /// The bytes in hex, as stores name a principal.
    #[must_use]
    pub fn to_hex(self) -> String {
        hex(self.to_bytes())
    }

    /// The principal that [`Self::to_hex`] names.
    ///
    /// # Errors
    ///
    /// `malformed` for anything else.
    pub fn from_hex(text: &str) -> Result<Self> {
        unhex(text)
            .ok_or(Error::Malformed)
            .and_then(Self::from_bytes)
    }

    #[must_use]
    pub const fn is_user(self) -> bool {
        matches!(self, Self::User(_))
    }
}

/// 32 secret bytes: wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; 32]);

impl Secret {
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn random(rng: &mut impl CryptoRng) -> Self {
        let mut secret = Self([0; 32]);
        rng.fill_bytes(&mut secret.0);
        secret
    }

    /// The bytes, for a store or for the next derivation.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The name of a pair of public keys: computed from them, never read.
pub type KeyId = [u8; 16];

/// The public keys of a device or an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicKeys {
    public_key: [u8; 32],
    signing_public_key: [u8; 32],
}

impl PublicKeys {
    /// # Errors
    ///
    /// `wrong_key` for a key of small order: nobody owns such a key alone.
    pub fn new(public_key: [u8; 32], signing_public_key: [u8; 32]) -> Result<Self> {
        if small_order(&X25519_SMALL_ORDER, &public_key)
            || small_order(&ED25519_SMALL_ORDER, &signing_public_key)
        {
            return Err(Error::WrongKey);
        }
        Ok(Self {
            public_key,
            signing_public_key,
        })
    }

    /// The X25519 key, for wraps.
    #[must_use]
    pub const fn public_key(&self) -> &[u8; 32] {
        &self.public_key
    }

    /// The Ed25519 key, for signatures.
    #[must_use]
    pub const fn signing_public_key(&self) -> &[u8; 32] {
        &self.signing_public_key
    }

    #[must_use]
    pub fn key_id(&self) -> KeyId {
        let hash = sha256(&[&self.public_key, &self.signing_public_key]);
        hash[..16].try_into().expect("16 bytes")
    }

    /// Whether `signature` of `text` is by this key. Small orders are refused before the library is
    /// asked: under such a key some libraries take one signature for every text.
    ///
    /// # Errors
    ///
    /// `bad_signature`.
    pub fn verify(&self, text: &[u8], signature: &[u8; 64]) -> Result<()> {
        let commitment = signature[..32].try_into().expect("32 bytes");
        if small_order(&ED25519_SMALL_ORDER, &commitment) {
            return Err(Error::BadSignature);
        }
        VerifyingKey::from_bytes(&self.signing_public_key)
            .and_then(|key| key.verify_strict(text, &Signature::from_bytes(signature)))
            .map_err(|_| Error::BadSignature)
    }
}

/// The private keys of a device or an agent.
#[derive(Clone)]
pub struct PrivateKeys {
    x25519: Secret,
    ed25519: SigningKey,
    public: PublicKeys,
}

impl fmt::Debug for PrivateKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeys")
    }
}

impl PrivateKeys {
    /// New keys of a device.
    pub fn random(rng: &mut impl CryptoRng) -> Self {
        Self::new(Secret::random(rng), &Secret::random(rng))
    }

    #[must_use]
    pub fn new(x25519: Secret, ed25519_seed: &Secret) -> Self {
        let ed25519 = SigningKey::from_bytes(ed25519_seed.expose());
        let public_key = X25519HkdfSha256::sk_to_pk(&kem_private(&x25519)).to_bytes();
        let public = PublicKeys {
            public_key: public_key.into(),
            signing_public_key: ed25519.verifying_key().to_bytes(),
        };
        Self {
            x25519,
            ed25519,
            public,
        }
    }

    #[must_use]
    pub const fn public(&self) -> &PublicKeys {
        &self.public
    }

    #[must_use]
    pub fn key_id(&self) -> KeyId {
        self.public.key_id()
    }

    /// The X25519 private key.
    #[must_use]
    pub const fn x25519(&self) -> &Secret {
        &self.x25519
    }

    /// The Ed25519 seed.
    #[must_use]
    pub fn ed25519_seed(&self) -> Secret {
        Secret(self.ed25519.to_bytes())
    }

    #[must_use]
    pub fn sign(&self, text: &[u8]) -> [u8; 64] {
        self.ed25519.sign(text).to_bytes()
    }
}

pub(crate) fn kem_private(x25519: &Secret) -> <X25519HkdfSha256 as Kem>::PrivateKey {
    Deserializable::from_bytes(x25519.expose()).expect("32 bytes are a key")
}

/// The one seed of an agent of one deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentKey(Secret);

impl AgentKey {
    #[must_use]
    pub const fn new(seed: Secret) -> Self {
        Self(seed)
    }

    pub fn random(rng: &mut impl CryptoRng) -> Self {
        Self(Secret::random(rng))
    }

    #[must_use]
    pub fn keys(&self) -> PrivateKeys {
        let derive = |name| Secret(*hkdf(self.0.expose(), &[], &label(name)));
        PrivateKeys::new(derive("agent-x25519"), &derive("agent-ed25519"))
    }

    /// The written form: `bpk_` and base64url of the seed and its CRC-32.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let check = crc32fast::hash(self.0.expose()).to_be_bytes();
        let bytes = Zeroizing::new([&self.0.expose()[..], &check].concat());
        Zeroizing::new(format!("bpk_{}", URL_SAFE_NO_PAD.encode(&*bytes)))
    }

    /// # Errors
    ///
    /// `malformed`, for a slip of the pen too.
    pub fn parse(text: &str) -> Result<Self> {
        let coded = text.strip_prefix("bpk_").ok_or(Error::Malformed)?;
        let bytes = URL_SAFE_NO_PAD
            .decode(coded)
            .map(Zeroizing::new)
            .map_err(|_| Error::Malformed)?;
        let (seed, check) = bytes.split_first_chunk::<32>().ok_or(Error::Malformed)?;
        if check != crc32fast::hash(seed).to_be_bytes() {
            return Err(Error::Malformed);
        }
        Ok(Self(Secret(*seed)))
    }

    /// Several keys, newest first, separated by commas: old epochs were wrapped for old keys.
    ///
    /// # Errors
    ///
    /// `malformed`.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        text.split(',').map(|key| Self::parse(key.trim())).collect()
    }
}

/// A new key, signed by an earlier one of the same principal: says that the two are one owner's.
fn introduction(owner: Principal, device_id: Option<&str>, new: &PublicKeys) -> Result<Vec<u8>> {
    let device = prefixed(device_id.unwrap_or_default().as_bytes())?;
    let keys = [&new.public_key[..], &new.signing_public_key].concat();
    Ok([&label("introduce"), &owner.to_bytes()[..], &device, &keys].concat())
}

/// # Errors
///
/// `malformed` for a device id that is too long.
pub fn introduce(
    by: &PrivateKeys,
    owner: Principal,
    device_id: Option<&str>,
    new: &PublicKeys,
) -> Result<[u8; 64]> {
    Ok(by.sign(&introduction(owner, device_id, new)?))
}

/// Whether `by` introduced `new`. If `by` counts is for [`crate::trust::Trust`] to say.
///
/// # Errors
///
/// `bad_signature`.
pub fn verify_introduction(
    by: &PublicKeys,
    owner: Principal,
    device_id: Option<&str>,
    new: &PublicKeys,
    signature: &[u8; 64],
) -> Result<()> {
    by.verify(&introduction(owner, device_id, new)?, signature)
}

/// Every encoding of a point of small order on the curve of Ed25519, sign bit cleared.
pub const ED25519_SMALL_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    first(1, 0, 0),
    *b"\x26\xe8\x95\x8f\xc2\xb2\x27\xb0\x45\xc3\xf4\x89\xf2\xef\x98\xf0\xd5\xdf\xac\x05\xd3\xc6\x33\x39\xb1\x38\x02\x88\x6d\x53\xfc\x05",
    *b"\xc7\x17\x6a\x70\x3d\x4d\xd8\x4f\xba\x3c\x0b\x76\x0d\x10\x67\x0f\x2a\x20\x53\xfa\x2c\x39\xcc\xc6\x4e\xc7\xfd\x77\x92\xac\x03\x7a",
    first(0xec, 0xff, 0x7f),
    first(0xed, 0xff, 0x7f),
    first(0xee, 0xff, 0x7f),
];

/// Every encoding of a point of small order on the curve of X25519, highest bit cleared.
pub const X25519_SMALL_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    first(1, 0, 0),
    *b"\xe0\xeb\x7a\x7c\x3b\x41\xb8\xae\x16\x56\xe3\xfa\xf1\x9f\xc4\x6a\xda\x09\x8d\xeb\x9c\x32\xb1\xfd\x86\x62\x05\x16\x5f\x49\xb8\x00",
    *b"\x5f\x9c\x95\xbc\xa3\x50\x8c\x24\xb1\xd0\xb1\x55\x9c\x83\xef\x5b\x04\x44\x5c\xc4\x58\x1c\x8e\x86\xd8\x22\x4e\xdd\xd0\x9f\x11\x57",
    first(0xec, 0xff, 0x7f),
    first(0xed, 0xff, 0x7f),
    first(0xee, 0xff, 0x7f),
];

const fn first(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

fn small_order(list: &[[u8; 32]; 7], key: &[u8; 32]) -> bool {
    let mut cleared = *key;
    cleared[31] &= 0x7f;
    list.contains(&cleared)
}
