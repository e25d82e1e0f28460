//! A subscription's address and keys, in memory and at rest, where they are sealed under a key of the
//! server's secret ([`SealingKeys::seal`]). They open for their session only.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use blindpipe_protocol::{push::PutPush, text::Secret};

use super::encryption::{self, AUTH_BYTES, POINT_BYTES};
use crate::{
    auth::{key_ring::SealingKeys, server_secret::ServerSecret},
    error::{Error, Result},
    ids::SessionId,
    random::Random,
};

/// The address of a device at its push service, and the device's keys. It cannot be printed.
pub struct Endpoint {
    /// The address. It is a secret: knowing it is enough to call it.
    pub url: Secret,
    pub device_key: [u8; POINT_BYTES],
    pub auth: [u8; AUTH_BYTES],
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64
        .decode(text.trim_end_matches('='))
        .ok()?
        .try_into()
        .ok()
}

impl Endpoint {
    /// Reads what a device gave. Errors: `VALIDATION_ERROR` for `p256dh` and `auth`. The address
    /// is not checked.
    pub fn parse(body: &PutPush) -> Result<Self> {
        let device_key = bytes(&body.p256dh)
            .filter(encryption::is_point)
            .ok_or_else(|| Error::field("p256dh", "key", "is no point on P-256 in base64url"))?;
        let auth = bytes(body.auth.expose())
            .ok_or_else(|| Error::field("auth", "secret", "is not base64url of 16 bytes"))?;
        Ok(Endpoint {
            url: body.endpoint.clone(),
            device_key,
            auth,
        })
    }

    /// The bytes that are sealed: the secret, the key, the address.
    fn to_bytes(&self) -> Vec<u8> {
        let url = self.url.expose().as_bytes();
        [&self.auth[..], &self.device_key, url].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (auth, rest) = bytes.split_first_chunk()?;
        let (device_key, url) = rest.split_first_chunk()?;
        Some(Endpoint {
            url: Secret::from(std::str::from_utf8(url).ok()?),
            device_key: *device_key,
            auth: *auth,
        })
    }
}

/// Seals and opens endpoints. Clones share the keys.
#[derive(Clone)]
pub struct EndpointSeal {
    keys: SealingKeys,
    random: Random,
}

impl EndpointSeal {
    /// Derives separate keys from the server secret.
    pub fn new(secret: &ServerSecret, random: Random) -> Self {
        EndpointSeal {
            keys: secret.derive_sealing_keys("push endpoint"),
            random,
        }
    }

    /// The first bytes of what the current key seals.
    pub(super) fn current_key(&self) -> Vec<u8> {
        self.keys.current_prefix()
    }

    /// The first bytes of what the keys that only open have sealed.
    pub(super) fn other_keys(&self) -> Vec<Vec<u8>> {
        self.keys.other_prefixes()
    }

    /// Seals the endpoint of a session.
    pub fn seal(&self, session: SessionId, endpoint: &Endpoint) -> Result<Vec<u8>> {
        let text = endpoint.to_bytes();
        self.keys.seal(&self.random, session.0.as_bytes(), text)
    }

    /// Opens the endpoint of a session. None if its key has left the ring or it was changed.
    pub fn open(&self, session: SessionId, sealed: &[u8]) -> Option<Endpoint> {
        Endpoint::from_bytes(&self.keys.open(session.0.as_bytes(), sealed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn seal(secrets: &[u8]) -> EndpointSeal {
        let secret = ServerSecret(secrets.iter().map(|n| vec![*n; 32]).collect());
        EndpointSeal::new(&secret, Random::new(Clock::default()))
    }

    #[test]
    fn an_endpoint_opens_for_its_session_alone_and_after_a_change_of_the_servers_secret() {
        let random = Random::new(Clock::default());
        let (session, other) = (SessionId::generate(&random), SessionId::generate(&random));
        let endpoint = Endpoint {
            url: Secret::from("https://push.test/x"),
            device_key: [4; POINT_BYTES],
            auth: [7; AUTH_BYTES],
        };
        let sealed = seal(&[1]).seal(session, &endpoint).expect("sealed");
        let opened = |seal: EndpointSeal, session, sealed: &[u8]| {
            let opened = seal.open(session, sealed);
            opened.is_some_and(|one| one.url == endpoint.url && one.auth == endpoint.auth)
        };
        assert!(opened(seal(&[1]), session, &sealed));
        assert!(opened(seal(&[2, 1]), session, &sealed));
        assert!(!opened(seal(&[2]), session, &sealed));
        assert!(!opened(seal(&[1]), other, &sealed));
        for n in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[n] ^= 1;
            assert!(!opened(seal(&[1]), session, &changed), "byte {n}");
        }
    }
}
