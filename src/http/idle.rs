//! Deadlines of an idle connection: ten seconds for its first byte, then 75 s without a byte in
//! either direction.
//!
//! Sockets ping every 25 s and polls answer within 25 s, so only dead and unused connections reach
//! the deadline. The head of a request has ten seconds from its first byte. hyper's own deadline
//! begins with the end of the request before. It would close idle connections after ten seconds,
//! just when a client or load balancer uses them again.

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

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// Deadline of the first byte.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence after the first byte.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

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
    turn: AtomicU64,
    lingers: AtomicBool,
}

impl RequestPhase {
    /// Begins the next phase: a head is complete, or its answer is written.
    pub fn next(&self) {
        self.0.turn.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets the connection linger: the client may still be sending when the answer ends it.
    pub fn linger(&self) {
        self.0.lingers.store(true, Ordering::Relaxed);
    }

    /// The number of the awaited head; none while a request is answered.
    fn awaited(&self) -> Option<u64> {
        Some(self.0.turn.load(Ordering::Relaxed)).filter(|turn| turn.is_multiple_of(2))
    }
}

/// A stream with these deadlines.
pub struct Guarded<S> {
    stream: S,
    turns: RequestPhase,
    /// The head in progress, and the time of its first byte.
    head: Option<(u64, Instant)>,
    patience: Duration,
    active_at: Instant,
    timer: Pin<Box<Sleep>>,
    /// Whether the write side is closed. Bytes that still arrive are dropped.
    lingering: bool,
}

impl<S> Guarded<S> {
    /// Wraps a stream and waits for its first byte.
    pub fn new(stream: S, turns: RequestPhase) -> Self {
        let timer = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        Guarded {
            stream,
            turns,
            head: None,
            patience: PREFACE_TIMEOUT,
            active_at: Instant::now(),
            timer,
            lingering: false,
        }
    }

    fn active(&mut self) {
        self.patience = IDLE_TIMEOUT;
        self.active_at = Instant::now();
    }

    /// The next deadline.
    fn until(&self) -> Instant {
        let silent = self.active_at + self.patience;
        match self.head {
            Some((turn, began)) if self.turns.awaited() == Some(turn) => {
                silent.min(began + HEAD_TIMEOUT)
            }
            _ => silent,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, into) {
            self.active();
            let awaited = self.turns.awaited();
            if self.head.map(|(turn, _)| turn) != awaited {
                self.head = awaited.map(|turn| (turn, self.active_at));
            }
            return Poll::Ready(read);
        }
        let until = self.until();
        if until < self.timer.deadline() {
            self.timer.as_mut().reset(until);
        }
        // A later deadline needs no reset per byte: the timer moves when it fires.
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if until <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(until);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.active();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bytes));
        self.active();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.lingering {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.turns.0.lingers.load(Ordering::Relaxed) {
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
