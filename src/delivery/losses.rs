//! Hints that this node could not publish. It writes their inboxes into the log that every node
//! reads, so a loss at the sender costs the others a look at what was lost.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::reconcile::store;
use crate::{db::Db, ids::PrincipalId};

/// Most inboxes of a record. Beyond them the record says that any inbox may be concerned.
const MAX_RECORD_INBOXES: usize = 1_000;
/// Pause between two records.
const RECORD_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two tries while Postgres is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The losses that are not recorded yet. Clones share them.
#[derive(Clone, Default)]
pub struct Losses(Arc<Inner>);

#[derive(Default)]
struct Inner {
    waiting: Mutex<Loss>,
    notify: Notify,
}

/// Inboxes whose hints are lost.
#[derive(Default)]
struct Loss {
    inboxes: HashSet<PrincipalId>,
    /// Whether the inboxes are unknown or too many.
    is_any: bool,
}

impl Loss {
    fn merge(&mut self, other: Loss) {
        self.inboxes.extend(other.inboxes);
        self.is_any |= other.is_any || self.inboxes.len() > MAX_RECORD_INBOXES;
        if self.is_any {
            self.inboxes.clear();
        }
    }
}

impl Losses {
    /// Notes that the hints of these inboxes were not published.
    pub fn note(&self, inboxes: impl IntoIterator<Item = PrincipalId>) {
        let (inboxes, is_any) = (inboxes.into_iter().collect(), false);
        self.merge(Loss { inboxes, is_any });
    }

    /// Notes that a commit may have counted whose inboxes are unknown.
    pub fn note_any(&self) {
        let (inboxes, is_any) = (HashSet::new(), true);
        self.merge(Loss { inboxes, is_any });
    }

    /// Notes these inboxes when it is dropped, unless the commit's outcome is known by then.
    pub fn guard(&self, inboxes: Vec<PrincipalId>) -> LossGuard {
        LossGuard {
            losses: self.clone(),
            inboxes,
        }
    }

    fn merge(&self, loss: Loss) {
        if loss.is_any || !loss.inboxes.is_empty() {
            self.0.waiting.lock().merge(loss);
            self.0.notify.notify_one();
        }
    }

    /// Records losses until `stop`, and the rest then.
    pub async fn run(&self, db: &Db, stop: &CancellationToken) {
        loop {
            let noted = stop.run_until_cancelled(self.0.notify.notified()).await;
            let pause = match self.record(db).await {
                true => RECORD_INTERVAL,
                false => RETRY_INTERVAL,
            };
            if noted.is_none() {
                return;
            }
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Records the losses so far; false if Postgres is away.
    async fn record(&self, db: &Db) -> bool {
        let loss = std::mem::take(&mut *self.0.waiting.lock());
        let inboxes: Vec<Option<PrincipalId>> = match loss.is_any {
            true => vec![None],
            false => loss.inboxes.iter().copied().map(Some).collect(),
        };
        if inboxes.is_empty() {
            return true;
        }
        if let Err(error) = store::record_losses(db, &inboxes).await {
            error.log_in(
                "reconcile.record_losses",
                "they are recorded a second later",
            );
            self.merge(loss);
            return false;
        }
        true
    }
}

/// A commit under way. If its caller gives up or its answer is lost, nobody publishes its events,
/// although they may be committed.
pub struct LossGuard {
    losses: Losses,
    inboxes: Vec<PrincipalId>,
}

impl LossGuard {
    /// The commit has counted, and its events are published.
    pub fn disarm(mut self) {
        self.inboxes.clear();
    }
}

impl Drop for LossGuard {
    fn drop(&mut self) {
        self.losses.note(std::mem::take(&mut self.inboxes));
    }
}
