//! Stops asking a dependency that does not answer.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Failures in a row that open the breaker.
pub const MISSES: u32 = 5;
/// While it is open, one call in this time is let through.
const RETRY: Duration = Duration::from_secs(1);

/// Counts failures; real time on purpose: it measures a peer, not the domain.
#[derive(Default)]
pub struct Breaker {
    misses: AtomicU32,
    last_try: Mutex<Option<Instant>>,
}

impl Breaker {
    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.misses.load(Ordering::Relaxed) >= MISSES
    }

    /// Whether a call may go out now.
    pub fn lets_through(&self) -> bool {
        if !self.is_open() {
            return true;
        }
        let mut last = self.last_try.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|at| at.elapsed() >= RETRY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// An answer came.
    pub fn succeeded(&self) {
        if self.misses.load(Ordering::Relaxed) > 0 {
            self.misses.store(0, Ordering::Relaxed);
        }
    }

    /// None came.
    pub fn missed(&self) {
        if self.misses.fetch_add(1, Ordering::Relaxed) + 1 == MISSES {
            *self.last_try.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_five_and_closes_after_one_answer() {
        let breaker = Breaker::default();
        for _ in 0..MISSES {
            assert!(breaker.lets_through() && !breaker.is_open());
            breaker.missed();
        }
        assert!(!breaker.lets_through() && breaker.is_open());
        breaker.succeeded();
        assert!(breaker.lets_through());
    }
}
