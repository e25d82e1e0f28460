//! Rounds over the subscriptions of the node, in pieces.
//!
//! Every interval looks at the credentials of a slice of the subscriptions, so that each is looked
//! at once a minute. It looks at all inboxes, because a hint may be lost unnoticed. A round takes
//! at most a tenth of a connection's time.

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{INTERVAL, MAX_PIECE_ROWS, MIN_INTERVAL, Reconciler};
use crate::{delivery::backplane::State, error::Result, metrics};

/// Slices of the subscriptions; each interval looks at the next one.
const SLICES: u8 = 30;
/// A pause is this many times as long as the statement before it.
const PAUSES_PER_STATEMENT: u32 = 9;

/// Makes rounds until `stop`.
pub async fn run(reconciler: &Reconciler, state: &State, stop: &CancellationToken) {
    for slice in (0..SLICES).cycle() {
        let started = Instant::now();
        if let Err(error) = reconciler.round(slice).await {
            error.log_in("reconcile.round", "the next round looks again");
        }
        let interval = if state.healthy() {
            INTERVAL
        } else {
            MIN_INTERVAL
        };
        tokio::select! {
            () = tokio::time::sleep_until(started + interval) => {}
            () = async {
                state.demanded().await;
                tokio::time::sleep_until(started + MIN_INTERVAL).await;
            } => {}
            () = stop.cancelled() => return,
        }
    }
}

fn slice_of(principal: Uuid) -> u8 {
    principal.as_bytes()[15] % SLICES
}

impl Reconciler {
    /// Looks at the credentials of a slice, and at all inboxes.
    async fn round(&self, slice: u8) -> Result<()> {
        let started = Instant::now();
        let due = self
            .hub
            .filtered(|one| slice_of(one.principal) == slice && !one.is_ended());
        let mut credentials: Vec<Uuid> = due.iter().map(|one| one.credential).collect();
        credentials.sort_unstable();
        credentials.dedup();
        self.end_dead(&credentials).await?;
        let inboxes = self.hub.principals();
        let mut late = 0;
        for piece in inboxes.chunks(MAX_PIECE_ROWS) {
            let asked = Instant::now();
            late += self.wake_behind(piece).await?;
            if piece.len() == MAX_PIECE_ROWS {
                tokio::time::sleep(PAUSES_PER_STATEMENT * asked.elapsed()).await;
            }
        }
        metrics::sweep("round", started.elapsed(), late);
        Ok(())
    }
}
