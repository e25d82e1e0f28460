//! Scans over the subscriptions of the node, in pieces.
//!
//! Every interval looks at a slice of the subscriptions, so that each is looked at once a minute,
//! whatever was lost unnoticed. A known loss requests a full scan over all inboxes, and a silent
//! backplane is one. A scan takes at most a tenth of a connection's time.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{DeliveryStore, INTERVAL, MAX_PIECE_ROWS, Reconciler};
use crate::{
    delivery::backplane::State,
    error::Result,
    ids::{CredentialId, PrincipalId},
    metrics,
};

/// Slices of the subscriptions; each interval looks at the next one.
const SLICES: u8 = 30;
/// A pause is this many times as long as the statement before it.
pub(super) const PAUSES_PER_STATEMENT: u32 = 9;

/// Scans until `stop`.
pub async fn run<S: DeliveryStore>(
    reconciler: &Reconciler<S>,
    state: &State,
    stop: &CancellationToken,
) {
    for slice in (0..SLICES).cycle() {
        let started = Instant::now();
        let is_full = state.take_full_scan_request() || !state.healthy();
        let scan = reconciler.scan(slice, is_full);
        let Some(outcome) = stop.run_until_cancelled(scan).await else {
            return;
        };
        if let Err(error) = outcome {
            error.log_in("reconcile.round", "the next round looks again");
            if is_full {
                state.request_full_scan();
            }
        }
        // Two full scans have the interval between them. A slice keeps no full scan waiting.
        let floor = if is_full { INTERVAL } else { Duration::ZERO };
        tokio::select! {
            () = tokio::time::sleep_until(started + INTERVAL) => {}
            () = async {
                state.full_scan_requested().await;
                tokio::time::sleep_until(started + floor).await;
            } => {}
            () = stop.cancelled() => return,
        }
    }
}

fn slice_of(principal: PrincipalId) -> u8 {
    principal.as_bytes()[15] % SLICES
}

impl<S: DeliveryStore> Reconciler<S> {
    /// Looks at the credentials of a slice, and at its inboxes or at all of them.
    async fn scan(&self, slice: u8, is_full: bool) -> Result<()> {
        let started = Instant::now();
        let due = self
            .hub
            .filtered(|one| slice_of(one.principal) == slice && !one.is_ended());
        let mut credentials: Vec<CredentialId> = due.iter().map(|one| one.credential).collect();
        credentials.sort_unstable();
        credentials.dedup();
        self.end_revoked(&credentials).await?;
        let mut inboxes = self.hub.principals();
        inboxes.retain(|one| is_full || slice_of(*one) == slice);
        let mut late = 0;
        for piece in inboxes.chunks(MAX_PIECE_ROWS) {
            let asked = Instant::now();
            late += self.wake_behind(piece).await?;
            if piece.len() == MAX_PIECE_ROWS {
                tokio::time::sleep(PAUSES_PER_STATEMENT * asked.elapsed()).await;
            }
        }
        let part = if is_full { "round" } else { "slice" };
        metrics::sweep(part, started.elapsed(), late);
        Ok(())
    }
}
