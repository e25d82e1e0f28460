//! The schedule of retries.

use std::time::Duration;

use blindpipe_protocol::webhooks::DeliveryStatus;

/// Attempts of a delivery: one, and seven retries.
pub const MAX_ATTEMPTS: i32 = 8;
/// The longest `Retry-After` that is honoured.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// The status of a receiver that wants no more deliveries.
pub const GONE: u16 = 410;
/// Waits differ from the schedule by up to this part, so that receivers that failed together are
/// not called together.
const JITTER: f64 = 0.2;
/// The sum of the waits, in units of the first: 5^0 + 5^1 + … + 5^6.
const SPAN_UNITS: f64 = 19_531.0;

/// The waits before the retries. Each is five times as long as the one before.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
}

impl Backoff {
    /// A schedule whose seven waits take `span` in all.
    pub fn over(span: Duration) -> Self {
        Backoff {
            first: span.div_f64(SPAN_UNITS),
        }
    }

    /// The wait after attempt `attempt` has failed. `fraction` is random in `[0, 1)`.
    pub fn wait(self, attempt: i32, fraction: f64) -> Duration {
        let exponent = (attempt - 1).clamp(0, MAX_ATTEMPTS - 2);
        let jitter = 1.0 - JITTER + 2.0 * JITTER * fraction;
        self.first.mul_f64(5_f64.powi(exponent) * jitter)
    }
}

/// The consequence of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Another attempt follows after this wait.
    Retry(Duration),
    /// None follows.
    GiveUp,
}

/// Judges a failed attempt by its number and the receiver's status. `pause` is the receiver's
/// `Retry-After`.
pub fn judge(
    backoff: Backoff,
    attempt: i32,
    status: Option<u16>,
    pause: Option<Duration>,
    fraction: f64,
) -> Verdict {
    if attempt >= MAX_ATTEMPTS || status == Some(GONE) {
        return Verdict::GiveUp;
    }
    let wait = backoff.wait(attempt, fraction);
    Verdict::Retry(pause.map_or(wait, |pause| wait.max(pause)))
}

/// The pause that a receiver asks for with 429 or 503.
pub fn pause(status: Option<u16>, retry_after: Option<Duration>) -> Option<Duration> {
    let asks = matches!(status, Some(429 | 503));
    retry_after
        .filter(|_| asks)
        .map(|pause| pause.min(MAX_RETRY_AFTER))
}

/// The status of a finished replay. A delivery that has succeeded once stays a success.
pub fn replayed(succeeds: bool, succeeded_before: bool) -> DeliveryStatus {
    if succeeds || succeeded_before {
        DeliveryStatus::Success
    } else {
        DeliveryStatus::Exhausted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff() -> Backoff {
        Backoff::over(Duration::from_secs(97_655))
    }

    #[test]
    fn each_wait_is_five_times_as_long_within_a_fifth() {
        for (attempt, seconds) in [
            (1, 5.0),
            (2, 25.0),
            (3, 125.0),
            (4, 625.0),
            (5, 3125.0),
            (6, 15_625.0),
            (7, 78_125.0),
        ] {
            let wait = |fraction| backoff().wait(attempt, fraction).as_secs_f64() / seconds;
            assert!((wait(0.0) - 0.8).abs() < 1e-6, "{attempt}");
            assert!((wait(0.5) - 1.0).abs() < 1e-6, "{attempt}");
            assert!(wait(0.999) < 1.2, "{attempt}");
        }
    }

    #[test]
    fn eight_attempts_are_made_and_none_after_a_410() {
        let judged = |attempt, status| judge(backoff(), attempt, status, None, 0.5);
        assert_eq!(judged(7, None), Verdict::Retry(Duration::from_secs(78_125)));
        assert_eq!(judged(8, None), Verdict::GiveUp);
        assert_eq!(judged(1, Some(410)), Verdict::GiveUp);
    }

    #[test]
    fn a_receiver_may_ask_for_a_pause_of_an_hour() {
        let hour = Duration::from_secs(3600);
        assert_eq!(pause(Some(429), Some(2 * hour)), Some(hour));
        assert_eq!(pause(Some(503), Some(hour / 2)), Some(hour / 2));
        assert_eq!(pause(Some(500), Some(hour)), None);
        let wait = judge(backoff(), 1, Some(429), Some(hour), 0.5);
        assert_eq!(wait, Verdict::Retry(hour));
        let wait = judge(backoff(), 7, Some(429), Some(hour), 0.5);
        assert_eq!(wait, Verdict::Retry(Duration::from_secs(78_125)));
    }
}
