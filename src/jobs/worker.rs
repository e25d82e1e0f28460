//! A node's worker. It claims jobs while their kinds have capacity, runs them concurrently and
//! settles them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{
    Job, JobError, Kind,
    queue::{self, Lease},
};
use crate::{db::Db, error::Result, metrics, supervisor, telemetry::trace};

/// Interval at which the worker looks for other nodes' jobs and for due retries.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait of a stopping node for its jobs in progress. The others run again elsewhere after
/// their lease.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Performs the jobs of a worker.
pub trait Perform: Clone + Send + Sync + 'static {
    /// Does a job. An earlier attempt may have done a part of it, here or elsewhere.
    fn perform(&self, job: Job) -> impl Future<Output = Result<(), JobError>> + Send;
}

/// Runs jobs on one node.
#[derive(Clone)]
pub struct Worker<P> {
    db: Db,
    wake: Arc<Notify>,
    performer: P,
}

impl<P: Perform> Worker<P> {
    /// A worker over `db` that looks at once when `wake` is notified.
    pub fn new(db: Db, wake: Arc<Notify>, performer: P) -> Self {
        Worker {
            db,
            wake,
            performer,
        }
    }

    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut running = HashMap::new();
        loop {
            match queue::claim(&self.db, &capacity(&running)).await {
                Ok(leases) => {
                    for (lease, job) in leases {
                        let name = job.as_ref().map_or(lease.kind.row().0, Job::name);
                        let span = trace::of_follower("job", name, "consumer", lease.trace);
                        let attempt = self.clone().attempt(lease, name, job);
                        let task = tasks.spawn(attempt.instrument(span));
                        running.insert(task.id(), lease.kind);
                    }
                }
                Err(error) => error.log_in("jobs.claim", "the worker claims again in a second"),
            }
            tokio::select! {
                Some(ended) = tasks.join_next_with_id() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    running.remove(&id);
                }
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = stop.cancelled() => break,
            }
        }
        let rest = async { while tasks.join_next().await.is_some() {} };
        tokio::time::timeout(STOP_TIMEOUT, rest).await.ok();
    }

    async fn attempt(self, lease: Lease, name: &'static str, job: Option<Job>) {
        let started = Instant::now();
        let outcome = match job {
            Some(job) => tokio::select! {
                outcome = self.perform(name, job) => match outcome {
                    Some(outcome) => outcome,
                    None => return,
                },
                () = self.hold(lease) => return,
            },
            None => Err(JobError::Fail(queue::unreadable())),
        };
        let word = match &outcome {
            Ok(()) => "done",
            Err(JobError::Retry(_)) => "retried",
            Err(JobError::Fail(_)) => "failed",
        };
        metrics::job(name, word, started.elapsed());
        Span::current().record("outcome", word);
        let settled = match outcome {
            Ok(()) => queue::finish(&self.db, lease).await,
            Err(JobError::Retry(why)) => {
                tracing::warn!(
                    operation = name,
                    attempts = lease.attempts,
                    cause = ?why,
                    remedy = "the job is tried again after a wait",
                    "a job failed"
                );
                queue::retry(&self.db, lease, &why).await
            }
            Err(JobError::Fail(why)) => {
                tracing::error!(
                    operation = name,
                    attempts = lease.attempts,
                    cause = ?why,
                    remedy = "the job is given up and kept for a week",
                    "a job failed"
                );
                queue::fail(&self.db, lease, &why).await
            }
        };
        if let Err(error) = settled {
            error.log_in("jobs.settle", "the job runs again after its lease");
        }
    }

    fn perform(
        &self,
        name: &'static str,
        job: Job,
    ) -> impl Future<Output = Option<Result<(), JobError>>> {
        let remedy = "the job runs again after its lease";
        supervisor::contain(name, remedy, self.performer.perform(job))
    }

    /// Renews the lease; returns when another worker has the job.
    async fn hold(&self, lease: Lease) {
        loop {
            tokio::time::sleep(queue::LEASE / 3).await;
            match queue::renew(&self.db, lease).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => error.log_in(
                    "jobs.renew",
                    "the worker renews again before the lease ends",
                ),
            }
        }
    }
}

/// The number of jobs of each kind that may begin.
fn capacity<T>(running: &HashMap<T, Kind>) -> Vec<(Kind, i32)> {
    let mut capacity: HashMap<Kind, i32> =
        Kind::ALL.iter().map(|kind| (*kind, kind.row().1)).collect();
    for kind in running.values() {
        capacity.entry(*kind).and_modify(|n| *n -= 1);
    }
    capacity.into_iter().filter(|(_, n)| *n > 0).collect()
}
