//! The answers that a connection writes: how many bytes they hold, and whether the client takes
//! them.
//!
//! A large answer holds a permit of the [`ByteBudget`](crate::limits::buffers::ByteBudget) until
//! its last byte is written, and is handed out in pieces. An answer must be taken at
//! [`MIN_BYTES_PER_SECOND`] after [`UNPACED_TIME`]. The connection's timer asks [`Answers`] for the
//! deadline, since nothing else runs while a client takes nothing. Pings are no progress.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    extract::FromRequestParts,
    http::request::Parts,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    error::Error,
    limits::{
        buffers::{ByteAccount, BytePermit, FREE_BYTES},
        quotas::{MAX_PAGE_BYTES, MIN_BYTES_PER_SECOND, UNPACED_TIME},
    },
};

/// Most bytes of an answer that are handed to the connection at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Room for the largest page in the caller's share of the byte budget. It comes after the caller
/// among a handler's parameters. Otherwise a caller that reads nothing would still have its pages
/// read from Postgres.
pub struct RoomForPage;

impl<S: Send + Sync> FromRequestParts<S> for RoomForPage {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        if let Some(account) = parts.extensions.get::<ByteAccount>() {
            account.require(MAX_PAGE_BYTES as usize)?;
        }
        Ok(RoomForPage)
    }
}

/// The answers of a connection. Clones share them.
#[derive(Clone)]
pub struct Answers(Arc<Mutex<State>>);

struct State {
    /// Requests that are not answered to their end.
    open: usize,
    /// The time since which there is none.
    quiet_since: Instant,
    /// Bytes that the connection has taken of all answers.
    taken: u64,
    /// By number, so that the oldest is the first.
    writing: BTreeMap<u64, Writing>,
    next: u64,
}

struct Writing {
    began: Instant,
    /// The bytes that the connection had taken then.
    taken_before: u64,
    bytes: u64,
}

impl Default for Answers {
    fn default() -> Self {
        Answers(Arc::new(Mutex::new(State {
            open: 0,
            quiet_since: Instant::now(),
            taken: 0,
            writing: BTreeMap::new(),
            next: 0,
        })))
    }
}

impl Answers {
    /// Counts a request until its answer is over.
    pub fn open(&self) -> OpenRequest {
        self.0.lock().open += 1;
        OpenRequest(self.clone())
    }

    /// The time since which the connection has had no request.
    pub fn quiet_since(&self) -> Option<Instant> {
        let state = self.0.lock();
        (state.open == 0).then_some(state.quiet_since)
    }

    /// The time by which the client must have taken more.
    pub fn deadline(&self) -> Option<Instant> {
        let state = self.0.lock();
        let deadlines = state.writing.values().map(|answer| {
            // Answers share the connection, so what others took counts, up to this one's size.
            let taken = (state.taken - answer.taken_before).min(answer.bytes);
            answer.began + paced(taken)
        });
        deadlines.min()
    }

    /// Meters an answer. Its refusal replaces it if the budget has no bytes for it.
    pub fn meter(
        &self,
        response: Response,
        account: &ByteAccount,
        request: Option<OpenRequest>,
    ) -> Response {
        let bytes = response.body().size_hint().lower();
        if request.is_none() && bytes <= FREE_BYTES as u64 {
            return response;
        }
        let mut permit = None;
        if bytes > FREE_BYTES as u64 {
            match account.take(usize::try_from(bytes).unwrap_or(usize::MAX)) {
                Ok(taken) => permit = Some(taken),
                Err(exhausted) => return Error::from(exhausted).into_response(),
            }
        }
        let hold = (bytes > 0).then(|| {
            Arc::new(Hold {
                answers: self.clone(),
                number: self.begin(bytes),
                permit,
            })
        });
        response.map(|body| {
            Body::new(MeteredBody {
                body,
                rest: Bytes::new(),
                hold,
                request,
            })
        })
    }

    fn begin(&self, bytes: u64) -> u64 {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        let taken_before = state.taken;
        let writing = Writing {
            began: Instant::now(),
            taken_before,
            bytes,
        };
        state.writing.insert(number, writing);
        number
    }
}

/// The time that so many bytes may take.
pub fn paced(bytes: u64) -> Duration {
    UNPACED_TIME + Duration::from_millis(bytes * 1000 / MIN_BYTES_PER_SECOND)
}

/// A request that is not answered to its end.
pub struct OpenRequest(Answers);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.open -= 1;
        if state.open == 0 {
            state.quiet_since = Instant::now();
        }
    }
}

/// The part of an answer that lives until its last byte is written.
struct Hold {
    answers: Answers,
    number: u64,
    #[expect(dead_code, reason = "held, not read")]
    permit: Option<BytePermit>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.answers.0.lock().writing.remove(&self.number);
    }
}

/// A piece of an answer.
struct Piece {
    bytes: Bytes,
    #[expect(dead_code, reason = "held, not read")]
    hold: Arc<Hold>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that is handed out in pieces.
struct MeteredBody {
    body: Body,
    /// Bytes that the body gave and the connection has not asked for yet.
    rest: Bytes,
    hold: Option<Arc<Hold>>,
    #[expect(dead_code, reason = "held, not read")]
    request: Option<OpenRequest>,
}

impl MeteredBody {
    fn next_piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        match &self.hold {
            None => bytes,
            Some(hold) => {
                hold.answers.0.lock().taken += bytes.len() as u64;
                let hold = hold.clone();
                Bytes::from_owner(Piece { bytes, hold })
            }
        }
    }
}

impl HttpBody for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_due_until_it_is_taken() {
        let answers = Answers::default();
        assert_eq!(answers.deadline(), None);
        let slow = Hold {
            answers: answers.clone(),
            number: answers.begin(MIN_BYTES_PER_SECOND),
            permit: None,
        };
        let began = answers.0.lock().writing[&slow.number].began;
        assert_eq!(answers.deadline(), Some(began + UNPACED_TIME));
        // A fast answer beside it gives it no more time than its own size is worth.
        answers.0.lock().taken += 100 * MIN_BYTES_PER_SECOND;
        let second = Duration::from_secs(1);
        assert_eq!(answers.deadline(), Some(began + UNPACED_TIME + second));
        drop(slow);
        assert_eq!(answers.deadline(), None);
        let request = answers.open();
        assert_eq!(answers.quiet_since(), None);
        drop(request);
        assert!(answers.quiet_since() >= Some(began));
    }
}
