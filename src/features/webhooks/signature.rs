//! The signatures of a delivery, in the interface's headers and in those of Standard Webhooks.

use std::{fmt, str::FromStr};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::Sha256;

use crate::{ids::DeliveryId, random::Random};

/// Starts a secret whose rest is the key in base64.
const PREFIX: &str = "whsec_";
/// Bytes of a generated key.
const GENERATED_KEY_BYTES: usize = 32;
/// Fewest bytes of a key, as Standard Webhooks asks.
const MIN_KEY_BYTES: usize = 24;
/// Longest secret.
const MAX_SECRET_BYTES: usize = 256;

const STANDARD_ID: HeaderName = HeaderName::from_static("webhook-id");
const STANDARD_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const STANDARD_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The secret of a webhook. Cannot be printed.
#[derive(Clone)]
pub struct WebhookSecret {
    /// As the owner knows it: the key of the interface's signature.
    text: SecretString,
    /// The key of the Standard Webhooks signature.
    key: SecretSlice<u8>,
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("WebhookSecret")
    }
}

impl WebhookSecret {
    /// A new secret: `whsec_` and 32 random bytes in base64.
    pub fn generate(random: &Random) -> Self {
        let key = random.bytes::<GENERATED_KEY_BYTES>().to_vec();
        WebhookSecret {
            text: format!("{PREFIX}{}", BASE64.encode(&key)).into(),
            key: key.into(),
        }
    }

    /// A secret that its owner has chosen: printable ASCII without spaces, up to 256 characters.
    /// The key has 24 bytes or more: the decoded rest after `whsec_`, or all characters of a secret
    /// without it. Errors: the broken rule, which continues "the secret …".
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > MAX_SECRET_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("must be at most 256 printable ASCII characters without spaces");
        }
        let key = match text.strip_prefix(PREFIX) {
            Some(encoded) => BASE64
                .decode(encoded)
                .map_err(|_| "must be padded base64 after whsec_")?,
            None => text.as_bytes().to_vec(),
        };
        if key.len() < MIN_KEY_BYTES {
            return Err("must have a key of 24 bytes or more");
        }
        Ok(WebhookSecret {
            text: text.to_owned().into(),
            key: key.into(),
        })
    }

    /// The secret itself, to show it once or to seal it.
    pub fn expose(&self) -> &str {
        self.text.expose_secret()
    }
}

/// The service's word in the names of headers: `WEBHOOK_BRAND`.
#[derive(Clone, Debug)]
pub struct Brand(String);

impl Brand {
    /// Checks the operator's text; the error describes its fault.
    pub fn check(text: &str) -> Result<(), String> {
        text.parse::<Brand>().map(drop)
    }

    /// The header `x-<brand>-<suffix>`.
    fn header(&self, suffix: &str) -> HeaderName {
        let name = format!("x-{}-{suffix}", self.0);
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            unreachable!("a brand has only characters of header names")
        };
        name
    }
}

impl FromStr for Brand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let ends = outer(text.chars().next()) && outer(text.chars().next_back());
        if ends && text.len() <= 32 && text.chars().all(inner) {
            Ok(Brand(text.to_ascii_lowercase()))
        } else {
            Err("is no word of up to 32 letters, digits and inner hyphens".into())
        }
    }
}

/// Signs deliveries.
#[derive(Clone)]
pub struct Signer {
    signature: HeaderName,
    previous_signature: HeaderName,
    timestamp: HeaderName,
    delivery_id: HeaderName,
}

impl Signer {
    /// A signer whose headers carry the brand: `X-<Brand>-Signature` and so on.
    pub fn new(brand: &Brand) -> Self {
        Signer {
            signature: brand.header("signature"),
            previous_signature: brand.header("signature-previous"),
            timestamp: brand.header("timestamp"),
            delivery_id: brand.header("delivery-id"),
        }
    }

    /// The headers of an attempt at `at` to deliver `body`. `previous` is the secret before the
    /// last rotation, while it is still valid: it has a header of its own beside the interface's,
    /// and a second signature in the header of Standard Webhooks.
    pub fn headers(
        &self,
        current: &WebhookSecret,
        previous: Option<&WebhookSecret>,
        delivery: DeliveryId,
        at: DateTime<Utc>,
        body: &[u8],
    ) -> HeaderMap {
        let (id, timestamp) = (delivery.to_string(), at.timestamp().to_string());
        let hex = |secret: &WebhookSecret| {
            let key = secret.expose().as_bytes();
            base16ct::lower::encode_string(&mac(key, [timestamp.as_bytes(), id.as_bytes(), body]))
        };
        let standard = |secret: &WebhookSecret| {
            let key = secret.key.expose_secret();
            let mac = mac(key, [id.as_bytes(), timestamp.as_bytes(), body]);
            format!("v1,{}", BASE64.encode(mac))
        };
        let mut signatures = standard(current);
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(self.signature.clone(), value(&hex(current)));
        if let Some(previous) = previous {
            headers.insert(self.previous_signature.clone(), value(&hex(previous)));
            signatures = format!("{signatures} {}", standard(previous));
        }
        headers.insert(self.timestamp.clone(), value(&timestamp));
        headers.insert(self.delivery_id.clone(), value(&id));
        headers.insert(STANDARD_ID, value(&id));
        headers.insert(STANDARD_TIMESTAMP, value(&timestamp));
        headers.insert(STANDARD_SIGNATURE, value(&signatures));
        headers
    }
}

/// HMAC-SHA256 over the parts, joined by dots.
fn mac(key: &[u8], parts: [&[u8]; 3]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length")
    };
    for (n, part) in parts.into_iter().enumerate() {
        if n > 0 {
            mac.update(b".");
        }
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn value(text: &str) -> HeaderValue {
    let Ok(value) = HeaderValue::from_str(text) else {
        unreachable!("signatures, numbers and ids are ASCII")
    };
    value
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::clock::Clock;

    #[derive(Deserialize)]
    struct Vector {
        name: String,
        secret: String,
        previous_secret: Option<String>,
        delivery_id: DeliveryId,
        timestamp: i64,
        body: String,
        headers: BTreeMap<String, String>,
    }

    fn signer() -> Signer {
        Signer::new(&"Service".parse().expect("a brand"))
    }

    /// Python's standard library has computed the vectors.
    #[test]
    fn the_published_vectors_hold() {
        let file = include_str!("../../../docs/api/webhooks/vectors.json");
        let vectors: Vec<Vector> = serde_json::from_str(file).expect("vectors");
        assert!(vectors.len() >= 6);
        for vector in vectors {
            let secret = |text: &String| WebhookSecret::parse(text).expect("a secret");
            let headers = signer().headers(
                &secret(&vector.secret),
                vector.previous_secret.as_ref().map(secret).as_ref(),
                vector.delivery_id,
                DateTime::from_timestamp(vector.timestamp, 999_000_000).expect("a time"),
                vector.body.as_bytes(),
            );
            let signed: BTreeMap<String, String> = headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_str().expect("ASCII").to_owned()))
                .collect();
            assert_eq!(signed, vector.headers, "{}", vector.name);
        }
    }

    #[test]
    fn secrets_have_keys_of_24_bytes_or_more_and_are_not_printed() {
        let generated = WebhookSecret::generate(&Random::new(Clock::default()));
        assert!(generated.expose().starts_with("whsec_") && generated.expose().len() == 50);
        assert_eq!(format!("{generated:?}"), "WebhookSecret");
        let again = WebhookSecret::parse(generated.expose()).expect("a secret");
        assert_eq!(again.key.expose_secret(), generated.key.expose_secret());
        for good in [
            "x".repeat(24),
            "~".repeat(256),
            format!("whsec_{}", BASE64.encode([7; 24])),
        ] {
            assert!(WebhookSecret::parse(&good).is_ok(), "{good}");
        }
        for bad in [
            String::new(),
            "x".repeat(23),
            "x".repeat(257),
            format!("{} x", "x".repeat(30)),
            "ü".repeat(30),
            format!("{}\n", "x".repeat(30)),
            format!("whsec_{}", BASE64.encode([7; 23])),
            format!("whsec_{}!", BASE64.encode([7; 33])),
            format!("whsec_{}", BASE64.encode([7; 31]).trim_end_matches('=')),
        ] {
            assert!(WebhookSecret::parse(&bad).is_err(), "{bad}");
        }
    }
}
