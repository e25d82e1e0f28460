//! Long work in small batches, beside which others go on.
//!
//! Why: ADR 20.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Result;

/// Pause after a batch, as a multiple of the batch's own time. So a job keeps Postgres busy for a
/// fifth of the time at most.
const PAUSE_FACTOR: u32 = 4;
/// Longest pause. A batch that waited for a lock does not stop its job.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Rows that a batch deletes: some milliseconds of Postgres.
pub const BATCH_ROWS: i64 = 500;

/// Runs a batch, and pauses if there may be more. Returns what the batch returns.
pub fn paced(
    batch: impl Future<Output = Result<bool>> + Send,
) -> impl Future<Output = Result<bool>> + Send {
    // The future of a batch would otherwise be a part of its job's future twice.
    let batch = Box::pin(batch);
    async move {
        let began = Instant::now();
        let is_more = batch.await?;
        if is_more {
            tokio::time::sleep(pause_after(began.elapsed())).await;
        }
        Ok(is_more)
    }
}

fn pause_after(batch: Duration) -> Duration {
    MAX_PAUSE.min(batch * PAUSE_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_works_a_fifth_of_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(pause_after(ms(10)), ms(40));
        assert_eq!(pause_after(ms(60_000)), ms(1000));
    }

    #[tokio::test]
    async fn the_last_batch_has_no_pause() {
        let began = Instant::now();
        let batch = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(false)
        };
        assert!(!paced(batch).await.expect("done"));
        assert!(began.elapsed() < Duration::from_millis(900));
    }
}
