//! Reconciliation, also called the sweep. Each node asks Postgres for the heads of its
//! subscriptions' inboxes and for revoked credentials. A lost hint therefore costs time, never a
//! message.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use blindpipe_protocol::revocation::RevocationReason;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Backplane, End, Hub,
    backplane::{State, messages::reason_of, seal::Seal, tombstones::Tombstones},
};
use crate::{cursor::Cursor, db::Db, error::Result, inbox::Inbox, metrics};

/// Pause between two rounds while the backplane's probe comes back.
const INTERVAL: Duration = Duration::from_secs(2);
/// Pause between two rounds while the probe stays away.
const URGENT_INTERVAL: Duration = Duration::from_millis(500);

/// Reconciles until `stop`.
pub async fn run(reconciler: &Reconciler, state: &State, stop: &CancellationToken) {
    let mut next = Instant::now();
    let mut was_blind = false;
    loop {
        let outcome = tokio::select! {
            () = tokio::time::sleep_until(next) => reconciler.all().await,
            () = state.reconcile_now.notified() => reconciler.all().await,
            // Nobody hinted events that were committed before the node subscribed to their channel.
            fresh = state.fresh() => { reconciler.wake(&fresh).await.ok(); continue }
            () = stop.cancelled() => return,
        };
        match outcome {
            Ok(()) => {}
            Err(error) => error.log_in("reconcile.sweep", "the next sweep looks again"),
        }
        let is_blind = reconciler.hub.is_blind();
        if is_blind && !was_blind {
            tracing::error!(
                operation = "reconcile.sweep",
                remedy = "nothing is delivered until sessions can be checked again",
                "Postgres is out of reach"
            );
        }
        was_blind = is_blind;
        next = Instant::now()
            + if state.healthy() {
                INTERVAL
            } else {
                URGENT_INTERVAL
            };
    }
}

/// Compares the subscriptions of a node with Postgres.
pub struct Reconciler {
    db: Db,
    inbox: Inbox,
    hub: Hub,
    /// Revocations that Postgres may have lost.
    tombstones: Tombstones,
    /// Knows the epoch of the messages between nodes.
    seal: Seal,
    /// The epoch in which the tombstones were last replayed; 0 at the start.
    replayed_in: AtomicU64,
}

impl Reconciler {
    /// Works over connections that requests cannot use up.
    pub fn new(db: &Db, backplane: &Backplane) -> Self {
        let (hub, tombstones) = (backplane.hub.clone(), backplane.tombstones.clone());
        Reconciler {
            db: db.clone(),
            inbox: Inbox::new(db.clone()),
            hub,
            tombstones,
            seal: backplane.seal.clone(),
            replayed_in: AtomicU64::new(0),
        }
    }

    async fn all(&self) -> Result<()> {
        let started = std::time::Instant::now();
        let epoch = self.inbox.epoch().await?;
        self.seal.set_epoch(epoch);
        self.end_other_epochs(epoch).await?;
        // Tried again in the next round if Redis is away.
        if self.replayed_in.load(Ordering::Relaxed) != epoch {
            match self.tombstones.replay(&self.db).await {
                Ok(true) => self.replayed_in.store(epoch, Ordering::Relaxed),
                Ok(false) => {}
                Err(error) => {
                    error.log_in("reconcile.replay", "the next sweep replays the tombstones");
                }
            }
        }
        let subscriptions = self.hub.all();
        let credentials: HashSet<Uuid> = subscriptions
            .iter()
            .map(|subscription| subscription.credential)
            .collect();
        if !credentials.is_empty() {
            for (reason, revoked) in
                dead_credentials(&self.db, &Vec::from_iter(credentials)).await?
            {
                self.hub.revoke(&[revoked], reason);
            }
        }
        // The revoked subscriptions have ended, so the others may go on.
        self.hub.set_checked();
        let principals: HashSet<Uuid> = subscriptions
            .iter()
            .map(|subscription| subscription.principal)
            .collect();
        let late = match principals.is_empty() {
            true => 0,
            false => self.wake(&Vec::from_iter(principals)).await?,
        };
        metrics::sweep(started.elapsed(), late);
        Ok(())
    }

    /// Ends the subscriptions whose numbers are of another epoch: they may name other events now.
    async fn end_other_epochs(&self, epoch: u64) -> Result<()> {
        let mut subscriptions = self.hub.all();
        subscriptions.retain(|one| one.epoch().is_some_and(|own| own != epoch));
        if subscriptions.is_empty() {
            return Ok(());
        }
        let principals: HashSet<Uuid> = subscriptions.iter().map(|one| one.principal).collect();
        let heads = self.inbox.heads(&Vec::from_iter(principals)).await?;
        let heads: HashMap<Uuid, i64> = heads
            .iter()
            .map(|head| (head.principal, head.seq))
            .collect();
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

    /// Wakes the listeners of `principals` that are behind their inbox; returns their number.
    async fn wake(&self, principals: &[Uuid]) -> Result<u64> {
        let mut late = 0;
        for head in self.inbox.heads(principals).await? {
            late += self.hub.wake_behind(head.principal, head.seq);
        }
        Ok(late)
    }
}

/// Those of `credentials` that are no live session and no valid token, each with its reason.
pub(super) async fn dead_credentials(
    db: &Db,
    credentials: &[Uuid],
) -> Result<Vec<(RevocationReason, Uuid)>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- backplane.dead_credentials
            select c.id, s.session_id is not null as is_session,
                   coalesce(s.revoke_reason, t.revoke_reason, case when t.valid_until is not null then 'token_regenerated' end, '') as reason
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
                reason_of(row.get("is_session"), row.get("reason")),
                row.get("id"),
            )
        })
        .collect())
}
