//! The PROXY protocol: limits of addresses see the clients behind a load balancer that forwards TCP.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::Duration,
};

use reqwest::Certificate;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::support::{TestNode, h2::Tls, nodes_with, spawn};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The header for a client.
fn header(client: IpAddr) -> Vec<u8> {
    let (family, body) = match client {
        IpAddr::V4(ip) => (
            0x11,
            [&ip.octets()[..], &[10, 0, 0, 1, 0x30, 0x39, 1, 187]].concat(),
        ),
        IpAddr::V6(ip) => (
            0x21,
            [&ip.octets()[..], &[0; 16], &[0x30, 0x39, 1, 187]].concat(),
        ),
    };
    let length = u16::try_from(body.len()).expect("short").to_be_bytes();
    [SIGNATURE, &[0x21, family], &length, &body].concat()
}

/// A load balancer in front of a node, which knows nothing of TLS.
struct Balancer {
    base: String,
    client: Arc<Mutex<IpAddr>>,
}

impl Balancer {
    async fn before(node: &TestNode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let client = Arc::new(Mutex::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let (target, claimed) = (address(node), client.clone());
        spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let header = header(*claimed.lock().expect("no panic"));
                let target = target.clone();
                spawn(async move {
                    let mut node = TcpStream::connect(target).await.expect("the node");
                    node.write_all(&header).await.expect("a header");
                    copy_bidirectional(&mut stream, &mut node).await.ok();
                });
            }
        });
        let base = format!("https://localhost:{port}");
        Balancer { base, client }
    }

    /// A new connection of a client; the status of its request, if the node answers.
    async fn ask(&self, tls: &Tls, client: &str) -> Option<(u16, reqwest::Client)> {
        *self.client.lock().expect("no panic") = client.parse().expect("an address");
        let http = self::client(tls);
        let status = status(&http, &self.base, Some("198.51.100.9")).await?;
        Some((status, http))
    }
}

fn address(node: &TestNode) -> String {
    node.base.trim_start_matches("http://").to_owned()
}

fn client(tls: &Tls) -> reqwest::Client {
    let ca = Certificate::from_pem(&tls.authority()).expect("a certificate");
    let builder = reqwest::Client::builder().no_proxy().tls_certs_only([ca]);
    builder.build().expect("a client")
}

async fn status(http: &reqwest::Client, base: &str, claimed: Option<&str>) -> Option<u16> {
    let mut request = http.get(format!("{base}/share/nothing"));
    if let Some(claimed) = claimed {
        request = request.header("x-forwarded-for", claimed);
    }
    Some(request.send().await.ok()?.status().as_u16())
}

async fn node(tls: &Tls, balancers: &str) -> TestNode {
    let [cert, key] = tls.settings();
    let settings = [
        cert,
        key,
        ("TRUSTED_PROXIES", ""),
        ("PROXY_PROTOCOL_FROM", balancers),
        ("LIMIT_OVERRIDES", "share_open=3/min"),
        ("MAX_CONNECTIONS_PER_ADDRESS", "3"),
    ];
    let [node] = nodes_with(&settings).await;
    node
}

async fn refused(node: &TestNode, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    node.metric("connections_closed_total", &[&label]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_see_the_clients_behind_a_balancer() {
    let tls = Tls::new();
    let node = node(&tls, "127.0.0.1/32").await;
    let balancer = Balancer::before(&node).await;
    for client in ["203.0.113.1", "203.0.113.2", "2001:db8::1"] {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            let answered = balancer.ask(&tls, client).await;
            statuses.extend(answered.map(|(status, _)| status));
        }
        assert_eq!(statuses, [404, 404, 404, 429], "{client}");
    }
    // Another address of the same /64 is the same client.
    let neighbour = balancer.ask(&tls, "2001:db8::2").await;
    assert_eq!(neighbour.map(|(status, _)| status), Some(429));

    // Open connections count for their clients too, and not for the balancer.
    let mut held = Vec::new();
    for client in ["203.0.113.3", "203.0.113.4"] {
        for _ in 0..3 {
            held.push(balancer.ask(&tls, client).await.expect("an answer"));
        }
    }
    let before = refused(&node, "address_limit").await;
    assert!(balancer.ask(&tls, "203.0.113.3").await.is_none());
    assert!(refused(&node, "address_limit").await > before);
}

/// Whether the node closes a connection that begins with `bytes`.
async fn is_cut(node: &TestNode, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address(node)).await.expect("connected");
    stream.write_all(bytes).await.ok();
    stream.shutdown().await.ok();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(8), stream.read_to_end(&mut answer));
    read.await.expect("an end").is_err() || answer.is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_is_required_of_balancers_and_refused_of_others() {
    let tls = Tls::new();
    let behind = node(&tls, "127.0.0.1/32").await;
    let good = header("203.0.113.1".parse().expect("an address"));
    let mut unknown_version = good.clone();
    unknown_version[12] = 0x31;
    let mut huge = good.clone();
    huge[14] = 0xff;
    for bytes in [
        &good[..20],
        &unknown_version,
        &huge,
        b"PROXY TCP4 203.0.113.1 10.0.0.1 12345 443\r\n",
        b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ] {
        let before = refused(&behind, "proxy_malformed").await;
        assert!(is_cut(&behind, bytes).await, "{bytes:?}");
        assert!(refused(&behind, "proxy_malformed").await > before);
    }
    // A client that reaches the node past its balancer is not served.
    let base = behind.base.replace("http://127.0.0.1", "https://localhost");
    assert_eq!(status(&client(&tls), &base, None).await, None);

    let elsewhere = node(&tls, "10.0.0.0/8").await;
    let before = refused(&elsewhere, "proxy_untrusted").await;
    assert!(is_cut(&elsewhere, &good).await);
    assert!(refused(&elsewhere, "proxy_untrusted").await > before);
    let base = elsewhere
        .base
        .replace("http://127.0.0.1", "https://localhost");
    assert_eq!(status(&client(&tls), &base, None).await, Some(404));
}
