//! An active server: a proxy between a client and a real node that lies as its rules say.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{Method, header},
    response::Response,
    serve::Listener,
};
use blindpipe_client::{Agent, Server, agent::AgentBuilder, testing::TestAgent};
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{broadcast, mpsc},
    task::JoinSet,
};
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, accept_async, connect_async_tls_with_config,
    tungstenite::{Message, protocol::CloseFrame},
};

use crate::{
    faults::{Fault, cut, refusal},
    support::Shared,
};

const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
const SOCKET_REQUEST: &[u8] = b"GET /ws ";

/// The id of every forged event.
const FORGED_EVENT: &str = "01BX5ZZKBKACTAV9WEVGEMMVRZ";

/// Alters a body in place. The call is written as `GET /path?query`.
type CallRule = Box<dyn FnMut(&str, &mut Value) + Send>;
/// Alters bytes that are not JSON.
type BytesRule = Box<dyn FnMut(&str, &mut Vec<u8>) + Send>;
/// Answers in the node's place.
type FaultRule = Box<dyn FnMut(&str) -> Option<Fault> + Send>;
/// Makes any number of frames of a single one.
type FrameRule = Box<dyn FnMut(Value) -> Vec<Value> + Send>;

#[derive(Default)]
struct Rules {
    faults: Mutex<Vec<FaultRule>>,
    requests: Mutex<Vec<CallRule>>,
    answers: Mutex<Vec<CallRule>>,
    bytes: Mutex<Option<BytesRule>>,
    received: Mutex<Vec<FrameRule>>,
    sent: Mutex<Vec<FrameRule>>,
}

#[derive(Clone)]
enum Order {
    /// Ends every socket, as a lost connection does.
    Cut,
    /// Ends every socket with a close code.
    Close(u16),
    /// Gives every socket a frame.
    Inject(Value),
}

/// A node, for what knows nothing but HTTP and WebSockets.
#[derive(Clone)]
pub struct Upstream {
    pub url: String,
    pub http: reqwest::Client,
    tls: Connector,
}

impl Upstream {
    pub fn new(cluster: &Shared, node: usize) -> Self {
        let authority = std::fs::read(cluster.ca_file().expect("a file")).expect("read");
        let certificate = reqwest::Certificate::from_pem(&authority).expect("a certificate");
        let http = reqwest::Client::builder().tls_certs_only([certificate]);
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(&authority).expect("a certificate");
        roots.add(root).expect("a root");
        let config = ClientConfig::builder().with_root_certificates(roots);
        Self {
            url: cluster.node(node).expect("a node").url().to_owned(),
            http: http.no_proxy().build().expect("a client"),
            tls: Connector::Rustls(Arc::new(config.with_no_client_auth())),
        }
    }

    pub async fn socket(&self) -> Option<WebSocketStream<MaybeTlsStream<TcpStream>>> {
        let url = format!("ws{}/ws", self.url.trim_start_matches("http"));
        let connected = connect_async_tls_with_config(url, None, true, Some(self.tls.clone()));
        let (socket, _) = Box::pin(connected).await.ok()?;
        Some(socket)
    }
}

#[derive(Clone)]
struct Lies {
    rules: Arc<Rules>,
    node: Upstream,
    orders: broadcast::Sender<Order>,
    is_away: Arc<AtomicBool>,
    /// The cursor that a socket was told last.
    cursor: Arc<Mutex<String>>,
}

impl Lies {
    fn note_cursor(&self, frame: &Message) {
        let text = frame.to_text().unwrap_or_default();
        let frame: Value = serde_json::from_str(text).unwrap_or_default();
        if let Some(cursor) = frame["cursor"].as_str() {
            cursor.clone_into(&mut self.cursor.lock());
        }
    }
}

/// A proxy that ends with its test.
pub struct Proxy {
    lies: Lies,
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Proxy {
    /// A proxy before node `node` that changes nothing yet.
    pub async fn before(cluster: &Shared, node: usize) -> Self {
        let lies = Lies {
            rules: Arc::default(),
            node: Upstream::new(cluster, node),
            orders: broadcast::channel(64).0,
            is_away: Arc::default(),
            cursor: Arc::default(),
        };
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = tcp.local_addr().expect("an address");
        let router = Router::new().fallback(forward).with_state(lies.clone());
        let split = Split {
            tcp,
            lies: lies.clone(),
            http: mpsc::channel(64),
            sockets: JoinSet::new(),
        };
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(split, router).await.expect("served") });
        Self {
            lies,
            address,
            _serving: serving,
        }
    }

    /// The service, as a client behind the proxy sees it.
    pub fn server(&self) -> Server {
        Server::new(format!("http://{}", self.address))
    }

    /// An agent behind the proxy.
    pub fn agent(&self, agent: &TestAgent) -> AgentBuilder {
        let builder = Agent::builder(self.server(), agent.id, agent.token.as_str());
        builder.key(&agent.key).expect("a key")
    }

    /// Has calls end in a fault.
    pub fn on_call(&self, rule: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        self.lies.rules.faults.lock().push(Box::new(rule));
    }

    /// Alters JSON bodies on their way to the node.
    pub fn on_request(&self, rule: impl FnMut(&str, &mut Value) + Send + 'static) {
        self.lies.rules.requests.lock().push(Box::new(rule));
    }

    /// Alters JSON answers.
    pub fn on_answer(&self, rule: impl FnMut(&str, &mut Value) + Send + 'static) {
        self.lies.rules.answers.lock().push(Box::new(rule));
    }

    /// Alters answers that are not JSON.
    pub fn on_bytes(&self, rule: impl FnMut(&str, &mut Vec<u8>) + Send + 'static) {
        *self.lies.rules.bytes.lock() = Some(Box::new(rule));
    }

    /// Alters, drops or multiplies frames to the client.
    pub fn on_frame(&self, rule: impl FnMut(Value) -> Vec<Value> + Send + 'static) {
        self.lies.rules.received.lock().push(Box::new(rule));
    }

    /// Alters, drops or multiplies frames of the client.
    pub fn on_sent_frame(&self, rule: impl FnMut(Value) -> Vec<Value> + Send + 'static) {
        self.lies.rules.sent.lock().push(Box::new(rule));
    }

    /// Gives every open socket a frame that no node sent.
    pub fn inject(&self, frame: Value) {
        self.lies.orders.send(Order::Inject(frame)).ok();
    }

    /// Gives every open socket an event that no node sent, under the newest cursor. Answers its id.
    pub fn inject_event(&self, name: &str, conversation: &str, data: &Value) -> &'static str {
        let cursor = self.lies.cursor.lock().clone();
        let seq = cursor
            .rsplit('-')
            .next()
            .and_then(|seq| seq.parse::<i64>().ok());
        self.inject(json!({
            "type": "event",
            "event_id": FORGED_EVENT,
            "event": name,
            "cursor": cursor,
            "seq": seq,
            "conversation_id": conversation,
            "created_at": "2026-01-01T00:00:00.000Z",
            "data": data,
        }));
        FORGED_EVENT
    }

    /// Closes every open socket as a node does.
    pub fn close(&self, code: u16) {
        self.lies.orders.send(Order::Close(code)).ok();
    }

    /// Lets nothing through, and cuts every open socket.
    pub fn go_away(&self) {
        self.lies.is_away.store(true, Ordering::Relaxed);
        self.cut();
    }

    pub fn come_back(&self) {
        self.lies.is_away.store(false, Ordering::Relaxed);
    }

    /// Cuts every open socket.
    pub fn cut(&self) {
        self.lies.orders.send(Order::Cut).ok();
    }
}

/// Drops every event of a name.
pub fn without(name: &'static str) -> impl FnMut(Value) -> Vec<Value> + Send {
    move |frame| {
        if frame["event"] == name {
            return Vec::new();
        }
        vec![frame]
    }
}

/// Alters the data of events of a name.
pub fn in_event(
    name: &'static str,
    mut rule: impl FnMut(&mut Value) + Send + 'static,
) -> impl FnMut(Value) -> Vec<Value> + Send {
    move |mut frame| {
        if frame["type"] == "event" && frame["event"] == name {
            rule(&mut frame["data"]);
        }
        vec![frame]
    }
}

/// The HTTP connections of a port; sockets are bridged beside them.
struct Split {
    tcp: TcpListener,
    lies: Lies,
    http: (mpsc::Sender<Accepted>, mpsc::Receiver<Accepted>),
    sockets: JoinSet<()>,
}

type Accepted = (TcpStream, SocketAddr);

impl Listener for Split {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Accepted {
        loop {
            let accepted = tokio::select! {
                Some(accepted) = self.http.1.recv() => return accepted,
                accepted = self.tcp.accept() => accepted,
            };
            let Ok((stream, from)) = accepted else {
                continue;
            };
            if self.lies.is_away.load(Ordering::Relaxed) {
                continue;
            }
            let (lies, http) = (self.lies.clone(), self.http.0.clone());
            // A connection that a client keeps for later says nothing yet, and holds up no other.
            self.sockets.spawn(async move {
                let mut start = [0; SOCKET_REQUEST.len()];
                if stream.peek(&mut start).await.is_ok() && start == SOCKET_REQUEST {
                    bridge(stream, lies).await;
                } else {
                    http.send((stream, from)).await.ok();
                }
            });
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

fn apply_all(rules: &Mutex<Vec<CallRule>>, call: &str, bytes: Bytes) -> Bytes {
    let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else {
        return bytes;
    };
    let before = value.clone();
    for rule in &mut *rules.lock() {
        rule(call, &mut value);
    }
    // Bytes that nobody alters stay what they were.
    if value == before {
        return bytes;
    }
    value.to_string().into()
}

async fn forward(State(lies): State<Lies>, request: Request) -> Response {
    if lies.is_away.load(Ordering::Relaxed) {
        return refusal(503);
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let call = format!("{} {path}", parts.method);
    let fault = lies
        .rules
        .faults
        .lock()
        .iter_mut()
        .find_map(|rule| rule(&call));
    let mut is_cut = false;
    match fault {
        Some(Fault::Wait(gate)) => gate.acquire().await.expect("open").forget(),
        Some(Fault::Refusal(status)) => return refusal(status),
        Some(Fault::Cut) => is_cut = true,
        None => {}
    }
    let body = to_bytes(body, MAX_BODY_BYTES).await.expect("a body");
    let body = apply_all(&lies.rules.requests, &call, body);
    let mut headers = parts.headers;
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    let mut forwarded = lies
        .node
        .http
        .request(parts.method.clone(), format!("{}{path}", lies.node.url))
        .headers(headers);
    if parts.method != Method::GET {
        forwarded = forwarded.body(body);
    }
    let Ok(answer) = forwarded.send().await else {
        return refusal(502);
    };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    let mut bytes = answer.bytes().await.unwrap_or_default();
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
        bytes = apply_all(&lies.rules.answers, &call, bytes);
    } else if let Some(rule) = &mut *lies.rules.bytes.lock() {
        let mut altered = bytes.to_vec();
        rule(&call, &mut altered);
        bytes = altered.into();
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONNECTION);
    let body = if is_cut {
        cut(bytes)
    } else {
        Body::from(bytes)
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn altered(rules: &Mutex<Vec<FrameRule>>, frame: &Message) -> Vec<Message> {
    let Message::Text(text) = frame else {
        return vec![frame.clone()];
    };
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return vec![frame.clone()];
    };
    let mut frames = vec![value];
    for rule in &mut *rules.lock() {
        frames = frames.into_iter().flat_map(&mut *rule).collect();
    }
    let frames = frames.iter();
    frames.map(|it| Message::text(it.to_string())).collect()
}

async fn bridge(stream: TcpStream, lies: Lies) {
    let mut orders = lies.orders.subscribe();
    let Ok(mut client): Result<WebSocketStream<_>, _> = accept_async(stream).await else {
        return;
    };
    let Some(mut node) = lies.node.socket().await else {
        return;
    };
    loop {
        tokio::select! {
            frame = client.next() => {
                let Some(Ok(frame)) = frame else { return };
                for frame in altered(&lies.rules.sent, &frame) {
                    if node.send(frame).await.is_err() {
                        return;
                    }
                }
            }
            frame = node.next() => {
                let Some(Ok(frame)) = frame else { return };
                lies.note_cursor(&frame);
                for frame in altered(&lies.rules.received, &frame) {
                    if client.send(frame).await.is_err() {
                        return;
                    }
                }
            }
            order = orders.recv() => match order {
                Ok(Order::Inject(frame)) => {
                    if client.send(Message::text(frame.to_string())).await.is_err() {
                        return;
                    }
                }
                Ok(Order::Close(code)) => {
                    let frame = CloseFrame { code: code.into(), reason: "".into() };
                    client.close(Some(frame)).await.ok();
                    return;
                }
                _ => return,
            }
        }
    }
}
