//! A connection that says nothing is closed: after ten seconds if it never said anything, else after 75 s without a byte
//! in either direction. Sockets ping every 25 s and polls answer within 25 s, so only the dead and the idle are met.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// For the first byte,
const GREETING: Duration = Duration::from_secs(10);
/// and for every later one.
const IDLE: Duration = Duration::from_secs(75);

/// A stream with these deadlines.
pub struct Guarded<S> {
    stream: S,
    patience: Duration,
    active_at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S> Guarded<S> {
    /// Starts waiting for the first byte.
    pub fn new(stream: S) -> Self {
        let timer = Box::pin(tokio::time::sleep(GREETING));
        Guarded { stream, patience: GREETING, active_at: Instant::now(), timer }
    }

    fn active(&mut self) {
        self.patience = IDLE;
        self.active_at = Instant::now();
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
            return Poll::Ready(read);
        }
        // The timer is moved when it fires rather than at every byte.
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let until = self.active_at + self.patience;
            if until <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(until);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
