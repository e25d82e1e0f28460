//! Guesses, range bombs, and reads after a removal.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    files::{Stage, StoreKind, ask, bring, confirm, fetch, noise, request, unknown},
    support::{TestNode, nodes},
};

/// A guess is a 404 like any other, and there is a single range.
async fn attack_39_guesses_and_range_bombs(kind: StoreKind) {
    let stage = Stage::new(kind).await;
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
}

on_stores!(attack_39_guesses_and_range_bombs: folder, bucket, direct);

#[tokio::test(flavor = "multi_thread")]
async fn attack_39_an_address_guesses_thirty_shares_a_minute() {
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

/// Guesses of each kind without `SCALE`.
const GUESSES: usize = 1000;
/// Requests that are written to a connection before their answers are read.
const PIPELINED: usize = 50;
/// Connections of each kind of guess. A node answers the requests of a connection in turn.
const CONNECTIONS: usize = 8;

/// Sends `GET` requests for `paths` on several connections; returns how many answers have the
/// status 404, and how many another.
async fn guess(node: &TestNode, paths: &[String], headers: &str) -> (usize, usize) {
    let shares = paths.chunks(paths.len().div_ceil(CONNECTIONS));
    let guessing = shares.map(|paths| guess_on_one(node, paths, headers));
    let counts = futures_util::future::join_all(guessing).await;
    let sum = |sum: (usize, usize), one: (usize, usize)| (sum.0 + one.0, sum.1 + one.1);
    counts.into_iter().fold((0, 0), sum)
}

async fn guess_on_one(node: &TestNode, paths: &[String], headers: &str) -> (usize, usize) {
    let address = node.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let (mut misses, mut others) = (0, 0);
    for some in paths.chunks(PIPELINED) {
        let requests = some.iter().map(|path| {
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\n{headers}\r\n")
        });
        let text: String = requests.collect();
        stream.write_all(text.as_bytes()).await.expect("sent");
        let (mut received, mut answered) = (Vec::new(), 0);
        while answered < some.len() {
            let n = stream.read_buf(&mut received).await.expect("answers");
            assert!(n > 0, "the node has closed");
            let text = String::from_utf8_lossy(&received);
            answered = text.matches("\"retryable\":false").count();
        }
        let text = String::from_utf8_lossy(&received);
        misses += text.matches("HTTP/1.1 404 ").count();
        others += text.matches("HTTP/1.1 ").count() - text.matches("HTTP/1.1 404 ").count();
    }
    (misses, others)
}

/// Three thousand guesses find nothing, a hundred thousand with `SCALE=34`. An id has 190
/// random bits, so a guess per nanosecond finds one in 10^40 years.
#[tokio::test(flavor = "multi_thread")]
async fn attack_39_many_guesses_find_nothing() {
    let scale = std::env::var("SCALE").ok().and_then(|n| n.parse().ok());
    let guesses = GUESSES * scale.unwrap_or(1_usize);
    let stage = Stage::new(StoreKind::Folder).await;
    let file = stage.file(b"secret").await;
    let key = file["object_key"].as_str().expect("a key");
    let [a, b] = &stage.nodes;
    let mallory = b.user("mallory").await;
    // Guesses near the real key, and guesses anywhere.
    let tries = |prefix: &'static str, suffix: &'static str| -> Vec<String> {
        let near = (0..guesses).map(|n| match n % 2 {
            0 => format!("{prefix}{}{:04}{suffix}", &key[..28], n % 10_000),
            _ => format!("{prefix}{}{}{suffix}", unknown(), &unknown()[20..]),
        });
        near.filter(|path| !path.contains(key)).collect()
    };
    let token = format!("authorization: Bearer {}\r\n", mallory.access_token);
    let rounds = [
        (a, tries("/objects/", ""), token),
        (
            b,
            tries("/objects/", "?expires=99999999999&sig=AAAA"),
            String::new(),
        ),
        (a, tries("/share/", ""), String::new()),
    ];
    let guessing = rounds.map(|(node, paths, headers)| async move {
        let tried = paths.len();
        (tried, guess(node, &paths, &headers).await)
    });
    let began = std::time::Instant::now();
    let counts = futures_util::future::join_all(guessing).await;
    tracing::info!(each = guesses, took = ?began.elapsed(), "guessed");
    for (tried, (misses, others)) in counts {
        assert_eq!((misses, others), (tried, 0));
    }
}

/// A removed member reads nothing that is asked for after the removal, and a download in progress
/// is cut.
async fn attack_49_a_removed_member_reads_no_object(kind: StoreKind) {
    use futures_util::StreamExt;
    let stage = Stage::new(kind).await;
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

on_stores!(attack_49_a_removed_member_reads_no_object: folder, bucket, direct);
