//! `GET /objects/{object_key}`.

use std::time::Duration;

use reqwest::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Stage, StoreKind, fetch, noise};
use crate::support::ProcessNode;

async fn ranges_and_conditions(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let bytes = noise(200_001);
    let file = stage.file(&bytes).await;
    let path = format!("/objects/{}", file["object_key"].as_str().expect("a key"));
    let alice = stage.alice.on(&stage.nodes[1]);
    let (whole, read) = fetch(&alice, &path, &[]).await;
    assert_eq!((whole.status, read.len()), (200, bytes.len()));
    assert!(read == bytes);
    let etag = format!("\"{}\"", file["sha256"].as_str().expect("a hash"));
    assert_eq!(whole.header("etag"), Some(etag.as_str()));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    assert_eq!(whole.header("content-length"), Some("200001"));
    assert_eq!(
        whole.header("content-type"),
        Some("application/octet-stream")
    );
    let shown = whole.header("content-disposition").expect("a header");
    assert_eq!(shown, "attachment; filename*=UTF-8''notes.txt");

    for (range, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=200000-", 200_000, 200_001),
        ("bytes=-5", 199_996, 200_001),
        ("bytes=65535-131072", 65_535, 131_073),
        ("bytes=10-999999999", 10, 200_001),
    ] {
        let (answer, read) = fetch(&alice, &path, &[("range", range)]).await;
        assert_eq!((answer.status, read.len()), (206, to - from), "{range}");
        assert!(read == bytes[from..to], "{range}");
        let shown = format!("bytes {from}-{}/200001", to - 1);
        assert_eq!(answer.header("content-range"), Some(shown.as_str()));
    }
    let (answer, _) = fetch(&alice, &path, &[("range", "bytes=200001-")]).await;
    assert_eq!(answer.header("content-range"), Some("bytes */200001"));
    answer.refused(416, "RANGE_NOT_SATISFIABLE");

    let (answer, read) = fetch(&alice, &path, &[("if-none-match", &etag)]).await;
    assert_eq!((answer.status, read.len()), (304, 0));
    assert_eq!(answer.header("etag"), Some(etag.as_str()));
    let stale = [("if-range", "\"x\""), ("range", "bytes=0-0")];
    assert_eq!(fetch(&alice, &path, &stale).await.0.status, 200);
    let head = alice.send(alice.request(Method::HEAD, &path)).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("200001"))
    );
}

on_stores!(ranges_and_conditions: folder, direct);

/// Bytes that nobody has confirmed are nobody's object.
async fn only_confirmed_bytes_are_read(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let upload = stage.request(1).await;
    super::bring(&stage.agent, &upload, b"x").await.expect(200);
    let stored = stage.stored();
    let key = stored[0]
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a key");
    stage
        .agent
        .get(format!("/objects/{key}"))
        .await
        .refused(404, "NOT_FOUND");
    super::confirm(&stage.agent, &upload, b"x")
        .await
        .expect(200);
    stage.agent.get(format!("/objects/{key}")).await.expect(200);
}

on_stores!(only_confirmed_bytes_are_read: folder, bucket);

/// A reader that takes nothing costs the node a few chunks, not the object.
async fn a_reader_that_does_not_read_holds_little(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let bytes = noise(20 << 20);
    let file = stage.file(&bytes).await;
    let path = format!("/objects/{}", file["object_key"].as_str().expect("a key"));
    // The metrics of nodes in one process are common.
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let sent = async || node.metric("object_bytes_total", "out").await;
    let before = sent().await;
    let address = node.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\nauthorization: Bearer {}\r\n\r\n",
        stage.alice.access_token
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // Real time: until the kernel's buffers are full and nothing moves.
    let mut last = before;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = sent().await;
        if now == last && now > before {
            break;
        }
        last = now;
    }
    let taken = last - before;
    assert!(taken < f64::from(12 << 20), "{taken} bytes left the store");
    // The bytes that it reads later are right.
    let mut some = vec![0; 4096];
    let n = stream.read(&mut some).await.expect("bytes");
    let text = String::from_utf8_lossy(&some[..n]);
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

on_stores!(a_reader_that_does_not_read_holds_little: folder, bucket);
