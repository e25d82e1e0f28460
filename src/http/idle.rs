//! Deadlines of a connection: ten seconds for its first byte, then 75 s without a byte in either
//! direction. On HTTP/2, 75 s without a request: bytes alone, such as pings, keep nothing open.
//!
//! Sockets ping every 25 s and polls answer within 25 s, so only dead and unused connections reach
//! the idle deadline. A client must take answers at a least pace. The head of a request has ten
//! seconds from its first byte. hyper's own deadline begins with the end of the request before. It
//! would close idle connections after ten seconds, just when a client uses them again.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{
    connections::Connection,
    write_pace::{Answers, paced},
};

/// Deadline of the first byte.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a request's head, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// After an answer that ends the connection, the client has this long to read it and to stop
/// sending.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of a connection: a head is awaited or a request is answered. Clones share it.
#[derive(Clone, Default)]
pub struct RequestPhase(Arc<Phase>);

#[derive(Default)]
struct Phase {
    /// Even while a head is awaited, odd while a request is answered.
    number: AtomicU64,
    lingers: AtomicBool,
    /// A WebSocket has the connection, with deadlines of its own for what it writes.
    upgraded: AtomicBool,
    /// The deadline that ended the connection.
    missed: Mutex<Option<&'static str>>,
}

impl RequestPhase {
    /// Begins the next phase: a head is complete, or its answer is written.
    pub fn next(&self) {
        self.0.number.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets the connection linger: the client may still be sending when the answer ends it.
    pub fn linger(&self) {
        self.0.lingers.store(true, Ordering::Relaxed);
    }

    /// Whether an answer ends the connection.
    pub fn lingers(&self) -> bool {
        self.0.lingers.load(Ordering::Relaxed)
    }

    /// Notes that a WebSocket takes the connection over.
    pub fn upgrade(&self) {
        self.0.upgraded.store(true, Ordering::Relaxed);
    }

    /// Whether a WebSocket has the connection.
    pub fn is_upgraded(&self) -> bool {
        self.0.upgraded.load(Ordering::Relaxed)
    }

    /// The deadline that ended the connection: `first_byte`, `idle`, `head` or `pace`.
    pub fn missed(&self) -> Option<&'static str> {
        *self.0.missed.lock()
    }

    /// The number of the awaited head; none while a request is answered.
    fn awaited(&self) -> Option<u64> {
        Some(self.0.number.load(Ordering::Relaxed)).filter(|number| number.is_multiple_of(2))
    }
}

/// A stream with these deadlines.
pub struct WatchedStream<S> {
    stream: S,
    phase: RequestPhase,
    answers: Answers,
    rules: Rules,
    /// The head in progress, and the time of its first byte.
    head: Option<(u64, Instant)>,
    heard: bool,
    active_at: Instant,
    timer: Pin<Box<Sleep>>,
    /// The write that the client does not take: its begin, and the bytes taken since.
    stalled: Option<(Instant, u64)>,
    /// Made for the first stalled write, since most clients read.
    write_timer: Option<Pin<Box<Sleep>>>,
    /// Whether the write side is closed. Bytes that still arrive are dropped.
    lingering: bool,
    #[expect(dead_code, reason = "held, not read")]
    entry: Connection,
}

/// How a connection is used.
pub struct Rules {
    /// Whether requests overlap. Then only requests count as use, and not bytes.
    pub h2: bool,
    /// The life of a connection without use.
    pub idle_timeout: Duration,
}

impl<S> WatchedStream<S> {
    /// Wraps a stream and waits for its first byte.
    pub fn new(
        stream: S,
        phase: RequestPhase,
        answers: Answers,
        rules: Rules,
        entry: Connection,
    ) -> Self {
        let timer = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        WatchedStream {
            stream,
            phase,
            answers,
            rules,
            head: None,
            heard: false,
            active_at: Instant::now(),
            timer,
            stalled: None,
            write_timer: None,
            lingering: false,
            entry,
        }
    }

    fn active(&mut self) {
        self.heard = true;
        self.active_at = Instant::now();
    }

    /// The next deadline, and what is missed then.
    fn until(&self) -> (Instant, &'static str) {
        if !self.heard {
            return (self.active_at + PREFACE_TIMEOUT, "first_byte");
        }
        // Pings of the node find a dead client that waits for an answer over HTTP/2.
        let used = match self.answers.quiet_since() {
            Some(quiet) if self.rules.h2 => quiet,
            None if self.rules.h2 => Instant::now(),
            _ => self.active_at,
        };
        let mut next = (used + self.rules.idle_timeout, "idle");
        if let Some((head, began)) = self.head
            && self.phase.awaited() == Some(head)
        {
            next = next.min((began + HEAD_TIMEOUT, "head"));
        }
        match self.answers.deadline() {
            Some(deadline) if !self.phase.is_upgraded() => next.min((deadline, "pace")),
            _ => next,
        }
    }

    fn miss(&self, what: &'static str) -> io::Error {
        self.phase.0.missed.lock().get_or_insert(what);
        io::ErrorKind::TimedOut.into()
    }

    /// A write that the client does not take: an error once it is too slow. A WebSocket has a
    /// deadline of its own.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.phase.is_upgraded() {
            return Poll::Pending;
        }
        let (began, taken) = *self.stalled.get_or_insert((Instant::now(), 0));
        let until = began + paced(taken);
        let timer = self
            .write_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        timer.as_mut().reset(until);
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(self.miss("pace"))
    }

    fn wrote(&mut self, written: &io::Result<usize>) {
        self.active();
        if let (Some((_, taken)), Ok(bytes)) = (&mut self.stalled, written) {
            *taken += *bytes as u64;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_ready() {
            self.active();
            let awaited = self.phase.awaited();
            if self.head.map(|(head, _)| head) != awaited {
                self.head = awaited.map(|head| (head, self.active_at));
            }
            // A client that only talks must take its answers as well.
            if !self.rules.h2 {
                return read;
            }
        }
        let (until, what) = self.until();
        if until < self.timer.deadline() {
            self.timer.as_mut().reset(until);
        }
        // A later deadline needs no reset per byte: the timer moves when it fires.
        loop {
            if self.timer.as_mut().poll(cx).is_pending() {
                return read;
            }
            if until <= Instant::now() {
                return Poll::Ready(Err(self.miss(what)));
            }
            self.timer.as_mut().reset(until);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Ready(written) => {
                self.wrote(&written);
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_stalled(cx).map(Err),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, bytes) {
            Poll::Ready(written) => {
                self.wrote(&written);
                Poll::Ready(written)
            }
            Poll::Pending => self.poll_stalled(cx).map(Err),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Ready(flushed) => {
                // Everything that was written has been taken.
                self.stalled = None;
                Poll::Ready(flushed)
            }
            Poll::Pending => self.poll_stalled(cx).map(Err),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.lingering {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.phase.lingers() {
                return Poll::Ready(Ok(()));
            }
            self.lingering = true;
            self.timer.as_mut().reset(Instant::now() + LINGER_TIMEOUT);
        }
        // Closing while bytes arrive resets the connection, and a reset can overtake the answer.
        let mut dropped = [0; 4096];
        loop {
            if self.timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut dropped);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
