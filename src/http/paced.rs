//! The body of a request, which must keep its pace.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::answers::paced;
use crate::error::{Code, Error, Result};

/// A body that is read piece by piece.
pub struct PacedBody {
    body: Body,
    started: Instant,
    received: u64,
    waited: bool,
}

impl PacedBody {
    /// A body whose time begins now.
    pub fn new(body: Body) -> Self {
        PacedBody {
            body,
            started: Instant::now(),
            received: 0,
            waited: false,
        }
    }

    /// The next bytes; none at the end. Errors: 408 if the client is too slow, 400 if it breaks
    /// off.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let frame = match self.body.frame().now_or_never() {
                Some(frame) => frame,
                None => {
                    self.waited = true;
                    tokio::time::timeout_at(self.deadline(), self.body.frame())
                        .await
                        .map_err(|_| closing(Code::RequestTimeout))?
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

    /// Excuses the client for time that the server itself took.
    pub fn excuse(&mut self, time: Duration) {
        self.started += time;
    }

    /// Whether any of the body was still to come when it was asked for.
    pub fn has_waited(&self) -> bool {
        self.waited
    }

    fn deadline(&self) -> Instant {
        self.started + paced(self.received)
    }
}

/// A refusal that leaves the rest of a body unread, so the connection cannot go on.
pub fn closing(code: Code) -> Error {
    Error::from(code).header("connection", "close".to_owned())
}
