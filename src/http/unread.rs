//! The unread rest of a request's body when the answer comes first, as with every early refusal.
//!
//! hyper closes such a connection silently, unless the rest has arrived by then. A client that
//! sends head and body in two packets would find its next request's connection closed. So a small
//! rest is read and dropped, and the connection goes on. After a larger one the answer says
//! `Connection: close`.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Request,
    body::{Body, Frame, Incoming, SizeHint},
};
use parking_lot::Mutex;

/// Most bytes that are read and dropped of a body.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;
/// Longest wait for the rest of a body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A request's body. Dropped before its end, it leaves the rest with its [`UnreadBody`].
pub struct TrackedBody {
    incoming: Option<Incoming>,
    rest: UnreadBody,
}

/// The unread rest of a body, once its reader has dropped it.
#[derive(Clone, Default)]
pub struct UnreadBody(Arc<Mutex<Option<Incoming>>>);

/// Wraps the request's body, so that its rest is not lost.
pub fn track(request: Request<Incoming>) -> (Request<TrackedBody>, UnreadBody) {
    let rest = UnreadBody::default();
    let tracked = request.map(|incoming| TrackedBody {
        incoming: Some(incoming),
        rest: rest.clone(),
    });
    (tracked, rest)
}

impl UnreadBody {
    /// Reads and drops the rest; false if it is too long or too late for the connection to go on.
    pub async fn discard(&self) -> bool {
        let Some(mut incoming) = self.0.lock().take() else {
            return true;
        };
        let discarding = async {
            let mut left = MAX_DISCARDED_BYTES;
            while incoming.size_hint().lower() <= left {
                match incoming.frame().await {
                    None => return true,
                    Some(Err(_)) => return false,
                    Some(Ok(frame)) => {
                        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                        match left.checked_sub(bytes) {
                            Some(less) => left = less,
                            None => return false,
                        }
                    }
                }
            }
            false
        };
        tokio::time::timeout(DISCARD_TIMEOUT, discarding)
            .await
            .unwrap_or(false)
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take_if(|incoming| !incoming.is_end_stream()) {
            *self.rest.0.lock() = Some(incoming);
        }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
