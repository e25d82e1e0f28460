//! Time and chance, the only places that ask for them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand::RngExt;
use uuid::Uuid;

/// The clock of a client. Tests move it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead_ms: Arc<AtomicU64>,
}

impl Clock {
    /// Moves this clock, and all its clones.
    pub fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.ahead_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Unix milliseconds.
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn now_ms(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        now.saturating_add(self.ahead_ms.load(Ordering::Relaxed))
    }

    /// A time as the service writes it.
    pub(crate) fn now(&self) -> String {
        let now = i64::try_from(self.now_ms()).unwrap_or(i64::MAX);
        let now = chrono::DateTime::from_timestamp_millis(now).unwrap_or_default();
        blindpipe_protocol::time::Timestamp(now).to_string()
    }
}

/// Chance for keys, salts and waits.
#[allow(clippy::disallowed_methods, reason = "this is the source of chance")]
pub(crate) fn rng() -> impl rand::CryptoRng {
    rand::rng()
}

/// A new id in the form of a ULID.
pub(crate) fn new_id(clock: &Clock) -> Uuid {
    let random: u128 = rng().random();
    let time = u128::from(clock.now_ms()) << 80;
    Uuid::from_u128(time | random >> 48)
}
