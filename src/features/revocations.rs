//! Revocations that Postgres has forgotten in a fail-over. The backplane's tombstones remember them,
//! and each feature revokes its own credentials again.

use std::sync::Arc;

use blindpipe_protocol::revocation::RevocationReason;

use super::{agents, devices};
use crate::{
    db::Db, delivery::backplane::tombstones::MarkRevoked, error::Result, ids::CredentialId,
};

/// The callback that revokes over these connections.
pub fn marking(db: Db) -> MarkRevoked {
    Arc::new(move |credentials, reasons| {
        let db = db.clone();
        Box::pin(async move { mark_revoked(&db, &credentials, &reasons).await })
    })
}

/// Revokes those that live, in the order of locks.
async fn mark_revoked(
    db: &Db,
    credentials: &[CredentialId],
    reasons: &[RevocationReason],
) -> Result<()> {
    let marked = db.run("revocations.mark", async |tx| {
        let sessions = devices::mark_revoked(tx, credentials, reasons).await?;
        let tokens = agents::mark_revoked(tx, credentials, reasons).await?;
        let webhooks = agents::mark_webhooks_revoked(tx, credentials).await?;
        Ok(sessions + tokens + webhooks)
    });
    let again = marked.await?;
    if again > 0 {
        tracing::error!(
            operation = "reconcile.replay",
            credentials = again,
            remedy = "they hold again",
            "Postgres had forgotten revocations"
        );
    }
    Ok(())
}
