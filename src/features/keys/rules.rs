//! What a key, a salt and a backup are.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest, Sha256};

use crate::validation::DeviceId;

/// Bytes of an encrypted private key at most.
const BACKUP_BYTES: usize = 8192;

/// Base64 of exactly 32 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = BASE64
            .decode(String::deserialize(from)?)
            .ok()
            .and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Key)
            .ok_or_else(|| D::Error::custom("key|must be base64 of 32 bytes"))
    }
}

/// Base64 of what a client has encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = BASE64.decode(String::deserialize(from)?).ok();
        let bytes = bytes.filter(|bytes| (1..=BACKUP_BYTES).contains(&bytes.len()));
        bytes
            .map(Blob)
            .ok_or_else(|| D::Error::custom("backup|must be base64 of 1 to 8192 bytes"))
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

/// How the key that encrypts the backup is derived: by Argon2id, and not too cheaply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Argon2Params {
    /// Memory in KiB.
    pub m: i32,
    /// Passes.
    pub t: i32,
    /// Lanes.
    pub p: i32,
}

impl<'de> Deserialize<'de> for Argon2Params {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Given {
            m: i32,
            t: i32,
            p: i32,
        }
        let Given { m, t, p } = Given::deserialize(from)?;
        if m < 19_456 || t < 2 || p < 1 {
            return Err(D::Error::custom("floor|m must be at least 19456, t 2, p 1"));
        }
        // Argon2's own bounds, and no more memory than any device has.
        if m > 4 * 1024 * 1024 || t > 1000 || p > 255 || m < 8 * p {
            return Err(D::Error::custom(
                "ceiling|m may be 4194304, t 1000, p 255 and an eighth of m",
            ));
        }
        Ok(Argon2Params { m, t, p })
    }
}

/// One version of one device's backup, as a cursor: `<device_id>:<version>`. A device id may hold colons, a version none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupId(pub String, pub i32);

impl fmt::Display for BackupId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}", self.0, self.1)
    }
}

impl<'de> Deserialize<'de> for BackupId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let read = |text: &str| {
            let (device, version) = text.rsplit_once(':')?;
            Some(BackupId(
                DeviceId::read(device.to_owned())?.0,
                version.parse().ok()?,
            ))
        };
        read(&text).ok_or_else(|| D::Error::custom("cursor|is no id of this list"))
    }
}

/// What a pair of public keys is called: hex of the first 16 bytes of SHA-256 over both.
pub fn key_id(public_key: &[u8; 32], signing_public_key: &[u8; 32]) -> String {
    let hash = Sha256::new()
        .chain_update(public_key)
        .chain_update(signing_public_key)
        .finalize();
    hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_id_is_half_a_hash_of_both_keys() {
        // printf '\1%.0s' {1..32} and \2 likewise | sha256sum
        assert_eq!(
            key_id(&[1; 32], &[2; 32]),
            "f818afd37a6dc3bc92fb447310112770"
        );
        assert_ne!(key_id(&[1; 32], &[2; 32]), key_id(&[2; 32], &[1; 32]));
    }

    #[test]
    fn lengths_and_costs_have_bounds() {
        let key =
            |bytes: usize| serde_json::from_value::<Key>(BASE64.encode(vec![7; bytes]).into());
        assert!(key(32).is_ok() && key(31).is_err() && key(33).is_err());
        let blob =
            |bytes: usize| serde_json::from_value::<Blob>(BASE64.encode(vec![7; bytes]).into());
        assert!(blob(1).is_ok() && blob(8192).is_ok() && blob(0).is_err() && blob(8193).is_err());
        let params = |m, t, p| {
            serde_json::from_value::<Argon2Params>(serde_json::json!({ "m": m, "t": t, "p": p }))
                .is_ok()
        };
        assert!(params(19_456, 2, 1) && params(65_536, 3, 4));
        assert!(!params(19_455, 2, 1) && !params(19_456, 1, 1) && !params(19_456, 2, 0));
        assert!(!params(4_194_305, 2, 1) && !params(19_456, 1001, 1) && !params(19_456, 2, 256));
    }
}
