//! What stands behind every hint: each node asks Postgres, for all its listeners at once, how far their inboxes have
//! come and whether their credentials still count. So a lost hint costs time, never a message.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::backplane::{self, Backplane, State, tombstones::Tombstones};
use crate::{
    db::Db,
    delivery::hub::{End, Registry},
    error::Result,
    inbox::Inbox,
    metrics,
};

/// Between two sweeps while the backplane's probe comes back,
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// and while it does not.
const URGENT_SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Without a look at Postgres for this long, nobody here knows who has been revoked: bodies that come with hints are
/// not delivered any more.
const FENCE_AFTER: Duration = Duration::from_secs(10);

/// Sweeps until `stop`.
pub async fn run(sweep: Sweep, state: Arc<State>, stop: CancellationToken) {
    let mut next = Instant::now();
    let mut looked_at = Instant::now();
    loop {
        let outcome = tokio::select! {
            () = tokio::time::sleep_until(next) => sweep.all().await,
            () = state.sweep_now.notified() => sweep.all().await,
            // Channels that were subscribed to just now: what was committed before was hinted to nobody.
            fresh = state.fresh() => { sweep.wake(&fresh).await.ok(); continue }
            () = stop.cancelled() => return,
        };
        match outcome {
            Ok(()) => looked_at = Instant::now(),
            Err(error) => error.log(),
        }
        if looked_at.elapsed() > FENCE_AFTER && !sweep.registry.is_fenced() {
            tracing::error!(
                "Postgres is out of reach; nothing is delivered until sessions can be checked again"
            );
            sweep.registry.set_blind(true);
        }
        next = Instant::now()
            + if state.healthy() {
                SWEEP_INTERVAL
            } else {
                URGENT_SWEEP_INTERVAL
            };
    }
}

/// What a sweep needs.
pub struct Sweep {
    /// The truth.
    db: Db,
    /// Its heads and epoch.
    inbox: Inbox,
    /// Who listens here.
    registry: Registry,
    /// What Postgres may have forgotten,
    tombstones: Tombstones,
    /// and the epoch in which it was last reminded; 0 at the start.
    reminded: AtomicU64,
}

impl Sweep {
    /// Of a node, over connections that its requests cannot use up.
    pub fn new(db: &Db, inbox: &Inbox, backplane: &Backplane) -> Self {
        let (registry, tombstones) = (backplane.registry.clone(), backplane.tombstones.clone());
        Sweep {
            db: db.clone(),
            inbox: inbox.over(db.clone()),
            registry,
            tombstones,
            reminded: AtomicU64::new(0),
        }
    }

    async fn all(&self) -> Result<()> {
        let started = std::time::Instant::now();
        if self.inbox.refresh_epoch().await? {
            self.registry
                .for_each(|subscription| subscription.end(End::EpochChanged));
        }
        // Again at the next sweep, if Redis is away.
        let epoch = self.inbox.epoch();
        if self.reminded.load(Ordering::Relaxed) != epoch {
            match self.tombstones.replay(&self.db).await {
                Ok(true) => self.reminded.store(epoch, Ordering::Relaxed),
                Ok(false) => {}
                Err(error) => error.log(),
            }
        }
        let subscriptions = self.registry.all();
        let credentials: HashSet<Uuid> = subscriptions
            .iter()
            .map(|subscription| subscription.credential)
            .collect();
        if !credentials.is_empty() {
            for (reason, dead) in dead_credentials(&self.db, &Vec::from_iter(credentials)).await? {
                self.registry.revoke(&[dead], reason);
            }
        }
        // Whoever must not hear any more has been told; the others may go on.
        self.registry.set_blind(false);
        let principals: HashSet<Uuid> = subscriptions
            .iter()
            .map(|subscription| subscription.principal)
            .collect();
        if principals.is_empty() {
            return Ok(());
        }
        let late = self.wake(&Vec::from_iter(principals)).await?;
        metrics::sweep(started.elapsed(), late);
        Ok(())
    }

    /// Rings those listeners of `principals` that are behind their inbox; returns how many were.
    async fn wake(&self, principals: &[Uuid]) -> Result<u64> {
        let mut late = 0;
        for head in self.inbox.heads(principals).await? {
            late += self.registry.ring_behind(head.principal, head.seq);
        }
        Ok(late)
    }
}

/// Those of `credentials` that are no live session and no valid token, with the reason that is told.
async fn dead_credentials(db: &Db, credentials: &[Uuid]) -> Result<Vec<(&'static str, Uuid)>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- backplane.dead_credentials
            select c.id, s.session_id is not null,
                   coalesce(s.revoke_reason, t.revoke_reason, case when t.valid_until is not null then 'token_regenerated' end, '')
            from unnest($1::uuid[]) as c (id)
            left join session s on s.session_id = c.id
            left join agent_token t on t.token_id = c.id
            where not coalesce(s.revoked_at is null and s.absolute_expires_at > app_now(), false)
              and not coalesce(t.token_id is not null and t.revoked_at is null and (t.valid_until is null or t.valid_until > app_now()), false)",
            &[&credentials],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| {
            (
                backplane::worker::reason_of(row.get(1), row.get(2)),
                row.get(0),
            )
        })
        .collect())
}
