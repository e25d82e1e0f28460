//! Follows a change of `SERVER_SECRET`: secrets that are sealed under another key than the first are
//! sealed anew. Every node does it in batches, and each takes the rows that no other holds.

use std::time::Duration;

use super::{
    SecretSeal,
    store::seals::{self, ResealedSecret, Seals, UnderKey},
    unreadable,
};
use crate::{
    db::{Db, batches::paced},
    error::Result,
    metrics,
    work::UnitOfWork,
};

/// Pause between two runs. Without a change of the secret a run costs three reads of an index.
pub const RESEAL_INTERVAL: Duration = Duration::from_secs(60);

/// Most batches of a run. While a new ring comes to the nodes, some undo what others do.
const MAX_RUN_BATCHES: usize = 200;

/// Seals secrets under the first key, revives agents whose secret opens again, and measures what is
/// left.
pub async fn reseal(work: &UnitOfWork, seal: &SecretSeal) -> Result<()> {
    unreadable::heal(work, seal).await?;
    for _ in 0..MAX_RUN_BATCHES {
        if !paced(reseal_some(work, seal)).await? {
            break;
        }
    }
    let seals = count_seals(work.db(), seal).await?;
    metrics::webhook_secrets(seals.old, seals.unreadable);
    Ok(())
}

/// The numbers of secrets that are not under the first key.
pub async fn count_seals(db: &Db, seal: &SecretSeal) -> Result<Seals> {
    seals::count(db, &seal.current_key(), &seal.other_keys()).await
}

/// Seals a batch anew. True if there may be more.
async fn reseal_some(work: &UnitOfWork, seal: &SecretSeal) -> Result<bool> {
    let keys = seal.other_keys();
    if keys.is_empty() {
        return Ok(false);
    }
    let found = seals::under(work.db(), &keys).await?;
    let mut resealed = Vec::with_capacity(found.len());
    for row in found {
        match sealed_anew(seal, row)? {
            Ok(row) => resealed.push(row),
            // Its bytes are damaged. It is left out from now on.
            Err(row) => unreadable::mark(work, row.agent, &row.secret).await?,
        }
    }
    Ok(seals::replace(work.db(), &resealed).await? > 0)
}

/// The row under the first key, or the row itself if it does not open.
fn sealed_anew(seal: &SecretSeal, row: UnderKey) -> Result<Result<ResealedSecret, UnderKey>> {
    let Some(secret) = seal.open(row.agent, &row.secret) else {
        return Ok(Err(row));
    };
    let secret = seal.seal(row.agent, &secret)?;
    let previous = row.valid_previous.as_deref();
    let previous = previous.and_then(|sealed| seal.open(row.agent, sealed));
    let previous = previous.map(|previous| seal.seal(row.agent, &previous));
    Ok(Ok(ResealedSecret {
        secret,
        previous: previous.transpose()?,
        before: row,
    }))
}
