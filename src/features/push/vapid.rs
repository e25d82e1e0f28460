//! The server's proof to a push service that it is the one that the device subscribed to: RFC 8292.

use std::sync::Arc;

use aws_lc_rs::{
    agreement::{ECDH_P256, PrivateKey},
    error::Unspecified,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::{
    auth::{
        key_ring::{KeyId, SealingKeys},
        server_secret::ServerSecret,
    },
    error::{Code, Error, Result},
};

/// The life of a proof. The RFC allows a day.
const PROOF_LIFE: TimeDelta = TimeDelta::hours(12);

/// The keys that prove this server, one for each secret of the ring. Clones share them.
#[derive(Clone)]
pub struct ServerKeys(Arc<[ServerKey]>);

struct ServerKey {
    id: KeyId,
    pair: EcdsaKeyPair,
    /// The public key in base64url.
    public: String,
}

fn part(value: &Value) -> String {
    BASE64.encode(value.to_string())
}

fn key(id: KeyId, private: &[u8; 32]) -> Result<ServerKey, Unspecified> {
    let public = PrivateKey::from_private_key(&ECDH_P256, private).map_err(|_| Unspecified)?;
    let public = public.compute_public_key()?;
    let public = public.as_ref();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let pair = EcdsaKeyPair::from_private_key_and_public_key(algorithm, private, public)
        .map_err(|_| Unspecified)?;
    Ok(ServerKey {
        id,
        pair,
        public: BASE64.encode(public),
    })
}

impl ServerKeys {
    /// Derives a key from each secret. Errors: for one secret in four thousand million, whose
    /// number is none of the curve's.
    pub fn new(secret: &ServerSecret) -> Result<Self, &'static str> {
        let keys: SealingKeys = secret.derive_sealing_keys("push server key");
        let all = std::iter::once(keys.current()).chain(keys.others());
        let pairs: Result<Vec<ServerKey>, Unspecified> =
            all.map(|one| key(one.id, &one.key)).collect();
        let pairs = pairs.map_err(|_| "a secret of SERVER_SECRET gives no key for pushes")?;
        Ok(ServerKeys(pairs.into()))
    }

    /// The public key for new subscriptions, in base64url.
    pub fn public(&self) -> &str {
        &self.0[0].public
    }

    /// The name of the key for new subscriptions.
    pub fn current(&self) -> i32 {
        self.0[0].id.0
    }

    /// The header that proves the server to the push service at `origin`. None if the key has left
    /// the ring.
    pub fn proof(
        &self,
        key: i32,
        origin: &str,
        contact: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<String>> {
        let Some(key) = self.0.iter().find(|one| one.id.0 == key) else {
            return Ok(None);
        };
        let header = part(&json!({ "typ": "JWT", "alg": "ES256" }));
        let expires = (now + PROOF_LIFE).timestamp();
        let claims = part(&json!({ "aud": origin, "exp": expires, "sub": contact }));
        let signed = format!("{header}.{claims}");
        let signature = key
            .pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        let signature = BASE64.encode(signature);
        let public = &key.public;
        Ok(Some(format!("vapid t={signed}.{signature}, k={public}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_earlier_secret_still_proves_the_server() {
        let ring = |secrets: &[u8]| ServerSecret(secrets.iter().map(|n| vec![*n; 32]).collect());
        let old = ServerKeys::new(&ring(&[1])).expect("keys");
        let new = ServerKeys::new(&ring(&[2, 1])).expect("keys");
        assert_ne!(old.public(), new.public());
        let proof = |keys: &ServerKeys| {
            let at = DateTime::default();
            let proof = keys.proof(old.current(), "https://push.test", "https://own.test", at);
            proof.expect("signed")
        };
        let of_old_key = format!("k={}", old.public());
        assert!(proof(&new).is_some_and(|proof| proof.ends_with(&of_old_key)));
        let without = ServerKeys::new(&ring(&[2])).expect("keys");
        assert_eq!(proof(&without), None);
    }
}
