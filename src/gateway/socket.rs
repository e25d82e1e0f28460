//! A WebSocket with our rules: bounded, no write without a deadline, closed with a code.
//!
//! What is sent is queued in pieces that may be shared with other sockets, and written many at a time. What is read goes
//! through a buffer that all sockets of a thread share. So an idle socket holds no buffer at all, and a large event is in
//! memory once, however many are sent it.

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
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::{
    close::Close,
    codec::{self, Decoder, Kind, Message},
};
use crate::{
    cursor::Cursor,
    events::{self, EncodedEvent},
    limits::quotas::{
        MAX_AUTH_FRAME_BYTES, MAX_MESSAGE_BYTES, MESSAGE_ENVELOPE_BYTES, WRITE_DEADLINE,
    },
    metrics,
};

/// How long a closed socket may take to say that it has seen it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest message of somebody who is known.
const MAX_WIRE_MESSAGE_BYTES: usize = MAX_MESSAGE_BYTES + MESSAGE_ENVELOPE_BYTES;
/// What is read at once.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// Pieces that are written at once.
const MAX_WRITE_SLICES: usize = 48;
/// Bytes in the queue from which on it should be flushed before more is queued.
const WRITE_QUEUE_BYTES: usize = 64 * 1024;

thread_local! {
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BUFFER_BYTES].into());
}

/// What a client did.
pub enum Heard {
    /// A text frame.
    Text(String),
    /// A binary frame, which `/ws` does not speak.
    Binary(Vec<u8>),
    /// A ping or pong: a sign of life.
    Alive,
    /// It went away, or closed.
    Gone,
    /// It broke a rule.
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

/// One client's socket.
pub struct Socket {
    stream: TokioIo<Upgraded>,
    decoder: Decoder,
    /// Bytes that came with a frame and are after it.
    rest: Vec<u8>,
    /// The largest message that is read.
    most: usize,
    queue: VecDeque<Frame>,
    /// Bytes in the queue, and those of its first frame that have been written.
    queued: usize,
    written: usize,
    /// Whether the client has closed, and was answered.
    closed: bool,
}

impl Socket {
    /// An upgraded connection, of a stranger so far.
    pub fn new(upgraded: Upgraded) -> Self {
        Socket {
            stream: TokioIo::new(upgraded),
            decoder: Decoder::default(),
            rest: Vec::new(),
            most: MAX_AUTH_FRAME_BYTES,
            queue: VecDeque::new(),
            queued: 0,
            written: 0,
            closed: false,
        }
    }

    /// It has authenticated: larger frames may come.
    pub fn let_in(&mut self) {
        self.most = MAX_WIRE_MESSAGE_BYTES;
    }

    /// The next frame. Cancel safe.
    pub async fn hear(&mut self) -> Heard {
        poll_fn(|cx| self.poll_hear(cx)).await
    }

    fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        loop {
            // A pong that is owed goes as soon as it can; who does not take it may still say something.
            if !self.queue.is_empty() && matches!(self.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(Heard::Gone);
            }
            if let Some(heard) = self.decode_rest() {
                return Poll::Ready(heard);
            }
            let (decoder, rest, most) = (&mut self.decoder, &mut self.rest, self.most);
            let stream = Pin::new(&mut self.stream);
            let read = READ_BUFFER.with_borrow_mut(|scratch| {
                let mut scratch = ReadBuf::new(scratch);
                match stream.poll_read(cx, &mut scratch) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Err(_)) => Poll::Ready(None),
                    Poll::Ready(Ok(())) if scratch.filled().is_empty() => Poll::Ready(None),
                    Poll::Ready(Ok(())) => {
                        let mut bytes = scratch.filled();
                        let message = decoder.read(&mut bytes, most);
                        rest.extend_from_slice(bytes);
                        Poll::Ready(Some(message))
                    }
                }
            });
            let Some(message) = ready!(read) else {
                return Poll::Ready(Heard::Gone);
            };
            if let Some(heard) = self.judge(message) {
                return Poll::Ready(heard);
            }
        }
    }

    fn decode_rest(&mut self) -> Option<Heard> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let mut bytes = &rest[..];
        let message = self.decoder.read(&mut bytes, self.most);
        if !bytes.is_empty() {
            self.rest = bytes.to_vec();
        }
        self.judge(message)
    }

    /// What a message means to the session, if anything.
    fn judge(&mut self, message: Result<Option<Message>, Close>) -> Option<Heard> {
        Some(match message {
            Ok(None) => return None,
            Ok(Some(Message::Text(text))) => {
                metrics::frames("in", 1);
                Heard::Text(text)
            }
            Ok(Some(Message::Binary(bytes))) => Heard::Binary(bytes),
            Ok(Some(Message::Ping(payload))) => {
                self.owe_pong(&payload);
                Heard::Alive
            }
            Ok(Some(Message::Pong)) => Heard::Alive,
            Ok(Some(Message::Close(code))) => {
                let code = code.map(u16::to_be_bytes);
                self.push(Frame::plain(
                    Kind::Close,
                    code.as_ref().map_or(&[], |code| code),
                ));
                self.closed = true;
                Heard::Gone
            }
            Err(close) => Heard::Fault(close),
        })
    }

    /// Only the latest ping needs an answer (RFC 6455, 5.5.3), so a client that reads none does not fill the queue.
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

    /// Queues a text that others are sent, too.
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

    /// Whether what is queued should be flushed before more is.
    pub fn is_full(&self) -> bool {
        self.queued > WRITE_QUEUE_BYTES
    }

    /// Writes what is queued. A client that takes not a byte for ten seconds is too slow. Cancel safe.
    pub async fn flush(&mut self) -> Result<(), Close> {
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
            match tokio::time::timeout(WRITE_DEADLINE, step).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => {}
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

    /// Forgets what is queued, but for a frame that has been begun.
    pub fn forget(&mut self) {
        self.queue.truncate(usize::from(self.written > 0));
        self.queued = self.queue.iter().map(Frame::len).sum();
    }

    /// Writes one frame now.
    pub async fn say(&mut self, text: impl AsRef<str>) -> Result<(), Close> {
        self.feed(text.as_ref());
        self.flush().await
    }

    /// Writes one binary frame now.
    pub async fn say_bytes(&mut self, bytes: &[u8]) -> Result<(), Close> {
        self.push(Frame::plain(Kind::Binary, bytes));
        self.flush().await
    }

    /// Asks for a sign of life.
    pub async fn ping(&mut self) -> Result<(), Close> {
        self.push(Frame::plain(Kind::Ping, &[]));
        self.flush().await
    }

    /// Says why and closes, unless the client has gone (`None`). What it still says is not listened to, but read for a
    /// moment, so that our last word is not lost to a reset.
    pub async fn end(mut self, why: Option<Close>) {
        if let Some(why) = why {
            metrics::socket_closed(why.code());
            if why == Close::SlowConsumer {
                self.forget();
            }
            if !self.closed {
                let payload = [&why.code().to_be_bytes(), why.row().1.as_bytes()].concat();
                self.push(Frame::plain(Kind::Close, &payload));
            }
        } else if !self.closed {
            return;
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
