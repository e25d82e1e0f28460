//! An agent's WebSocket.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest},
};
use ulid::Ulid;

use crate::{
    Result,
    cluster::{Node, Wire},
    delivery::{Acked, Arrival},
    fixtures::Pair,
};

/// Nothing takes longer than this unless something is wrong.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A socket that is authenticated.
pub struct Socket(WebSocketStream<Wire>);

/// What the node says.
pub enum Heard {
    /// An event.
    Event {
        /// Its place.
        cursor: String,
        /// What is checked.
        arrival: Arrival,
        /// The id that its sender gave the message.
        client_message_id: Option<Ulid>,
    },
    /// Everything that was missed has been replayed.
    CaughtUp {
        /// The place.
        cursor: String,
    },
}

#[derive(Deserialize)]
struct Frame<'a> {
    r#type: &'a str,
    #[serde(default)]
    cursor: &'a str,
    #[serde(default)]
    event: &'a str,
    #[serde(default)]
    seq: i64,
    #[serde(borrow)]
    data: Option<&'a serde_json::value::RawValue>,
}

#[derive(Deserialize)]
struct MessageData<'a> {
    message_id: &'a str,
    seq: i64,
    client_message_id: Option<&'a str>,
}

impl Socket {
    /// Opens a socket for the pair's agent; it goes on where the last one ended.
    pub async fn open(node: &Node, pair: &Pair) -> Result<Self> {
        let mut request = format!("wss://{}/ws", node.address).into_client_request()?;
        request
            .headers_mut()
            .insert("x-forwarded-for", pair.address.parse()?);
        let (stream, _) = client_async(request, node.dial().await?).await?;
        let mut socket = Socket(stream);
        let mut auth =
            json!({ "type": "auth", "agent_id": pair.agent_id, "token": pair.agent_token });
        if let Some(cursor) = &pair.reader.cursor {
            auth["resume"] = cursor.as_str().into();
        }
        socket.0.send(Message::text(auth.to_string())).await?;
        Ok(socket)
    }

    /// The next event or sign. Cancel safe.
    pub async fn hear(&mut self) -> Result<Heard> {
        loop {
            let message = self.0.next().await.ok_or("the node closed a socket")??;
            let Message::Text(text) = message else {
                if let Message::Close(why) = message {
                    return Err(format!("the node closed a socket: {why:?}").into());
                }
                continue;
            };
            let frame: Frame<'_> = serde_json::from_str(&text)?;
            match frame.r#type {
                "event" => return event(&frame),
                "caught_up" => {
                    return Ok(Heard::CaughtUp {
                        cursor: frame.cursor.to_owned(),
                    });
                }
                "auth.ok" | "ready" => {}
                other => return Err(format!("an agent's socket was told {other}: {text}").into()),
            }
        }
    }

    /// Reads what was missed into the pair's reader.
    pub async fn catch_up(&mut self, pair: &mut Pair) -> Result<()> {
        loop {
            match tokio::time::timeout(TIMEOUT, self.hear()).await?? {
                Heard::Event {
                    cursor, arrival, ..
                } => {
                    pair.reader.note(arrival);
                    pair.reader.cursor = Some(cursor);
                }
                Heard::CaughtUp { cursor } => {
                    pair.reader.cursor = Some(cursor);
                    return Ok(());
                }
            }
        }
    }

    /// Says goodbye.
    pub async fn close(mut self) {
        self.0.close(None).await.ok();
    }
}

fn event(frame: &Frame<'_>) -> Result<Heard> {
    let (mut message, mut client_message_id) = (None, None);
    if let ("message.created", Some(data)) = (frame.event, frame.data) {
        let data: MessageData<'_> = serde_json::from_str(data.get())?;
        message = Some(Acked {
            seq: data.seq,
            message: Ulid::from_string(data.message_id)?,
        });
        client_message_id = data.client_message_id.map(Ulid::from_string).transpose()?;
    }
    let arrival = Arrival {
        inbox_seq: frame.seq,
        message,
    };
    Ok(Heard::Event {
        cursor: frame.cursor.to_owned(),
        arrival,
        client_message_id,
    })
}
