//! Each end of a connection is counted under its reason, and has a line at `debug`. A process has
//! counters of its own, which no other test raises.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{ProcessNode, h2::Tls, knock_and_stay, nodes};

const REQUEST: &str = "GET /version HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n\r\n";

/// A connection that has sent `bytes`.
async fn connected(node: &ProcessNode, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.base.trim_start_matches("http://"))
        .await
        .expect("connected");
    stream.write_all(bytes.as_bytes()).await.expect("sent");
    stream
}

async fn count(node: &ProcessNode, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    node.metric("connections_closed_total", &label).await
}

/// Waits until the node has counted the reason and logged it.
async fn named(node: &ProcessNode, reason: &str) {
    let began = Instant::now();
    let field = format!("\"reason\":\"{reason}\"");
    while count(node, reason).await < 1.0 || !node.log().contains(&field) {
        assert!(began.elapsed() < Duration::from_secs(25), "no {reason}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Requests an upgrade and resets the connection before the answer. A byte behind the request keeps
/// the node from noticing it earlier.
async fn reset_in_upgrade(node: &ProcessNode, address: &str) {
    let request = format!(
        "GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         x-forwarded-proto: https\r\nx-forwarded-for: {address}\r\n\r\nx"
    );
    let stream = connected(node, &request).await;
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .expect("set");
}

/// Lets a client connect while the process may open no file.
async fn without_files(node: &ProcessNode) {
    let pid = Pid::from_raw(node.pid().cast_signed()).expect("a process");
    let few = Rlimit {
        current: Some(8),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    let before = prlimit(Some(pid), Resource::Nofile, few).expect("lowered");
    let client = connected(node, "").await;
    let began = Instant::now();
    while !node.log().contains("\"operation\":\"http.accept\"") {
        assert!(began.elapsed() < Duration::from_secs(10), "it was accepted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    prlimit(Some(pid), Resource::Nofile, before).expect("raised");
    drop(client);
    assert!(count(node, "accept_failed").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_of_a_connection_has_a_reason() {
    let [a] = nodes().await;
    let own = [
        ("LOG", "warn,blindpipe::http=debug"),
        ("CONNECTION_IDLE_SECONDS", "12"),
        ("DRAIN_LAG_SECONDS", "0"),
    ];
    let tls = Tls::new();
    let encrypted = [&tls.settings()[..], &own].concat();
    let encrypted = ProcessNode::start_with(&a, &encrypted).await;
    let mut node = ProcessNode::start_with(&a, &own).await;
    let alice = a.user("alice").await;

    // Real time: these are given ten and twelve seconds by the transport.
    let silent = [connected(&node, "").await, connected(&encrypted, "").await];
    let dripping = connected(&node, "GET /version HTTP/1.1\r\nHost").await;
    let idle = connected(&node, REQUEST).await;
    // A socket that never authenticates gets five seconds.
    let (unauthenticated, _) = knock_and_stay(&alice.at(&node.base)).await;

    drop(connected(&node, "").await);
    connected(&node, "no request\r\n\r\n").await;
    connected(&encrypted, REQUEST).await;
    let chunked = "POST /auth/logout HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n\
                   Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let mut answer = String::new();
    let mut stream = connected(&node, chunked).await;
    stream.read_to_string(&mut answer).await.expect("an answer");
    for n in 0..50 {
        if count(&node, "upgrade_failed").await > 0.0 {
            break;
        }
        reset_in_upgrade(&node, &format!("203.0.113.{n}")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    without_files(&node).await;
    let reasons = [
        "peer",
        "broken",
        "answered",
        "upgrade_failed",
        "closed",
        "first_byte",
        "head",
        "idle",
    ];
    join_all(reasons.map(|reason| named(&node, reason))).await;
    join_all(["handshake_failed", "handshake_late"].map(|reason| named(&encrypted, reason))).await;
    drop((silent, dripping, idle, unauthenticated));

    let mut kept = connected(&node, REQUEST).await;
    kept.read_buf(&mut Vec::new()).await.expect("an answer");
    let pid = Pid::from_raw(node.pid().cast_signed()).expect("a process");
    kill_process(pid, Signal::TERM).expect("told");
    assert_eq!(node.ended(Duration::from_secs(30)).await, Some(0));
    assert!(
        node.log().contains("\"reason\":\"drain\""),
        "{}",
        node.log()
    );
}
