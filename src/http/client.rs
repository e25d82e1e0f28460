//! The client of a request: its address, its transport and its origin. The edge decides them once
//! per request, before the route.
//!
//! Why: ADR 61.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, Method, header, request::Parts},
    middleware::Next,
    response::Response,
};
use ipnet::IpNet;
use tower_http::cors::{AllowOrigin, CorsLayer};

pub use crate::limits::address::ClientIp;
use crate::{
    error::{Code, Error, Result},
    limits::buffers::{ByteAccount, Owner},
};

/// The operator's policy for incoming requests.
#[derive(Clone)]
pub struct IngressPolicy {
    /// Whether this node terminates TLS. It then ignores `X-Forwarded-Proto`.
    pub tls: bool,
    /// Whether only programs of this machine may call, as in the dev profile.
    pub local_only: bool,
    /// The networks whose forwarding headers are believed.
    pub proxies: Arc<[IpNet]>,
    /// The web origins that may call.
    pub origins: Arc<[String]>,
}

/// The other end of the TCP connection. The listener attaches it to every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The network that counts as a single client: an address, or a /64 of IPv6.
pub fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
        IpAddr::V4(ip) => ip.into(),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ClientIp {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parts
            .extensions
            .get::<ClientIp>()
            .copied()
            .ok_or_else(|| Error::internal(Code::InternalError, "no client address"))
    }
}

/// Refuses a request that did not come over TLS, and attaches the client's address.
pub async fn identify(
    State(ingress): State<IngressPolicy>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    let peer = request
        .extensions()
        .get::<Peer>()
        .map(|peer| peer.0.ip().to_canonical());
    let peer = peer.ok_or_else(|| Error::internal(Code::InternalError, "no peer address"))?;
    let trusted = ingress.trusts(peer);
    if ingress.local_only && !is_local(request.headers()) {
        return Err(Code::Forbidden.into());
    }
    let over_tls =
        ingress.tls || (trusted && last(request.headers(), "x-forwarded-proto") == Some("https"));
    if !over_tls {
        return Err(Code::TlsRequired.into());
    }
    let ip = if trusted {
        ingress
            .rightmost_untrusted(request.headers())
            .unwrap_or(peer)
    } else {
        peer
    };
    request.extensions_mut().insert(ClientIp(ip));
    if let Some(account) = request.extensions().get::<ByteAccount>() {
        account.set_owner(Owner::Address(network(ip)));
    }
    Ok(next.run(request).await)
}

impl IngressPolicy {
    fn trusts(&self, ip: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(&ip))
    }

    /// Walks `X-Forwarded-For` from the right until a hop that is not a trusted proxy.
    fn rightmost_untrusted(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let lines: Vec<_> = headers
            .get_all("x-forwarded-for")
            .iter()
            .map(|line| String::from_utf8_lossy(line.as_bytes()))
            .collect();
        let hops: Vec<&str> = lines
            .iter()
            .flat_map(|line| line.split(',').map(str::trim))
            .collect();
        let mut seen = None;
        for hop in hops.into_iter().rev() {
            // A trusted proxy writes only addresses, so nothing left of any other text can be
            // believed.
            let Some(ip) = address_of(hop) else {
                if !UNREADABLE_HOP_LOGGED.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        operation = "http.client_address",
                        remedy = "its clients share the proxy's limits",
                        "a trusted proxy sends X-Forwarded-For with a hop that is no address"
                    );
                }
                break;
            };
            seen = Some(ip);
            if !self.trusts(ip) {
                break;
            }
        }
        seen
    }

    /// Refuses a foreign web origin. Programs that send no `Origin` pass, because they carry no
    /// ambient credentials.
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<()> {
        let is_allowed = match headers.get(header::ORIGIN) {
            Some(origin) => self.origins.iter().any(|allowed| *allowed == *origin),
            // A browser that sends no `Origin` says all the same that another site's page asks.
            None => headers
                .get("sec-fetch-site")
                .is_none_or(|site| site == "same-origin" || site == "none"),
        };
        if is_allowed {
            Ok(())
        } else {
            Err(Code::OriginNotAllowed.into())
        }
    }
}

/// Whether a request was made for this machine's own name. A proxy in front of a dev node names the
/// public one.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = last(headers, "x-forwarded-host") else {
        return true;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Whether the warning about an unreadable hop was logged. Once is enough.
static UNREADABLE_HOP_LOGGED: AtomicBool = AtomicBool::new(false);

/// The address of a hop. Some proxies write ports: `ip:port`, `[v6]:port`, `[v6]`.
fn address_of(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']'));
    let ip = bare.unwrap_or(hop).parse().ok();
    let ip = ip.or_else(|| Some(hop.parse::<SocketAddr>().ok()?.ip()));
    ip.map(|ip: IpAddr| ip.to_canonical())
}

fn last<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(name)
        .iter()
        .next_back()?
        .to_str()
        .ok()?
        .rsplit(',')
        .next()
        .map(str::trim)
}

/// The CORS headers for pages of the allowed origins; other pages get none.
pub fn cors(ingress: &IngressPolicy) -> CorsLayer {
    let origins = ingress
        .origins
        .iter()
        .filter_map(|origin| origin.parse().ok());
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins.collect::<Vec<_>>()))
        .allow_credentials(true)
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            HeaderName::from_static("idempotency-key"),
        ])
        .expose_headers([
            header::RETRY_AFTER,
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("ratelimit"),
        ])
        .max_age(Duration::from_secs(600))
}

/// Refuses a request from a page of another origin before its route, for `/auth/*`.
pub async fn same_origin(
    State(ingress): State<IngressPolicy>,
    request: Request,
    next: Next,
) -> Result<Response> {
    ingress.check_origin(request.headers())?;
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ingress(proxies: &[&str]) -> IngressPolicy {
        let proxies = proxies
            .iter()
            .map(|net| net.parse().expect("a network"))
            .collect();
        IngressPolicy {
            tls: false,
            local_only: false,
            proxies,
            origins: Arc::new([]),
        }
    }

    #[test]
    fn the_client_is_the_rightmost_hop_that_is_not_ours() {
        let ingress = ingress(&["10.0.0.0/8"]);
        let client = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", value.parse().expect("a header"));
            ingress
                .rightmost_untrusted(&headers)
                .map(|ip| ip.to_string())
        };
        assert_eq!(
            client("1.1.1.1, 2.2.2.2, 10.0.0.7").as_deref(),
            Some("2.2.2.2")
        );
        assert_eq!(client("10.0.0.9, 10.0.0.7").as_deref(), Some("10.0.0.9"));
        assert_eq!(
            client("6.6.6.6, junk, 10.0.0.7").as_deref(),
            Some("10.0.0.7")
        );
        assert_eq!(client("::ffff:2.2.2.2").as_deref(), Some("2.2.2.2"));
    }

    #[test]
    fn a_dev_node_answers_its_own_machine_only() {
        for (host, local) in [
            (None, true),
            (Some("localhost:8443"), true),
            (Some("127.0.0.1"), true),
            (Some("[::1]:8443"), true),
            (Some("chat.example.org"), false),
            (Some("localhost, chat.example.org:443"), false),
            (Some("10.0.0.7:8443"), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(host) = host {
                headers.insert("x-forwarded-host", host.parse().expect("a header"));
            }
            assert_eq!(is_local(&headers), local, "{host:?}");
        }
    }

    #[test]
    fn a_hop_may_carry_a_port() {
        for (hop, address) in [
            ("203.0.113.7:51234", Some("203.0.113.7")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[::ffff:2.2.2.2]:80", Some("2.2.2.2")),
            ("203.0.113.7:", None),
            ("[203.0.113.7", None),
            ("unknown", None),
        ] {
            let read = address_of(hop).map(|ip| ip.to_string());
            assert_eq!(read.as_deref(), address, "{hop}");
        }
    }
}
