//! The body of a request, which must keep its pace.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::time::Instant;

use super::write_pace::paced;
use crate::{
    error::{Code, Error, Result},
    limits::quotas::{MIN_BYTES_PER_SECOND_OF_MOST, UNPACED_TIME},
};

/// Interval at which a body that waits asks whether it is pressed.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(1);

/// A body that is read piece by piece.
pub struct PacedBody {
    body: Body,
    started: Instant,
    received: u64,
    waited: bool,
    /// The time since which the body is pressed, and the bytes that it had by then.
    pressed: Option<(Instant, u64)>,
}

impl PacedBody {
    /// A body whose time begins now.
    pub fn new(body: Body) -> Self {
        PacedBody {
            body,
            started: Instant::now(),
            received: 0,
            waited: false,
            pressed: None,
        }
    }

    /// The next bytes; none at the end. Errors: 408 if the client is too slow, 400 if it breaks
    /// off.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.next_under(|| false).await
    }

    /// Like [`next`](Self::next). While `is_pressed`, the client must keep
    /// [`MIN_BYTES_PER_SECOND_OF_MOST`].
    pub async fn next_under(&mut self, is_pressed: impl Fn() -> bool) -> Result<Option<Bytes>> {
        loop {
            let frame = match self.body.frame().now_or_never() {
                Some(frame) => frame,
                None => {
                    self.waited = true;
                    self.wait(&is_pressed).await?
                }
            };
            let frame = match frame {
                None => return Ok(None),
                Some(Err(_)) => return Err(Error::field("", "body", "the body ended early")),
                Some(Ok(frame)) => frame,
            };
            if let Ok(data) = frame.into_data() {
                self.received += data.len() as u64;
                return Ok(Some(data));
            }
        }
    }

    async fn wait(
        &mut self,
        is_pressed: impl Fn() -> bool,
    ) -> Result<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            let now = Instant::now();
            self.press(is_pressed(), now);
            let deadline = self.deadline();
            let until = deadline.min(now + PRESSURE_INTERVAL);
            match tokio::time::timeout_at(until, self.body.frame()).await {
                Ok(frame) => return Ok(frame),
                Err(_) if until == deadline => return Err(closing(Code::RequestTimeout)),
                Err(_) => {}
            }
        }
    }

    fn press(&mut self, is_pressed: bool, now: Instant) {
        self.pressed = is_pressed.then(|| self.pressed.unwrap_or((now, self.received)));
    }

    /// Excuses the client for time that the server itself took.
    pub fn exclude(&mut self, time: Duration) {
        self.started += time;
        if let Some((since, _)) = &mut self.pressed {
            *since += time;
        }
    }

    /// Whether any of the body was still to come when it was asked for.
    pub fn has_waited(&self) -> bool {
        self.waited
    }

    fn deadline(&self) -> Instant {
        let usual = self.started + paced(self.received);
        let pressed = self.pressed.map(|(since, before)| {
            let bytes = self.received - before;
            since
                + UNPACED_TIME
                + Duration::from_millis(bytes * 1000 / MIN_BYTES_PER_SECOND_OF_MOST)
        });
        pressed.map_or(usual, |pressed| pressed.min(usual))
    }
}

/// A refusal that leaves the rest of a body unread, so the connection cannot go on.
pub fn closing(code: Code) -> Error {
    Error::from(code).header("connection", "close".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::quotas::MIN_BYTES_PER_SECOND;

    #[test]
    fn a_pressed_body_must_be_fast_from_then_on_and_only_as_long() {
        let second = Duration::from_secs(1);
        let mut body = PacedBody::new(Body::empty());
        let began = body.started;
        // Twenty seconds at the usual pace.
        body.received = 20 * MIN_BYTES_PER_SECOND;
        let usual = began + UNPACED_TIME + 20 * second;
        assert_eq!(body.deadline(), usual);

        let pressed_at = began + 19 * second;
        body.press(false, pressed_at);
        assert_eq!(body.deadline(), usual);
        body.press(true, pressed_at);
        assert_eq!(body.deadline(), pressed_at + UNPACED_TIME);
        // Bytes from then on count at the higher pace, and the time stays that of the start.
        body.received += 3 * MIN_BYTES_PER_SECOND_OF_MOST;
        body.press(true, pressed_at + 5 * second);
        assert_eq!(body.deadline(), pressed_at + UNPACED_TIME + 3 * second);
        body.exclude(second);
        assert_eq!(body.deadline(), pressed_at + UNPACED_TIME + 4 * second);

        body.press(false, pressed_at + 6 * second);
        let usual = began + second + paced(body.received);
        assert_eq!(body.deadline(), usual);
        // Pressure that comes again begins anew.
        body.press(true, pressed_at + 8 * second);
        assert_eq!(body.deadline(), pressed_at + 8 * second + UNPACED_TIME);
    }
}
