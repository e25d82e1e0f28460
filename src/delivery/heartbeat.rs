//! The time of the node's last heartbeat. It uses real time, which only a simulation moves, because
//! it measures whether the process was frozen.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// The time of the last [`beat`](Self::beat).
pub struct Heartbeat {
    started: Instant,
    /// Milliseconds since the start.
    last: AtomicU64,
}

impl Heartbeat {
    /// Starts with a heartbeat.
    pub fn new() -> Self {
        Heartbeat {
            started: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    /// Records a heartbeat.
    pub fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Release);
    }

    /// The time since the last heartbeat.
    pub fn age(&self) -> Duration {
        self.started
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last.load(Ordering::Acquire)))
    }
}
