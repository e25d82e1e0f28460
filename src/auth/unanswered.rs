//! Refreshes without an answer. A commit that waits for a lost standby rotates the refresh token
//! long before its holder can know. The holder repeats the old token then, and is no thief.
//!
//! An entry names a session and a generation by a MAC, so that a writer of Redis can make none. A
//! lost entry ends the session as a theft would: the safe side.

use std::time::Duration;

use super::key_ring::MacKeyRing;
use crate::{
    auth::server_secret::ServerSecret,
    ids::SessionId,
    redis::{Redis, keys},
};

/// Life of an entry: longer than an operator needs to notice a standby that is away.
const UNANSWERED_TTL: Duration = Duration::from_secs(86_400);

/// The refreshes that nodes could not answer; clones share the connection.
#[derive(Clone)]
pub struct UnansweredRefreshes {
    redis: Redis,
    name: MacKeyRing,
}

impl UnansweredRefreshes {
    /// Derives the key of the names from `secret`.
    pub fn new(redis: Redis, secret: &ServerSecret) -> Self {
        let name = secret.derive("name of an unanswered refresh");
        UnansweredRefreshes { redis, name }
    }

    /// Notes that the holder of this generation got no answer.
    pub async fn note(&self, session: SessionId, generation: i32) {
        use fred::{interfaces::KeysInterface, types::Expiration};
        let name = self
            .name
            .sign(&[session.0.as_bytes(), &generation.to_be_bytes()]);
        let key = self.redis.key(keys::unanswered_refresh(&name));
        let life = Expiration::EX(i64::try_from(UNANSWERED_TTL.as_secs()).unwrap_or(i64::MAX));
        let set = self.redis.run(async |client| {
            client
                .set::<(), _, _>(key, 1, Some(life), None, false)
                .await
        });
        set.await.ok();
    }

    /// Whether the holder of this generation got no answer.
    pub async fn has(&self, session: SessionId, generation: i32) -> bool {
        use fred::interfaces::KeysInterface;
        // A node with another order of the server's secrets names the entry with another key.
        let parts: [&[u8]; 2] = [session.0.as_bytes(), &generation.to_be_bytes()];
        for name in self.name.all(&parts) {
            let key = self.redis.key(keys::unanswered_refresh(&name));
            let found = self.redis.run(async |client| client.exists(key).await);
            if found.await.is_ok_and(|found: i64| found > 0) {
                return true;
            }
        }
        false
    }
}
