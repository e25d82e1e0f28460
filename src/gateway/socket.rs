//! A WebSocket with the gateway's rules: bounded queues, a deadline for every write, a code for
//! every close.
//!
//! Outgoing pieces are queued, may be shared with other sockets, and are written many at a time.
//! Reads go through a buffer that all sockets of a thread share. So an idle socket holds no buffer
//! at all. A large event is in memory once, however many sockets send it.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, Sleep},
};

use super::{
    close::{Close, SessionEnd},
    codec::{self, Decoder, Kind, Message},
};
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
/// Most bytes of a read.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// Most pieces of a write.
const MAX_WRITE_SLICES: usize = 48;
/// Bytes in the queue at which it should be flushed.
const WRITE_QUEUE_BYTES: usize = 64 * 1024;

thread_local! {
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BUFFER_BYTES].into());
}

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

/// A frame that waits to be written.
struct Frame {
    head: Vec<u8>,
    body: Option<Arc<str>>,
    suffix: &'static str,
    pong: bool,
}

impl Frame {
    fn plain(kind: Kind, payload: &[u8]) -> Self {
        Frame {
            head: codec::frame(kind, payload),
            body: None,
            suffix: "",
            pong: false,
        }
    }

    fn parts(&self) -> [&[u8]; 3] {
        [
            &self.head,
            self.body.as_deref().unwrap_or_default().as_bytes(),
            self.suffix.as_bytes(),
        ]
    }

    fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

/// The socket of a client.
pub struct Socket {
    stream: TokioIo<Upgraded>,
    decoder: Decoder,
    /// Bytes that were read behind the last frame.
    rest: Vec<u8>,
    /// The largest accepted message.
    max_message_bytes: usize,
    queue: VecDeque<Frame>,
    /// Bytes in the queue, and the written bytes of its first frame.
    queued: usize,
    written: usize,
    /// Whether the client has closed and was answered.
    closed: bool,
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
            stream: TokioIo::new(upgraded),
            decoder: Decoder::default(),
            rest: Vec::new(),
            max_message_bytes: MAX_AUTH_FRAME_BYTES,
            queue: VecDeque::new(),
            queued: 0,
            written: 0,
            closed: false,
            account: None,
            arriving: None,
        }
    }

    /// Allows larger messages after the authentication, within the budget.
    pub fn let_in(&mut self, buffers: ByteBudget, owner: Owner) {
        self.max_message_bytes = MAX_WIRE_MESSAGE_BYTES;
        self.account = Some((buffers, owner));
    }

    /// Watches a message that arrives in parts: its pace, and the bytes that it holds. An error if
    /// either is beyond the rules.
    fn poll_arriving(&mut self, cx: &mut Context<'_>) -> Poll<Close> {
        let bytes = self.decoder.held();
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
            // A pong is written as soon as possible. A client that does not take it may still send.
            if !self.queue.is_empty() && matches!(self.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(Incoming::Gone);
            }
            if let Some(incoming) = self.decode_rest() {
                return Poll::Ready(incoming);
            }
            let (decoder, rest, max_message_bytes) =
                (&mut self.decoder, &mut self.rest, self.max_message_bytes);
            let stream = Pin::new(&mut self.stream);
            let read = READ_BUFFER.with_borrow_mut(|scratch| {
                let mut scratch = ReadBuf::new(scratch);
                match stream.poll_read(cx, &mut scratch) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Err(_)) => Poll::Ready(None),
                    Poll::Ready(Ok(())) if scratch.filled().is_empty() => Poll::Ready(None),
                    Poll::Ready(Ok(())) => {
                        let mut bytes = scratch.filled();
                        let message = decoder.read(&mut bytes, max_message_bytes);
                        rest.extend_from_slice(bytes);
                        Poll::Ready(Some(message))
                    }
                }
            });
            let message = match read {
                Poll::Ready(Some(message)) => message,
                Poll::Ready(None) => return Poll::Ready(Incoming::Gone),
                Poll::Pending => return self.poll_arriving(cx).map(Incoming::Fault),
            };
            if let Some(incoming) = self.judge(message) {
                // Unless a part of the next one came with it.
                if self.decoder.held() == 0 {
                    self.arriving = None;
                }
                return Poll::Ready(incoming);
            }
            if let Poll::Ready(close) = self.poll_arriving(cx) {
                return Poll::Ready(Incoming::Fault(close));
            }
        }
    }

    fn decode_rest(&mut self) -> Option<Incoming> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let mut bytes = &rest[..];
        let message = self.decoder.read(&mut bytes, self.max_message_bytes);
        if !bytes.is_empty() {
            self.rest = bytes.to_vec();
        }
        self.judge(message)
    }

    /// Translates a message for the session; none if it has no meaning there.
    fn judge(&mut self, message: Result<Option<Message>, Close>) -> Option<Incoming> {
        Some(match message {
            Ok(None) => return None,
            Ok(Some(Message::Text(text))) => {
                metrics::frames("in", 1);
                Incoming::Text(text)
            }
            Ok(Some(Message::Binary(bytes))) => Incoming::Binary(bytes),
            Ok(Some(Message::Ping(payload))) => {
                self.owe_pong(&payload);
                Incoming::Alive
            }
            Ok(Some(Message::Pong)) => Incoming::Alive,
            Ok(Some(Message::Close(code))) => {
                let code = code.map(u16::to_be_bytes);
                self.push(Frame::plain(
                    Kind::Close,
                    code.as_ref().map_or(&[], |code| code),
                ));
                self.closed = true;
                Incoming::Gone
            }
            Err(close) => Incoming::Fault(close),
        })
    }

    /// Queues a pong. Only the latest ping needs an answer (RFC 6455, 5.5.3), so a client that
    /// reads none cannot fill the queue.
    fn owe_pong(&mut self, payload: &[u8]) {
        let begun = self.queue.len() == 1 && self.written > 0;
        if let Some(last) = self.queue.pop_back_if(|frame| frame.pong && !begun) {
            self.queued -= last.len();
        }
        self.push(Frame {
            pong: true,
            ..Frame::plain(Kind::Pong, payload)
        });
    }

    fn push(&mut self, frame: Frame) {
        self.queued += frame.len();
        self.queue.push_back(frame);
    }

    /// Queues a text.
    pub fn feed(&mut self, text: &str) {
        metrics::frames("out", 1);
        self.push(Frame::plain(Kind::Text, text.as_bytes()));
    }

    /// Queues a text that is shared with other sockets.
    pub fn feed_shared(&mut self, text: Arc<str>) {
        metrics::frames("out", 1);
        let head = codec::begin(Kind::Text, text.len(), 0);
        self.push(Frame {
            head,
            body: Some(text),
            suffix: "",
            pong: false,
        });
    }

    /// Queues an event.
    pub fn feed_event(&mut self, cursor: Cursor, encoded: EncodedEvent) {
        metrics::frames("out", 1);
        let front = events::frame_prefix(cursor);
        let length = front.len() + encoded.len() + events::FRAME_SUFFIX.len();
        let mut head = codec::begin(Kind::Text, length, front.len());
        head.extend_from_slice(front.as_bytes());
        self.push(Frame {
            head,
            body: Some(encoded),
            suffix: events::FRAME_SUFFIX,
            pong: false,
        });
    }

    /// Whether the queue should be flushed before more is queued.
    pub fn is_full(&self) -> bool {
        self.queued > WRITE_QUEUE_BYTES
    }

    /// Whether something waits to be written.
    pub fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Writes the queue. The client must take it at the least pace. Cancel safe.
    pub async fn flush(&mut self) -> Result<(), Close> {
        let began = Instant::now();
        let mut taken = 0;
        loop {
            let before = (self.queued, self.written);
            let step = poll_fn(|cx| {
                let flushed = self.poll_flush(cx);
                let moved = (self.queued, self.written) != before;
                if flushed.is_pending() && moved {
                    Poll::Ready(Ok(false))
                } else {
                    flushed.map_ok(|()| true)
                }
            });
            match tokio::time::timeout_at(began + paced(taken), step).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => {
                    let left = self.queued - self.written;
                    taken += (before.0 - before.1).saturating_sub(left) as u64;
                }
                Ok(Err(_)) => return Err(Close::Broken),
                Err(_) => return Err(Close::SlowConsumer),
            }
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_WRITE_SLICES];
            let mut n = 0;
            let mut skip = self.written;
            for part in self.queue.iter().flat_map(Frame::parts) {
                let unwritten = &part[skip.min(part.len())..];
                skip -= part.len() - unwritten.len();
                if unwritten.is_empty() {
                    continue;
                }
                if n == MAX_WRITE_SLICES {
                    break;
                }
                slices[n] = IoSlice::new(unwritten);
                n += 1;
            }
            let wrote = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..n]))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(wrote);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn advance(&mut self, wrote: usize) {
        self.written += wrote;
        while let Some(first) = self.queue.front().map(Frame::len)
            && first <= self.written
        {
            self.queue.pop_front();
            self.written -= first;
            self.queued -= first;
        }
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
    }

    /// Drops the queue, except for a frame that has been begun.
    pub fn forget(&mut self) {
        self.queue.truncate(usize::from(self.written > 0));
        self.queued = self.queue.iter().map(Frame::len).sum();
    }

    /// Writes a text frame now.
    pub async fn say(&mut self, text: impl AsRef<str>) -> Result<(), Close> {
        self.feed(text.as_ref());
        self.flush().await
    }

    /// Writes a binary frame now.
    pub async fn say_bytes(&mut self, bytes: &[u8]) -> Result<(), Close> {
        self.push(Frame::plain(Kind::Binary, bytes));
        self.flush().await
    }

    /// Queues a ping.
    pub fn feed_ping(&mut self) {
        self.push(Frame::plain(Kind::Ping, &[]));
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
                if !self.closed {
                    let payload = [&close.code().to_be_bytes(), close.reason().as_bytes()].concat();
                    self.push(Frame::plain(Kind::Close, &payload));
                }
            }
            SessionEnd::PeerGone if !self.closed => return,
            SessionEnd::PeerGone => {}
        }
        let farewell = async {
            self.flush().await.ok();
            self.stream.shutdown().await.ok();
            let mut rest = [0; 1024];
            while self.stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
        };
        tokio::time::timeout(CLOSE_TIMEOUT, farewell).await.ok();
    }
}
