//! The ways in which receivers treat a delivery.

use std::{convert::Infallible, io, sync::Arc, sync::atomic::Ordering::SeqCst, time::Duration};

use axum::http::{Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;

use super::{
    authority::Authority,
    faulty_receiver::{DRIP, Shared, Stream},
};

/// A way to treat a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behaviour {
    // Honest successes.
    Well,
    Accepted,
    NoContent,
    /// The body ends with the connection.
    UntilClose,
    ConnectionClose,
    /// Closes after an answer that promised to stay.
    ClosedUnderUs,
    /// Answers before it has read the body, then reads it and closes.
    AnswersEarly,
    /// A success with 10 GB of body.
    Endless,
    HugeLength,
    /// A small body that would be large if it were unpacked.
    GzipBomb,
    /// More bytes after the answer, which look like another answer.
    TrailingAnswer,
    Http2,
    /// 100 informational answers before the real one.
    Informational,
    // Honest failures.
    MovedPermanently,
    RedirectInside,
    BadRequest,
    Gone,
    /// 429 with seconds.
    TooMany,
    /// 429 with a date.
    TooManyUntil,
    /// 503 with seconds.
    UnavailableFor,
    /// 503 with a date.
    Unavailable,
    ServerError,
    SwitchingProtocols,
    // Waits.
    Hangs,
    NeverReads,
    DripsHeaders,
    DripsBody,
    EndlessContinue,
    // Cuts.
    ClosesAtOnce,
    Resets,
    ClosesUnanswered,
    CutsHeaders,
    CutsBody,
    CutsChunk,
    // Not HTTP.
    NotHttp,
    ManyHeaders,
    HugeHeader,
    BadChunk,
    TwoLengths,
    Http2Reset,
    Http2HugeHeaders,
    // Not to be trusted.
    Expired,
    WrongName,
    UnknownAuthority,
    PlainText,
}

use Behaviour::*;

impl Behaviour {
    /// Whether the sender must take it as a success.
    pub fn accepts(self) -> bool {
        (self as usize) < MovedPermanently as usize
    }

    pub(super) fn speaks_http2(self) -> bool {
        matches!(self, Http2 | Http2Reset | Http2HugeHeaders)
    }

    /// Answers a request. Returns whether the connection stays open.
    pub(super) async fn answer(
        self,
        stream: &mut impl Stream,
        shared: &Shared,
    ) -> io::Result<bool> {
        let text = match self {
            Accepted => plain("202 Accepted", ""),
            NoContent => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            UntilClose => "HTTP/1.0 200 OK\r\n\r\n{\"until\": \"close\"}".to_owned(),
            ConnectionClose => plain("200 OK", "connection: close\r\n"),
            TrailingAnswer => plain("200 OK", "") + &plain("500 Internal Server Error", ""),
            Informational => "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100) + &plain("200 OK", ""),
            MovedPermanently => plain("301 Moved", "location: /elsewhere\r\n"),
            RedirectInside => plain("302 Found", "location: http://127.0.0.2:1/\r\n"),
            BadRequest => plain("400 Bad Request", ""),
            Gone => plain("410 Gone", ""),
            TooMany => plain("429 Too Many Requests", "retry-after: 7\r\n"),
            TooManyUntil => plain("429 Too Many Requests", UNTIL_2100),
            UnavailableFor => plain("503 Service Unavailable", "retry-after: 7\r\n"),
            Unavailable => plain("503 Service Unavailable", UNTIL_2100),
            ServerError => plain("500 Internal Server Error", ""),
            SwitchingProtocols => {
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
                    .into()
            }
            CutsHeaders => "HTTP/1.1 200 OK\r\ncontent-le".to_owned(),
            CutsBody => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"cut\":".to_owned(),
            CutsChunk => {
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\n{\"cut".to_owned()
            }
            NotHttp => "SSH-2.0-OpenSSH_9.6\r\n".to_owned(),
            HugeHeader => format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(10 << 20)),
            BadChunk => {
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n".to_owned()
            }
            TwoLengths => {
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x".to_owned()
            }
            Hangs => return hang().await,
            DripsHeaders => return drip(stream, shared, "HTTP/1.1 200 OK\r\nx: ").await,
            DripsBody => {
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
                return drip(stream, shared, head).await;
            }
            EndlessContinue => loop {
                shared
                    .write(stream, b"HTTP/1.1 100 Continue\r\n\r\n")
                    .await?;
                tokio::time::sleep(Duration::from_millis(1)).await; // a thousand in a second
            },
            Endless => return flood(stream, shared, CHUNKED, ENDLESS_CHUNK).await,
            HugeLength => return flood(stream, shared, TEN_GB, &[b' '; 4096]).await,
            ManyHeaders => {
                shared.write(stream, b"HTTP/1.1 200 OK\r\n").await?;
                let lines: String = (0..1_000_000).map(|n| format!("x{n}: x\r\n")).collect();
                lines
            }
            GzipBomb => {
                let body = bomb();
                let headers = format!(
                    "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                shared.write(stream, headers.as_bytes()).await?;
                shared.write(stream, &body).await?;
                return Ok(true);
            }
            // On a connection that is open already, what concerns its beginning closes it.
            ClosesAtOnce | NeverReads | Resets | ClosesUnanswered | Http2Reset
            | Http2HugeHeaders | Expired | WrongName | UnknownAuthority | PlainText => {
                return Ok(false);
            }
            Well | ClosedUnderUs | AnswersEarly | Http2 => plain("200 OK", ""),
        };
        shared.write(stream, text.as_bytes()).await?;
        if self == TwoLengths || self == BadChunk || self == NotHttp {
            // The client closes; a close of the server would hide a client that waits.
            return hang().await;
        }
        let stays = matches!(
            self,
            Well | Accepted
                | NoContent
                | TrailingAnswer
                | Informational
                | TooMany
                | ServerError
                | Gone
        );
        Ok(stays)
    }
}

const UNTIL_2100: &str = "retry-after: Fri, 31 Dec 2100 23:59:59 GMT\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const ENDLESS_CHUNK: &[u8] = b"20\r\n                                \r\n";
const TEN_GB: &str = "HTTP/1.1 200 OK\r\ncontent-length: 10737418240\r\n\r\n";

fn plain(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: 2\r\n\r\n{{}}")
}

/// Waits until the client has long gone.
pub(super) async fn hang<T>() -> io::Result<T> {
    tokio::time::sleep(Duration::from_secs(3600)).await;
    Err(io::ErrorKind::TimedOut.into())
}

async fn drip(stream: &mut impl Stream, shared: &Shared, head: &str) -> io::Result<bool> {
    shared.write(stream, head.as_bytes()).await?;
    loop {
        tokio::time::sleep(DRIP).await;
        shared.write(stream, b"x").await?;
    }
}

/// Writes as long as the client reads, up to 10 GB.
async fn flood(
    stream: &mut impl Stream,
    shared: &Shared,
    head: &str,
    piece: &[u8],
) -> io::Result<bool> {
    shared.write(stream, head.as_bytes()).await?;
    let start = shared.written.load(SeqCst);
    while shared.written.load(SeqCst) - start < 10 << 30 {
        shared.write(stream, piece).await?;
    }
    Ok(false)
}

/// A gzip stream of 60 KB that stands for 9 MB of zeros: a literal, and then the longest repetition
/// of Deflate's fixed codes (258 bytes in 13 bits) over and over.
fn bomb() -> Vec<u8> {
    let literal = [false, false, true, true, false, false, false, false];
    let repetition = [true, true, false, false, false, true, false, true];
    let mut bits = vec![true, true, false];
    bits.extend(literal);
    while bits.len() < 480_000 {
        bits.extend(repetition);
        bits.extend([false; 5]);
    }
    let mut bytes = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03".to_vec();
    bytes.extend(bits.chunks(8).map(|eight| {
        let ones = eight.iter().enumerate().filter(|(_, bit)| **bit);
        ones.fold(0, |byte, (n, _)| byte | 1 << n)
    }));
    bytes
}

/// The certificates that a receiver may show.
pub(super) struct Certificates {
    good: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
    expired: Arc<ServerConfig>,
    wrong_name: Arc<ServerConfig>,
    unknown: Arc<ServerConfig>,
}

impl Certificates {
    pub(super) fn new(authority: &Authority) -> Self {
        Certificates {
            good: authority.server("localhost", 2100, &["http/1.1"]),
            http2: authority.server("localhost", 2100, &["h2"]),
            expired: authority.server("localhost", 2025, &["http/1.1"]),
            wrong_name: authority.server("elsewhere.example", 2100, &["http/1.1"]),
            unknown: Authority::new().server("localhost", 2100, &["http/1.1"]),
        }
    }

    /// The certificate for a behaviour.
    pub(super) fn of(&self, behaviour: Behaviour) -> Arc<ServerConfig> {
        match behaviour {
            Expired => self.expired.clone(),
            WrongName => self.wrong_name.clone(),
            UnknownAuthority => self.unknown.clone(),
            behaviour if behaviour.speaks_http2() => self.http2.clone(),
            _ => self.good.clone(),
        }
    }
}

/// Serves HTTP/2 with the library of the server under test, which has its own tests.
pub(super) async fn serve_http2(
    shared: Arc<Shared>,
    stream: impl Stream + 'static,
    behaviour: Behaviour,
) -> io::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body
                .collect()
                .await
                .map_err(|_| io::ErrorKind::UnexpectedEof)?;
            let pairs = parts.headers.iter();
            let headers = pairs.map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.to_string(), value)
            });
            shared.record(headers.collect(), body.to_bytes().to_vec(), behaviour);
            answer_http2(behaviour)
        }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    serving.await.map_err(io::Error::other)
}

fn answer_http2(behaviour: Behaviour) -> Result<Response<Full<Bytes>>, io::Error> {
    let mut answer = Response::new(Full::new(Bytes::from_static(b"{}")));
    *answer.status_mut() = StatusCode::OK;
    match behaviour {
        Http2Reset => return Err(io::ErrorKind::Other.into()),
        Http2HugeHeaders => {
            for n in 0..1000 {
                let name = format!("x-{n}");
                let name = axum::http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
                let value = "x".repeat(100).parse().expect("a value");
                answer.headers_mut().insert(name, value);
            }
        }
        _ => {}
    }
    Ok::<_, Infallible>(answer).map_err(|never| match never {})
}
