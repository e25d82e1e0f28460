//! A WebSocket with our rules: text only, bounded, no write without a deadline, closed with a code.

use std::{borrow::Cow, time::Duration};

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
pub struct Socket(WebSocket);

impl Socket {
    /// An upgraded socket.
    pub fn new(socket: WebSocket) -> Self {
        Socket(socket)
    }

    /// The next frame. Cancel safe.
    pub async fn hear(&mut self) -> Heard {
        match self.0.next().await {
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
    pub async fn feed(&mut self, text: impl Into<Cow<'_, str>>) -> Result<(), Close> {
        series::frames("out", 1);
        self.within(Message::Text(text.into().into_owned().into()), false).await
    }

    /// Writes what is queued.
    pub async fn flush(&mut self) -> Result<(), Close> {
        match tokio::time::timeout(WRITE_DEADLINE, self.0.flush()).await {
            Ok(outcome) => outcome.map_err(|_| Close::Broken),
            Err(_) => Err(Close::SlowConsumer),
        }
    }

    /// Writes one frame now.
    pub async fn say(&mut self, text: impl Into<Cow<'_, str>>) -> Result<(), Close> {
        self.feed(text).await?;
        self.flush().await
    }

    /// Asks for a sign of life.
    pub async fn ping(&mut self) -> Result<(), Close> {
        self.within(Message::Ping(bytes::Bytes::new()), true).await
    }

    async fn within(&mut self, message: Message, now: bool) -> Result<(), Close> {
        let write = async { if now { self.0.send(message).await } else { self.0.feed(message).await } };
        match tokio::time::timeout(WRITE_DEADLINE, write).await {
            Ok(outcome) => outcome.map_err(|_| Close::Broken),
            Err(_) => Err(Close::SlowConsumer),
        }
    }

    /// Says why and closes; waits a moment for the client's answer, so that the code is not lost to a reset.
    pub async fn close(mut self, why: Close) {
        series::socket_closed(why.code());
        let frame = CloseFrame { code: why.code(), reason: why.row().1.into() };
        let farewell = async {
            self.0.send(Message::Close(Some(frame))).await.ok();
            while let Some(Ok(_)) = self.0.next().await {}
        };
        tokio::time::timeout(FAREWELL, farewell).await.ok();
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
