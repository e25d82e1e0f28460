//! A switch that stops calls to a dependency that does not answer.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Failures in a row that open the breaker.
pub const FAILURES_TO_OPEN: u32 = 5;
/// An open breaker allows a call once in this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Counts failures in a row. It uses real time, because it measures a peer and not the domain.
#[derive(Default)]
pub struct Breaker {
    misses: AtomicU32,
    last_try: Mutex<Option<Instant>>,
}

impl Breaker {
    /// Whether the breaker is open.
    pub fn is_open(&self) -> bool {
        self.misses.load(Ordering::Relaxed) >= FAILURES_TO_OPEN
    }

    /// Whether a call may go out now.
    pub fn allow(&self) -> bool {
        if !self.is_open() {
            return true;
        }
        let mut last = self.last_try.lock();
        let due = last.is_none_or(|at| at.elapsed() >= RETRY_INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// Records an answer, which closes the breaker.
    pub fn record_success(&self) {
        if self.misses.load(Ordering::Relaxed) > 0 {
            self.misses.store(0, Ordering::Relaxed);
        }
    }

    /// Records a call without an answer.
    pub fn record_failure(&self) {
        if self.misses.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES_TO_OPEN {
            *self.last_try.lock() = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_five_and_closes_after_one_answer() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_TO_OPEN {
            assert!(breaker.allow() && !breaker.is_open());
            breaker.record_failure();
        }
        assert!(!breaker.allow() && breaker.is_open());
        breaker.record_success();
        assert!(breaker.allow());
    }
}
