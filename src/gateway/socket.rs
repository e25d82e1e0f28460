//! A WebSocket with our rules: text only, bounded, no write without a deadline, closed with a code.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite;

use super::close::Close;
use crate::{limits::quotas::WRITE_DEADLINE, metrics as series};

/// How long a closed socket may take to say that it has seen it.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a client did.
pub enum Heard {
    /// A text frame.
    Text(String),
    /// A ping or pong: a sign of life.
    Alive,
    /// It went away, or closed.
    Gone,
    /// It broke a rule.
    Fault(Close),
}

/// One client's socket.
pub struct Socket {
    stream: WebSocket,
    /// Bytes of the frame before, which may still be under way: a slow link is given time for them.
    before: usize,
}

/// The slowest link that is served: a frame may take its size at this pace, beside the ten seconds.
const PACE: u64 = 64 * 1024;

impl Socket {
    /// An upgraded socket.
    pub fn new(stream: WebSocket) -> Self {
        Socket { stream, before: 0 }
    }

    /// The next frame. Cancel safe.
    pub async fn hear(&mut self) -> Heard {
        match self.stream.next().await {
            Some(Ok(Message::Text(text))) => {
                series::frames("in", 1);
                Heard::Text(text.as_str().to_owned())
            }
            Some(Ok(Message::Binary(_))) => Heard::Fault(Close::Unsupported),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Heard::Alive,
            Some(Ok(Message::Close(_))) | None => Heard::Gone,
            Some(Err(error)) => fault(error),
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

    /// Asks for a sign of life.
    pub async fn ping(&mut self) -> Result<(), Close> {
        let deadline = self.patience();
        within(deadline, self.stream.send(Message::Ping(bytes::Bytes::new()))).await
    }

    fn patience(&self) -> Duration {
        WRITE_DEADLINE + Duration::from_millis(self.before as u64 * 1000 / PACE)
    }

    /// Says why and closes; waits a moment for the client's answer, so that the code is not lost to a reset.
    pub async fn close(mut self, why: Close) {
        series::socket_closed(why.code());
        let frame = CloseFrame { code: why.code(), reason: why.row().1.into() };
        let farewell = async {
            self.stream.send(Message::Close(Some(frame))).await.ok();
            while let Some(Ok(_)) = self.stream.next().await {}
        };
        tokio::time::timeout(FAREWELL, farewell).await.ok();
    }
}

async fn within(
    patience: Duration,
    write: impl Future<Output = Result<(), axum::Error>>,
) -> Result<(), Close> {
    match tokio::time::timeout(patience, write).await {
        Ok(outcome) => outcome.map_err(|_| Close::Broken),
        Err(_) => Err(Close::SlowConsumer),
    }
}

fn fault(error: axum::Error) -> Heard {
    match error.into_inner().downcast_ref::<tungstenite::Error>() {
        Some(tungstenite::Error::Capacity(_)) => Heard::Fault(Close::TooBig),
        Some(tungstenite::Error::Utf8(_)) => Heard::Fault(Close::Encoding),
        Some(tungstenite::Error::Protocol(
            tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
        )) => Heard::Gone,
        Some(tungstenite::Error::Protocol(_)) => Heard::Fault(Close::Protocol),
        _ => Heard::Gone,
    }
}
