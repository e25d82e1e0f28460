//! Webhook secrets at rest: AES-256-GCM under a key derived from the server's secret. A sealed
//! secret is key id (4 bytes), nonce (12 bytes), ciphertext, tag. It opens for its agent only.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::signature::WebhookSecret;
use crate::{
    auth::key_ring::{KeyId, SealingKey, SealingKeys},
    auth::server_secret::ServerSecret,
    error::{Code, Error, Result},
    ids::AgentId,
    random::Random,
};

const KEY_ID_BYTES: usize = 4;

/// Seals and opens webhook secrets. Clones share the keys.
#[derive(Clone)]
pub struct SecretSeal {
    keys: SealingKeys,
    random: Random,
}

impl SecretSeal {
    /// Derives separate keys from the server secret.
    pub fn new(secret: &ServerSecret, random: Random) -> Self {
        SecretSeal {
            keys: secret.derive_sealing_keys("webhook secret"),
            random,
        }
    }

    /// The name of the key that seals.
    pub(super) fn current_key(&self) -> Vec<u8> {
        self.keys.current().id.to_bytes().to_vec()
    }

    /// The names of the keys that only open.
    pub(super) fn other_keys(&self) -> Vec<Vec<u8>> {
        let names = self.keys.others().map(|key| key.id.to_bytes().to_vec());
        names.collect()
    }

    /// Seals a secret of `agent`.
    pub fn seal(&self, agent: AgentId, secret: &WebhookSecret) -> Result<Vec<u8>> {
        let key = self.keys.current();
        let nonce = self.random.bytes::<NONCE_LEN>();
        let mut text = secret.expose().as_bytes().to_vec();
        cipher(key)?
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(agent.0.as_bytes()),
                &mut text,
            )
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        Ok([&key.id.to_bytes()[..], &nonce, &text].concat())
    }

    /// Opens a sealed secret of `agent`. None if its key has left the ring or it was changed.
    pub fn open(&self, agent: AgentId, sealed: &[u8]) -> Option<WebhookSecret> {
        let (id, rest) = sealed.split_first_chunk::<KEY_ID_BYTES>()?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = self.keys.get(KeyId(i32::from_be_bytes(*id)))?;
        let mut text = text.to_vec();
        let plain = cipher(key)
            .ok()?
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(agent.0.as_bytes()),
                &mut text,
            )
            .ok()?;
        WebhookSecret::parse(std::str::from_utf8(plain).ok()?).ok()
    }
}

fn cipher(key: &SealingKey) -> Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, &key.key)
        .map_err(|error| Error::internal(Code::InternalError, error))?;
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn seal(secrets: &[u8]) -> SecretSeal {
        let secret = ServerSecret(secrets.iter().map(|n| vec![*n; 32]).collect());
        SecretSeal::new(&secret, Random::new(Clock::default()))
    }

    #[test]
    fn a_secret_opens_for_its_agent_alone_and_after_a_change_of_the_servers_secret() {
        let random = Random::new(Clock::default());
        let (agent, other) = (AgentId::generate(&random), AgentId::generate(&random));
        let secret = WebhookSecret::generate(&random);
        let sealed = seal(&[1]).seal(agent, &secret).expect("sealed");
        let opened = |seal: SecretSeal, agent, sealed: &[u8]| {
            seal.open(agent, sealed)
                .map(|secret| secret.expose().to_owned())
        };
        let text = Some(secret.expose().to_owned());
        assert_eq!(opened(seal(&[1]), agent, &sealed), text);
        assert_eq!(opened(seal(&[2, 1]), agent, &sealed), text);
        assert_eq!(opened(seal(&[2]), agent, &sealed), None);
        assert_eq!(opened(seal(&[1]), other, &sealed), None);
        for n in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[n] ^= 1;
            assert_eq!(opened(seal(&[1]), agent, &changed), None, "byte {n}");
            assert_eq!(opened(seal(&[1]), agent, &sealed[..n]), None, "{n} bytes");
        }
    }
}
