//! The frames of a connection, as they come and go.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};

use crate::{Error, Result};

const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) type Stream = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A frame of the server, not read yet.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) kind: String,
    text: String,
}

impl Frame {
    pub(super) fn read(text: String) -> Option<Self> {
        #[derive(Deserialize)]
        struct Tag {
            r#type: String,
        }
        let Tag { r#type: kind } = serde_json::from_str(&text).ok()?;
        Some(Self { kind, text })
    }

    /// The frame as its type; none if a newer server writes another one.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(&self.text).ok()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.text.len()
    }
}

pub(super) async fn write(stream: &mut Stream, text: String) -> Result<()> {
    let sent = timeout(WRITE_TIMEOUT, stream.send(Message::text(text))).await;
    match sent {
        Ok(Ok(())) => Ok(()),
        _ => Err(Error::lost()),
    }
}

pub(super) async fn close(stream: &mut Stream) {
    let frame = CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    };
    // The server's answer says that it has read everything before.
    let closed = async {
        if stream.close(Some(frame)).await.is_ok() {
            while let Some(Ok(_)) = stream.next().await {}
        }
    };
    timeout(CLOSE_TIMEOUT, closed).await.ok();
}
