//! Keys derived from the server's secret, `SERVER_SECRET`. Each purpose has keys of its own, so a
//! MAC for one purpose proves nothing for another.
//!
//! The secret is a ring. The first secret signs and seals; every one verifies and opens. A change
//! of the secret therefore ends no session. There are two forms:
//!
//! - [`MacKeyRing`] for a value that proves itself: `secret.derive("refresh token")`.
//! - [`SealingKeys`] for a value that is encrypted and stored. Store the [`KeyId`] beside it, and
//!   later ask for the key with that id.
//!
//! Why: ADR 17.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
};
use subtle::{Choice, ConstantTimeEq};

use super::{secret::MacKey, server_secret::ServerSecret};
use crate::{
    error::{Code, Error, Result},
    random::Random,
};

/// Fewest bytes of a shortened MAC.
pub const MIN_MAC_BYTES: usize = 16;
/// Bytes of a key's id before what it has sealed.
const KEY_ID_BYTES: usize = 4;

impl ServerSecret {
    /// The MAC keys for `purpose`, a fixed text that no other use has.
    pub fn derive(&self, purpose: &str) -> MacKeyRing {
        MacKeyRing(self.keys(purpose).map(MacKey::from_bytes).collect())
    }

    /// The encryption keys for `purpose`, a fixed text that no other use has.
    pub fn derive_sealing_keys(&self, purpose: &str) -> SealingKeys {
        let ids = self.keys("id of a sealing key").map(KeyId::of);
        let keys = ids.zip(self.keys(purpose));
        SealingKeys(keys.map(|(id, key)| SealingKey { id, key }).collect())
    }

    fn keys(&self, purpose: &str) -> impl Iterator<Item = [u8; 32]> {
        let key_of = |secret: &Vec<u8>| MacKey::from_slice(secret).mac(&[purpose.as_bytes()]);
        self.0.iter().map(key_of)
    }
}

/// The MAC keys of one purpose, the current one first. Clones share them.
#[derive(Clone)]
pub struct MacKeyRing(Arc<[MacKey]>);

impl MacKeyRing {
    /// HMAC-SHA256 over the parts under the current key.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.0[0].mac(parts)
    }

    /// Whether `mac` is that of the parts under any key, in constant time. It may be shortened to
    /// [`MIN_MAC_BYTES`].
    pub fn verify(&self, parts: &[&[u8]], mac: &[u8]) -> bool {
        if !(MIN_MAC_BYTES..=32).contains(&mac.len()) {
            return false;
        }
        let any = self.0.iter().fold(Choice::from(0), |any, key| {
            any | key.mac(parts)[..mac.len()].ct_eq(mac)
        });
        any.into()
    }

    /// The MACs of the parts under every key, the current one first.
    pub fn all(&self, parts: &[&[u8]]) -> impl Iterator<Item = [u8; 32]> {
        self.0.iter().map(move |key| key.mac(parts))
    }
}

/// The public name of a secret in the ring. It reveals nothing about the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub i32);

impl KeyId {
    /// The bytes that a sealed value begins with.
    pub fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    fn of(name: [u8; 32]) -> Self {
        KeyId(i32::from_be_bytes([name[0], name[1], name[2], name[3]]))
    }
}

/// An encryption key. Cannot be printed.
pub struct SealingKey {
    /// To be stored beside the ciphertext.
    pub id: KeyId,
    /// 256 bits.
    pub key: [u8; 32],
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "SealingKey({})", self.id.0)
    }
}

/// The encryption keys of one purpose. Clones share them.
#[derive(Clone, Debug)]
pub struct SealingKeys(Arc<[SealingKey]>);

impl SealingKeys {
    /// The key that seals.
    pub fn current(&self) -> &SealingKey {
        &self.0[0]
    }

    /// The keys that only open.
    pub fn others(&self) -> impl Iterator<Item = &SealingKey> {
        self.0.iter().skip(1)
    }

    /// The key that opens what was sealed under `id`; none once its secret has left the ring.
    pub fn get(&self, id: KeyId) -> Option<&SealingKey> {
        self.0.iter().find(|key| key.id == id)
    }

    /// The first bytes of what the current key seals.
    pub fn current_prefix(&self) -> Vec<u8> {
        self.current().id.to_bytes().to_vec()
    }

    /// The first bytes of what the keys that only open have sealed.
    pub fn other_prefixes(&self) -> Vec<Vec<u8>> {
        let prefixes = self.others().map(|key| key.id.to_bytes().to_vec());
        prefixes.collect()
    }

    /// Seals a text with AES-256-GCM: key id (4 bytes), nonce (12 bytes), ciphertext, tag. It opens
    /// for its owner only.
    pub fn seal(&self, random: &Random, owner: &[u8], mut text: Vec<u8>) -> Result<Vec<u8>> {
        let key = self.current();
        let nonce = random.bytes::<NONCE_LEN>();
        let unsealed = |error| Error::internal(Code::InternalError, error);
        cipher(key)
            .map_err(unsealed)?
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(owner),
                &mut text,
            )
            .map_err(unsealed)?;
        Ok([&key.id.to_bytes()[..], &nonce, &text].concat())
    }

    /// Opens what [`seal`](Self::seal) made for this owner. None if its key has left the ring or it
    /// was changed.
    pub fn open(&self, owner: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (id, rest) = sealed.split_first_chunk::<KEY_ID_BYTES>()?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = self.get(KeyId(i32::from_be_bytes(*id)))?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = cipher(key)
            .ok()?
            .open_in_place(nonce, Aad::from(owner), &mut text);
        Some(opened.ok()?.to_vec())
    }
}

fn cipher(key: &SealingKey) -> std::result::Result<LessSafeKey, Unspecified> {
    Ok(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key.key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(secrets: &[u8]) -> ServerSecret {
        ServerSecret(secrets.iter().map(|n| vec![*n; 32]).collect())
    }

    #[test]
    fn the_first_secret_signs_and_every_secret_verifies() {
        let parts: &[&[u8]] = &[b"a", b"b"];
        let (old, new) = (ring(&[1]), ring(&[2, 1]));
        let mac = old.derive("x").sign(parts);
        assert!(new.derive("x").verify(parts, &mac));
        assert!(new.derive("x").verify(parts, &mac[..MIN_MAC_BYTES]));
        assert!(!old.derive("x").verify(parts, &new.derive("x").sign(parts)));
        assert!(!ring(&[2]).derive("x").verify(parts, &mac));
        // Another purpose, other parts, or too short.
        assert!(!new.derive("y").verify(parts, &mac));
        assert!(!new.derive("x").verify(&[b"ab", b""], &mac));
        assert!(!new.derive("x").verify(parts, &mac[..MIN_MAC_BYTES - 1]));
        assert!(!new.derive("x").verify(parts, b""));
    }

    #[test]
    fn a_sealing_key_is_found_by_its_id_after_a_change() {
        let (before, after) = (ring(&[1]), ring(&[2, 1]));
        let (before, after) = (
            before.derive_sealing_keys("x"),
            after.derive_sealing_keys("x"),
        );
        let old = before.current();
        assert_ne!(old.id, after.current().id);
        assert_eq!(after.get(old.id).map(|key| key.key), Some(old.key));
        assert!(ring(&[3]).derive_sealing_keys("x").get(old.id).is_none());
    }
}
