//! A receiver of webhooks that behaves as a test wants: well, or in one of many bad ways.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::{
    authority::Authority,
    behaviour::{self, Behaviour},
    services::spawn,
};

/// Decides the behaviour of each turn. A turn is a request, or a connection that gets none.
type Plan = dyn Fn(usize) -> Behaviour + Send + Sync;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// Names are in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// Whether its behaviour was an honest 2xx.
    pub accepted: bool,
}

/// The server; ends with the test.
#[derive(Clone)]
pub struct FaultyReceiver {
    pub address: SocketAddr,
    https: bool,
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    plan: Box<Plan>,
    certificates: Option<behaviour::Certificates>,
    turns: AtomicUsize,
    connections: AtomicUsize,
    /// Bytes of answers that the kernel took.
    pub(super) written: AtomicU64,
    requests: Mutex<Vec<Received>>,
}

/// Any stream.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl FaultyReceiver {
    /// A receiver that speaks plain HTTP.
    pub async fn plain(plan: impl Fn(usize) -> Behaviour + Send + Sync + 'static) -> Self {
        Self::start(None, plan).await
    }

    /// A receiver with certificates of `authority` for `localhost`.
    pub async fn tls(
        authority: &Authority,
        plan: impl Fn(usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(behaviour::Certificates::new(authority)), plan).await
    }

    #[expect(
        clippy::unused_async,
        reason = "needs a runtime, as its signature says"
    )]
    async fn start(
        certificates: Option<behaviour::Certificates>,
        plan: impl Fn(usize) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Small, so that the bytes that it takes are nearly those that the client has read.
        socket.set_send_buffer_size(32 * 1024).expect("a buffer");
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        socket.bind(any).expect("a port");
        let listener = socket.listen(1024).expect("listening");
        let receiver = FaultyReceiver {
            address: listener.local_addr().expect("an address"),
            https: certificates.is_some(),
            shared: Arc::new(Shared {
                plan: Box::new(plan),
                certificates,
                turns: AtomicUsize::new(0),
                connections: AtomicUsize::new(0),
                written: AtomicU64::new(0),
                requests: Mutex::default(),
            }),
        };
        spawn(accept(listener, receiver.shared.clone()));
        receiver
    }

    pub fn url(&self) -> String {
        if self.https {
            format!("https://localhost:{}/hook", self.address.port())
        } else {
            format!("http://{}/hook", self.address)
        }
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Bytes of answers that were written.
    pub fn written(&self) -> u64 {
        self.shared.written.load(SeqCst)
    }

    /// Every request so far.
    pub fn requests(&self) -> MutexGuard<'_, Vec<Received>> {
        self.shared.requests.lock().expect("no panic")
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, SeqCst);
        let shared = shared.clone();
        spawn(async move { shared.connection(stream).await.ok() });
    }
}

impl Shared {
    fn next(&self) -> Behaviour {
        (self.plan)(self.turns.fetch_add(1, SeqCst))
    }

    /// Serves a connection. Its first turn decides TLS and protocol.
    async fn connection(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let first = self.next();
        match first {
            Behaviour::ClosesAtOnce => return Ok(()),
            Behaviour::PlainText => {
                stream.readable().await?;
                let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
                return self.write(&mut { stream }, answer).await;
            }
            Behaviour::NeverReads => return behaviour::hang().await,
            Behaviour::Resets => {
                // The answer to data that was never read is a reset.
                stream.readable().await?;
                return Ok(());
            }
            _ => {}
        }
        let config = self.certificates.as_ref().map(|all| all.of(first));
        let Some(config) = config else {
            return self.requests_of(stream, first).await;
        };
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        if first.speaks_http2() {
            return behaviour::serve_http2(self, stream, first).await;
        }
        self.requests_of(stream, first).await
    }

    async fn requests_of(&self, mut stream: impl Stream, first: Behaviour) -> io::Result<()> {
        let mut turn = Some(first);
        loop {
            let Some((head, buffered)) = read_head(&mut stream).await? else {
                return Ok(());
            };
            let behaviour = turn.take().unwrap_or_else(|| self.next());
            let headers = headers_of(&head);
            let early = behaviour == Behaviour::AnswersEarly;
            if early {
                behaviour.answer(&mut stream, self).await?;
            }
            let body = read_body(&mut stream, &headers, buffered).await?;
            if let Some(challenge) = challenge(&body) {
                self.write(&mut stream, challenge.as_bytes()).await?;
                return stream.shutdown().await;
            }
            self.record(headers, body, behaviour);
            if early || !behaviour.answer(&mut stream, self).await? {
                return stream.shutdown().await;
            }
        }
    }

    /// Records a request before it is answered.
    pub(super) fn record(
        &self,
        headers: HashMap<String, String>,
        body: Vec<u8>,
        behaviour: Behaviour,
    ) {
        let received = Received {
            headers,
            body,
            accepted: behaviour.accepts(),
        };
        self.requests.lock().expect("no panic").push(received);
    }

    /// Writes and counts.
    pub(super) async fn write(&self, stream: &mut impl Stream, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = stream.write(rest).await?;
            self.written.fetch_add(n as u64, SeqCst);
            rest = &rest[n..];
        }
        stream.flush().await
    }
}

/// A request's head and what came with it of the body. None at the end of the connection.
async fn read_head(stream: &mut impl Stream) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok(Some((String::from_utf8_lossy(&bytes).into_owned(), rest)));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

fn headers_of(head: &str) -> HashMap<String, String> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect()
}

async fn read_body(
    stream: &mut impl Stream,
    headers: &HashMap<String, String>,
    buffered: Vec<u8>,
) -> io::Result<Vec<u8>> {
    let length = headers
        .get("content-length")
        .map_or(0, |n| n.parse().expect("a length"));
    let mut body = buffered;
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(body)
}

/// The answer to a challenge of the address; none for other deliveries. Challenges are answered
/// well and not recorded.
fn challenge(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let challenge = (body["event"] == "webhook.verify").then_some(&body["data"])?;
    let text = serde_json::json!({ "challenge": challenge["challenge"] }).to_string();
    Some(format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    ))
}

/// A pause between bytes that drip. It is real time, because the client's deadline is.
pub(super) const DRIP: Duration = Duration::from_millis(50);
