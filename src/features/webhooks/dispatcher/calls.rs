//! The places among the calls of a worker.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics;

/// Counts a call while it is under way, however it ends.
pub struct UnderWay;

impl UnderWay {
    pub fn new() -> Self {
        metrics::webhook_calls(1.0);
        UnderWay
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        metrics::webhook_calls(-1.0);
    }
}

/// The calls that a worker may have under way. Receivers that fail share half of them, so that
/// they never hold up the others.
pub struct Calls {
    all: Arc<Semaphore>,
    failing: Arc<Semaphore>,
}

/// A place among the calls, held to the end of the call.
pub struct Permits(
    #[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit,
    #[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>,
);

impl Calls {
    /// At most `max` calls.
    pub fn new(max: usize) -> Self {
        Calls {
            all: Arc::new(Semaphore::new(max)),
            failing: Arc::new(Semaphore::new(max.div_ceil(2))),
        }
    }

    /// Takes a place. None if the node ends.
    pub async fn take(&self, failing: bool) -> Option<Permits> {
        let half = if failing {
            Some(self.failing.clone().acquire_owned().await.ok()?)
        } else {
            None
        };
        let one = self.all.clone().acquire_owned().await.ok()?;
        Some(Permits(one, half))
    }
}
