//! Proofs of agent tokens that all nodes share, in Redis. A token that a node has hashed needs no
//! second hash elsewhere. So a node that starts, or takes over another's sockets, pays nothing for
//! tokens in use.
//!
//! An entry lives for ten minutes and is renewed while its token is used. Its name is a MAC of the
//! token and its value carries another, both under keys derived from the server's secret. A reader
//! of Redis learns no token, and a writer cannot forge a proof. An entry proves that a token is
//! genuine, never that it is still valid.
//!
//! Why: ADR 15.

use std::time::Duration;

use super::{agent::AgentToken, key_ring::MacKeyRing};
use crate::{
    auth::server_secret::ServerSecret,
    redis::{Away, Redis, keys},
};

/// Life of a shared proof.
const PROOF_TTL: Duration = Duration::from_secs(600);

/// Pauses between tries to read a proof, about two seconds in all.
const LOOKUP_DELAYS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
    Duration::from_secs(1),
    Duration::ZERO,
];

/// The proofs of all nodes; clones share the connection.
#[derive(Clone)]
pub struct Proofs {
    redis: Redis,
    name: MacKeyRing,
    keys: MacKeyRing,
}

impl Proofs {
    /// Derives the keys of the proofs from `secret`.
    pub fn new(redis: Redis, secret: &ServerSecret) -> Self {
        let name = secret.derive("name of a shared agent token proof");
        let keys = secret.derive("seal of a shared agent token proof");
        Proofs { redis, name, keys }
    }

    /// Whether another node has lately verified that `token` is the one in `subject`.
    pub async fn has(&self, token: &str, subject: AgentToken) -> bool {
        // A node with another order of the server's secrets names the proof with another key.
        for name in self.name.all(&[token.as_bytes()]) {
            if let Some(entry) = self.read(&name).await {
                return self.holds(&entry, &name, subject);
            }
        }
        false
    }

    /// Reads a proof, and tries again while Redis is late. Redis is late when all clients of a
    /// crashed node come at once, and then a hash for each is too expensive. An open breaker ends
    /// the tries.
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

    /// Shares the proof of `token` with the other nodes.
    pub async fn share(&self, token: &str, subject: AgentToken) {
        use fred::{interfaces::KeysInterface, types::Expiration};
        let name = self.name.sign(&[token.as_bytes()]);
        let (key, entry) = (
            self.redis.key(keys::proof(&name)),
            self.entry(&name, subject),
        );
        let life = Expiration::EX(i64::try_from(PROOF_TTL.as_secs()).unwrap_or(i64::MAX));
        // A proof that is not shared only costs a hash later.
        let set = self.redis.run(async |client| {
            client
                .set::<(), _, _>(key, entry, Some(life), None, false)
                .await
        });
        set.await.ok();
    }

    fn entry(&self, name: &[u8], subject: AgentToken) -> String {
        let mac = self.keys.sign(&signed(name, &subject));
        format!(
            "{}{}",
            prefix_of(subject),
            base16ct::lower::encode_string(&mac)
        )
    }

    fn holds(&self, entry: &str, name: &[u8], subject: AgentToken) -> bool {
        let mac = entry
            .strip_prefix(&prefix_of(subject))
            .and_then(|text| base16ct::lower::decode_vec(text).ok());
        mac.is_some_and(|mac| self.keys.verify(&signed(name, &subject), &mac))
    }
}

fn signed<'a>(name: &'a [u8], subject: &'a AgentToken) -> [&'a [u8]; 3] {
    [name, subject.token.0.as_bytes(), subject.agent.0.as_bytes()]
}

/// The token and the agent that an entry names.
fn prefix_of(subject: AgentToken) -> String {
    format!("{}{}", subject.token.0.simple(), subject.agent.0.simple())
}
