//! The one door for outgoing requests whose address a user chose.
//!
//! An attempt parses the URL once and resolves its host once. Every address of the host must be
//! public, and the connection goes to one of these addresses; TLS and `Host` keep the name. A
//! pooled connection is used only if its address is among them. Redirects are answers like others.
//! Proxies of the environment and compressed bodies do not exist here. A single deadline covers
//! everything from the name to the last byte.
//!
//! Why: ADR 30.

mod address;
mod connection;
mod destination;
mod pool;
mod resolver;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rustls::ClientConfig;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::{
    address::AddressRules,
    connection::MAX_REPLY_BYTES,
    destination::{Destination, UrlRules},
};
use self::{
    connection::{Connection, Failed, Post, RawReply},
    pool::{Place, Pool},
    resolver::Resolver,
};

/// Deadline of connecting to one address, as a part of the exchange's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Addresses of a host that are tried.
const MAX_DIALLED_ADDRESSES: usize = 4;
/// Interval between two looks for connections that were idle for too long.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("blindpipe/", env!("CARGO_PKG_VERSION")));

/// The reason that there is no answer. It contains nothing of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressError {
    /// The URL has a form that is not allowed. The text continues "the URL …".
    InvalidUrl(&'static str),
    /// The host, or one of its addresses, must not be called.
    ForbiddenAddress,
    /// The name has no address, or no name server answers.
    Dns,
    /// No address accepts a connection.
    Connect,
    /// The certificate is not valid for the name, or TLS fails otherwise.
    Tls,
    /// The exchange was not complete in time.
    Timeout,
    /// The receiver closed the connection before the answer was complete.
    Closed,
    /// The answer is not HTTP, or its header lines are too many or too long.
    Protocol,
    /// The node has as many exchanges under way as it may, in all or with this receiver. Nothing
    /// was sent, so this is no attempt.
    Busy,
}

impl EgressError {
    /// The stable short word for the delivery log.
    pub fn word(self) -> &'static str {
        match self {
            EgressError::InvalidUrl(_) => "invalid_url",
            EgressError::ForbiddenAddress => "forbidden_address",
            EgressError::Dns => "dns",
            EgressError::Connect => "connect",
            EgressError::Tls => "tls",
            EgressError::Timeout => "timeout",
            EgressError::Closed => "closed",
            EgressError::Protocol => "protocol",
            EgressError::Busy => "busy",
        }
    }
}

impl std::fmt::Display for EgressError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.word())
    }
}

impl std::error::Error for EgressError {}

/// The answer of a receiver. Redirects and errors are answers too.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The wait that `Retry-After` asks for, as seconds or as a date; zero for a date in the past.
    pub retry_after: Option<Duration>,
    /// The body's first [`MAX_REPLY_BYTES`], as sent: compressed bodies stay compressed.
    pub body: Bytes,
    /// Whether the body is longer. Its rest was not read.
    pub truncated: bool,
}

/// The addresses that may be called, and the calls at once.
#[derive(Clone)]
pub struct EgressSettings {
    /// The URLs that may be called.
    pub rules: UrlRules,
    /// Name servers; empty: those of the system.
    pub name_servers: Vec<SocketAddr>,
    /// Exchanges under way at once.
    pub max_in_flight: usize,
    /// Exchanges under way at once with one scheme, host and port.
    pub max_in_flight_per_origin: usize,
    /// Deadline of an exchange, from the name to the last byte of the answer.
    pub timeout: Duration,
    /// The certificate authorities; none: those of the system.
    pub roots: Option<rustls::RootCertStore>,
}

/// The clock and the counters that a program lends to its [`Egress`]. `()` has the system's time, and counts nothing.
pub trait Surroundings: Send + Sync + 'static {
    /// The time, for dates in answers.
    fn now(&self) -> SystemTime;

    /// An exchange has ended: `answered`, or the word for its failure.
    fn ended(&self, outcome: &'static str, span: Duration);
}

impl Surroundings for () {
    #[expect(clippy::disallowed_methods, reason = "a program without a clock")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn ended(&self, _: &'static str, _: Duration) {}
}

/// A place for one request to a checked URL.
pub struct Reserved {
    shared: Arc<Shared>,
    destination: Destination,
    place: Place,
}

/// Makes the requests; clones share connections and bounds.
#[derive(Clone)]
pub struct Egress(Arc<Shared>);

struct Shared {
    rules: UrlRules,
    timeout: Duration,
    resolver: Resolver,
    pool: Arc<Pool>,
    tls: Arc<ClientConfig>,
    surroundings: Box<dyn Surroundings>,
}

impl Egress {
    /// A client with these settings.
    pub fn new(settings: EgressSettings, surroundings: impl Surroundings) -> Self {
        Egress(Arc::new(Shared {
            rules: settings.rules,
            timeout: settings.timeout,
            resolver: Resolver::new(&settings.name_servers),
            pool: Pool::new(settings.max_in_flight, settings.max_in_flight_per_origin),
            tls: Arc::new(tls(settings.roots)),
            surroundings: Box::new(surroundings),
        }))
    }

    /// Closes idle connections in time, until `stopping`.
    pub async fn upkeep(self, stopping: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(UPKEEP_INTERVAL) => self.0.pool.close_idle(),
                () = stopping.cancelled() => return self.0.pool.clear(),
            }
        }
    }

    /// Judges a URL as [`Egress::post`] would, and calls nothing but name servers. Errors:
    /// `InvalidUrl`, `ForbiddenAddress`, `Dns`, `Timeout`.
    pub async fn check(&self, url: &str) -> Result<Destination, EgressError> {
        let destination = Destination::parse(url, &self.0.rules)?;
        tokio::time::timeout(self.0.timeout, self.0.addresses(&destination))
            .await
            .unwrap_or(Err(EgressError::Timeout))?;
        Ok(destination)
    }

    /// The scheme, host and port of a URL. Errors: `InvalidUrl`.
    pub fn origin(&self, url: &str) -> Result<Arc<str>, EgressError> {
        Destination::parse(url, &self.0.rules).map(|destination| destination.origin)
    }

    /// Takes a place for a request to `url`, and waits for it if all are taken. Holders share the
    /// places of an origin fairly. Errors: `InvalidUrl`, `ForbiddenAddress`; `Busy` after `wait`.
    pub async fn reserve(
        &self,
        url: &str,
        holder: Option<Uuid>,
        wait: Duration,
    ) -> Result<Reserved, EgressError> {
        let started = Instant::now();
        let reserved = self.0.reserve(url, holder, wait).await;
        reserved.inspect_err(|error| {
            let surroundings = &self.0.surroundings;
            surroundings.ended(error.word(), started.elapsed());
        })
    }

    /// Posts for nobody in particular, without waiting. Errors: `Busy` if no place is free.
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, EgressError> {
        let reserved = self.reserve(url, None, Duration::ZERO);
        reserved.await?.post(headers, body).await
    }
}

impl Reserved {
    /// Whether the place is for this URL's origin. The request then goes to this URL.
    pub fn to(mut self, url: &str) -> Result<Option<Self>, EgressError> {
        let destination = Destination::parse(url, &self.shared.rules)?;
        if destination.origin != self.destination.origin {
            return Ok(None);
        }
        self.destination = destination;
        Ok(Some(self))
    }

    /// Posts `body` and reads the answer. A request is written at most once. `Host`, `User-Agent`
    /// and `Content-Length` are set here.
    pub async fn post(self, headers: HeaderMap, body: Bytes) -> Result<Reply, EgressError> {
        let started = Instant::now();
        let shared = self.shared.clone();
        let outcome = Box::pin(self.exchange(headers, body)).await;
        let word = outcome
            .as_ref()
            .err()
            .map_or("answered", |error| error.word());
        shared.surroundings.ended(word, started.elapsed());
        outcome
    }

    async fn exchange(self, mut headers: HeaderMap, body: Bytes) -> Result<Reply, EgressError> {
        let Reserved {
            shared,
            destination,
            place,
        } = self;
        headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
        let post = Post { headers, body };
        let exchange = shared.exchange(&destination, &place, &post);
        let raw = tokio::time::timeout(shared.timeout, exchange)
            .await
            .unwrap_or(Err(EgressError::Timeout))?;
        Ok(Reply {
            status: raw.status,
            retry_after: retry_after(&raw.headers, shared.surroundings.now()),
            body: raw.body,
            truncated: raw.truncated,
        })
    }
}

impl Shared {
    async fn reserve(
        self: &Arc<Self>,
        url: &str,
        holder: Option<Uuid>,
        wait: Duration,
    ) -> Result<Reserved, EgressError> {
        let destination = Destination::parse(url, &self.rules)?;
        let place = self.pool.place(&destination.origin, holder, wait).await?;
        Ok(Reserved {
            shared: self.clone(),
            destination,
            place,
        })
    }

    async fn exchange(
        &self,
        destination: &Destination,
        place: &Place,
        post: &Post,
    ) -> Result<RawReply, EgressError> {
        let addresses = self.addresses(destination).await?;
        let (mut connection, reply) = loop {
            let idle = place.idle(&addresses);
            let fresh = idle.is_none();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.connect(destination, &addresses).await?,
            };
            match connection.post(destination, post).await {
                Ok(reply) => break (connection, reply),
                Err(Failed::Unsent) if fresh => return Err(EgressError::Closed),
                // The receiver had closed an idle connection.
                Err(Failed::Unsent) => {}
                Err(Failed::Sent(error)) => return Err(error),
            }
        };
        if connection.is_reusable().await {
            place.keep(connection);
        }
        Ok(reply)
    }

    /// Every address of the host. Errors: `ForbiddenAddress` if a single one must not be called.
    async fn addresses(&self, destination: &Destination) -> Result<Vec<IpAddr>, EgressError> {
        let addresses = match destination.address_or_name() {
            Ok(ip) => vec![ip],
            Err(name) => self.resolver.addresses(name).await?,
        };
        let rules = &self.rules.addresses;
        if addresses.iter().all(|ip| rules.allow(*ip)) {
            Ok(addresses)
        } else {
            Err(EgressError::ForbiddenAddress)
        }
    }

    /// Connects to the first of the checked addresses that accepts.
    async fn connect(
        &self,
        destination: &Destination,
        addresses: &[IpAddr],
    ) -> Result<Connection, EgressError> {
        for ip in addresses.iter().take(MAX_DIALLED_ADDRESSES) {
            let dialled = connection::dial(SocketAddr::new(*ip, destination.port));
            if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIMEOUT, dialled).await {
                return Connection::open(stream, *ip, destination, &self.tls).await;
            }
        }
        Err(EgressError::Connect)
    }
}

/// TLS that trusts the roots of this system, which are read once.
static PLATFORM: LazyLock<ClientConfig> = LazyLock::new(|| {
    ClientConfig::with_platform_verifier().unwrap_or_else(|error| {
        // Without roots no certificate can be trusted, so every call fails with `tls`.
        tracing::warn!(
            operation = "egress.start",
            cause = %error,
            remedy = "no https address can be called",
            "no certificate roots on this system"
        );
        trusting(rustls::RootCertStore::empty())
    })
});

fn trusting(roots: rustls::RootCertStore) -> ClientConfig {
    ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn tls(roots: Option<rustls::RootCertStore>) -> ClientConfig {
    let mut config = match roots {
        Some(roots) => trusting(roots),
        None => PLATFORM.clone(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Both forms of `Retry-After`. A number too large to read counts as the largest.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = value.parse::<u32>().unwrap_or(u32::MAX);
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_retry_after_are_read() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").expect("a date");
        for (value, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("99999999999999999999", Some(u64::from(u32::MAX))),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)),
            ("Sun Nov  6 08:50:07 1994", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(value));
            let wait = retry_after(&headers, now);
            assert_eq!(wait, seconds.map(Duration::from_secs), "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
