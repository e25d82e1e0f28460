//! Webhook secrets at rest, sealed under a key derived from the server's secret
//! ([`SealingKeys::seal`]). A secret opens for its agent only.

use super::signature::WebhookSecret;
use crate::{
    auth::{key_ring::SealingKeys, server_secret::ServerSecret},
    error::Result,
    ids::AgentId,
    random::Random,
};

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

    /// The first bytes of what the current key seals.
    pub(super) fn current_key(&self) -> Vec<u8> {
        self.keys.current_prefix()
    }

    /// The first bytes of what the keys that only open have sealed.
    pub(super) fn other_keys(&self) -> Vec<Vec<u8>> {
        self.keys.other_prefixes()
    }

    /// Seals a secret of `agent`.
    pub fn seal(&self, agent: AgentId, secret: &WebhookSecret) -> Result<Vec<u8>> {
        let text = secret.expose().as_bytes().to_vec();
        self.keys.seal(&self.random, agent.0.as_bytes(), text)
    }

    /// Opens a sealed secret of `agent`. None if its key has left the ring or it was changed.
    pub fn open(&self, agent: AgentId, sealed: &[u8]) -> Option<WebhookSecret> {
        let plain = self.keys.open(agent.0.as_bytes(), sealed)?;
        WebhookSecret::parse(std::str::from_utf8(&plain).ok()?).ok()
    }
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
