//! What stands in front of a socket until it is authenticated. It reads the heads of frames as they come, and a message
//! that says it is larger than a stranger's may be is refused there, before anything of it is read. The library has
//! one bound for the whole life of a socket.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::quotas::AUTH_FRAME_BYTES;

/// The longest head of a frame.
const HEAD: usize = 14;

/// A stream that is watched until it is opened.
pub struct Gate<S> {
    stream: S,
    watch: Option<Box<Watch>>,
}

/// Where in its first frames a stranger is.
#[derive(Default)]
struct Watch {
    head: [u8; HEAD],
    got: usize,
    /// Bytes of a payload that are still to come.
    left: usize,
    /// Bytes of the message under way, over its fragments.
    message: usize,
    too_big: bool,
}

impl<S> Gate<S> {
    /// Closed: watching.
    pub fn new(stream: S) -> Self {
        Gate { stream, watch: Some(Box::default()) }
    }

    /// Whoever it is has been let in.
    pub fn open(&mut self) {
        self.watch = None;
    }

    /// Whether reading ended because of a message that is too large.
    pub fn refused(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.too_big)
    }
}

impl Watch {
    /// How much may be read without missing the head of the next frame.
    fn step(&self) -> usize {
        if self.left > 0 { self.left } else { self.head_length() - self.got }
    }

    /// As far as it is known.
    fn head_length(&self) -> usize {
        if self.got < 2 {
            return 2;
        }
        let extended = match self.head[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + extended + if self.head[1] & 0x80 == 0 { 0 } else { 4 }
    }

    fn saw(&mut self, bytes: &[u8]) {
        if self.left > 0 {
            self.left -= bytes.len();
            return;
        }
        self.head[self.got..self.got + bytes.len()].copy_from_slice(bytes);
        self.got += bytes.len();
        if self.got < 2 || self.got < self.head_length() {
            return;
        }
        let [first, second, extended @ ..] = &self.head;
        let length = match second & 0x7f {
            126 => usize::from(u16::from_be_bytes([extended[0], extended[1]])),
            127 => extended[..8]
                .iter()
                .fold(0, |length: usize, byte| length.saturating_mul(256).saturating_add(usize::from(*byte))),
            short => usize::from(short),
        };
        let message = match first & 0x0f {
            0 => self.message.saturating_add(length),
            _ => length,
        };
        // Control frames, from 8 on, may stand between the fragments.
        if first & 0x08 == 0 {
            self.message = message;
        }
        self.too_big = message > AUTH_FRAME_BYTES;
        (self.got, self.left) = (0, length);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gate<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Gate { stream, watch } = &mut *self;
        let Some(watch) = watch else { return Pin::new(stream).poll_read(cx, into) };
        let most = watch.step().min(into.remaining());
        let mut some = ReadBuf::new(into.initialize_unfilled_to(most));
        ready!(Pin::new(stream).poll_read(cx, &mut some))?;
        let read = some.filled();
        watch.saw(read);
        let read = read.len();
        if watch.too_big {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        into.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gate<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(first: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match length {
            0..=125 => bytes.push(0x80 | length as u8),
            126..=0xffff => bytes.extend([0xfe, (length >> 8) as u8, length as u8]),
            _ => {
                bytes.push(0xff);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend([1, 2, 3, 4]);
        bytes.resize(bytes.len() + length, b'x');
        bytes
    }

    /// How many bytes come through, and whether the rest was refused.
    async fn through(bytes: &[u8]) -> (usize, bool) {
        let mut gate = Gate::new(bytes);
        let (mut got, mut some) = (0, [0; 1000]);
        loop {
            match gate.read(&mut some).await {
                Ok(0) => return (got, false),
                Ok(n) => got += n,
                Err(_) => return (got, gate.refused()),
            }
        }
    }

    #[tokio::test]
    async fn a_message_is_refused_at_the_head_that_makes_it_too_large() {
        let fits =
            [frame(0x81, 16 * 1024), frame(0x89, 125), frame(0x81, 0), frame(0x81, 16 * 1024)].concat();
        assert_eq!(through(&fits).await, (fits.len(), false));
        // Two bytes of the head had been let through before the rest of it said how long it is.
        for length in [16 * 1024 + 1, 60_000, 70_000] {
            let (got, refused) = through(&frame(0x81, length)).await;
            assert!(refused && got <= 2, "{length}: {got}");
        }
        assert!(through(&[0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]).await.1);
        let pieces = [frame(0x01, 10_000), frame(0x89, 100), frame(0x00, 6384)].concat();
        assert_eq!(through(&pieces).await, (pieces.len(), false));
        let (got, refused) = through(&[pieces.clone(), frame(0x80, 1)].concat()).await;
        assert!(refused && got < pieces.len() + 8);
    }
}
