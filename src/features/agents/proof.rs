//! Keys of agents: their form, their id, and the proof that the registering party holds them.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe_protocol::agents::RegisterAgentKey;
use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};

use crate::{
    error::{Code, Error, Result},
    ids::AgentId,
};

/// The largest difference between a proof's time and the server's, either way.
const TIMESTAMP_TOLERANCE: TimeDelta = TimeDelta::seconds(300);

/// A key pair's public halves.
pub struct Keys {
    pub public: [u8; 32],
    pub signing: [u8; 32],
}

/// Returns the keys if their holder signed this registration just now. Errors: `VALIDATION_ERROR`
/// for a malformed key or an old time. `AGENT_KEYS_MISMATCH` for a signature by another key or over
/// other data.
pub fn prove(registration: &RegisterAgentKey, agent: AgentId, now: DateTime<Utc>) -> Result<Keys> {
    let RegisterAgentKey {
        public_key,
        signing_public_key,
        timestamp,
        signature,
        ..
    } = registration;
    let keys = Keys {
        public: decode("public_key", public_key)?,
        signing: decode("signing_public_key", signing_public_key)?,
    };
    let signature: [u8; 64] = decode("signature", signature)?;
    let at = DateTime::parse_from_rfc3339(timestamp)
        .map_err(|_| Error::field("timestamp", "format", "is no ISO 8601 time"))?;
    if (now - at.with_timezone(&Utc)).abs() > TIMESTAMP_TOLERANCE {
        return Err(Error::field(
            "timestamp",
            "window",
            "is more than 300 s away from now",
        ));
    }
    let signed = format!("keys-register|{agent}|{public_key}|{signing_public_key}|{timestamp}");
    UnparsedPublicKey::new(&ED25519, keys.signing)
        .verify(signed.as_bytes(), &signature)
        .map_err(|_| Code::AgentKeysMismatch)?;
    Ok(keys)
}

fn decode<const N: usize>(field: &str, text: &str) -> Result<[u8; N]> {
    let bytes = BASE64
        .decode(text)
        .map_err(|_| Error::field(field, "base64", "is no base64"))?;
    bytes
        .try_into()
        .map_err(|_| Error::field(field, "length", format!("must have {N} bytes")))
}

/// The form of keys on the wire.
pub fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

impl Keys {
    /// Hex of the first 16 bytes of SHA-256 over both keys.
    pub fn id(&self) -> String {
        let hash = Sha256::new()
            .chain_update(self.public)
            .chain_update(self.signing)
            .finalize();
        base16ct::lower::encode_string(&hash[..16])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, test 3: a signature by another implementation.
    #[test]
    fn the_verifier_agrees_with_the_standard() {
        let key = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025";
        let signature = "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
                         18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a";
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
                .collect()
        };
        let key = UnparsedPublicKey::new(&ED25519, bytes(key));
        assert!(key.verify(&[0xaf, 0x82], &bytes(signature)).is_ok());
        assert!(key.verify(&[0xaf, 0x83], &bytes(signature)).is_err());
    }

    #[test]
    fn a_key_id_is_half_a_hash_over_both_keys() {
        let keys = Keys {
            public: [1; 32],
            signing: [2; 32],
        };
        assert_eq!(keys.id(), "f818afd37a6dc3bc92fb447310112770");
    }
}
