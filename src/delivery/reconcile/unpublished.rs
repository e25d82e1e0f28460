//! Events that a node committed and did not publish, because it died.
//!
//! A late heartbeat is the first sign of a dead node, the end of its lease the second. Most late
//! nodes live, so a sign must not cost every node a look at all its inboxes. One node reads the
//! entries of the last seconds, whoever stored them, and publishes how far their inboxes have got.
//! Nodes that know as much already do nothing.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{DeliveryStore, scan::PAUSES_PER_STATEMENT};
use crate::{delivery::Backplane, error::Result, metrics};

/// Entries that may be unpublished: those of a node that was in time until the end of its lease, and
/// of its last statements.
const MAX_AGE: Duration = Duration::from_secs(15);
/// Younger entries are being published by the nodes that live.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Publishes what dead nodes did not, until `stop`.
pub async fn run<S: DeliveryStore>(store: &S, backplane: &Backplane, stop: &CancellationToken) {
    let state = backplane.state();
    while let Some(signs) = stop.run_until_cancelled(state.dead_nodes.wait()).await {
        if let Err(error) = publish(store, backplane).await {
            error.log_in(
                "reconcile.unpublished",
                "every node looks at all its inboxes",
            );
            backplane.note_unknown_commit();
        }
        state.dead_nodes.remove(signs.len());
    }
}

async fn publish<S: DeliveryStore>(store: &S, backplane: &Backplane) -> Result<()> {
    let started = Instant::now();
    let mut after: Option<DateTime<Utc>> = None;
    let mut late = 0;
    loop {
        let asked = Instant::now();
        let heads = store.fresh_heads(after, (MAX_AGE, MIN_AGE)).await?;
        late += backplane.publish_heads(&heads.reached);
        after = heads.last;
        if !heads.is_more {
            break;
        }
        tokio::time::sleep(PAUSES_PER_STATEMENT * asked.elapsed()).await;
    }
    metrics::sweep("unpublished", started.elapsed(), late);
    Ok(())
}
