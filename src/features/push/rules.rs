//! The events that are pushed, their times, and the failures that are tried again.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::{egress::EgressError, events::EventKind};

/// A push per device and conversation in this time.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The time that a socket has to ack an event before it is pushed.
pub const SOCKET_TIME: TimeDelta = TimeDelta::seconds(30);
/// The time for which a push of a tool call of high sensitivity is worth something.
pub const URGENT_LIFE: Duration = Duration::from_secs(30);
/// The time for which another push is worth something.
pub const LIFE: Duration = Duration::from_secs(86_400);
/// Attempts of a push. Each wait is four times as long as the one before.
const MAX_ATTEMPTS: i32 = 6;
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// The longest `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Waits are longer by up to this part, so that pushes that failed together are not made together.
const JITTER: f64 = 0.2;

/// The events that wake a device.
const WAKING: [EventKind; 6] = [
    EventKind::MessageCreated,
    EventKind::ApprovalRequested,
    EventKind::ArtifactRequest,
    EventKind::GrantRequested,
    EventKind::KeyBackupAccessed,
    EventKind::KeyDeviceAdded,
];

/// Whether events of this name may wake a device.
pub fn wakes(name: &str) -> bool {
    WAKING.iter().any(|kind| kind.name() == name)
}

/// The consequence of an attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The push service has the push.
    Sent,
    /// The subscription is over.
    End,
    /// Another attempt follows after this wait.
    Retry(Duration),
    /// The node has no place for the call. It was no attempt.
    Busy,
    /// None follows.
    GiveUp,
}

/// Judges attempt `attempt` by the push service's status, or by the failure of the call. `fraction`
/// is random in `[0, 1)`.
pub fn judge(
    outcome: Result<(u16, Option<Duration>), EgressError>,
    attempt: i32,
    fraction: f64,
) -> Verdict {
    let pause = match outcome {
        Ok((200..=299, _)) => return Verdict::Sent,
        Ok((404 | 410, _)) => return Verdict::End,
        Ok((429 | 500..=599, pause)) => pause,
        // A repetition would be refused again.
        Ok(_) | Err(EgressError::InvalidUrl(_) | EgressError::ForbiddenAddress) => {
            return Verdict::GiveUp;
        }
        Err(EgressError::Busy) => return Verdict::Busy,
        Err(_) => None,
    };
    if attempt >= MAX_ATTEMPTS {
        return Verdict::GiveUp;
    }
    let exponent = attempt.clamp(1, MAX_ATTEMPTS) - 1;
    let wait = FIRST_WAIT.mul_f64(4_f64.powi(exponent) * (1.0 + JITTER * fraction));
    let pause = pause.unwrap_or_default().min(MAX_RETRY_AFTER);
    Verdict::Retry(wait.max(pause))
}

/// The time until which a socket may still ack what waits. None if no socket is online, or if an
/// event waits too long already.
pub fn parked_until(
    is_online: bool,
    waits_since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    let until = waits_since? + SOCKET_TIME;
    (is_online && until > now).then_some(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_attempts_are_made_and_none_after_a_refusal() {
        let status = |status, attempt| judge(Ok((status, None)), attempt, 0.0);
        assert_eq!(status(201, 1), Verdict::Sent);
        assert_eq!(status(404, 1), Verdict::End);
        assert_eq!(status(410, 1), Verdict::End);
        assert_eq!(status(403, 1), Verdict::GiveUp);
        for (attempt, seconds) in [(1, 5), (2, 20), (3, 80), (4, 320), (5, 1280)] {
            let wait = Verdict::Retry(Duration::from_secs(seconds));
            assert_eq!(status(500, attempt), wait);
        }
        assert_eq!(status(500, 6), Verdict::GiveUp);
        let failed = |error| judge(Err(error), 1, 0.0);
        assert_eq!(failed(EgressError::ForbiddenAddress), Verdict::GiveUp);
        assert_eq!(failed(EgressError::Busy), Verdict::Busy);
        assert!(matches!(failed(EgressError::Timeout), Verdict::Retry(_)));
        let hours = Some(Duration::from_secs(7200));
        let paused = judge(Ok((429, hours)), 1, 0.5);
        assert_eq!(paused, Verdict::Retry(MAX_RETRY_AFTER));
    }

    #[test]
    fn a_socket_has_half_a_minute() {
        let now = DateTime::<Utc>::default();
        let since = |seconds| Some(now - TimeDelta::seconds(seconds));
        let until = now + TimeDelta::seconds(20);
        assert_eq!(parked_until(true, since(10), now), Some(until));
        assert_eq!(parked_until(true, since(30), now), None);
        assert_eq!(parked_until(false, since(10), now), None);
    }
}
