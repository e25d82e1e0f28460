//! Credentials that are known to be revoked. A claim is charged before Postgres is asked, so
//! without this list a stolen token could use up its victim's budget. The list only adds refusals:
//! Postgres alone decides that a credential is valid.
//!
//! Why: ADR 11.

use std::time::Duration;

use moka::future::Cache;

use crate::ids::CredentialId;

/// Longer than a verified token is remembered, and longer than an access token lives.
const REVOKED_CACHE_TTL: Duration = Duration::from_secs(900);

/// Sessions and tokens that were found revoked; clones share them. A revocation is final, so
/// nothing takes an entry back.
#[derive(Clone)]
pub struct RevokedCredentials(Cache<CredentialId, ()>);

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
    /// Records that Postgres reported `credential` as revoked.
    pub async fn mark_revoked(&self, credential: CredentialId) {
        self.0.insert(credential, ()).await;
    }

    /// Whether `credential` is known to be revoked.
    pub fn has(&self, credential: CredentialId) -> bool {
        self.0.contains_key(&credential)
    }
}
