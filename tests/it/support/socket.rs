//! A WebSocket client with assertions.

use std::{collections::VecDeque, time::Duration};

use blindpipe_protocol::frames::ServerFrame;
use futures_util::{SinkExt, StreamExt, stream::SplitSink};
use serde_json::{Value, json};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    client::{Agent, Caller},
    secrets,
    services::spawn,
};

/// The longest wait of a test.
const TIMEOUT: Duration = Duration::from_secs(20);

type Stream = WebSocketStream<TcpStream>;

pub struct Socket {
    sink: SplitSink<Stream, Message>,
    /// The received messages. A task reads all the time, so pings are answered however long a test
    /// does something else.
    read: mpsc::UnboundedReceiver<Message>,
    _reads: AbortOnDropHandle<()>,
    /// Events that arrived before the expected frame.
    early: VecDeque<Value>,
    /// The content of `ready`.
    pub ready: Value,
    /// The content of `resync_required`, if it came.
    pub resync: Option<Value>,
    /// The last cursor seen.
    pub cursor: String,
}

impl Socket {
    pub async fn open(caller: &Caller) -> Self {
        Self::try_open(caller).await.expect("a socket")
    }

    pub async fn try_open(caller: &Caller) -> Option<Self> {
        Some(Self::reading(
            upgrade(caller, TcpSocket::new_v4().ok()?).await?,
        ))
    }

    fn reading(stream: Stream) -> Self {
        let (sink, mut stream) = stream.split();
        let (heard, read) = mpsc::unbounded_channel();
        let reads = spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                heard.send(message).ok();
            }
        });
        Socket {
            sink,
            read,
            _reads: AbortOnDropHandle::new(reads),
            early: VecDeque::new(),
            ready: Value::Null,
            resync: None,
            cursor: String::new(),
        }
    }

    pub async fn say(&mut self, frame: Value) {
        secrets::remember_frame(&frame);
        self.say_raw(Message::text(frame.to_string())).await;
    }

    pub async fn say_raw(&mut self, message: Message) {
        // A socket that the node has closed fails at the next read.
        self.sink.send(message).await.ok();
    }

    /// The next frame, the close code as an error, or `Err(None)` if the connection was cut.
    pub async fn next(&mut self) -> Result<Value, Option<u16>> {
        if let Some(early) = self.early.pop_front() {
            return Ok(early);
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Value, Option<u16>> {
        loop {
            match tokio::time::timeout(TIMEOUT, self.read.recv())
                .await
                .expect("a frame in time")
            {
                Some(Message::Text(text)) => {
                    // Each frame of each test has a shape of the protocol.
                    serde_json::from_str::<ServerFrame>(&text)
                        .unwrap_or_else(|fault| panic!("{fault}: {text}"));
                    let frame: Value = serde_json::from_str(&text).expect("JSON");
                    if let Some(cursor) = frame["cursor"].as_str() {
                        self.cursor = cursor.to_owned();
                    }
                    return Ok(frame);
                }
                Some(Message::Close(frame)) => return Err(frame.map(|frame| frame.code.into())),
                Some(_) => {}
                None => return Err(None),
            }
        }
    }

    /// Reads `auth.ok` and `ready`.
    pub async fn welcome(&mut self) {
        assert_eq!(
            self.receive().await.expect("auth.ok"),
            json!({ "type": "auth.ok" })
        );
        let ready = self.receive().await.expect("ready");
        assert_eq!(ready["type"], "ready", "{ready}");
        self.ready = ready;
    }

    /// The next frame of this type. Earlier events are kept for [`event`](Self::event).
    pub async fn expect(&mut self, kind: &str) -> Value {
        loop {
            let frame = self
                .receive()
                .await
                .unwrap_or_else(|code| panic!("closed with {code:?} before {kind}"));
            if frame["type"] == kind {
                return frame;
            }
            if frame["type"] == "event" {
                self.early.push_back(frame);
            } else if frame["type"] == "resync_required" {
                self.resync = Some(frame);
            }
        }
    }

    /// The next event of this kind; other events before it are skipped.
    pub async fn event(&mut self, kind: &str) -> Value {
        loop {
            let frame = self
                .next()
                .await
                .unwrap_or_else(|code| panic!("closed with {code:?} before {kind}"));
            if frame["type"] == "event" && frame["event"] == kind {
                return frame;
            }
        }
    }

    /// Asserts that the node closes with `code`. Returns the frames before that.
    #[track_caller]
    pub fn expect_close(mut self, code: u16) -> impl Future<Output = Vec<Value>> {
        let place = std::panic::Location::caller();
        async move {
            let mut before = Vec::new();
            loop {
                match self.next().await {
                    Ok(frame) => before.push(frame),
                    Err(closed) => {
                        assert_eq!(closed, Some(code), "at {place}, after {before:?}");
                        return before;
                    }
                }
            }
        }
    }

    /// Everything until the node closes or cuts the socket.
    pub async fn until_closed(mut self) -> Vec<Value> {
        let mut before = Vec::new();
        while let Ok(frame) = self.next().await {
            before.push(frame);
        }
        before
    }

    /// Asserts that nothing arrives for a while.
    pub async fn expect_silence(&mut self, span: Duration) {
        assert!(self.early.is_empty(), "{:?}", self.early);
        let frame = tokio::time::timeout(span, self.receive()).await;
        assert!(frame.is_err(), "{frame:?}");
    }
}

/// A socket that authenticates and then does not read. Its small buffer fills soon.
pub struct Sleeper(Stream);

impl Sleeper {
    pub async fn new(agent: &Agent) -> Self {
        let auth = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
        Self::saying(&agent.caller, &auth).await
    }

    /// A socket that sends this `auth` frame.
    pub async fn saying(caller: &Caller, auth: &Value) -> Self {
        let stream = TcpSocket::new_v4().expect("a socket");
        stream.set_recv_buffer_size(4096).expect("a small buffer");
        let mut stream = upgrade(caller, stream).await.expect("a socket");
        stream
            .send(Message::text(auth.to_string()))
            .await
            .expect("it is taken");
        let answer = stream.next().await.expect("an answer").expect("a frame");
        assert_eq!(
            answer,
            Message::text(json!({ "type": "auth.ok" }).to_string())
        );
        stream.next().await.expect("ready").expect("a frame");
        Sleeper(stream)
    }

    /// Starts reading again.
    pub fn wake(self) -> Socket {
        Socket::reading(self.0)
    }
}

async fn upgrade(caller: &Caller, stream: TcpSocket) -> Option<Stream> {
    let address = caller.base.trim_start_matches("http://");
    let mut request = format!("ws://{address}/ws")
        .into_client_request()
        .expect("a request");
    request
        .headers_mut()
        .insert("x-forwarded-proto", "https".parse().expect("a header"));
    // Each socket has an address of its own, so that no test meets the limit by accident.
    let ip = format!(
        "10.{}.{}.{}",
        rand::random::<u8>(),
        rand::random::<u8>(),
        rand::random::<u8>()
    );
    request
        .headers_mut()
        .insert("x-forwarded-for", ip.parse().expect("a header"));
    let stream = stream.connect(address.parse().ok()?).await.ok()?;
    stream.set_nodelay(true).ok();
    let (stream, _) = tokio_tungstenite::client_async(request, stream)
        .await
        .ok()?;
    Some(stream)
}
