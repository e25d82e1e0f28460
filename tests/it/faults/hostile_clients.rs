//! Connections that only cost: too many of one address, idle ones, drips by the hundred, and
//! HTTP that two programs read differently. Nodes whose counters are read are processes of their
//! own, because tests share the counters of this process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    Caller, ProcessNode, TestNode, World,
    h2::{END_HEADERS, END_STREAM, H2, HEADERS, PING, RST_STREAM, Tls, head},
    nodes, nodes_with, spawn,
};

/// A process that terminates TLS, in a world of its own.
async fn tls_node(tls: &Tls, more: &[(&str, &str)]) -> (Arc<World>, ProcessNode) {
    let settings = [&tls.settings()[..], more].concat();
    let world = World::new(&settings).await;
    let node = ProcessNode::start_in(&world).await;
    (world, node)
}

/// Whether the node answers on this connection.
async fn answers(h2: &mut H2, stream: u32) -> bool {
    let asked = h2.get(stream, "/version", "none").await;
    let answered = async {
        loop {
            match h2.read().await {
                Ok((HEADERS, _, of, _)) if of == stream => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    asked.is_ok()
        && tokio::time::timeout(Duration::from_secs(5), answered)
            .await
            .unwrap_or(false)
}

async fn closed(node: &ProcessNode, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    node.metric("connections_closed_total", &label).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_holds_so_many_connections_of_a_node_that_terminates_tls() {
    let tls = Tls::new();
    let few = [
        ("MAX_CONNECTIONS_PER_ADDRESS", "3"),
        ("TRUSTED_PROXIES", ""),
    ];
    let (_world, node) = tls_node(&tls, &few).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(tls.connect(&node.base, 65_535).await.expect("connected"));
    }
    for h2 in &mut held {
        assert!(answers(h2, 1).await);
    }
    assert_eq!(closed(&node, "address_limit").await, 0.0);
    assert!(tls.connect(&node.base, 65_535).await.is_err());
    assert_eq!(closed(&node, "address_limit").await, 1.0);
    // A place is free again soon after its connection has ended.
    held.pop();
    let mut again = None;
    for _ in 0..100 {
        again = tls.connect(&node.base, 65_535).await.ok();
        if again.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(answers(&mut again.expect("a place"), 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_holds_so_many_connections_and_the_admin_listener_answers() {
    let world = World::new(&[("MAX_CONNECTIONS", "4")]).await;
    let node = ProcessNode::start_in(&world).await;
    let connect = || TcpStream::connect(node.base.trim_start_matches("http://"));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(connect().await.expect("connected"));
    }
    let mut one_more = connect().await.expect("the kernel connects");
    let request = b"GET /version HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n\r\n";
    one_more.write_all(request).await.ok();
    let mut answer = [0; 100];
    let read = one_more.read(&mut answer).await;
    assert!(read.is_err() || read.is_ok_and(|n| n == 0));
    assert_eq!(closed(&node, "limit").await, 1.0);
    held[0].write_all(request).await.expect("sent");
    let read = held[0].read(&mut answer).await.expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_keep_no_http2_connection_open_and_a_request_does() {
    let tls = Tls::new();
    let [plain] = nodes_with(&[]).await;
    let settings = [&tls.settings()[..], &[("CONNECTION_IDLE_SECONDS", "2")]].concat();
    let node = ProcessNode::start_with(&plain, &settings).await;
    let alice = plain.user("alice").await;
    let agent = plain.agent(&alice, "helper").await;
    let mut pinging = tls.connect(&node.base, 65_535).await.expect("connected");
    let mut polling = tls.connect(&node.base, 65_535).await.expect("connected");
    assert!(answers(&mut pinging, 1).await);
    let poll = format!("/agents/{}/messages/poll?wait=5", agent.id);
    polling.get(1, &poll, &agent.token).await.expect("sent");
    let started = Instant::now();
    // Real time: the deadlines are the transport's.
    let pinging = async {
        while pinging.frame(PING, 0, 0, &[1; 8]).await.is_ok() {
            assert!(started.elapsed() < Duration::from_secs(8), "still open");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        started.elapsed()
    };
    let polling = async {
        loop {
            match polling.read().await {
                Ok((HEADERS, ..)) => return started.elapsed(),
                Ok(_) => {}
                Err(error) => panic!("cut in the middle of a request: {error}"),
            }
        }
    };
    let (cut, answered) = futures_util::join!(pinging, polling);
    assert!(cut > Duration::from_millis(1_500), "{cut:?}");
    assert!(answered > Duration::from_secs(4), "{answered:?}");
    assert_eq!(closed(&node, "idle").await, 1.0);
}

/// Writes a byte now and then until the node closes; true if it did in time.
async fn drip(mut stream: TcpStream, begin: String, patience: Duration) -> bool {
    let dripping = async {
        stream.write_all(begin.as_bytes()).await.ok();
        let mut back = [0; 1024];
        loop {
            match tokio::time::timeout(Duration::from_millis(500), stream.read(&mut back)).await {
                Ok(Ok(n)) if n > 0 => {}
                Ok(_) => return,
                Err(_) if stream.write_all(b"x").await.is_err() => return,
                Err(_) => {}
            }
        }
    };
    tokio::time::timeout(patience, dripping).await.is_ok()
}

async fn p95(caller: &Caller) -> f64 {
    let mut times = Vec::new();
    for _ in 0..100 {
        let started = Instant::now();
        caller.get("/users/me").await.expect(200);
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[94]
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_hundreds_of_drips_are_cut_and_hold_nobody_up() {
    let limits = ("LIMIT_OVERRIDES", "default_user=100000/s");
    let tls = Tls::new();
    let [first] = nodes_with(&[limits]).await;
    let node = first.world.node_with(&tls.settings()).await;
    let a = ProcessNode::start(&first).await;
    let alice = first.user("alice").await;
    let caller = alice.at(&a.base);
    let group = alice.group_with(&[]).await;
    let quiet = p95(&caller).await;
    let address = a.base.trim_start_matches("http://").to_owned();
    let body = format!(
        "POST /conversations/{group}/messages HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n\
         Authorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{{",
        alice.access_token
    );
    let patience = Duration::from_secs(16);
    let mut drips = Vec::new();
    for n in 0..400 {
        let stream = TcpStream::connect(&address).await.expect("connected");
        let begin = if n % 4 == 0 {
            body.clone()
        } else {
            "GET /version HTTP/1.1\r\nX: ".to_owned()
        };
        drips.push(spawn(drip(stream, begin, patience)));
    }
    // Half a head on HTTP/2, and then nothing but a promise of more.
    let mut halves = Vec::new();
    for _ in 0..100 {
        let mut h2 = tls.connect(&node.base, 65_535).await.expect("connected");
        let head = head("/version", "none");
        h2.frame(HEADERS, END_STREAM, 1, &head[..5])
            .await
            .expect("sent");
        halves.push(h2);
    }
    let busy = p95(&caller).await;
    assert!(busy < (4.0 * quiet).max(0.25), "{busy} after {quiet}");
    let cut = join_all(drips).await;
    let late = cut.iter().filter(|cut| !*cut.as_ref().expect("no panic"));
    assert_eq!(late.count(), 0, "of 400 drips");
    assert!(closed(&a, "head").await >= 300.0);
    drop(halves);
    caller.get("/users/me").await.expect(200);
}

/// The bytes that come back for these until the node closes or is silent for a moment.
async fn exchange(node: &TestNode, bytes: &str) -> String {
    let address = node.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(bytes.as_bytes()).await.expect("sent");
    let mut back = Vec::new();
    let reading = stream.read_to_end(&mut back);
    tokio::time::timeout(Duration::from_secs(2), reading)
        .await
        .ok();
    String::from_utf8_lossy(&back).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_52_no_request_hides_in_another() {
    let [a] = nodes().await;
    let hidden = "GET /version HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nX-Request-Id: hidden\r\n\r\n";
    let post = "POST /auth/login HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n";
    for heads in [
        // Two lengths, by chunks and by number, in both orders.
        format!(
            "Content-Length: {}\r\nTransfer-Encoding: chunked",
            5 + hidden.len()
        ),
        format!(
            "Transfer-Encoding: chunked\r\nContent-Length: {}",
            5 + hidden.len()
        ),
        "Content-Length: 5\r\nContent-Length: 6".to_owned(),
        "Content-Length: 5, 6".to_owned(),
        "Transfer-Encoding: chunked, identity".to_owned(),
        "Transfer-Encoding: \u{b}chunked".to_owned(),
        // A header that goes on in the next line.
        "X-A: b\r\n c\r\nContent-Length: 5".to_owned(),
        "Transfer-Encoding:\r\n chunked".to_owned(),
        "Content-Length : 5".to_owned(),
    ] {
        let back = exchange(&a, &format!("{post}{heads}\r\n\r\n0\r\n\r\n{hidden}")).await;
        assert!(!back.contains("hidden"), "{heads:?}: {back}");
        assert!(!back.starts_with("HTTP/1.1 2"), "{heads:?}: {back}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_52_streams_that_are_reset_at_once_end_the_connection() {
    let tls = Tls::new();
    let (_world, node) = tls_node(&tls, &[]).await;
    let mut h2 = tls.connect(&node.base, 65_535).await.expect("connected");
    let head = head("/version", "none");
    let mut cut = false;
    for n in 0..5_000 {
        let stream = 2 * n + 1;
        let flags = END_STREAM | END_HEADERS;
        let reset = h2.frame(HEADERS, flags, stream, &head).await.is_err()
            || h2
                .frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])
                .await
                .is_err();
        if reset {
            cut = true;
            break;
        }
    }
    assert!(cut || h2.closes_within(Duration::from_secs(2)).await);
    let mut other = tls.connect(&node.base, 65_535).await.expect("connected");
    assert!(answers(&mut other, 1).await);
}
