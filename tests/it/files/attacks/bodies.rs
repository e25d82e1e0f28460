//! Bodies of another length, and bodies that drip.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    files::{Stage, StoreKind, bring, confirm, count, path_of, request},
    support::TestNode,
};

/// Writes a request's head and a body as they are; returns the answer's status line and rest.
async fn raw(node: &TestNode, head: &str, body: &[u8]) -> (u16, String) {
    let address = node.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!("{head}\r\nhost: x\r\nx-forwarded-proto: https\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The node may answer and close before it has read everything.
    stream.write_all(body).await.ok();
    let mut answer = vec![0; 16 * 1024];
    let mut length = 0;
    loop {
        let read = stream.read(&mut answer[length..]);
        let read = tokio::time::timeout(Duration::from_secs(20), read).await;
        match read.expect("an answer in time") {
            Ok(n @ 1..) => length += n,
            _ => break,
        }
        let text = String::from_utf8_lossy(&answer[..length]);
        if text.contains("\r\n\r\n") && text.contains('}') {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer[..length]).into_owned();
    let status = text.split(' ').nth(1).and_then(|n| n.parse().ok());
    (status.unwrap_or(0), text)
}

/// The size of a body is what was declared, whatever its framing says.
async fn attack_34_a_body_of_another_length_stores_nothing(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let node = &stage.nodes[1];
    let upload = stage.request(10).await;
    let path = path_of(upload["upload_url"].as_str().expect("a URL"));
    let head = |framing: &str| format!("PUT {path} HTTP/1.1\r\n{framing}");
    let chunked = "transfer-encoding: chunked";
    for (framing, body, what) in [
        (
            "content-length: 11",
            "elevenbytes",
            "one more, with a length",
        ),
        (
            chunked,
            "b\r\nelevenbytes\r\n0\r\n\r\n",
            "one more, in chunks",
        ),
        (
            chunked,
            "a\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n",
            "one more, in a second chunk",
        ),
        ("content-length: 9", "ninebytes", "one fewer, with a length"),
        (
            chunked,
            "9\r\nninebytes\r\n0\r\n\r\n",
            "one fewer, in chunks",
        ),
        (chunked, "0\r\n\r\n", "nothing"),
        ("content-length: 999999999999", "", "a length beyond all"),
    ] {
        let (status, text) = raw(node, &head(framing), body.as_bytes()).await;
        let expected = if what == "a length beyond all" {
            413
        } else {
            400
        };
        assert_eq!(status, expected, "{what}: {text}");
    }
    // Framing that contradicts itself never reaches the upload.
    let (status, _) = raw(
        node,
        &head("content-length: 10\r\ntransfer-encoding: chunked"),
        b"a\r\n0123456789\r\n0\r\n\r\n0123456789",
    )
    .await;
    assert!(status == 400 || status == 200, "{status}");
    stage.until_stored(usize::from(status == 200)).await;
    if status == 400 {
        bring(&stage.agent, &upload, b"0123456789")
            .await
            .expect(200);
    }
    confirm(&stage.agent, &upload, b"0123456789")
        .await
        .expect(200);
}

on_stores!(attack_34_a_body_of_another_length_stores_nothing: folder, bucket);

/// A bucket takes what comes; the confirmation then refuses another length.
#[tokio::test(flavor = "multi_thread")]
async fn attack_34_a_body_of_another_length_is_no_file_past_the_node() {
    let stage = Stage::new(StoreKind::Direct).await;
    let upload = stage.request(10).await;
    for body in ["elevenbytes", "ninebytes", ""] {
        bring(&stage.agent, &upload, body).await.expect(200);
        confirm(&stage.agent, &upload, body.as_bytes())
            .await
            .refused(409, "UPLOAD_INCOMPLETE");
    }
    let complete = "select count(*) from object where sha256 is not null";
    assert_eq!(count(stage.database(), complete).await, 0);
    bring(&stage.agent, &upload, b"0123456789")
        .await
        .expect(200);
    confirm(&stage.agent, &upload, b"0123456789")
        .await
        .expect(200);
}

/// A body that drips is refused, and an owner holds only four uploads over all nodes.
async fn attack_35_a_body_that_drips_is_refused_and_an_owner_holds_four(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let mut held = Vec::new();
    for n in 0..5 {
        let upload = stage.request(200_000).await;
        let path = path_of(upload["upload_url"].as_str().expect("a URL")).to_owned();
        let node = &stage.nodes[n % 2];
        let address = node.base.trim_start_matches("http://").to_owned();
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\ncontent-length: 200000\r\n\r\nsome"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        held.push(stream);
        let sql = "select count(*) from object where sha256 is null";
        for _ in 0..200 {
            if count(stage.database(), sql).await == (n as i64 + 1).min(4) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // The fifth is refused at once.
    let mut fifth = held.pop().expect("five");
    let mut answer = vec![0; 4096];
    let n = fifth.read(&mut answer).await.expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    // Another owner is not concerned.
    let bob = stage.nodes[0].user("bob").await;
    let group = bob.group_with(&[&stage.alice]).await;
    let upload = request(&bob, "/files", &group, 1).await;
    bring(&bob, &upload, b"x").await.expect(200);

    // Real time: a body has ten seconds at any pace.
    let mut answers = Vec::new();
    for mut stream in held {
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut answer));
        let n = read.await.expect("in time").expect("an answer");
        answers.push(String::from_utf8_lossy(&answer[..n]).into_owned());
    }
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    stage.until_stored(1).await;
}

on_stores!(attack_35_a_body_that_drips_is_refused_and_an_owner_holds_four: folder, bucket);
