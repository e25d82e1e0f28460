//! A client's WebSocket. Every wait has a deadline, and its error names the missing frame.

use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use rustls::ClientConfig;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config, tungstenite::Message,
};

use super::STEP_TIMEOUT;
use crate::error::{Context, DevError, Result};

/// An authenticated socket.
pub struct Socket {
    who: &'static str,
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Socket {
    /// Connects, sends `auth` and waits until the socket is live.
    pub async fn open(
        url: &str,
        tls: Arc<ClientConfig>,
        who: &'static str,
        auth: &Value,
    ) -> Result<Self> {
        let connect = Box::pin(connect_async_tls_with_config(
            url,
            None,
            true,
            Some(Connector::Rustls(tls)),
        ));
        let connected = timeout(STEP_TIMEOUT, connect)
            .await
            .with_context(|| format!("connect {who} to {url}"))?;
        let (stream, _) = connected.with_context(|| format!("connect {who} to {url}"))?;
        let mut socket = Socket { who, stream };
        socket.send(auth).await?;
        socket
            .expect("auth.ok", |frame| frame["type"] == "auth.ok")
            .await?;
        socket
            .expect("ready", |frame| frame["type"] == "ready")
            .await?;
        Ok(socket)
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: &Value) -> Result<()> {
        let sent = self.stream.send(Message::text(frame.to_string())).await;
        sent.with_context(|| format!("send a frame as {}", self.who))
    }

    /// Waits for the event of message `id`.
    pub async fn message(&mut self, id: &str) -> Result<Value> {
        let is_it = |frame: &Value| {
            frame["event"] == "message.created" && frame["data"]["message_id"] == id
        };
        self.expect("the event message.created", is_it).await
    }

    /// Waits for a frame and skips others.
    pub async fn expect(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let who = self.who;
        let next = async {
            loop {
                match self.stream.next().await {
                    Some(Ok(Message::Text(text))) => {
                        let frame: Value = serde_json::from_str(&text)
                            .with_context(|| format!("read a frame to {who}"))?;
                        if is_it(&frame) {
                            return Ok(frame);
                        }
                        if matches!(frame["type"].as_str(), Some("error" | "auth.error")) {
                            return Err(DevError::new(format!(
                                "{who} waited for {what} and was told: {frame}"
                            )));
                        }
                    }
                    Some(Ok(Message::Close(reason))) => {
                        let reason = reason.map_or("no reason".into(), |frame| {
                            format!("{} {}", frame.code, frame.reason)
                        });
                        return Err(DevError::new(format!(
                            "{who} waited for {what}, but the socket was closed: {reason}"
                        )));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        return Err(DevError::new(format!(
                            "{who} waited for {what}, but the socket broke: {error}"
                        )));
                    }
                    None => {
                        return Err(DevError::new(format!(
                            "{who} waited for {what}, but the socket ended"
                        )));
                    }
                }
            }
        };
        let late = || {
            DevError::new(format!(
                "{who} waited {} s for {what} in vain",
                STEP_TIMEOUT.as_secs()
            ))
        };
        timeout(STEP_TIMEOUT, next).await.map_err(|_| late())?
    }

    /// Closes the socket in order.
    pub async fn close(mut self) {
        let _ = timeout(STEP_TIMEOUT, self.stream.close(None)).await;
    }
}
