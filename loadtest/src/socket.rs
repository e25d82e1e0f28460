//! An agent's WebSocket, and a user's.

use std::time::Duration;

use blindpipe_protocol::{
    frames::{AgentAuth, Auth, ClientFrame, UserAuth},
    inbox::AckFrame,
    text::Secret,
};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
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

/// The longest wait. Anything longer is a fault.
const TIMEOUT: Duration = Duration::from_secs(20);

/// An authenticated socket.
pub struct Socket {
    stream: WebSocketStream<Wire>,
    /// The cursor of the last event that [`Socket::answer`] has skipped.
    skipped: Option<String>,
}

/// A received frame.
pub enum Heard {
    /// An event.
    Event {
        /// The cursor of the event.
        cursor: String,
        /// The part that is checked.
        arrival: Arrival,
        /// The id that its sender gave the message.
        client_message_id: Option<Ulid>,
    },
    /// All missed events have been replayed.
    CaughtUp {
        /// The cursor of the frame.
        cursor: String,
    },
}

/// The part of a server's frame that is checked. It borrows from the text: the protocol's own
/// frames own their strings, and their cost would count as the server's.
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

impl MessageData<'_> {
    fn acked(&self) -> Result<Acked> {
        Ok(Acked {
            seq: self.seq,
            message: Ulid::from_string(self.message_id)?,
        })
    }
}

/// The first frame of an agent's socket.
pub fn agent_auth(agent_id: &str, token: &str, resume: Option<&str>) -> Result<String> {
    let frame = ClientFrame::Auth(Auth::Agent(AgentAuth {
        agent_id: agent_id.parse()?,
        token: Secret::from(token),
        resume: resume.map(str::parse).transpose()?,
        mode: None,
        group: None,
    }));
    Ok(serde_json::to_string(&frame)?)
}

/// The first frame of a user's socket.
pub fn user_auth(access_token: &str, resume: Option<&str>) -> Result<String> {
    let frame = ClientFrame::Auth(Auth::User(UserAuth {
        access_token: Secret::from(access_token),
        resume: resume.map(str::parse).transpose()?,
    }));
    Ok(serde_json::to_string(&frame)?)
}

impl Socket {
    /// Opens a socket for the pair's agent. It continues from the end of the last one.
    pub async fn open(node: &Node, pair: &Pair) -> Result<Self> {
        let cursor = pair.reader.cursor.as_deref();
        let auth = agent_auth(&pair.agent_id, &pair.agent_token, cursor)?;
        Self::open_with(node, pair, auth).await
    }

    /// Opens a socket for the pair's user.
    pub async fn open_user(node: &Node, pair: &Pair) -> Result<Self> {
        Self::open_with(node, pair, user_auth(&pair.access_token, None)?).await
    }

    async fn open_with(node: &Node, pair: &Pair, auth: String) -> Result<Self> {
        let mut request = format!("wss://{}/ws", node.address).into_client_request()?;
        if !pair.address.is_empty() {
            let headers = request.headers_mut();
            headers.insert("x-forwarded-proto", "https".parse()?);
            headers.insert("x-forwarded-for", pair.address.parse()?);
        }
        let (stream, _) = client_async(request, node.dial().await?).await?;
        let mut socket = Socket {
            stream,
            skipped: None,
        };
        socket.stream.send(Message::text(auth)).await?;
        Ok(socket)
    }

    /// Writes a frame.
    pub async fn say(&mut self, frame: String) -> Result<()> {
        Ok(self.stream.send(Message::text(frame)).await?)
    }

    /// The answer to the oldest send that has none. Events are skipped. Cancel safe.
    pub async fn answer(&mut self) -> Result<Acked> {
        loop {
            let message = self
                .stream
                .next()
                .await
                .ok_or("the node closed a socket")??;
            let text = match message {
                Message::Text(text) => text,
                Message::Close(why) => {
                    return Err(format!("the node closed a socket: {why:?}").into());
                }
                _ => continue,
            };
            let frame: Frame<'_> = serde_json::from_str(&text)?;
            match (frame.r#type, frame.data) {
                ("message.sent", Some(data)) => {
                    return serde_json::from_str::<MessageData<'_>>(data.get())?.acked();
                }
                ("error", _) => return Err(format!("a send was refused: {text}").into()),
                ("event", _) => self.skipped = Some(frame.cursor.to_owned()),
                _ => {}
            }
        }
    }

    /// The next event or `caught_up`. Cancel safe.
    pub async fn hear(&mut self) -> Result<Heard> {
        loop {
            let message = self
                .stream
                .next()
                .await
                .ok_or("the node closed a socket")??;
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

    /// Reads the missed events into the pair's reader.
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

    /// Acknowledges the events that were skipped.
    pub async fn acknowledge(&mut self) -> Result<()> {
        if let Some(cursor) = self.skipped.take() {
            let cursor = cursor.parse()?;
            let frame = ClientFrame::Ack(AckFrame { cursor });
            self.say(serde_json::to_string(&frame)?).await?;
        }
        Ok(())
    }

    /// Closes the socket in order.
    pub async fn close(mut self) {
        self.stream.close(None).await.ok();
    }
}

fn event(frame: &Frame<'_>) -> Result<Heard> {
    let (mut message, mut client_message_id) = (None, None);
    if let ("message.created", Some(data)) = (frame.event, frame.data) {
        let data: MessageData<'_> = serde_json::from_str(data.get())?;
        message = Some(data.acked()?);
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
