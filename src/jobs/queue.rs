//! The table of jobs. A worker claims jobs for a lease and renews it while it works, so a dead
//! worker's jobs run again elsewhere. The attempt's number fences off a worker that has lost its
//! lease.

use std::time::Duration;

use super::{Job, Kind};
use crate::{
    db::{
        Conn, Db,
        batches::{BATCH_ROWS, paced},
    },
    error::{Code, Error, Result},
    telemetry::trace::{self, TraceContext},
};

/// The time that a lease is valid without a renewal.
pub const LEASE: Duration = Duration::from_secs(60);

/// A job to put into the queue.
pub struct NewJob {
    pub job: Job,
    /// The wait before the first attempt.
    pub delay: Duration,
}

/// The hold of a caller on a job, for a time.
#[derive(Clone, Copy)]
pub struct Lease {
    /// The kind of the job.
    pub kind: Kind,
    /// The number of attempts, with the present one.
    pub attempts: i32,
    /// The trace of the transaction that has enqueued it.
    pub trace: Option<TraceContext>,
    id: i64,
}

/// Puts jobs into the queue. A job whose unique key already waits or runs is left out.
pub async fn enqueue(client: &Conn, jobs: &[NewJob]) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let kinds: Vec<&str> = jobs.iter().map(|new| new.job.kind().row().0).collect();
    let payloads: Result<Vec<String>> = jobs.iter().map(|new| new.job.payload()).collect();
    let keys: Vec<Option<String>> = jobs.iter().map(|new| new.job.unique_key()).collect();
    let delays: Vec<f64> = jobs.iter().map(|new| new.delay.as_secs_f64()).collect();
    let lives: Vec<Option<f64>> = jobs
        .iter()
        .map(|new| new.job.kind().life().map(|life| life.as_secs_f64()))
        .collect();
    let trace = trace::current().map(|context| context.to_string());
    client
        .execute(
            "-- jobs.enqueue
            insert into job (kind, payload, unique_key, run_at, expires_at, trace)
            select kind, payload, unique_key, app_now() + make_interval(secs => delay), app_now() + make_interval(secs => life), $6
            from unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::float8[])
                as new (kind, payload, unique_key, delay, life)
            order by kind, unique_key
            on conflict (kind, unique_key) where unique_key is not null and failed_at is null do nothing",
            &[&kinds, &payloads?, &keys, &delays, &lives, &trace],
        )
        .await?;
    Ok(())
}

/// Claims due jobs, at counts as many of each kind as there is capacity for. A payload that this
/// build cannot read is `None`.
pub async fn claim(db: &Db, capacity: &[(Kind, i32)]) -> Result<Vec<(Lease, Option<Job>)>> {
    let kinds: Vec<&str> = capacity.iter().map(|(kind, _)| kind.row().0).collect();
    let counts: Vec<i32> = capacity.iter().map(|(_, n)| *n).collect();
    let client = db.write().await?;
    let rows = client
        .query(
            "-- jobs.claim
            with due as materialized (
                select next.job_id from unnest($1::text[], $2::int4[]) as capacity (kind, n)
                cross join lateral (
                    select job_id from job
                    where job.kind = capacity.kind and failed_at is null and run_at <= app_now()
                        and (leased_until is null or leased_until <= app_now())
                        and (expires_at is null or expires_at > app_now())
                    order by run_at limit capacity.n for update skip locked
                ) next
            )
            update job set attempts = attempts + 1, leased_until = app_now() + make_interval(secs => $3)
            from due where job.job_id = due.job_id
            returning job.job_id, job.kind, job.attempts, job.payload, job.trace",
            &[&kinds, &counts, &LEASE.as_secs_f64()],
        )
        .await?;
    let leases = rows.iter().filter_map(|row| {
        let kind = Kind::from_name(row.get("kind"))?;
        let lease = Lease {
            kind,
            attempts: row.get("attempts"),
            trace: row
                .get::<_, Option<&str>>("trace")
                .and_then(|trace| trace.parse().ok()),
            id: row.get("job_id"),
        };
        Some((lease, Job::from_payload(row.get("payload"))))
    });
    Ok(leases.collect())
}

/// Renews the lease; false if another worker has the job.
pub async fn renew(db: &Db, lease: Lease) -> Result<bool> {
    let client = db.write().await?;
    let renewed = client
        .execute(
            "-- jobs.renew
            update job set leased_until = app_now() + make_interval(secs => $3)
            where job_id = $1 and attempts = $2 and failed_at is null",
            &[&lease.id, &lease.attempts, &LEASE.as_secs_f64()],
        )
        .await?;
    Ok(renewed > 0)
}

/// Removes a job that is done.
pub async fn finish(db: &Db, lease: Lease) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- jobs.finish
            delete from job where job_id = $1 and attempts = $2",
            &[&lease.id, &lease.attempts],
        )
        .await?;
    Ok(())
}

/// Schedules another attempt of a job.
pub async fn retry(db: &Db, lease: Lease, why: &Error) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- jobs.retry
            update job set run_at = app_now() + make_interval(secs => $3), leased_until = null, last_error = $4
            where job_id = $1 and attempts = $2",
            &[
                &lease.id,
                &lease.attempts,
                &lease.kind.backoff(lease.attempts).as_secs_f64(),
                &format!("{why:?}"),
            ],
        )
        .await?;
    Ok(())
}

/// Gives up a job. Its row stays for a week.
pub async fn fail(db: &Db, lease: Lease, why: &Error) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- jobs.fail
            update job set failed_at = app_now(), expires_at = app_now() + interval '7 days', leased_until = null,
                last_error = $3
            where job_id = $1 and attempts = $2",
            &[&lease.id, &lease.attempts, &format!("{why:?}")],
        )
        .await?;
    Ok(())
}

/// Deletes expired jobs, batch by batch.
pub async fn forget(db: &Db) -> Result<()> {
    while paced(forget_some(db)).await? {}
    Ok(())
}

async fn forget_some(db: &Db) -> Result<bool> {
    let deleted = db
        .write()
        .await?
        .execute(
            "-- jobs.forget
            delete from job where job_id = any(array(
                select job_id from job where expires_at <= app_now() limit $1 for update skip locked))",
            &[&BATCH_ROWS],
        )
        .await?;
    Ok(deleted == BATCH_ROWS.unsigned_abs())
}

/// The failure of a job whose payload cannot be read.
pub fn unreadable() -> Error {
    Error::internal(Code::InternalError, "the job's payload cannot be read")
}
