//! The only module that reads the time.
//!
//! In production the clock is the system's. A test moves it with [`Clock::advance`], which wakes
//! every sleeper of this clock, so no test waits for real time. Redis's or Postgres's clock decides
//! everything that must be exact across nodes (limits, leases, windows of 24 h, locks).

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use tokio::sync::watch;

/// The node's clock; clones share it.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The distance of this clock ahead of the system's: zero in production.
    ahead: Arc<watch::Sender<TimeDelta>>,
    /// The error of the system's clock that a test simulates; nothing corrects for it.
    skew: TimeDelta,
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            ahead: Arc::new(watch::Sender::new(TimeDelta::zero())),
            skew: TimeDelta::zero(),
        }
    }
}

impl Clock {
    /// The clock of a machine whose time is wrong by `skew`, for tests.
    pub fn skewed(skew: TimeDelta) -> Self {
        Clock {
            skew,
            ..Clock::default()
        }
    }

    /// The current time of this clock.
    #[expect(clippy::disallowed_methods, reason = "the home of the time")]
    pub fn now(&self) -> DateTime<Utc> {
        Utc::now() + self.skew + self.ahead()
    }

    /// The distance that a test has moved the clock; zero in production.
    pub fn ahead(&self) -> TimeDelta {
        *self.ahead.borrow()
    }

    /// Moves the clock forward and wakes its sleepers.
    pub fn advance(&self, by: Duration) {
        let by = TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
        self.ahead.send_modify(|ahead| *ahead += by);
    }

    /// Returns when this clock has reached `at`, even if it was set back meanwhile.
    pub async fn sleep_until(&self, at: DateTime<Utc>) {
        let mut moved = self.ahead.subscribe();
        loop {
            let left = (at - self.now()).to_std().unwrap_or_default();
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                changed = moved.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// `at` in wire form: ISO 8601, UTC, milliseconds.
pub fn iso(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Serializes with [`iso`]: `#[serde(serialize_with = "clock::as_iso")]`.
pub fn as_iso<S: serde::Serializer>(at: &DateTime<Utc>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&iso(*at))
}

/// Serializes with [`iso`], or null for `None`.
pub fn as_iso_or_null<S: serde::Serializer>(
    at: &Option<DateTime<Utc>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => as_iso(at, to),
        None => to.serialize_none(),
    }
}
