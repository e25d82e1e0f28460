//! Signed addresses: a right to write or read one thing until a time, without a token.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::ObjectKey;
use crate::{
    auth::key_ring::MacKeyRing,
    auth::server_secret::ServerSecret,
    clock::Clock,
    error::{Code, Result},
    ids::UploadId,
};

/// The query of a signed address.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SignedQuery {
    /// The end of the address, in seconds of Unix time.
    pub expires: Option<i64>,
    /// The signature.
    pub sig: Option<String>,
    /// The share that the address comes from, as the hash of its id; none for an event's data.
    pub share: Option<String>,
}

/// Signs addresses and verifies them. All nodes share the key.
#[derive(Clone)]
pub struct SignedUrls {
    keys: MacKeyRing,
    /// `PUBLIC_URL`.
    base: Arc<str>,
    clock: Clock,
}

impl SignedUrls {
    /// Signs for a service at `base`.
    pub fn new(secret: &ServerSecret, base: &str, clock: Clock) -> Self {
        SignedUrls {
            keys: secret.derive("object links"),
            base: base.into(),
            clock,
        }
    }

    /// The address of a path, as clients reach it.
    pub fn absolute(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The address for the bytes of an upload. `path` is that of its route.
    pub fn upload(&self, path: &str, upload: UploadId, expires: DateTime<Utc>) -> String {
        let expires = expires.timestamp();
        let sig = self.sign(&["upload", &upload.to_string()], expires);
        self.absolute(&format!("{path}?expires={expires}&sig={sig}"))
    }

    /// Whether `query` may write the bytes of `upload`. Errors: `FORBIDDEN` if its signature is
    /// wrong or its time has passed.
    pub fn verify_upload(&self, query: &SignedQuery, upload: UploadId) -> Result<()> {
        self.verify(query, &["upload", &upload.to_string()], Code::Forbidden)
            .map(drop)
    }

    /// The address of an object, and its end. `share` is the hash of a share's id.
    pub fn object(
        &self,
        key: &ObjectKey,
        share: Option<&str>,
        ttl: Duration,
    ) -> (String, DateTime<Utc>) {
        let end = self.clock.now() + ttl;
        let expires = end.timestamp();
        let sig = self.sign(&object_parts(key, share), expires);
        let share = share.map_or(String::new(), |share| format!("&share={share}"));
        let path = format!(
            "/objects/{}?expires={expires}{share}&sig={sig}",
            key.as_str()
        );
        (self.absolute(&path), end)
    }

    /// The end of an object's address. Errors: `NOT_FOUND`, as for everyone without a right.
    pub fn verify_object(&self, query: &SignedQuery, key: &ObjectKey) -> Result<DateTime<Utc>> {
        let parts = object_parts(key, query.share.as_deref());
        self.verify(query, &parts, Code::NotFound)
    }

    fn sign(&self, parts: &[&str], expires: i64) -> String {
        let expires = expires.to_be_bytes();
        BASE64.encode(self.keys.sign(&signed_parts(parts, &expires)))
    }

    /// The end of an address whose signature is genuine.
    fn verify(&self, query: &SignedQuery, parts: &[&str], refusal: Code) -> Result<DateTime<Utc>> {
        let (Some(end), Some(sig)) = (query.expires, &query.sig) else {
            return Err(refusal.into());
        };
        let expires = end.to_be_bytes();
        let sig = BASE64.decode(sig).unwrap_or_default();
        let genuine = self.keys.verify(&signed_parts(parts, &expires), &sig);
        let end = DateTime::from_timestamp(end, 0).filter(|_| genuine);
        end.filter(|end| self.clock.now().timestamp() < end.timestamp())
            .ok_or_else(|| refusal.into())
    }
}

fn signed_parts<'a>(parts: &[&'a str], expires: &'a [u8]) -> Vec<&'a [u8]> {
    let parts = parts.iter().map(|part| part.as_bytes());
    parts.chain([expires]).collect()
}

fn object_parts<'a>(key: &'a ObjectKey, share: Option<&'a str>) -> [&'a str; 3] {
    ["object", key.as_str(), share.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_link_opens_its_own_thing_until_its_end() {
        let clock = Clock::default();
        let random = Random::seeded(clock.clone(), [1; 32]);
        let secret = ServerSecret(Arc::new([vec![7; 32]]));
        let signed_urls = SignedUrls::new(&secret, "https://x", clock.clone());
        let (one, other) = (UploadId::generate(&random), UploadId::generate(&random));
        let end = clock.now() + Duration::from_secs(60);
        let url = signed_urls.upload("/files/u/upload", one, end);
        let query = |url: &str| -> SignedQuery {
            let url = reqwest::Url::parse(url).expect("a URL");
            let value = |name: &str| {
                let mut pairs = url.query_pairs();
                Some(pairs.find(|(key, _)| key == name)?.1.into_owned())
            };
            SignedQuery {
                expires: value("expires").and_then(|n| n.parse().ok()),
                sig: value("sig"),
                share: value("share"),
            }
        };
        let signed = query(&url);
        assert!(signed_urls.verify_upload(&signed, one).is_ok());
        assert!(signed_urls.verify_upload(&signed, other).is_err());
        let later = SignedQuery {
            expires: signed.expires.map(|at| at + 1),
            ..signed.clone()
        };
        assert!(signed_urls.verify_upload(&later, one).is_err());

        let key = ObjectKey::generate(&random);
        let (url, _) = signed_urls.object(&key, Some("s"), Duration::from_secs(60));
        let signed_object = query(&url);
        assert!(signed_urls.verify_object(&signed_object, &key).is_ok());
        let unshared = SignedQuery {
            share: None,
            ..signed_object
        };
        assert!(signed_urls.verify_object(&unshared, &key).is_err());

        clock.advance(Duration::from_secs(61));
        assert!(signed_urls.verify_upload(&signed, one).is_err());
    }
}
