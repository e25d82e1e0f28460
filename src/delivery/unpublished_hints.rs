//! Hints that this node could not publish. It writes their inboxes into the log that every node
//! reads, so a loss at the sender costs the others a look at what was lost.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::reconcile::DeliveryStore;
use crate::ids::PrincipalId;

/// Most inboxes of a record. Beyond them the record says that any inbox may be concerned.
const MAX_RECORD_INBOXES: usize = 1_000;
/// Pause between two records.
const RECORD_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two tries while Postgres is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The hints that are not recorded yet. Clones share them.
#[derive(Clone, Default)]
pub struct UnpublishedHints(Arc<Inner>);

#[derive(Default)]
struct Inner {
    waiting: Mutex<InboxSet>,
    notify: Notify,
}

/// Inboxes whose hints are lost.
#[derive(Default)]
struct InboxSet {
    inboxes: HashSet<PrincipalId>,
    /// Whether the inboxes are unknown or too many.
    is_any: bool,
}

impl InboxSet {
    fn merge(&mut self, other: InboxSet) {
        self.inboxes.extend(other.inboxes);
        self.is_any |= other.is_any || self.inboxes.len() > MAX_RECORD_INBOXES;
        if self.is_any {
            self.inboxes.clear();
        }
    }
}

impl UnpublishedHints {
    /// Notes that the hints of these inboxes were not published.
    pub fn note(&self, inboxes: impl IntoIterator<Item = PrincipalId>) {
        let (inboxes, is_any) = (inboxes.into_iter().collect(), false);
        self.merge(InboxSet { inboxes, is_any });
    }

    /// Notes that a commit may have counted whose inboxes are unknown.
    pub fn note_unknown(&self) {
        let (inboxes, is_any) = (HashSet::new(), true);
        self.merge(InboxSet { inboxes, is_any });
    }

    /// Notes these inboxes when it is dropped, unless the commit's outcome is known by then.
    pub fn guard(&self, inboxes: Vec<PrincipalId>) -> PublishGuard {
        PublishGuard {
            unpublished_hints: self.clone(),
            inboxes,
        }
    }

    fn merge(&self, inbox_set: InboxSet) {
        if inbox_set.is_any || !inbox_set.inboxes.is_empty() {
            self.0.waiting.lock().merge(inbox_set);
            self.0.notify.notify_one();
        }
    }

    /// Records them until `stop`, and the rest then.
    pub async fn run<S: DeliveryStore>(&self, store: &S, stop: &CancellationToken) {
        loop {
            let noted = stop.run_until_cancelled(self.0.notify.notified()).await;
            let pause = match self.record(store).await {
                true => RECORD_INTERVAL,
                false => RETRY_INTERVAL,
            };
            if noted.is_none() {
                return;
            }
            stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Records those so far; false if Postgres is away.
    async fn record<S: DeliveryStore>(&self, store: &S) -> bool {
        let inbox_set = std::mem::take(&mut *self.0.waiting.lock());
        let inboxes: Vec<Option<PrincipalId>> = match inbox_set.is_any {
            true => vec![None],
            false => inbox_set.inboxes.iter().copied().map(Some).collect(),
        };
        if inboxes.is_empty() {
            return true;
        }
        if let Err(error) = store.record_unpublished(&inboxes).await {
            error.log_in(
                "reconcile.record_losses",
                "they are recorded a second later",
            );
            self.merge(inbox_set);
            return false;
        }
        true
    }
}

/// A commit under way. If its caller gives up or its answer is lost, nobody publishes its events,
/// although they may be committed.
pub struct PublishGuard {
    unpublished_hints: UnpublishedHints,
    inboxes: Vec<PrincipalId>,
}

impl PublishGuard {
    /// The commit has counted, and its events are published.
    pub fn disarm(mut self) {
        self.inboxes.clear();
    }
}

impl Drop for PublishGuard {
    fn drop(&mut self) {
        self.unpublished_hints
            .note(std::mem::take(&mut self.inboxes));
    }
}
