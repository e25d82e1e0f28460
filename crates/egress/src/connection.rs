//! A connection to a checked address, and exchanges on it.
//!
//! Nothing runs beside an exchange: its caller drives the connection, so a dropped exchange closes
//! it, and an idle connection costs no task.

use std::{error::Error as _, io, net::IpAddr, net::SocketAddr, pin::Pin, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::future::poll_fn;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::TlsConnector;
use url::Host;

use super::{EgressError, destination::Destination};

/// Bytes that are read of an answer's body.
pub const MAX_REPLY_BYTES: usize = 64 * 1024;
/// Header lines of an answer.
const MAX_REPLY_HEADERS: usize = 100;
/// Bytes of an answer's status line and header lines.
const MAX_REPLY_HEADER_BYTES: usize = 32 * 1024;
/// Most bytes that the kernel receives for the node before it reads. Its default, megabytes, would
/// take that much of an endless answer.
const RECEIVE_BUFFER_BYTES: u32 = 64 * 1024;

/// The raw answer of a receiver.
pub(super) struct RawReply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) truncated: bool,
}

/// The end of an exchange without an answer.
pub(super) enum Failed {
    /// No byte of the request was written, so it may go over another connection.
    Unsent,
    /// The request may have reached the receiver.
    Sent(EgressError),
}

/// An open connection. It has one exchange at a time, also with HTTP/2.
pub(super) struct Connection {
    peer: IpAddr,
    sender: Sender,
    /// Reads and writes; none once the connection is closed.
    driver: Option<Driver>,
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A request before it is written for a protocol.
pub(super) struct Post {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Connects a socket to `address`.
pub(super) async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

impl Connection {
    /// Agrees on TLS, with the destination's host as the name, and on the protocol.
    pub(super) async fn open(
        stream: TcpStream,
        peer: IpAddr,
        destination: &Destination,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, EgressError> {
        if !destination.https {
            return Self::http1(peer, stream).await;
        }
        let name = match &destination.host {
            Host::Domain(name) => {
                ServerName::try_from(name.clone()).map_err(|_| EgressError::Tls)?
            }
            Host::Ipv4(ip) => IpAddr::from(*ip).into(),
            Host::Ipv6(ip) => IpAddr::from(*ip).into(),
        };
        let handshake = TlsConnector::from(tls.clone()).connect(name, stream);
        let stream = Box::pin(handshake).await.map_err(|error| of_tls(&error))?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            Self::http2(peer, stream).await
        } else {
            Self::http1(peer, stream).await
        }
    }

    async fn http1(
        peer: IpAddr,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, EgressError> {
        let (sender, driver) = http1::Builder::new()
            .max_headers(MAX_REPLY_HEADERS)
            .max_header_size(MAX_REPLY_HEADER_BYTES)
            .max_buf_size(MAX_REPLY_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| of_http(&error))?;
        Ok(Connection {
            peer,
            sender: Sender::Http1(sender),
            driver: Some(Box::pin(driver)),
        })
    }

    async fn http2(
        peer: IpAddr,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, EgressError> {
        let window = u32::try_from(MAX_REPLY_BYTES).unwrap_or(u32::MAX);
        let headers = u32::try_from(MAX_REPLY_HEADER_BYTES).unwrap_or(u32::MAX);
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .max_header_list_size(headers)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| of_http(&error))?;
        Ok(Connection {
            peer,
            sender: Sender::Http2(sender),
            driver: Some(Box::pin(driver)),
        })
    }

    /// The address that was dialled.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Posts, and reads the answer to its end or to [`MAX_REPLY_BYTES`].
    pub(super) async fn post(
        &mut self,
        destination: &Destination,
        post: &Post,
    ) -> Result<RawReply, Failed> {
        // A receiver may have closed the connection while it was idle.
        self.drive_once().await;
        let Some(driver) = &mut self.driver else {
            return Err(Failed::Unsent);
        };
        let http2 = matches!(self.sender, Sender::Http2(_));
        let request = request(destination, post, http2).map_err(Failed::Sent)?;
        let sender = &mut self.sender;
        let exchange = async {
            let response = match sender {
                Sender::Http1(sender) => sender.try_send_request(request).await,
                Sender::Http2(sender) => sender.try_send_request(request).await,
            };
            read(response.map_err(of_send)?).await.map_err(Failed::Sent)
        };
        let mut exchange = std::pin::pin!(exchange);
        tokio::select! {
            biased;
            reply = &mut exchange => reply,
            _ = driver => {
                // The connection has ended; what it received before is still to be read.
                self.driver = None;
                exchange.await
            }
        }
    }

    /// Whether the connection can take a further request. False after an answer that was not read
    /// to its end.
    pub(super) async fn is_reusable(&mut self) -> bool {
        // The first step ends the exchange, the second waits for the next request.
        self.drive_once().await;
        self.drive_once().await;
        self.driver.is_some()
            && match &self.sender {
                Sender::Http1(sender) => sender.is_ready(),
                Sender::Http2(sender) => sender.is_ready(),
            }
    }

    /// Lets the connection do what it can without waiting.
    async fn drive_once(&mut self) {
        if let Some(driver) = &mut self.driver
            && poll_fn(|context| std::task::Poll::Ready(driver.as_mut().poll(context).is_ready()))
                .await
        {
            self.driver = None;
        }
    }
}

fn request(
    destination: &Destination,
    post: &Post,
    http2: bool,
) -> Result<Request<Full<Bytes>>, EgressError> {
    let uri = if http2 {
        format!(
            "https://{}{}",
            destination.authority, destination.path_and_query
        )
    } else {
        destination.path_and_query.to_string()
    };
    let broken = |_| EgressError::InvalidUrl("cannot be requested");
    let uri: Uri = uri.parse().map_err(broken)?;
    let mut request = Request::new(Full::new(post.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = post.headers.clone();
    if !http2 {
        let host = destination.authority.parse();
        let host = host.map_err(|_| EgressError::InvalidUrl("cannot be requested"))?;
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(request)
}

async fn read(response: Response<Incoming>) -> Result<RawReply, EgressError> {
    let (parts, mut stream) = response.into_parts();
    let mut body = BytesMut::new();
    let mut truncated = false;
    while let Some(frame) = stream.frame().await {
        let Ok(data) = frame.map_err(|error| of_http(&error))?.into_data() else {
            continue;
        };
        let space = MAX_REPLY_BYTES - body.len();
        if data.len() > space {
            body.extend_from_slice(&data[..space]);
            truncated = true;
            break;
        }
        body.extend_from_slice(&data);
    }
    Ok(RawReply {
        status: parts.status,
        headers: parts.headers,
        body: body.freeze(),
        truncated,
    })
}

fn of_send<T>(mut error: TrySendError<T>) -> Failed {
    match error.take_message() {
        Some(_) => Failed::Unsent,
        None => Failed::Sent(of_http(error.error())),
    }
}

fn of_tls(error: &io::Error) -> EgressError {
    let inner = error.get_ref();
    if inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
        EgressError::Tls
    } else {
        EgressError::Closed
    }
}

/// The word for an error of the HTTP library. Its text may contain the receiver's bytes, so it is
/// never kept.
fn of_http(error: &hyper::Error) -> EgressError {
    if error.is_parse() {
        return EgressError::Protocol;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return match error.kind() {
                _ if of_tls(error) == EgressError::Tls => EgressError::Tls,
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => EgressError::Protocol,
                _ => EgressError::Closed,
            };
        }
        source = cause.source();
    }
    let closed = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
    if closed {
        EgressError::Closed
    } else {
        EgressError::Protocol
    }
}
