//! A server's end of a WebSocket, over any stream.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::{
    decoder::{Decoder, Fault, Message},
    frame::{Frame, Kind},
    queue::Queue,
};

/// Most bytes of a read.
const READ_BUFFER_BYTES: usize = 16 * 1024;

thread_local! {
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BUFFER_BYTES].into());
}

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A message is complete.
    Message(Message),
    /// A part of a message has come.
    Part,
    /// The connection has ended.
    End,
}

/// A server's end of a WebSocket. An idle one holds no buffer.
pub struct Socket<S> {
    stream: S,
    decoder: Decoder,
    /// Bytes that were read behind the last message.
    rest: Vec<u8>,
    max_message_bytes: usize,
    queue: Queue,
    /// Whether the client has closed and was answered.
    is_closed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    /// A socket over an upgraded stream. It accepts messages of up to `max_message_bytes`.
    pub fn new(stream: S, max_message_bytes: usize) -> Self {
        Socket {
            stream,
            decoder: Decoder::default(),
            rest: Vec::new(),
            max_message_bytes,
            queue: Queue::default(),
            is_closed: false,
        }
    }

    /// Changes the largest accepted message, for example after an authentication.
    pub fn set_max_message_bytes(&mut self, max_message_bytes: usize) {
        self.max_message_bytes = max_message_bytes;
    }

    /// Bytes that are held of the message in progress.
    pub fn held(&self) -> usize {
        self.decoder.held()
    }

    /// Whether the client has closed. Its close frame has an answer in the queue.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads the next message or a part of it. It queues the answers to pings and to a close.
    ///
    /// The queue is written first, because a pong must leave as soon as possible. A client that
    /// does not take it may still send. After a failed write, what has come is read before the end.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Read, Fault>> {
        let is_broken =
            !self.queue.is_empty() && matches!(self.poll_flush(cx), Poll::Ready(Err(_)));
        match self.poll_incoming(cx) {
            Poll::Pending if is_broken => Poll::Ready(Ok(Read::End)),
            read => read,
        }
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Result<Read, Fault>> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            let mut bytes = &rest[..];
            let message = self.decoder.read(&mut bytes, self.max_message_bytes)?;
            if !bytes.is_empty() {
                self.rest = bytes.to_vec();
            }
            if let Some(message) = message {
                return Poll::Ready(Ok(self.answer(message)));
            }
        }
        let (decoder, rest, max) = (&mut self.decoder, &mut self.rest, self.max_message_bytes);
        let stream = Pin::new(&mut self.stream);
        let read = READ_BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let filled = stream.poll_read(cx, &mut buffer);
            filled.map(|outcome| {
                let mut bytes = match outcome {
                    Ok(()) if !buffer.filled().is_empty() => buffer.filled(),
                    _ => return Ok(None),
                };
                let message = decoder.read(&mut bytes, max)?;
                rest.extend_from_slice(bytes);
                Ok(Some(message))
            })
        });
        read.map_ok(|message| match message {
            None => Read::End,
            Some(None) => Read::Part,
            Some(Some(message)) => self.answer(message),
        })
    }

    /// Queues the answer that the protocol asks for, if any.
    fn answer(&mut self, message: Message) -> Read {
        match &message {
            Message::Ping(payload) => self.queue.push_pong(payload),
            Message::Close(code) => {
                let code = code.map(u16::to_be_bytes);
                let payload = code.as_ref().map_or(&[][..], |code| code);
                self.queue.push(Frame::own(Kind::Close, payload));
                self.is_closed = true;
            }
            Message::Text(_) | Message::Binary(_) | Message::Pong => {}
        }
        Read::Message(message)
    }

    /// Queues a frame.
    pub fn queue(&mut self, kind: Kind, payload: &[u8]) {
        self.queue.push(Frame::own(kind, payload));
    }

    /// Queues a text of three parts. Any number of sockets can share the body.
    pub fn queue_shared(&mut self, prefix: &str, body: Arc<str>, suffix: &'static str) {
        self.queue.push(Frame::shared(prefix, body, suffix));
    }

    /// Queues a close frame, unless the client has closed.
    pub fn queue_close(&mut self, code: u16, reason: &str) {
        if !self.is_closed {
            let payload = [&code.to_be_bytes(), reason.as_bytes()].concat();
            self.queue(Kind::Close, &payload);
        }
    }

    /// Bytes of the queue that are still to be written.
    pub fn queued(&self) -> usize {
        self.queue.unwritten()
    }

    /// Whether nothing waits to be written.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Drops the queue, except for a frame that has been begun.
    pub fn forget_queue(&mut self) {
        self.queue.forget();
    }

    /// Writes the queue.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll_write(Pin::new(&mut self.stream), cx)
    }

    /// Ends the stream, and reads and drops the rest of the client's data. A reset would destroy
    /// the close frame.
    pub async fn shut_down(&mut self) {
        self.stream.shutdown().await.ok();
        let mut rest = [0; 1024];
        while self.stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A connection that takes nothing, and from which some bytes have come.
    struct Broken(&'static [u8]);

    impl AsyncRead for Broken {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.0.is_empty() {
                return Poll::Pending;
            }
            buffer.put_slice(std::mem::take(&mut self.0));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Broken {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_came_before_a_failed_write_is_read_before_the_end() {
        let two_texts = b"\x81\x82\0\0\0\0hi\x81\x83\0\0\0\0you";
        let mut socket = Socket::new(Broken(two_texts), 100);
        socket.queue(Kind::Text, b"nobody gets this");
        let mut cx = Context::from_waker(Waker::noop());
        for text in ["hi", "you"] {
            let message = Message::Text(text.to_owned());
            assert_eq!(
                socket.poll_read(&mut cx),
                Poll::Ready(Ok(Read::Message(message)))
            );
        }
        assert_eq!(socket.poll_read(&mut cx), Poll::Ready(Ok(Read::End)));
    }
}
