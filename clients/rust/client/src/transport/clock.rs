//! Time and chance, the only places that ask for them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use blindpipe_protocol::time::Timestamp;
use rand::RngExt;
use tokio::sync::watch;
use uuid::Uuid;

/// The clock of a client. Tests move it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead_ms: Arc<watch::Sender<u64>>,
}

impl Clock {
    /// Moves this clock, and all its clones.
    pub fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.ahead_ms
            .send_modify(|ahead| *ahead = ahead.saturating_add(ms));
    }

    /// Unix milliseconds.
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn now_ms(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        now.saturating_add(*self.ahead_ms.borrow())
    }

    /// Waits by this clock, also where it is moved meanwhile.
    pub(crate) async fn sleep(&self, wait: Duration) {
        let mut moved = self.ahead_ms.subscribe();
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let end = self.now_ms().saturating_add(wait);
        loop {
            let left = Duration::from_millis(end.saturating_sub(self.now_ms()));
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                // This clock is one of the senders, so the other end lives.
                _ = moved.changed() => {}
            }
        }
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        let now = i64::try_from(self.now_ms()).unwrap_or(i64::MAX);
        Timestamp(chrono::DateTime::from_timestamp_millis(now).unwrap_or_default())
    }

    /// A time as the service writes it.
    pub(crate) fn now(&self) -> String {
        self.timestamp().to_string()
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
