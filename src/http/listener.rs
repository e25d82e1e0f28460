//! The listener accepts connections. Its loop replaces `axum::serve`, which sets no deadlines, so a
//! slow client would hold its connection for ever (see [`super::idle`]). Nor does it know upgraded
//! sockets when it stops.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Service, ServiceExt};

use super::{
    client::{self, Peer},
    connections::{Connection, Connections, log_end},
    idle::{RequestPhase, Rules, WatchedStream},
    proxy_protocol::ProxyProtocol,
    unread,
    write_pace::Answers,
};
use crate::{
    limits::buffers::{ByteAccount, ByteBudget},
    metrics, supervisor,
};

/// Deadline of the TLS handshake, from the first byte of a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a connected client has to send one more request when the listener stops. A client that
/// sends while its connection is closed cannot know whether the request was heard.
const LAST_ACCEPT_WINDOW: Duration = Duration::from_secs(1);

/// Most bytes that the kernel buffers for a client beyond those on the wire. Its default,
/// megabytes, hides a client that does not read, and each connection pays for it.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;

/// The parts that serve every connection of a listener.
#[derive(Clone)]
pub struct ConnectionServer {
    /// The certificate, if this listener terminates TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub router: Router,
    pub connections: Connections,
    /// The balancers that name the clients of their connections.
    pub proxy_protocol: ProxyProtocol,
    /// The budget of the bytes that answers and bodies hold.
    pub buffers: ByteBudget,
    /// The life of a connection without use.
    pub idle_timeout: Duration,
    pub tasks: TaskTracker,
    /// Cancelled when a drain begins: from then on an answer of HTTP/1.1 ends its connection, so that
    /// clients move to another node between two requests.
    pub draining: CancellationToken,
    pub stop: CancellationToken,
}

/// Serves `listener` until the server stops. Connections then finish the requests that they have
/// begun. The acceptor itself is one of `tasks`.
pub fn serve(listener: TcpListener, server: ConnectionServer, tasks: &TaskTracker) {
    // The listener outlives an acceptor that panics and starts again.
    let listener = Arc::new(Mutex::new(Some(listener)));
    supervisor::spawn(tasks, "http.accept", move || {
        let (listener, server) = (listener.clone(), server.clone());
        async move { accept(&mut *listener.lock().await, &server).await }
    });
}

async fn accept(slot: &mut Option<TcpListener>, server: &ConnectionServer) {
    while let Some(listener) = slot {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => server.admit(stream, peer),
            Err(error) => {
                // File descriptors have mostly run out here: wait for some to come back rather than
                // spin.
                metrics::connection_closed("accept_failed");
                tracing::warn!(
                    operation = "http.accept",
                    cause = %error,
                    remedy = "the listener accepts again in 50 ms",
                    "no connection can be accepted"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // A client that the kernel has connected and the listener has not accepted would be cut in the
    // middle of its request.
    let Some(Ok(listener)) = slot.take().map(TcpListener::into_std) else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        match stream {
            Ok(stream) => server.admit(stream, peer),
            Err(error) => log_end("accept_failed", Some(&error)),
        }
    }
}

impl ConnectionServer {
    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        let entry = match self.connections.enter(peer.ip()) {
            Ok(entry) => entry,
            Err(reason) => return log_end(reason, None),
        };
        stream.set_nodelay(true).ok();
        SockRef::from(&stream)
            .set_tcp_notsent_lowat(MAX_UNSENT_BYTES)
            .ok();
        let server = self.clone();
        supervisor::spawn_once(&self.tasks, "http.connections", async move {
            let served = serve_connection(stream, peer, server, entry);
            let remedy = "the connection is cut";
            if supervisor::contain("http.connection", remedy, served)
                .await
                .is_none()
            {
                log_end("panicked", None);
            }
        });
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    server: ConnectionServer,
    mut entry: Connection,
) {
    let client = server.proxy_protocol.client(&mut stream, peer).await;
    let counted = client.and_then(|client| entry.move_to(client.ip()).map(|()| client));
    let peer = match counted {
        Ok(client) => client,
        Err(reason) => return log_end(reason, None),
    };
    match server.tls.clone() {
        None => converse(stream, peer, false, server, entry).await,
        Some(tls) => {
            if let Some(stream) = shake_hands(&TlsAcceptor::from(tls), stream).await {
                let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                converse(stream, peer, h2, server, entry).await;
            }
        }
    }
}

async fn shake_hands(
    tls: &TlsAcceptor,
    stream: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    // A client that does not speak TLS is cut without an answer.
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => log_end("handshake_failed", Some(&error)),
        Err(_) => log_end("handshake_late", None),
    }
    None
}

/// Serves a connection to its end, or to its upgrade.
async fn converse<S>(
    stream: S,
    peer: SocketAddr,
    h2: bool,
    server: ConnectionServer,
    entry: Connection,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (phase, answers) = (RequestPhase::default(), Answers::default());
    let rules = Rules {
        h2,
        idle_timeout: server.idle_timeout,
    };
    let guarded = WatchedStream::new(stream, phase.clone(), answers.clone(), rules, entry);
    if h2 {
        // Requests overlap in HTTP/2, and pings find dead connections.
        phase.next();
    }
    let met = CancellationToken::new();
    let ConnectionServer {
        router,
        buffers,
        draining,
        stop,
        ..
    } = server;
    let handler = Handler {
        router,
        buffers,
        peer,
        h2,
        phase: phase.clone(),
        answers,
        met: met.clone(),
        draining: draining.clone(),
    };
    let service = hyper::service::service_fn(move |request| handler.clone().answer(request));
    let builder = builder(h2);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(guarded), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
    };
    // hyper may not have read the next request yet, and a shutdown now would cut it. HTTP/2 can say
    // which request was the last. HTTP/1.1 cannot: its next answer ends the connection.
    let last_request = async {
        if h2 || !draining.is_cancelled() {
            met.cancelled().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => tokio::select! {
            ended = connection.as_mut() => ended,
            _ = tokio::time::timeout(LAST_ACCEPT_WINDOW, last_request) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        },
    };
    let error = ended.err();
    let error = error.as_deref();
    if let Some(reason) = reason(error.is_some(), stop.is_cancelled(), &phase) {
        log_end(reason, error.map(|error| error as &dyn std::error::Error));
    }
}

/// The reason why a connection has ended; none if it is upgraded and goes on.
fn reason(is_broken: bool, is_stopping: bool, phase: &RequestPhase) -> Option<&'static str> {
    // The gateway counts the end of the socket, or of the upgrade that failed.
    if phase.is_upgraded() {
        return None;
    }
    if let Some(missed) = phase.missed() {
        return Some(missed);
    }
    match is_broken {
        true => Some("broken"),
        false if is_stopping => Some("drain"),
        false if phase.lingers() => Some("answered"),
        false => Some("peer"),
    }
}

/// The requests of a connection.
#[derive(Clone)]
struct Handler {
    router: Router,
    buffers: ByteBudget,
    peer: SocketAddr,
    h2: bool,
    phase: RequestPhase,
    answers: Answers,
    /// Cancelled with the first request.
    met: CancellationToken,
    /// Cancelled when a drain begins.
    draining: CancellationToken,
}

impl Handler {
    async fn answer(self, mut request: hyper::Request<Incoming>) -> Result<Response, Infallible> {
        self.met.cancel();
        let address = client::network(self.peer.ip());
        let account = ByteAccount::new(self.buffers, address);
        request.extensions_mut().insert(Peer(self.peer));
        request.extensions_mut().insert(account.clone());
        // Streams of HTTP/2 end separately, so its connections outlive an unread body.
        if self.h2 {
            let open = self.answers.open();
            let response = call(self.router, request).await?;
            Ok(self.answers.meter(response, &account, Some(open)))
        } else {
            let response =
                answer_in_turn(self.router, request, &self.phase, &self.draining).await?;
            Ok(self.answers.meter(response, &account, None))
        }
    }
}

/// The protocol is decided by the caller. Guessing it from the first bytes would wait for them
/// without a deadline.
fn builder(h2: bool) -> auto::Builder<TokioExecutor> {
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut builder = if h2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(100)
        .max_header_list_size(64 * 1024)
        .max_pending_accept_reset_streams(20)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10));
    builder
}

async fn call<B>(mut router: Router, request: hyper::Request<B>) -> Result<Response, Infallible>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    router.as_service::<B>().ready().await?.call(request).await
}

/// Answers a request of an HTTP/1.1 connection, and decides whether the connection goes on.
async fn answer_in_turn(
    router: Router,
    request: hyper::Request<Incoming>,
    phase: &RequestPhase,
    draining: &CancellationToken,
) -> Result<Response, Infallible> {
    phase.next();
    // hyper reads the chunks and drops a length beside them. A proxy before us may have gone by the
    // length, so what follows on this connection may be another's request.
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let (request, rest) = unread::track(request);
    let mut response = call(router, request).await?;
    // An upgraded connection sends no further head.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        phase.upgrade();
        return Ok(response);
    }
    let is_heard = rest.discard().await;
    if !is_heard || chunked || draining.is_cancelled() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    if response.headers().contains_key(header::CONNECTION) {
        phase.linger();
    }
    phase.next();
    Ok(response)
}

/// TLS from PEM files.
pub fn tls_from(
    cert: &std::path::Path,
    key: &std::path::Path,
) -> Result<Arc<rustls::ServerConfig>, Box<dyn std::error::Error + Send + Sync>> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn whoever_was_connected_before_the_stop_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut clients = Vec::new();
        for _ in 0..10 {
            let mut client = TcpStream::connect(address).await.expect("connected");
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .expect("sent");
            clients.push(client);
        }
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        stop.cancel();
        let router = Router::new().route("/", axum::routing::get(async || "there"));
        let server = ConnectionServer {
            tls: None,
            router,
            connections: Connections::up_to(20),
            proxy_protocol: ProxyProtocol::default(),
            buffers: ByteBudget::new(1 << 20),
            idle_timeout: Duration::from_secs(75),
            tasks: tasks.clone(),
            draining: CancellationToken::new(),
            stop,
        };
        serve(listener, server, &tasks);
        for mut client in clients {
            let mut answer = String::new();
            client
                .read_to_string(&mut answer)
                .await
                .expect("an answer, then the end");
            assert!(
                answer.starts_with("HTTP/1.1 200") && answer.ends_with("there"),
                "{answer}"
            );
        }
        tasks.close();
        tasks.wait().await;
    }
}
