//! Attacks on uploads, objects and shares. The numbers are those of the threat model.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    Stage, StoreKind, ask, bring, bring_by_token, confirm, count, fetch, noise, path_of, request,
    unknown,
};
use crate::support::{TestNode, connect, nodes};

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

#[tokio::test(flavor = "multi_thread")]
async fn attack_34_a_body_of_another_length_stores_nothing_in_a_folder() {
    Box::pin(attack_34_a_body_of_another_length_stores_nothing(
        StoreKind::Folder,
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_34_a_body_of_another_length_stores_nothing_in_a_bucket() {
    Box::pin(attack_34_a_body_of_another_length_stores_nothing(
        StoreKind::Bucket,
    ))
    .await;
}

/// A body that drips is refused, and an owner holds only four uploads over all nodes.
#[tokio::test(flavor = "multi_thread")]
async fn attack_35_a_body_that_drips_is_refused_and_an_owner_holds_four() {
    let stage = Stage::new(StoreKind::Folder).await;
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

/// A name never reaches the store, and a download is never shown as a page.
#[tokio::test(flavor = "multi_thread")]
async fn attack_36_a_name_is_only_a_name() {
    let stage = Stage::new(StoreKind::Folder).await;
    let long = "x".repeat(10_000);
    let body = |name: &str, kind: &str| {
        json!({
            "filename": name, "content_type": kind, "size": 4, "conversation_id": stage.conversation,
        })
    };
    for name in ["a\u{0}b", "a\r\nset-cookie: x=y", "\u{7f}", "a\tb", &long] {
        stage
            .agent
            .post(stage.agent_files(), body(name, "text/plain"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    stage
        .agent
        .post(stage.agent_files(), body("x", "text/html\r\nx: y"))
        .await
        .refused(400, "VALIDATION_ERROR");
    for name in [
        "../../etc/passwd",
        "..\\..\\x",
        "/abs",
        "a\"; filename=b",
        "ä \u{202e}txt",
        ".",
    ] {
        let answer = stage
            .agent
            .post(stage.agent_files(), body(name, "text/html"))
            .await
            .expect(201);
        let upload = answer.data().clone();
        bring(&stage.agent, &upload, b"<p>x").await.expect(200);
        let file = confirm(&stage.agent, &upload, b"<p>x").await.expect(200);
        let key = file.data()["object_key"]
            .as_str()
            .expect("a key")
            .to_owned();
        assert!(
            key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "{key}"
        );
        let (answer, _) = fetch(&stage.alice, format!("/objects/{key}"), &[]).await;
        let shown = answer
            .header("content-disposition")
            .expect("a header")
            .to_owned();
        assert!(
            shown.starts_with("attachment; filename*=UTF-8''"),
            "{shown}"
        );
        assert!(!shown.contains(['/', '\\', '"']), "{shown}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    // Everything lies below the folder, under the keys.
    let folder = &stage.nodes[0].world.objects_dir;
    assert_eq!(stage.stored().len(), 6);
    assert!(stage.stored().iter().all(|file| file.starts_with(folder)));
}

/// An address serves its upload, its method and its time.
#[tokio::test(flavor = "multi_thread")]
async fn attack_37_an_upload_address_is_for_one_thing() {
    let stage = Stage::new(StoreKind::Folder).await;
    let [a, b] = &stage.nodes;
    let agent = &stage.agent;
    let [upload, other, late] = [
        stage.request(1).await,
        stage.request(1).await,
        stage.request(1).await,
    ];
    let url = upload["upload_url"].as_str().expect("a URL");
    let path = path_of(url).to_owned();
    let stranger = b.anon();
    let put = async |path: &str| {
        let call = stranger.request(Method::PUT, path);
        stranger.send(call.body("x")).await
    };

    // Another method, another upload, another time, another signature.
    stranger.get(&path).await.refused(405, "METHOD_NOT_ALLOWED");
    let (plain, query) = path.split_once('?').expect("a query");
    let other_path = path_of(other["upload_url"].as_str().expect("a URL"));
    let other_plain = other_path.split('?').next().expect("a path");
    put(&format!("{other_plain}?{query}"))
        .await
        .refused(403, "FORBIDDEN");
    put(&path.replace("expires=1", "expires=2"))
        .await
        .refused(403, "FORBIDDEN");
    put(&format!("{path}x")).await.refused(403, "FORBIDDEN");
    put(&format!("{plain}?expires=99999999999&sig="))
        .await
        .refused(403, "FORBIDDEN");
    put(plain).await.refused(401, "AGENT_TOKEN_INVALID");
    // The signature does not serve another route.
    let id = upload["upload_id"].as_str().expect("an id");
    put(&format!("/files/{id}/upload?{query}"))
        .await
        .refused(404, "NOT_FOUND");

    // Another agent, with its own path, with the owner's, and with the signature.
    let thief = a.agent(&stage.alice, "thief").await;
    let thief_files = format!("/agents/{}/files", thief.id);
    bring_by_token(&thief, &thief_files, &upload, "x")
        .await
        .refused(404, "NOT_FOUND");
    bring_by_token(&thief, &stage.agent_files(), &upload, "x")
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    let call = thief.request(Method::PUT, format!("{thief_files}/{id}/upload?{query}"));
    thief.send(call.body("x")).await.refused(404, "NOT_FOUND");
    let bob = b.user("bob").await;
    bring_by_token(&bob, "/files", &upload, "x")
        .await
        .refused(404, "NOT_FOUND");

    // Used, and used after the confirmation.
    put(&path).await.expect(200);
    put(&path).await.refused(409, "VERSION_MISMATCH");
    confirm(agent, &upload, b"x").await.expect(200);
    put(&path).await.refused(409, "VERSION_MISMATCH");
    bring_by_token(agent, &stage.agent_files(), &upload, "x")
        .await
        .refused(409, "VERSION_MISMATCH");

    // Its time is over, for the token as well.
    a.advance(Duration::from_secs(15 * 60)).await;
    bring(agent, &late, b"x").await.refused(403, "FORBIDDEN");
    bring_by_token(agent, &stage.agent_files(), &late, "x")
        .await
        .refused(403, "FORBIDDEN");
    stage.until_stored(1).await;
}

async fn attack_38_a_confirmation_proves_the_bytes(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let [_, b] = &stage.nodes;
    let agent = &stage.agent;
    let upload = stage.request(5).await;
    // Another's, one that does not exist, and one without bytes.
    let thief = stage.nodes[0].agent(&stage.alice, "thief").await;
    confirm(&thief, &upload, b"right")
        .await
        .refused(404, "NOT_FOUND");
    confirm(&stage.alice, &upload, b"right")
        .await
        .refused(404, "NOT_FOUND");
    let nobody = json!({ "upload_id": unknown() });
    confirm(agent, &nobody, b"right")
        .await
        .refused(404, "NOT_FOUND");
    confirm(agent, &upload, b"right")
        .await
        .refused(409, "UPLOAD_INCOMPLETE");

    // A wrong hash: refused, in the audit, and destroyed.
    bring(agent, &upload, b"wrong").await.expect(200);
    confirm(&agent.on(b), &upload, b"right")
        .await
        .refused(409, "SHA256_MISMATCH");
    let audit =
        "select count(*) from upload_audit where announced_sha256 <> received_sha256 and size = 5";
    assert_eq!(count(stage.database(), audit).await, 1);
    let rejected = "select count(*) from upload where state = 'rejected' and object_key is null";
    assert_eq!(count(stage.database(), rejected).await, 1);
    if kind != StoreKind::Direct {
        stage.until_stored(0).await;
    }
    // It stays refused, with the right hash as well, and is in the audit once.
    for bytes in [b"wrong", b"right"] {
        confirm(agent, &upload, bytes)
            .await
            .refused(409, "SHA256_MISMATCH");
    }
    assert_eq!(count(stage.database(), audit).await, 1);
    let client = connect(stage.database()).await;
    for sql in [
        "delete from upload_audit",
        "update upload_audit set size = 6",
        "truncate upload_audit",
    ] {
        assert!(client.batch_execute(sql).await.is_err(), "{sql}");
    }

    // Twice: the same answer. With another hash: refused, and the file stays.
    let upload = stage.request(5).await;
    bring(agent, &upload, b"right").await.expect(200);
    let first = confirm(agent, &upload, b"right").await.expect(200);
    let second = confirm(&agent.on(b), &upload, b"right").await.expect(200);
    assert_eq!(first.data(), second.data());
    confirm(agent, &upload, b"wrong")
        .await
        .refused(409, "SHA256_MISMATCH");
    let path = format!(
        "/objects/{}",
        first.data()["object_key"].as_str().expect("a key")
    );
    assert_eq!(fetch(&stage.alice, &path, &[]).await.1, b"right");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_38_a_confirmation_proves_the_bytes_in_a_folder() {
    Box::pin(attack_38_a_confirmation_proves_the_bytes(StoreKind::Folder)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_38_a_confirmation_proves_the_bytes_in_a_bucket() {
    Box::pin(attack_38_a_confirmation_proves_the_bytes(StoreKind::Bucket)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_38_a_confirmation_proves_the_bytes_past_the_node() {
    Box::pin(attack_38_a_confirmation_proves_the_bytes(StoreKind::Direct)).await;
}

/// Bytes that a client writes again after its confirmation change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn attack_38_the_store_s_own_address_does_not_change_a_file() {
    let stage = Stage::new(StoreKind::Direct).await;
    let upload = stage.request(5).await;
    bring(&stage.agent, &upload, b"right").await.expect(200);
    let file = confirm(&stage.agent, &upload, b"right").await.expect(200);
    bring(&stage.agent, &upload, b"wrong").await.expect(200);
    let path = format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    );
    assert_eq!(fetch(&stage.alice, &path, &[]).await.1, b"right");
    // More bytes than declared are not taken over.
    let upload = stage.request(5).await;
    bring(&stage.agent, &upload, b"longer").await.expect(200);
    confirm(&stage.agent, &upload, b"longer")
        .await
        .refused(409, "UPLOAD_INCOMPLETE");
}

/// A guess is a 404 like any other, and there is a single range.
#[tokio::test(flavor = "multi_thread")]
async fn attack_39_guesses_and_range_bombs() {
    let stage = Stage::new(StoreKind::Folder).await;
    let file = stage.file(&noise(1000)).await;
    let key = file["object_key"].as_str().expect("a key");
    let mallory = stage.nodes[1].user("mallory").await;
    let missing = mallory.get(format!("/objects/{}", "0".repeat(32))).await;
    let mut bodies = vec![missing.refused(404, "NOT_FOUND").body];
    let guesses = [
        key,
        &key[1..],
        &format!("{key}0"),
        &key.to_lowercase(),
        "x",
        "%00",
        "..%2f..%2fx",
    ];
    for guess in guesses {
        let answer = mallory.get(format!("/objects/{guess}")).await;
        bodies.push(answer.refused(404, "NOT_FOUND").body);
        // Without a token, and with a signature that is none.
        let anon = mallory.stranger();
        anon.get(format!("/objects/{guess}"))
            .await
            .refused(401, "UNAUTHORIZED");
        let answer = anon
            .get(format!("/objects/{guess}?expires=99999999999&sig=AAAA"))
            .await;
        bodies.push(answer.refused(404, "NOT_FOUND").body);
    }
    assert!(
        bodies.windows(2).all(|pair| pair[0] == pair[1]),
        "{bodies:?}"
    );

    let path = format!("/objects/{key}");
    let many: Vec<String> = (0..500).map(|n| format!("{n}-{n}")).collect();
    for range in [
        format!("bytes={}", many.join(",")),
        "bytes=0-,0-,0-".to_owned(),
        "bytes=1000-".to_owned(),
    ] {
        let answer = fetch(&stage.alice, &path, &[("range", &range)]).await.0;
        answer.refused(416, "RANGE_NOT_SATISFIABLE");
    }

    // Shares: thirty guesses a minute and address, and then none.
    let [node] = nodes().await;
    let guesser = node.anon();
    let mut statuses = Vec::new();
    for _ in 0..32 {
        let answer = guesser.get(format!("/share/{}", unknown())).await;
        statuses.push(answer.status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 404).count(), 30);
    assert_eq!(statuses[30..], [429, 429]);
}

/// A removed member reads nothing that is asked for after the removal, and a download in progress is cut.
#[tokio::test(flavor = "multi_thread")]
async fn attack_49_a_removed_member_reads_no_object() {
    let stage = Stage::new(StoreKind::Folder).await;
    let [a, b] = &stage.nodes;
    let bob = a.user("bob").await;
    let group = stage.alice.group_with(&[&bob]).await;
    let bytes = noise(8 << 20);
    let upload = request(&stage.alice, "/files", &group, bytes.len() as u64).await;
    bring(&stage.alice, &upload, &bytes).await.expect(200);
    let file = confirm(&stage.alice, &upload, &bytes).await.expect(200);
    let path = format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    );
    let bob = bob.on(b);
    let (answer, read) = fetch(&bob, &path, &[("range", "bytes=0-9")]).await;
    assert_eq!((answer.status, read.as_slice()), (206, &bytes[..10]));

    let mut socket = bob.connect().await;
    let response = bob
        .request(Method::GET, &path)
        .send()
        .await
        .expect("an answer");
    let mut download = response.bytes_stream();
    use futures_util::StreamExt;
    let mut got = download.next().await.expect("bytes").expect("bytes").len();
    stage
        .alice
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    bob.get(&path).await.refused(404, "NOT_FOUND");
    // Real time: a download proves its right every two seconds.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let mut whole = true;
    while let Some(next) = download.next().await {
        match next {
            Ok(chunk) => got += chunk.len(),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    assert!(!whole && got < bytes.len(), "{got} bytes after the removal");
    // An event of a later file does not reach the removed member.
    socket.event("member.removed").await;
    let later = request(&stage.alice, "/files", &group, 1).await;
    bring(&stage.alice, &later, b"x").await.expect(200);
    confirm(&stage.alice, &later, b"x").await.expect(200);
    socket.expect_silence(Duration::from_millis(500)).await;
    let answer = ask(&bob, "/files", &group, 1).await;
    assert_eq!(
        answer.body["error"]["params"]["retryable"],
        Value::Bool(false)
    );
}
