//! Attacks 40 and 41: nothing but the public internet is called, however its address is written and
//! whatever the name servers say.

mod corpus;
mod rebinding;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::http::{HeaderMap, HeaderValue};
use blindpipe::egress::{AddressRules, EgressError, EgressSettings, UrlRules};
use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use self::corpus::{FORBIDDEN_HOSTS, FORBIDDEN_URLS};
use super::{egress, loopback, post, word};
use crate::support::{NameServer, spawn};

/// A listener on every address of this machine, IPv4 and IPv6, that counts connections.
fn everywhere() -> (u16, Arc<AtomicUsize>) {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    socket.set_only_v6(false).expect("both families");
    let any: SocketAddr = "[::]:0".parse().expect("an address");
    socket.bind(&any.into()).expect("a port");
    socket.listen(1024).expect("listening");
    socket.set_nonblocking(true).expect("not blocking");
    let listener = TcpListener::from_std(socket.into()).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    (port, count(listener))
}

/// Counts connections and answers each request with 200.
fn count(listener: TcpListener) -> Arc<AtomicUsize> {
    let connections = Arc::<AtomicUsize>::default();
    let counted = connections.clone();
    spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, SeqCst);
            spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).await.ok();
                }
            });
        }
    });
    connections
}

fn production(port: u16, names: Option<&NameServer>) -> EgressSettings {
    let own = ["https://own.example.org"].map(|own| own.parse().expect("a URL"));
    EgressSettings {
        rules: UrlRules {
            dev: false,
            ports: vec![443, port],
            own: own.into(),
            addresses: AddressRules::default(),
        },
        ..loopback(names)
    }
}

/// The refusals that name the address or its form; any other word would mean a try to connect.
fn is_refused(word: &str) -> bool {
    ["forbidden_address", "invalid_url"].contains(&word)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_40_internal_addresses_are_refused_in_every_notation() {
    let (port, connections) = everywhere();
    // No name of the corpus may get as far as a name server.
    let names = NameServer::start().await;
    let egress = egress(production(port, Some(&names)));
    let hosts = FORBIDDEN_HOSTS.iter();
    let urls: Vec<String> = hosts
        .flat_map(|host| {
            [
                format!("https://{host}:{port}/x?y"),
                format!("https://{host}/x"),
            ]
        })
        .chain(
            FORBIDDEN_URLS
                .iter()
                .map(|url| url.replace("PORT", &port.to_string())),
        )
        .collect();
    assert!(FORBIDDEN_HOSTS.len() + FORBIDDEN_URLS.len() >= 190);
    for url in &urls {
        let checked = egress
            .check(url)
            .await
            .err()
            .map_or("allowed", EgressError::word);
        assert!(is_refused(checked), "check {url}: {checked}");
        let posted = word(&post(&egress, url).await);
        assert!(is_refused(&posted), "post {url}: {posted}");
    }
    assert_eq!(connections.load(SeqCst), 0);
    // The listener would have noticed: the dev profile reaches it.
    let dev = super::egress(loopback(None));
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let outcome = post(&dev, &format!("http://{host}:{port}/")).await;
        assert_eq!(word(&outcome), "200", "{host}");
    }
    assert_eq!(connections.load(SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_40_names_that_lead_inside_are_refused() {
    let (port, connections) = everywhere();
    let names = NameServer::start().await;
    let production = egress(production(port, Some(&names)));
    let dev = egress(loopback(Some(&names)));
    let addresses = FORBIDDEN_HOSTS.iter().filter_map(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.parse::<IpAddr>().ok()
    });
    let mut checked = 0;
    for (n, ip) in addresses.enumerate() {
        let name = format!("n{n}.acme.com");
        names.set(&name, &[&ip.to_string()]);
        let url = format!("https://{name}:{port}/");
        assert_eq!(
            word(&post(&production, &url).await),
            "forbidden_address",
            "{ip}"
        );
        assert!(production.check(&url).await.is_err(), "{ip}");
        if !ip.is_loopback() || ip.to_string() == "127.0.0.2" {
            assert_eq!(
                word(&post(&dev, &url).await),
                "forbidden_address",
                "dev, {ip}"
            );
        }
        checked += 1;
    }
    assert!(checked >= 80, "{checked}");
    for name in ["missing.acme.com", "empty.acme.com"] {
        names.set("empty.acme.com", &[]);
        let outcome = post(&production, &format!("https://{name}:{port}/")).await;
        assert_eq!(word(&outcome), "dns");
    }
    assert_eq!(connections.load(SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_a_redirect_is_an_answer_and_leads_nowhere() {
    let (inside_port, inside) = everywhere();
    let egress = egress(loopback(None));
    for status in ["300", "301", "302", "303", "305", "307", "308"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer = format!(
            "HTTP/1.1 {status} Moved\r\nlocation: http://127.0.0.1:{inside_port}/\r\n\
             refresh: 0; url=http://127.0.0.1:{inside_port}/\r\nalt-svc: http/1.1=\":{inside_port}\"\r\n\
             content-length: 0\r\n\r\n"
        );
        spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a call");
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        for _ in 0..2 {
            let outcome = post(&egress, &format!("http://{address}/")).await;
            assert_eq!(word(&outcome), status);
        }
    }
    tokio::time::sleep(Duration::from_millis(50)).await; // for a call that nobody should have made
    assert_eq!(inside.load(SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_sees_the_name_and_the_path_and_exactly_the_body() {
    let names = NameServer::start().await;
    names.set("hooks.acme.com", &["127.0.0.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let received = spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a call");
        let mut request = Vec::new();
        while !request.ends_with(b"{\"a\": 1.50}") {
            assert_ne!(stream.read_buf(&mut request).await.expect("a request"), 0);
        }
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .expect("answered");
        String::from_utf8(request).expect("text")
    });
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    let url = format!("http://Hooks.acme.com:{port}/a%20b/?key=s3cret&x");
    let body = Bytes::from_static(b"{\"a\": 1.50}");
    let reply = egress(loopback(Some(&names)))
        .post(&url, headers, body)
        .await;
    assert_eq!(word(&reply), "204");
    let request = received.await.expect("a request");
    let (head, _) = request.split_once("\r\n\r\n").expect("an end");
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    lines.sort_unstable();
    let host = format!("host: hooks.acme.com:{port}");
    let mut expected = [
        "POST /a%20b/?key=s3cret&x HTTP/1.1",
        "content-length: 11",
        "content-type: application/json",
        &host,
        concat!("user-agent: blindpipe/", env!("CARGO_PKG_VERSION")),
    ];
    expected.sort_unstable();
    assert_eq!(lines, expected);
}
