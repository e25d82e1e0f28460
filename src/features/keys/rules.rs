//! The forms of keys, salts and backups.

use std::fmt;

use blindpipe_protocol::bad_text::BadText;
pub use blindpipe_protocol::{keys::Argon2Params, text::Blob};
use serde::{Deserialize, Deserializer, de::Error as _};
use sha2::{Digest, Sha256};

use crate::validation::DeviceId;

/// The cursor of a backup's version: `<device_id>:<version>`. A device id may
/// contain colons, a version cannot.
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
        read(&text).ok_or_else(|| D::Error::custom(BadText::new("cursor", "is no id of this list")))
    }
}

/// The id of a pair of public keys: hex of the first 16 bytes of SHA-256 over both.
pub fn key_id(public_key: &[u8; 32], signing_public_key: &[u8; 32]) -> String {
    let hash = Sha256::new()
        .chain_update(public_key)
        .chain_update(signing_public_key)
        .finalize();
    base16ct::lower::encode_string(&hash[..16])
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
    use blindpipe_protocol::text::Key32;
    use serde_json::Value;

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
            |bytes: usize| serde_json::from_value::<Key32>(BASE64.encode(vec![7; bytes]).into());
        assert!(key(32).is_ok() && key(31).is_err() && key(33).is_err());
        let blob =
            |bytes: usize| serde_json::from_value::<Blob>(BASE64.encode(vec![7; bytes]).into());
        assert!(blob(1).is_ok() && blob(8192).is_ok() && blob(0).is_err() && blob(8193).is_err());
    }

    #[test]
    fn costs_have_the_bounds_of_the_clients() {
        let vectors = include_str!("../../../clients/vectors/backups.json");
        let vectors: Value = serde_json::from_str(vectors).expect("JSON");
        let is_admitted =
            |costs: &Value| serde_json::from_value::<Argon2Params>(costs.clone()).is_ok();
        let list = |name: &str| vectors[name].as_array().expect("a list").clone();
        assert!(list("costs_accepted").iter().all(is_admitted));
        assert!(!list("costs_refused").iter().any(is_admitted));
    }
}
