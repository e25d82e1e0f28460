//! Periodic work: a job repeats until the node stops. An exclusive job runs on one node at a time: the node that holds
//! the advisory lock works, and the others skip their turn.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{db::Db, error::Result, metrics};

/// A job's timetable.
pub struct Periodic {
    /// For the lock and the metrics.
    pub name: &'static str,
    /// Between two runs.
    pub every: Duration,
    /// Whether only one node at a time may run it.
    pub exclusive: bool,
    /// Starts a run early.
    pub wake: Option<Arc<Notify>>,
}

impl Periodic {
    /// Runs `work` again and again until `stop`. A failed run is logged.
    pub async fn repeat<W: Future<Output = Result<()>>>(
        self,
        db: Db,
        stop: CancellationToken,
        work: impl Fn() -> W,
    ) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.every) => {}
                () = notified(self.wake.as_deref()) => {}
                () = stop.cancelled() => return,
            }
            let started = std::time::Instant::now();
            let outcome = if self.exclusive {
                exclusively(&db, self.name, work()).await
            } else {
                work().await
            };
            if let Err(error) = outcome {
                error.log();
            }
            metrics::job(self.name, started.elapsed());
        }
    }
}

async fn notified(wake: Option<&Notify>) {
    match wake {
        Some(wake) => wake.notified().await,
        None => std::future::pending().await,
    }
}

/// Works if no other node does.
async fn exclusively(db: &Db, name: &str, work: impl Future<Output = Result<()>>) -> Result<()> {
    let client = db.read().await?;
    let lock = client
        .prepare_cached(
            "-- jobs.lock
            select pg_try_advisory_lock(hashtext($1))",
        )
        .await?;
    let unlock = client
        .prepare_cached(
            "-- jobs.unlock
            select pg_advisory_unlock(hashtext($1))",
        )
        .await?;
    // The lock belongs to the session, so the same connection must release it. A connection that dies releases it too.
    let locked: bool = client.query_one(&lock, &[&name]).await?.get(0);
    if !locked {
        return Ok(());
    }
    let outcome = work.await;
    client.query_one(&unlock, &[&name]).await?;
    outcome
}
