//! Proofs of agent tokens that all nodes share, in Redis: what one node has hashed, the others need not hash again, so
//! that a node that starts, or takes over another's sockets, pays nothing for tokens that are in use.
//!
//! An entry lives for ten minutes, and is renewed while its token is used. Its name is a MAC of the token and its value
//! carries one, both under keys derived from the server's secret: who can read Redis learns no token, and who can write to
//! it can make nobody believe one. An entry proves that a token is genuine, never that it still counts.

use std::time::Duration;

use subtle::ConstantTimeEq;

use super::{agent::AgentToken, secret::MacKey};
use crate::{
    config::ServerSecret,
    redis::{Away, Redis, keys},
};

/// How long a proof is shared.
const PROOF_TTL: Duration = Duration::from_secs(600);

/// Between the tries to read one, about two seconds in all.
const LOOKUP_DELAYS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_secs(1),
    Duration::ZERO,
];

/// The proofs of all nodes; clones share the link.
#[derive(Clone)]
pub struct Proofs {
    redis: Redis,
    name: MacKey,
    seal: MacKey,
}

impl Proofs {
    /// With keys of their own.
    pub fn new(redis: Redis, secret: &ServerSecret) -> Self {
        let name = MacKey::derive(secret, "name of a shared agent token proof");
        let seal = MacKey::derive(secret, "seal of a shared agent token proof");
        Proofs { redis, name, seal }
    }

    /// Whether a node has proven lately that `token` is what `claim` says.
    pub async fn has(&self, token: &str, claim: AgentToken) -> bool {
        let name = self.name.mac(&[token.as_bytes()]);
        let Some(entry) = self.read(&name).await else {
            return false;
        };
        self.entry(&name, claim)
            .as_bytes()
            .ct_eq(entry.as_bytes())
            .into()
    }

    /// Asks again where Redis is late: it is when all clients of a dead node come at once, and then a hash for each of
    /// them is what the node can afford least. A Redis that has been given up is not waited for.
    async fn read(&self, name: &[u8]) -> Option<String> {
        use fred::interfaces::KeysInterface;
        for wait in LOOKUP_DELAYS {
            let key = self.redis.key(keys::proof(name));
            match self.redis.run(async |client| client.get(key).await).await {
                Ok(entry) => return entry,
                Err(Away) if self.redis.is_given_up() => return None,
                Err(Away) => tokio::time::sleep(wait).await,
            }
        }
        None
    }

    /// Tells the other nodes that `token` has been proven.
    pub async fn share(&self, token: &str, claim: AgentToken) {
        use fred::{interfaces::KeysInterface, types::Expiration};
        let name = self.name.mac(&[token.as_bytes()]);
        let (key, entry) = (self.redis.key(keys::proof(&name)), self.entry(&name, claim));
        let life = Expiration::EX(i64::try_from(PROOF_TTL.as_secs()).unwrap_or(i64::MAX));
        // A proof that is not shared costs a hash later.
        let set = self.redis.run(async |client| {
            client
                .set::<(), _, _>(key, entry, Some(life), None, false)
                .await
        });
        set.await.ok();
    }

    fn entry(&self, name: &[u8], claim: AgentToken) -> String {
        let (token, agent) = (claim.token.0, claim.agent.0);
        let seal = self.seal.mac(&[name, token.as_bytes(), agent.as_bytes()]);
        format!("{}{}{}", token.simple(), agent.simple(), keys::hex(&seal))
    }
}
