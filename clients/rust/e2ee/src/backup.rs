//! Key backups: private keys under a protection password.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use rand_core::CryptoRng;
use unicode_normalization::UnicodeNormalization;
use zeroize::Zeroizing;

use crate::{
    Error, Id, KeyId, PrivateKeys, PublicKeys, Result, Secret,
    bytes::{Reader, gcm_open, gcm_seal, hkdf, label, prefixed, sha256},
};

const VERSION: u8 = 1;
/// How many keys a backup may hold.
pub const MAX_BACKUP_KEYS: usize = 160;
/// How many characters a password that a person chose must have.
pub const MIN_PASSWORD_CHARACTERS: usize = 12;
const GENERATED_PASSWORD_CHARACTERS: usize = 24;

/// The cost of guessing a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Memory in KiB.
    pub m: u32,
    /// Passes over it.
    pub t: u32,
    /// Lanes.
    pub p: u32,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            m: 65_536,
            t: 3,
            p: 1,
        }
    }
}

impl Costs {
    /// Refuses costs that are too cheap to protect, or so high that they stop the client.
    pub(crate) fn check(self) -> Result<Self> {
        let fit = (19_456..=1_048_576).contains(&self.m)
            && (2..=10).contains(&self.t)
            && (1..=16).contains(&self.p);
        if fit { Ok(self) } else { Err(Error::Malformed) }
    }
}

/// The key-encryption key of a protection password. To derive it takes a third of a second.
#[derive(Clone, Debug)]
pub struct BackupKey {
    kek: Secret,
    salt: [u8; 32],
    costs: Costs,
}

impl BackupKey {
    /// For a new backup: salt and costs are this client's own, never the server's.
    ///
    /// # Errors
    ///
    /// `malformed` if the password is too long for Argon2.
    pub fn random(password: &str, rng: &mut impl CryptoRng) -> Result<Self> {
        let mut salt = [0; 32];
        rng.fill_bytes(&mut salt);
        Self::derive(password, salt, Costs::default())
    }

    /// For a backup that exists, with the salt that stands beside it.
    ///
    /// # Errors
    ///
    /// `malformed` if the costs are out of their limits.
    pub fn derive(password: &str, salt: [u8; 32], costs: Costs) -> Result<Self> {
        let Costs { m, t, p } = costs.check()?;
        let params = Params::new(m, t, p, Some(32)).map_err(|_| Error::Malformed)?;
        let password: Zeroizing<String> = Zeroizing::new(password.nfkc().collect());
        let mut kek = Zeroizing::new([0; 32]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(password.as_bytes(), &salt, &mut *kek)
            .map_err(|_| Error::Malformed)?;
        let kek = Secret::new(*kek);
        Ok(Self { kek, salt, costs })
    }

    #[must_use]
    pub const fn salt(&self) -> &[u8; 32] {
        &self.salt
    }

    #[must_use]
    pub const fn costs(&self) -> Costs {
        self.costs
    }

    /// The derived key, for test vectors.
    #[must_use]
    pub const fn secret(&self) -> &Secret {
        &self.kek
    }
}

/// The device that a backup belongs to.
#[derive(Clone, Copy, Debug)]
pub struct BackupOwner<'a> {
    pub user: Id,
    pub device_id: &'a str,
    pub keys: &'a PublicKeys,
}

/// `backup_a` has the X25519 keys, `backup_b` the Ed25519 seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    A,
    B,
}

/// The two halves of a backup, as the server keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    pub backup_a: Vec<u8>,
    pub backup_b: Vec<u8>,
}

/// The keys in a backup.
#[derive(Clone)]
pub struct Restored {
    /// The device's keys.
    pub keys: PrivateKeys,
    /// X25519 keys of other devices that this one held, for old wraps.
    pub earlier: Vec<(KeyId, Secret)>,
}

impl fmt::Debug for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restored")
    }
}

/// Encrypts a device's keys, and the earlier X25519 keys that it holds.
///
/// # Errors
///
/// `malformed` for more than 160 keys or a device id that is too long.
pub fn seal(
    key: &BackupKey,
    user: Id,
    device_id: &str,
    keys: &PrivateKeys,
    earlier: &[(KeyId, Secret)],
    rng: &mut impl CryptoRng,
) -> Result<Backup> {
    let mut nonces = [[0; 12]; 2];
    nonces.iter_mut().for_each(|nonce| rng.fill_bytes(nonce));
    seal_with_nonces(key, user, device_id, keys, earlier, nonces)
}

/// As [`seal`], under given nonces. A nonce is never used twice under one key.
pub(crate) fn seal_with_nonces(
    key: &BackupKey,
    user: Id,
    device_id: &str,
    keys: &PrivateKeys,
    earlier: &[(KeyId, Secret)],
    nonces: [[u8; 12]; 2],
) -> Result<Backup> {
    let owner = BackupOwner {
        user,
        device_id,
        keys: keys.public(),
    };
    let mut held = vec![(keys.key_id(), keys.x25519().clone())];
    held.extend_from_slice(earlier);
    let signing = [(keys.key_id(), keys.ed25519_seed())];
    Ok(Backup {
        backup_a: half(key, &owner, Role::A, &held, nonces[0])?,
        backup_b: half(key, &owner, Role::B, &signing, nonces[1])?,
    })
}

/// Decrypts a backup.
///
/// # Errors
///
/// `wrong_key`, whatever is wrong: the password, the owner, or the backup itself.
pub fn open(key: &BackupKey, owner: &BackupOwner<'_>, backup: &Backup) -> Result<Restored> {
    opened(key, owner, backup).map_err(|_| Error::WrongKey)
}

fn opened(key: &BackupKey, owner: &BackupOwner<'_>, backup: &Backup) -> Result<Restored> {
    let mut held = opened_half(key, owner, Role::A, &backup.backup_a)?;
    let signing = opened_half(key, owner, Role::B, &backup.backup_b)?;
    let (key_id, x25519) = held.remove(0);
    let keys = PrivateKeys::new(x25519, &signing[0].1);
    if keys.public() != owner.keys || key_id != keys.key_id() || signing[0].0 != key_id {
        return Err(Error::WrongKey);
    }
    let earlier = held;
    Ok(Restored { keys, earlier })
}

fn half(
    key: &BackupKey,
    owner: &BackupOwner<'_>,
    role: Role,
    keys: &[(KeyId, Secret)],
    nonce: [u8; 12],
) -> Result<Vec<u8>> {
    if keys.len() > MAX_BACKUP_KEYS {
        return Err(Error::Malformed);
    }
    let count = u8::try_from(keys.len()).map_err(|_| Error::Malformed)?;
    let mut plaintext = Zeroizing::new(Vec::with_capacity(1 + 48 * keys.len()));
    plaintext.push(count);
    for (key_id, secret) in keys {
        plaintext.extend_from_slice(key_id);
        plaintext.extend_from_slice(secret.expose());
    }
    let aad = associated(key, owner, role)?;
    let sealed = gcm_seal(&*role_key(key, role), &nonce, &aad, &plaintext);
    Ok([&[VERSION], &nonce[..], &sealed].concat())
}

/// The keys of one half, at least one.
fn opened_half(
    key: &BackupKey,
    owner: &BackupOwner<'_>,
    role: Role,
    half: &[u8],
) -> Result<Vec<(KeyId, Secret)>> {
    let mut at = Reader(half);
    if at.u8()? != VERSION {
        return Err(Error::UnknownVersion);
    }
    let nonce = at.take(12)?;
    let aad = associated(key, owner, role)?;
    let plaintext = gcm_open(&*role_key(key, role), nonce, &aad, at.0)?;
    let mut at = Reader(&plaintext);
    let count = usize::from(at.u8()?);
    if !(1..=MAX_BACKUP_KEYS).contains(&count) || at.0.len() != 48 * count {
        return Err(Error::Malformed);
    }
    let key = |at: &mut Reader<'_>| Ok((at.array()?, Secret::new(at.array()?)));
    (0..count).map(|_| key(&mut at)).collect()
}

fn role_key(key: &BackupKey, role: Role) -> Zeroizing<[u8; 32]> {
    hkdf(
        key.kek.expose(),
        &[],
        &[&label("backup"), role.letter()].concat(),
    )
}

impl Role {
    const fn letter(self) -> &'static [u8] {
        match self {
            Self::A => b"a",
            Self::B => b"b",
        }
    }
}

fn associated(key: &BackupKey, owner: &BackupOwner<'_>, role: Role) -> Result<Vec<u8>> {
    let Costs { m, t, p } = key.costs;
    let mut aad = [&label("backup-aad"), role.letter(), &owner.user].concat();
    aad.extend(prefixed(owner.device_id.as_bytes())?);
    aad.extend_from_slice(owner.keys.public_key());
    aad.extend_from_slice(owner.keys.signing_public_key());
    for cost in [m, t, p] {
        aad.extend_from_slice(&cost.to_be_bytes());
    }
    Ok(aad)
}

/// A protection password that nobody guesses: 24 characters of base32, 120 bits.
pub fn generate_password(rng: &mut impl CryptoRng) -> Zeroizing<String> {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bytes = Zeroizing::new([0; GENERATED_PASSWORD_CHARACTERS]);
    rng.fill_bytes(&mut *bytes);
    let letters = bytes
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    Zeroizing::new(letters.collect())
}

/// Recognises the account's password, and does not hold it.
#[derive(Clone)]
pub struct AccountPassword {
    salt: [u8; 32],
    hash: [u8; 32],
}

impl AccountPassword {
    #[must_use]
    pub fn new(password: &str, rng: &mut impl CryptoRng) -> Self {
        let mut salt = [0; 32];
        rng.fill_bytes(&mut salt);
        let hash = account_hash(&salt, password);
        Self { salt, hash }
    }

    #[must_use]
    pub fn is(&self, password: &str) -> bool {
        account_hash(&self.salt, password) == self.hash
    }
}

fn account_hash(salt: &[u8; 32], password: &str) -> [u8; 32] {
    let password: Zeroizing<String> = Zeroizing::new(password.nfkc().collect());
    sha256(&[salt, password.as_bytes()])
}

/// Whether a person may choose this password. That it is not the account's is for the client to
/// check, by [`AccountPassword`].
///
/// # Errors
///
/// `malformed` if it is shorter than 12 characters.
pub fn check_password(chosen: &str) -> Result<()> {
    if chosen.nfkc().count() < MIN_PASSWORD_CHARACTERS {
        return Err(Error::Malformed);
    }
    Ok(())
}
