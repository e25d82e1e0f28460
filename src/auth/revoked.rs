//! Credentials known to be dead, so that what was revoked uses up nobody's budget: a claim is charged before Postgres
//! is asked, and without this a stolen token could go on spending its victim's calls. Only ever adds refusals; that a
//! credential counts is read from Postgres alone.

use std::time::Duration;

use moka::future::Cache;
use uuid::Uuid;

/// As long as a proven token is remembered, and longer than an access token lives.
const REVOKED_CACHE_TTL: Duration = Duration::from_secs(900);

/// Sessions and tokens that were found dead; clones share them. Death is final, so nothing is ever taken back.
#[derive(Clone)]
pub struct RevokedCredentials(Cache<Uuid, ()>);

impl Default for RevokedCredentials {
    fn default() -> Self {
        RevokedCredentials(
            Cache::builder()
                .max_capacity(100_000)
                .time_to_live(REVOKED_CACHE_TTL)
                .build(),
        )
    }
}

impl RevokedCredentials {
    /// Postgres has said so.
    pub async fn mark_revoked(&self, credential: Uuid) {
        self.0.insert(credential, ()).await;
    }

    /// Whether it was found dead here.
    pub fn has(&self, credential: Uuid) -> bool {
        self.0.contains_key(&credential)
    }
}
