//! An answer may come before the body was read. The connection then continues, or the answer says
//! that it closes.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use blindpipe::routes;
use devcluster::certs::Certificates;
use reqwest::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{TestNode, nodes_with, spawn};

const RAISED_LIMITS: (&str, &str) = ("LIMIT_OVERRIDES", "default_ip=100000/s");

/// An HTTP/1.1 client that keeps its connection as long as it can, and counts how often it needed a
/// new one.
struct PooledClient {
    address: String,
    stream: Option<TcpStream>,
    connections: usize,
}

impl PooledClient {
    fn new(node: &TestNode) -> Self {
        PooledClient {
            address: node.base.trim_start_matches("http://").to_owned(),
            stream: None,
            connections: 0,
        }
    }

    async fn connection(&mut self) -> TcpStream {
        match self.stream.take() {
            Some(stream) => stream,
            None => {
                self.connections += 1;
                TcpStream::connect(&self.address).await.expect("connected")
            }
        }
    }

    /// Sends a head, and a moment later the body; the answer's head and status.
    async fn request(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.connection().await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        // The moment is the network's: a head and a body in packets of their own.
        tokio::time::sleep(Duration::from_millis(15)).await;
        stream.write_all(body).await.expect("sent");
        let (status, head) = read_answer(&mut stream).await;
        if !head.contains("connection: close") {
            self.stream = Some(stream);
        }
        (status, head)
    }
}

/// Reads one answer whole; its status and its head in lower case.
async fn read_answer(stream: &mut TcpStream) -> (u16, String) {
    let mut answer = Vec::new();
    loop {
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
            let length: usize = head
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next()?.parse().ok())
                .expect("a length");
            if answer.len() >= end + 4 + length {
                let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
                return (status.expect("a status"), head);
            }
        }
        let read = stream.read_buf(&mut answer).await.expect("no reset");
        assert_ne!(read, 0, "cut after {:?}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_on_after_every_early_refusal() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut client = PooledClient::new(&a);
    let mut refused = 0;
    for route in routes::table() {
        if route.method == Method::GET {
            continue;
        }
        let (status, head) = client
            .request(route.method.as_str(), route.path, br#"{"email":"nobody"}"#)
            .await;
        assert!(
            (400..=404).contains(&status) || status == 501 || route.path == "/auth/logout",
            "{} {}: {head}",
            route.method,
            route.path
        );
        refused += 1;
    }
    for (method, path, expected) in [
        ("POST", "/nowhere", 404),
        ("PUT", "/users/me", 405),
        ("POST", "/auth/device/code", 501),
    ] {
        assert_eq!(client.request(method, path, b"{}").await.0, expected);
    }
    assert!(refused > 30, "{refused}");
    assert_eq!(client.connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_on_after_a_rate_limit() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "default_ip=3/10min")]).await;
    let mut client = PooledClient::new(&a);
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(client.request("POST", "/auth/logout", b"{}").await.0);
    }
    assert_eq!(statuses[3..], [429; 9]);
    assert_eq!(client.connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_long_body_says_close_and_is_not_overtaken_by_it() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    for _ in 0..20 {
        let address = a.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let head = "POST /users/me/password HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\n\
                    content-length: 4000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("sent");
        // Bytes that arrive at a closed connection would make it a reset.
        for _ in 0..20 {
            stream.write_all(&[b' '; 10_000]).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (status, head) = read_answer(&mut stream).await;
        assert_eq!(status, 401);
        assert!(head.contains("connection: close"), "{head}");
        let mut rest = Vec::new();
        assert_eq!(stream.read_buf(&mut rest).await.expect("no reset"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_ends_the_connection_with_a_word() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let address = a.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = "POST /users/me/password HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\n\
                content-length: 20\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    let (status, head) = read_answer(&mut stream).await;
    assert_eq!(status, 401);
    assert!(head.contains("connection: close"), "{head}");
}

/// Passes bytes on to the node, and counts the connections that clients make.
async fn counting_relay(to: String) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut node = TcpStream::connect(&to).await.expect("connected");
            spawn(async move {
                tokio::io::copy_bidirectional(&mut client, &mut node)
                    .await
                    .ok();
            });
        }
    });
    (port, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_connection_outlives_early_answers() {
    let folder = std::env::temp_dir().join(format!("blindpipe-h2-{}", crate::support::ulid()));
    let certificates = Certificates::prepare(&folder).expect("certificates");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let [cert, key] = [text(&certificates.cert), text(&certificates.key)];
    let [a] = nodes_with(&[
        ("TLS_CERT_FILE", &cert),
        ("TLS_KEY_FILE", &key),
        ("TRUSTED_PROXIES", ""),
        RAISED_LIMITS,
    ])
    .await;
    let (port, connections) = counting_relay(a.base.trim_start_matches("http://").to_owned()).await;
    let ca = std::fs::read(&certificates.ca).expect("the CA");
    let http = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([reqwest::Certificate::from_pem(&ca).expect("a certificate")])
        .build()
        .expect("a client");
    for bytes in [20, 60_000, 2_000_000].repeat(10) {
        let answer = http
            .post(format!("https://localhost:{port}/users/me/password"))
            .body(vec![b' '; bytes])
            .send()
            .await
            .expect("an answer");
        let version = reqwest::Version::HTTP_2;
        assert_eq!((answer.status().as_u16(), answer.version()), (401, version));
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    std::fs::remove_dir_all(folder).ok();
}
