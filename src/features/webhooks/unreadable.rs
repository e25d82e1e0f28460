//! Secrets that do not open: the key that they are sealed under has left the server's ring.
//!
//! Nothing can be signed for such a webhook, so its agent becomes unreachable and its owner hears of
//! it. Deliveries go on once the key is back in the ring or the owner has set another secret.

use blindpipe_protocol::webhooks::DeliveryAttempt;

use super::{
    SecretSeal, WebhookStatus,
    store::{self, WebhookRow, seals},
};
use crate::{
    clock::Clock,
    error::Result,
    features::agents,
    ids::AgentId,
    work::{Tx, UnitOfWork},
};

/// The `last_error` of a webhook whose secret does not open.
const WORD: &str = "secret_unreadable";

/// Makes the agent of an active webhook unreachable, unless the secret is another one by now.
pub async fn mark(work: &UnitOfWork, agent: AgentId, sealed: &[u8]) -> Result<()> {
    tracing::error!(
        operation = "webhooks.open_secret",
        remedy = "put the removed secret back at the end of SERVER_SECRET, or its owner sets another one",
        "a webhook's secret cannot be opened"
    );
    let marked = work.run("webhooks.mark_unreadable", async |tx| {
        let Some(locked) = agents::lock(tx, agent).await? else {
            return Ok(());
        };
        let row = store::lock(tx, agent).await?;
        let is_same = |row: &WebhookRow| {
            row.status == WebhookStatus::Active && row.sealed_secret.as_deref() == Some(sealed)
        };
        if !row.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        seals::set_error(tx, agent, Some(WORD)).await?;
        store::turns::close(tx, agent).await?;
        agents::mark_unreachable(tx, &locked).await
    });
    marked.await
}

/// Lets deliveries go on for an agent whose secret did not open, and is about to be replaced or
/// opens again. Both rows are locked.
pub async fn revive(tx: &Tx, locked: &agents::LockedAgent, row: &WebhookRow) -> Result<()> {
    if row.last_error.as_deref() != Some(WORD) {
        return Ok(());
    }
    seals::set_error(tx, row.agent, None).await?;
    agents::mark_reachable(tx, locked).await
}

/// Revives those agents whose secret opens again.
pub(super) async fn heal(work: &UnitOfWork, seal: &SecretSeal) -> Result<()> {
    let mut after = AgentId::NIL;
    loop {
        let found = seals::unreadable(work.db(), after).await?;
        let Some(last) = found.last() else {
            return Ok(());
        };
        after = last.agent;
        for one in found {
            if seal.open(one.agent, &one.secret).is_some() {
                heal_one(work, seal, one.agent).await?;
            }
        }
    }
}

async fn heal_one(work: &UnitOfWork, seal: &SecretSeal, agent: AgentId) -> Result<()> {
    let healed = work.run("webhooks.heal", async |tx| {
        let Some(locked) = agents::lock(tx, agent).await? else {
            return Ok(());
        };
        let Some(row) = store::lock(tx, agent).await? else {
            return Ok(());
        };
        let sealed = row.sealed_secret.as_deref();
        match sealed.and_then(|sealed| seal.open(agent, sealed)) {
            Some(_) => revive(tx, &locked, &row).await,
            None => Ok(()),
        }
    });
    healed.await
}

/// The attempt of a call that could not be signed.
pub(super) fn attempt(clock: &Clock) -> DeliveryAttempt {
    DeliveryAttempt {
        n: 1,
        at: clock.now().into(),
        duration_ms: 0,
        response_status: None,
        error: Some(WORD.to_owned()),
        replies: Vec::new(),
    }
}
