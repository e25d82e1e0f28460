//! When the node's beat was last seen to run. Real time on purpose: it measures whether the process was frozen.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Alive as of the last [`beat`](Self::beat).
pub struct Heartbeat {
    started: Instant,
    /// Milliseconds since the start.
    last: AtomicU64,
}

impl Heartbeat {
    /// Begins with a beat.
    pub fn new() -> Self {
        Heartbeat {
            started: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// The beat runs.
    pub fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Release);
    }

    /// Since the last one.
    pub fn age(&self) -> Duration {
        self.started
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last.load(Ordering::Acquire)))
    }
}
