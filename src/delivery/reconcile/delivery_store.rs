//! The questions of delivery to Postgres.

use std::time::Duration;

use blindpipe_protocol::revocation::RevocationReason;
use chrono::{DateTime, Utc};

use super::store::{self, FreshHeads, LogChanges, LogCursor};
use crate::{
    db::Db,
    error::Result,
    ids::{CredentialId, PrincipalId},
    inbox::{Inbox, InboxHead},
};

/// The questions of the sweep. [`store`] documents the answers. A simulation answers from memory.
pub trait DeliveryStore: Clone + Send + Sync + 'static {
    fn changes(&self, after: &LogCursor) -> impl Future<Output = Result<LogChanges>> + Send;
    fn heads(
        &self,
        principals: &[PrincipalId],
    ) -> impl Future<Output = Result<Vec<InboxHead>>> + Send;
    fn heads_beyond(
        &self,
        known: &[InboxHead],
    ) -> impl Future<Output = Result<Vec<InboxHead>>> + Send;
    fn fresh_heads(
        &self,
        after: Option<DateTime<Utc>>,
        ages: (Duration, Duration),
    ) -> impl Future<Output = Result<FreshHeads>> + Send;
    fn revoked_credentials(
        &self,
        credentials: &[CredentialId],
    ) -> impl Future<Output = Result<Vec<(RevocationReason, CredentialId)>>> + Send;
    fn record_unpublished(
        &self,
        inboxes: &[Option<PrincipalId>],
    ) -> impl Future<Output = Result<()>> + Send;
}

impl DeliveryStore for Db {
    async fn changes(&self, after: &LogCursor) -> Result<LogChanges> {
        store::changes(self, after).await
    }

    async fn heads(&self, principals: &[PrincipalId]) -> Result<Vec<InboxHead>> {
        Inbox::new(self.clone()).heads(principals).await
    }

    async fn heads_beyond(&self, known: &[InboxHead]) -> Result<Vec<InboxHead>> {
        store::heads_beyond(self, known).await
    }

    async fn fresh_heads(
        &self,
        after: Option<DateTime<Utc>>,
        ages: (Duration, Duration),
    ) -> Result<FreshHeads> {
        store::fresh_heads(self, after, ages).await
    }

    async fn revoked_credentials(
        &self,
        credentials: &[CredentialId],
    ) -> Result<Vec<(RevocationReason, CredentialId)>> {
        store::revoked_credentials(self, credentials).await
    }

    async fn record_unpublished(&self, inboxes: &[Option<PrincipalId>]) -> Result<()> {
        store::record_unpublished(self, inboxes).await
    }
}
