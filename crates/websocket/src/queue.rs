//! The frames that wait to be written.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use crate::frame::{Frame, Kind};

/// Most pieces of a write.
const MAX_WRITE_SLICES: usize = 48;

/// A queue of frames. An empty one holds no memory.
#[derive(Default)]
pub(crate) struct Queue {
    frames: VecDeque<Frame>,
    /// Bytes of all frames.
    bytes: usize,
    /// The written bytes of the first frame.
    written: usize,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes that are still to be written.
    pub(crate) fn unwritten(&self) -> usize {
        self.bytes - self.written
    }

    pub(crate) fn push(&mut self, frame: Frame) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Queues a pong. Only the latest ping needs an answer (RFC 6455, 5.5.3), so a client that
    /// reads none cannot fill the queue.
    pub(crate) fn push_pong(&mut self, payload: &[u8]) {
        let begun = self.frames.len() == 1 && self.written > 0;
        if let Some(last) = self.frames.pop_back_if(|frame| frame.is_pong && !begun) {
            self.bytes -= last.len();
        }
        self.push(Frame::own(Kind::Pong, payload));
    }

    /// Drops the frames, except for one that has been begun.
    pub(crate) fn forget(&mut self) {
        self.frames.truncate(usize::from(self.written > 0));
        self.bytes = self.frames.iter().map(Frame::len).sum();
    }

    /// Writes all frames, many at a time.
    pub(crate) fn poll_write(
        &mut self,
        mut stream: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_WRITE_SLICES];
            let n = self.fill(&mut slices);
            let wrote = ready!(stream.as_mut().poll_write_vectored(cx, &slices[..n]))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(wrote);
        }
        stream.poll_flush(cx)
    }

    /// Fills `slices` with the next unwritten pieces, and returns their number.
    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_WRITE_SLICES]) -> usize {
        let (mut n, mut skip) = (0, self.written);
        for part in self.frames.iter().flat_map(Frame::parts) {
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
        n
    }

    fn advance(&mut self, wrote: usize) {
        self.written += wrote;
        while let Some(first) = self.frames.front().map(Frame::len)
            && first <= self.written
        {
            self.frames.pop_front();
            self.written -= first;
            self.bytes -= first;
        }
        if self.frames.is_empty() {
            self.frames = VecDeque::new();
        }
    }
}
