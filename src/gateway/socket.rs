//! A WebSocket with the gateway's rules: bounded queues, a deadline for every write, a code for
//! every close.
//!
//! Why: ADR 19, ADR 26.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep};
use websocket::{Fault, Kind, Message, Read};

use super::close::{Close, SessionEnd};
use crate::{
    cursor::Cursor,
    events::{self, EncodedEvent},
    http::paced,
    limits::{
        buffers::{ByteBudget, BytePermit, Owner},
        quotas::{
            FREE_SOCKET_BYTES, MAX_AUTH_FRAME_BYTES, MAX_MESSAGE_BYTES, MESSAGE_ENVELOPE_BYTES,
        },
    },
    metrics,
};

/// Longest wait for the client's answer to a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest message of an authenticated client.
const MAX_WIRE_MESSAGE_BYTES: usize = MAX_MESSAGE_BYTES + MESSAGE_ENVELOPE_BYTES;
/// Bytes in the queue at which it should be flushed.
const WRITE_QUEUE_BYTES: usize = 64 * 1024;

/// An action of the client.
pub enum Incoming {
    /// A text frame arrived.
    Text(String),
    /// A binary frame arrived, which `/ws` does not support.
    Binary(Vec<u8>),
    /// A ping or pong arrived: a sign of life.
    Alive,
    /// The client closed, or its connection ended.
    Gone,
    /// The client broke a rule.
    Fault(Close),
}

/// The socket of a client.
pub struct Socket {
    wire: websocket::Socket<TokioIo<Upgraded>>,
    /// The budget of what an authenticated client sends.
    account: Option<(ByteBudget, Owner)>,
    /// The message that is arriving; boxed, because most sockets are idle.
    arriving: Option<Box<Arriving>>,
}

/// A message of which a part has arrived.
struct Arriving {
    began: Instant,
    timer: Pin<Box<Sleep>>,
    permit: Option<BytePermit>,
}

impl Socket {
    /// An upgraded connection that has not authenticated yet.
    pub fn new(upgraded: Upgraded) -> Self {
        Socket {
            wire: websocket::Socket::new(TokioIo::new(upgraded), MAX_AUTH_FRAME_BYTES),
            account: None,
            arriving: None,
        }
    }

    /// Allows larger messages after the authentication, within the budget.
    pub fn admit(&mut self, buffers: ByteBudget, owner: Owner) {
        self.wire.set_max_message_bytes(MAX_WIRE_MESSAGE_BYTES);
        self.account = Some((buffers, owner));
    }

    /// Watches a message that arrives in parts: its pace, and the bytes that it holds. An error if
    /// either is beyond the rules.
    fn poll_arriving(&mut self, cx: &mut Context<'_>) -> Poll<Close> {
        let bytes = self.wire.held();
        if bytes == 0 {
            self.arriving = None;
            return Poll::Pending;
        }
        let now = Instant::now();
        let arriving = self.arriving.get_or_insert_with(|| {
            Box::new(Arriving {
                began: now,
                timer: Box::pin(tokio::time::sleep_until(now + paced(0))),
                permit: None,
            })
        });
        let held = arriving.permit.as_ref().map_or(0, BytePermit::bytes);
        let more = bytes.saturating_sub(FREE_SOCKET_BYTES + held);
        if more > 0
            && let Some((buffers, owner)) = &self.account
        {
            let taken = match &mut arriving.permit {
                Some(permit) => permit.grow(more),
                none => buffers
                    .take(*owner, more)
                    .map(|permit| *none = Some(permit)),
            };
            if taken.is_err() {
                return Poll::Ready(Close::SlowConsumer);
            }
        }
        let until = arriving.began + paced(bytes as u64);
        loop {
            ready!(arriving.timer.as_mut().poll(cx));
            if until <= Instant::now() {
                return Poll::Ready(Close::SlowConsumer);
            }
            arriving.timer.as_mut().reset(until);
        }
    }

    /// Waits for the next frame. Cancel safe.
    pub async fn receive(&mut self) -> Incoming {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Incoming> {
        loop {
            let read = match self.wire.poll_read(cx) {
                Poll::Ready(read) => read,
                Poll::Pending => return self.poll_arriving(cx).map(Incoming::Fault),
            };
            let incoming = match read {
                Ok(Read::Message(message)) => incoming(message),
                Ok(Read::End) => Incoming::Gone,
                Err(fault) => Incoming::Fault(close(fault)),
                Ok(Read::Part) => match self.poll_arriving(cx) {
                    Poll::Ready(close) => Incoming::Fault(close),
                    Poll::Pending => continue,
                },
            };
            // Unless a part of the next message came with it.
            if self.wire.held() == 0 {
                self.arriving = None;
            }
            return Poll::Ready(incoming);
        }
    }

    /// Queues a text.
    pub fn feed(&mut self, text: &str) {
        metrics::frames("out", 1);
        self.wire.queue(Kind::Text, text.as_bytes());
    }

    /// Queues a text that is shared with other sockets.
    pub fn feed_shared(&mut self, text: Arc<str>) {
        metrics::frames("out", 1);
        self.wire.queue_shared("", text, "");
    }

    /// Queues an event.
    pub fn feed_event(&mut self, cursor: Cursor, encoded: EncodedEvent) {
        metrics::frames("out", 1);
        let prefix = events::frame_prefix(cursor);
        self.wire
            .queue_shared(&prefix, encoded, events::FRAME_SUFFIX);
    }

    /// Whether the queue should be flushed before more is queued.
    pub fn is_full(&self) -> bool {
        self.wire.queued() > WRITE_QUEUE_BYTES
    }

    /// Whether something waits to be written.
    pub fn has_queue(&self) -> bool {
        !self.wire.is_flushed()
    }

    /// Writes the queue. The client must take it at the least pace. Cancel safe.
    pub async fn flush(&mut self) -> Result<(), Close> {
        let began = Instant::now();
        let mut taken = 0;
        loop {
            let before = self.wire.queued();
            let step = poll_fn(|cx| {
                let flushed = self.wire.poll_flush(cx);
                let moved = self.wire.queued() != before;
                if flushed.is_pending() && moved {
                    Poll::Ready(Ok(false))
                } else {
                    flushed.map_ok(|()| true)
                }
            });
            match tokio::time::timeout_at(began + paced(taken), step).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => {
                    taken += before.saturating_sub(self.wire.queued()) as u64;
                }
                Ok(Err(_)) => return Err(Close::Broken),
                Err(_) => return Err(Close::SlowConsumer),
            }
        }
    }

    /// Drops the queue, except for a frame that has been begun.
    pub fn forget(&mut self) {
        self.wire.forget_queue();
    }

    /// Writes a text frame now.
    pub async fn say(&mut self, text: impl AsRef<str>) -> Result<(), Close> {
        self.feed(text.as_ref());
        self.flush().await
    }

    /// Writes a binary frame now.
    pub async fn say_bytes(&mut self, bytes: &[u8]) -> Result<(), Close> {
        self.wire.queue(Kind::Binary, bytes);
        self.flush().await
    }

    /// Queues a ping.
    pub fn feed_ping(&mut self) {
        self.wire.queue(Kind::Ping, &[]);
    }

    /// Closes with the code, unless the client has gone. The rest of its data is read and dropped
    /// for a moment, so that a reset does not destroy the close frame.
    pub async fn end(mut self, end: SessionEnd) {
        match end {
            SessionEnd::Close(close) => {
                metrics::socket_closed(close.code());
                if close == Close::SlowConsumer {
                    self.forget();
                }
                self.wire.queue_close(close.code(), close.reason());
            }
            SessionEnd::Silent => return,
            SessionEnd::PeerGone if !self.wire.is_closed() => return,
            SessionEnd::PeerGone => {}
        }
        let farewell = async {
            self.flush().await.ok();
            self.wire.shut_down().await;
        };
        tokio::time::timeout(CLOSE_TIMEOUT, farewell).await.ok();
    }
}

/// Translates a message for the session.
fn incoming(message: Message) -> Incoming {
    match message {
        Message::Text(text) => {
            metrics::frames("in", 1);
            Incoming::Text(text)
        }
        Message::Binary(bytes) => Incoming::Binary(bytes),
        Message::Ping(_) | Message::Pong => Incoming::Alive,
        Message::Close(_) => Incoming::Gone,
    }
}

/// The code that tells a client which rule it broke.
fn close(fault: Fault) -> Close {
    match fault {
        Fault::Protocol => Close::Protocol,
        Fault::Encoding => Close::Encoding,
        Fault::TooBig => Close::TooBig,
    }
}
