//! Accepting connections: our own loop, because `axum::serve` sets no deadlines (a slow client would hold its connection
//! for ever; see [`super::idle`]) and does not know about upgraded sockets when it stops.

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
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Service, ServiceExt};

use super::{
    client::Peer,
    idle::{Guarded, RequestPhase},
    unread,
};

/// From the first byte of a connection to the end of its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long whoever is connected when the listener stops may take to say what it wants.
const LAST_ACCEPT_WINDOW: Duration = Duration::from_secs(1);

/// Bytes that the kernel keeps for a client beyond what is on the wire. Its own idea, megabytes, hides a client that does
/// not read, and is paid for each.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;

/// Serves `router` on `listener` until `stop`; connections then finish what they have begun.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let server = ConnectionServer {
        tls: tls.map(TlsAcceptor::from),
        router,
        tasks,
        stop,
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => server.let_in(stream, peer),
            Err(error) => {
                // Out of file descriptors, mostly: wait for some to come back rather than spin.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Whoever the kernel has connected and we have not met yet would be cut with its request half sent.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            server.let_in(stream, peer);
        }
    }
}

/// What every connection is served with.
struct ConnectionServer {
    tls: Option<TlsAcceptor>,
    router: Router,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ConnectionServer {
    fn let_in(&self, stream: TcpStream, peer: SocketAddr) {
        stream.set_nodelay(true).ok();
        SockRef::from(&stream)
            .set_tcp_notsent_lowat(MAX_UNSENT_BYTES)
            .ok();
        let (tls, router, stop) = (self.tls.clone(), self.router.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            match tls {
                None => converse(stream, peer, false, router, stop).await,
                Some(tls) => {
                    if let Some(stream) = shake_hands(&tls, stream).await {
                        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        converse(stream, peer, h2, router, stop).await;
                    }
                }
            }
        });
    }
}

async fn shake_hands(
    tls: &TlsAcceptor,
    stream: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    // What does not speak TLS is cut without an answer.
    tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))
        .await
        .ok()?
        .ok()
}

async fn converse<S>(stream: S, peer: SocketAddr, h2: bool, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let turns = RequestPhase::default();
    let guarded = Guarded::new(stream, turns.clone());
    if h2 {
        // Requests overlap there; pings find the dead.
        turns.next();
    }
    let met = CancellationToken::new();
    let meet = met.clone();
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        meet.cancel();
        request.extensions_mut().insert(Peer(peer));
        let (router, turns) = (router.clone(), turns.clone());
        async move {
            // Streams of HTTP/2 end one by one, so its connections outlive an unread body.
            if h2 {
                call(router, request).await
            } else {
                answer_in_turn(router, request, &turns).await
            }
        }
    });
    // Guessing the protocol from the first bytes would wait for them without a deadline, so it is settled before.
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
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(guarded), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return log_end(ended),
        () = stop.cancelled() => {}
    }
    // Nothing of a first request may have been read yet; it would be cut by being asked to stop now.
    tokio::select! {
        ended = connection.as_mut() => return log_end(ended),
        _ = tokio::time::timeout(LAST_ACCEPT_WINDOW, met.cancelled()) => connection.as_mut().graceful_shutdown(),
    }
    log_end(connection.await);
}

async fn call<B>(mut router: Router, request: hyper::Request<B>) -> Result<Response, Infallible>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    router.as_service::<B>().ready().await?.call(request).await
}

/// Answers one request of an HTTP/1.1 connection, and settles whether the connection goes on.
async fn answer_in_turn(
    router: Router,
    request: hyper::Request<Incoming>,
    turns: &RequestPhase,
) -> Result<Response, Infallible> {
    turns.next();
    let (request, rest) = unread::track(request);
    let mut response = call(router, request).await?;
    // What follows an upgrade is no head.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response);
    }
    if !rest.discard().await {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    if response.headers().contains_key(header::CONNECTION) {
        turns.linger();
    }
    turns.next();
    Ok(response)
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
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
        serve(listener, None, router, tasks.clone(), stop).await;
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
