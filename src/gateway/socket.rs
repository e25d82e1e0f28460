//! A WebSocket with our rules: bounded, no write without a deadline, closed with a code.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        error::ProtocolError,
        protocol::{CloseFrame, Role, WebSocketConfig},
    },
};

use super::{close::Close, gate::Gate};
use crate::{
    limits::quotas::{MESSAGE_BYTES, MESSAGE_ENVELOPE_BYTES, WRITE_DEADLINE},
    metrics as series,
};

/// How long a closed socket may take to say that it has seen it.
const FAREWELL: Duration = Duration::from_secs(1);
/// The largest frame, and the largest message.
const LARGEST: usize = MESSAGE_BYTES + MESSAGE_ENVELOPE_BYTES;
/// Read buffer of a socket: what an idle one costs is mostly its buffers.
const READ_BUFFER: usize = 2048;
/// Frames of one wake-up are gathered to this many bytes before they are written.
const WRITE_BUFFER: usize = 4096;

/// What a client did.
pub enum Heard {
    /// A text frame.
    Text(String),
    /// A binary frame, which `/ws` does not speak.
    Binary(bytes::Bytes),
    /// A ping or pong: a sign of life.
    Alive,
    /// It went away, or closed.
    Gone,
    /// It broke a rule.
    Fault(Close),
}

/// One client's socket.
pub struct Socket {
    stream: WebSocketStream<Gate<TokioIo<Upgraded>>>,
    /// Whether the client has closed, and was answered.
    closed: bool,
    /// Bytes of the frame before, which may still be under way: a slow link is given time for them.
    before: usize,
}

/// The slowest link that is served: a frame may take its size at this pace, beside the ten seconds.
const PACE: u64 = 64 * 1024;

impl Socket {
    /// An upgraded connection, of a stranger so far.
    pub async fn new(upgraded: Upgraded) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(WRITE_BUFFER)
            .max_write_buffer_size(4 * LARGEST)
            .max_frame_size(Some(LARGEST))
            .max_message_size(Some(LARGEST));
        let gate = Gate::new(TokioIo::new(upgraded));
        let stream = WebSocketStream::from_raw_socket(gate, Role::Server, Some(config)).await;
        Socket { stream, closed: false, before: 0 }
    }

    /// It has authenticated: larger frames may come.
    pub fn let_in(&mut self) {
        self.stream.get_mut().open();
    }

    /// The next frame. Cancel safe.
    pub async fn hear(&mut self) -> Heard {
        loop {
            return match self.stream.next().await {
                Some(Ok(Message::Text(text))) => {
                    series::frames("in", 1);
                    Heard::Text(text.as_str().to_owned())
                }
                Some(Ok(Message::Binary(bytes))) => Heard::Binary(bytes),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => Heard::Alive,
                Some(Ok(Message::Close(_))) => {
                    // The library's answer goes out with the next look, which finds the end.
                    self.closed = true;
                    continue;
                }
                Some(Err(_)) if self.stream.get_ref().refused() => Heard::Fault(Close::TooBig),
                Some(Err(error)) if !self.closed => fault(&error),
                Some(Ok(Message::Frame(_)) | Err(_)) | None => Heard::Gone,
            };
        }
    }

    /// Queues a frame for [`flush`](Self::flush).
    pub async fn feed(&mut self, text: impl Into<String>) -> Result<(), Close> {
        let text = text.into();
        series::frames("out", 1);
        let (deadline, bytes) = (self.patience(), text.len());
        // Returns when the frame before is through.
        within(deadline, self.stream.feed(Message::Text(text.into()))).await?;
        self.before = bytes;
        Ok(())
    }

    /// Writes what is queued.
    pub async fn flush(&mut self) -> Result<(), Close> {
        let deadline = self.patience();
        within(deadline, self.stream.flush()).await?;
        self.before = 0;
        Ok(())
    }

    /// Writes one frame now.
    pub async fn say(&mut self, text: impl Into<String>) -> Result<(), Close> {
        self.feed(text).await?;
        self.flush().await
    }

    /// Writes one binary frame now.
    pub async fn say_bytes(&mut self, bytes: bytes::Bytes) -> Result<(), Close> {
        let deadline = self.patience();
        within(deadline, self.stream.send(Message::Binary(bytes))).await
    }

    /// Asks for a sign of life.
    pub async fn ping(&mut self) -> Result<(), Close> {
        let deadline = self.patience();
        within(deadline, self.stream.send(Message::Ping(bytes::Bytes::new()))).await
    }

    fn patience(&self) -> Duration {
        WRITE_DEADLINE + Duration::from_millis(self.before as u64 * 1000 / PACE)
    }

    /// Says why and closes, unless the client has gone (`None`). What it still says is not listened to, but read for a
    /// moment, so that our last word is not lost to a reset.
    pub async fn end(mut self, why: Option<Close>) {
        if let Some(why) = why {
            series::socket_closed(why.code());
        } else if !self.closed {
            return;
        }
        let farewell = async {
            if let Some(why) = why {
                // Pongs that are owed come before the last word.
                self.stream.flush().await.ok();
                let frame = CloseFrame { code: why.code().into(), reason: why.row().1.into() };
                self.stream.send(Message::Close(Some(frame))).await.ok();
            }
            let stream = self.stream.get_mut();
            stream.open();
            stream.shutdown().await.ok();
            let mut rest = [0; 1024];
            while stream.read(&mut rest).await.is_ok_and(|n| n > 0) {}
        };
        tokio::time::timeout(FAREWELL, farewell).await.ok();
    }
}

async fn within(
    patience: Duration,
    write: impl Future<Output = Result<(), tungstenite::Error>>,
) -> Result<(), Close> {
    match tokio::time::timeout(patience, write).await {
        Ok(outcome) => outcome.map_err(|_| Close::Broken),
        Err(_) => Err(Close::SlowConsumer),
    }
}

fn fault(error: &tungstenite::Error) -> Heard {
    match error {
        tungstenite::Error::Capacity(_) => Heard::Fault(Close::TooBig),
        tungstenite::Error::Utf8(_) => Heard::Fault(Close::Encoding),
        tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Heard::Gone,
        tungstenite::Error::Protocol(_) => Heard::Fault(Close::Protocol),
        _ => Heard::Gone,
    }
}
