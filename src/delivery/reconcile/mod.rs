//! Reconciliation, also called the sweep. A lost hint costs time, never a message, and a revoked
//! credential ends its subscriptions although its announcement was lost.
//!
//! Three loops share the work. The first reads the [log](store) of what every node must learn: revoked
//! credentials, and inboxes whose hints were not published. Its cost is what changed. The second
//! [scans](scan) the subscriptions, in pieces and at a pace. The third publishes what a dead node
//! left [unpublished].
//!
//! Why: ADR 7.

mod delivery_store;
pub(crate) mod scan;
pub(super) mod store;
pub(super) mod unpublished;

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use self::store::LOG_RETENTION_SECONDS;
#[cfg(test)]
pub use self::store::{FreshHeads, LogChanges};
pub use self::{
    delivery_store::DeliveryStore,
    store::{LogCursor, forget_log},
};
use super::{
    Backplane, End, Hub,
    backplane::{
        State,
        message_mac::MessageSigner,
        tombstones::{MarkRevoked, Tombstones},
    },
};
use crate::{
    cursor::Cursor,
    error::Result,
    ids::{CredentialId, PrincipalId},
    metrics,
    planted::PlantedBug,
};

/// Pause between two readings of the log while the backplane's probe comes back.
const INTERVAL: Duration = Duration::from_secs(2);
/// Pause between two readings while the probe stays away, and the least pause ever.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Most credentials or inboxes in a statement.
const MAX_PIECE_ROWS: usize = 1_000;

/// Reads the log until `stop`.
pub async fn run<S: DeliveryStore>(
    reconciler: &Reconciler<S>,
    state: &State,
    stop: &CancellationToken,
) {
    let mut next = Instant::now();
    let mut last = next;
    let mut was_stale = false;
    // A start may follow a panic in the middle of a reading.
    let mut failed = true;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = state.log_read_requested() => {
                next = next.min(last + MIN_INTERVAL);
                continue;
            }
            // Nobody hinted events that were committed before other nodes knew of the subscription.
            new = state.new_principals.wait() => {
                if reconciler.wake_behind(&new).await.is_err() {
                    state.request_full_scan();
                }
                state.new_principals.remove(new.len());
                continue;
            }
            () = stop.cancelled() => return,
        }
        last = Instant::now();
        let outcome = reconciler.read_log(state).await;
        match &outcome {
            // A commit whose answer was lost may have counted.
            Ok(()) if failed => state.request_full_scan(),
            Ok(()) => {}
            Err(error) => error.log_in("reconcile.sweep", "the next sweep looks again"),
        }
        failed = outcome.is_err();
        let is_stale = reconciler.hub.is_stale();
        if is_stale && !was_stale {
            tracing::error!(
                operation = "reconcile.sweep",
                remedy = "nothing is delivered until sessions can be checked again",
                "Postgres is out of reach"
            );
        }
        was_stale = is_stale;
        next = Instant::now()
            + if state.healthy() {
                INTERVAL
            } else {
                MIN_INTERVAL
            };
    }
}

/// The position of this node in the log.
struct LogPosition {
    cursor: LogCursor,
    read_at: Instant,
}

/// Compares the subscriptions of a node with Postgres.
pub struct Reconciler<S> {
    store: S,
    hub: Hub,
    /// Revocations that Postgres may have lost.
    tombstones: Tombstones,
    /// Repeats them.
    mark_revoked: MarkRevoked,
    /// Knows the epoch of the messages between nodes.
    signer: MessageSigner,
    position: Mutex<LogPosition>,
    /// Notified when the tombstones of a new epoch must be replayed.
    replay_due: Notify,
    /// The epoch in which the tombstones were last replayed; 0 at the start.
    replayed_in: AtomicU64,
}

impl<S: DeliveryStore> Reconciler<S> {
    /// Works over connections that requests cannot use up.
    pub fn new(store: &S, backplane: &Backplane, mark_revoked: MarkRevoked) -> Self {
        let (hub, tombstones) = (backplane.hub.clone(), backplane.tombstones.clone());
        let position = LogPosition {
            cursor: LogCursor::latest(),
            read_at: Instant::now(),
        };
        Reconciler {
            store: store.clone(),
            hub,
            tombstones,
            mark_revoked,
            signer: backplane.signer.clone(),
            position: Mutex::new(position),
            replay_due: Notify::new(),
            replayed_in: AtomicU64::new(0),
        }
    }

    /// Reads the log once, and acts on it.
    async fn read_log(&self, state: &State) -> Result<()> {
        let started = Instant::now();
        let (after, read_at) = {
            let position = self.position.lock();
            (position.cursor.clone(), position.read_at)
        };
        let changes = self.store.changes(&after).await?;
        let is_new_epoch = self.signer.epoch() != changes.epoch;
        self.signer.set_epoch(changes.epoch);
        self.end_other_epochs(changes.epoch).await?;
        if self.replayed_in.load(Ordering::Relaxed) != changes.epoch {
            self.replay_due.notify_one();
        }
        // Positions of another epoch mean nothing here, and old rows are deleted.
        let retention = Duration::from_secs(LOG_RETENTION_SECONDS.unsigned_abs().into());
        let is_lost = is_new_epoch
            || changes.is_cut
            || after.is_latest()
            || read_at.elapsed() > retention / 2;
        self.end_revoked(&match is_lost {
            true => self.hub.credentials(),
            false => self.hub.authorised_by(&changes.credentials),
        })
        .await?;
        *self.position.lock() = LogPosition {
            cursor: changes.cursor,
            read_at: started,
        };
        // The revoked subscriptions have ended, so the others may go on.
        self.hub.set_checked();
        let late = self.wake_behind(&changes.inboxes).await?;
        if is_lost || changes.any_inbox {
            state.request_full_scan();
        }
        metrics::sweep("log", started.elapsed(), late);
        Ok(())
    }

    /// Ends the subscriptions whose numbers are of another epoch: they may name other events now.
    async fn end_other_epochs(&self, epoch: u64) -> Result<()> {
        let subscriptions = self
            .hub
            .filtered(|one| one.epoch().is_some_and(|own| own != epoch));
        if subscriptions.is_empty() {
            return Ok(());
        }
        let principals: HashSet<PrincipalId> =
            subscriptions.iter().map(|one| one.principal).collect();
        let mut heads = HashMap::new();
        for piece in Vec::from_iter(principals).chunks(MAX_PIECE_ROWS) {
            let piece = self.store.heads(piece).await?;
            heads.extend(piece.iter().map(|head| (head.principal, head.seq)));
        }
        for subscription in subscriptions {
            let seq = heads
                .get(&subscription.principal)
                .copied()
                .unwrap_or_default();
            let head = Cursor { epoch, seq };
            subscription.end(End::EpochChanged { head });
        }
        Ok(())
    }

    /// Ends the subscriptions of those `credentials` that Postgres does not take any more.
    async fn end_revoked(&self, credentials: &[CredentialId]) -> Result<()> {
        for piece in credentials.chunks(MAX_PIECE_ROWS) {
            metrics::sweep_lookups("credentials", piece.len());
            for (reason, revoked) in self.store.revoked_credentials(piece).await? {
                self.hub.revoke(&[revoked], reason);
            }
        }
        Ok(())
    }

    /// Wakes the subscriptions of `principals` that are behind their inbox; returns their number.
    async fn wake_behind(&self, principals: &[PrincipalId]) -> Result<u64> {
        if PlantedBug::NoSweep.is_planted() {
            return Ok(0);
        }
        let mut late = 0;
        for piece in self.hub.positions(principals).chunks(MAX_PIECE_ROWS) {
            metrics::sweep_lookups("heads", piece.len());
            for head in self.store.heads_beyond(piece).await? {
                late += self.hub.wake_behind(head.principal, head.seq);
            }
        }
        Ok(late)
    }
}

/// Replays the tombstones at the start and after each change of the epoch, until `stop`. That may
/// take long, so the log is read beside it.
pub async fn replay<S: DeliveryStore>(
    reconciler: &Reconciler<S>,
    state: &State,
    stop: &CancellationToken,
) {
    let due = &reconciler.replay_due;
    while stop.run_until_cancelled(due.notified()).await.is_some() {
        let epoch = reconciler.signer.epoch();
        // The next reading of the log tries again if Redis or Postgres is away.
        if reconciler.replayed_in.load(Ordering::Relaxed) != epoch {
            match reconciler.tombstones.replay(&reconciler.mark_revoked).await {
                Ok(true) => {
                    reconciler.replayed_in.store(epoch, Ordering::Relaxed);
                    state.request_log_read();
                }
                Ok(false) => {}
                Err(error) => {
                    error.log_in("reconcile.replay", "the next sweep replays the tombstones");
                }
            }
        }
    }
}
