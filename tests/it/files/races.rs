//! Requests that race: one wins.

use futures_util::future::join_all;

use super::{Stage, StoreKind, bring, confirm, count, faults::behind_a_proxy, fetch, noise};

async fn of_two_puts_one_wins(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    for round in 0..5 {
        let bytes: Vec<Vec<u8>> = (0..3).map(|n| vec![n + round; 70_000]).collect();
        let upload = stage.request(70_000).await;
        let puts = bytes.iter().enumerate().map(|(n, bytes)| {
            let agent = stage.agent.on(&stage.nodes[n % 2]);
            let upload = &upload;
            async move { bring(&agent, upload, bytes).await.status }
        });
        let statuses = join_all(puts).await;
        let winner = statuses
            .iter()
            .position(|status| *status == 200)
            .expect("a winner");
        let others = statuses.iter().filter(|status| **status == 409).count();
        assert_eq!(others, 2, "{statuses:?}");
        let file = confirm(&stage.agent, &upload, &bytes[winner])
            .await
            .expect(200);
        let path = format!(
            "/objects/{}",
            file.data()["object_key"].as_str().expect("a key")
        );
        assert!(fetch(&stage.alice, &path, &[]).await.1 == bytes[winner]);
    }
    let live = "select count(*) from live_object";
    assert_eq!(count(stage.database(), live).await, 5);
}

on_stores!(of_two_puts_one_wins: folder, bucket);

/// Two clients write to the bucket's address at once: the confirmation takes one of them whole.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_puts_past_the_node_one_is_confirmed_whole() {
    let stage = Stage::new(StoreKind::Direct).await;
    for round in 0..5 {
        let bytes: Vec<Vec<u8>> = (0..2).map(|n| vec![n + round; 70_000]).collect();
        let upload = stage.request(70_000).await;
        let (one, other, first) = tokio::join!(
            bring(&stage.agent, &upload, &bytes[0]),
            bring(&stage.agent, &upload, &bytes[1]),
            confirm(&stage.agent, &upload, &bytes[0]),
        );
        assert!(one.status == 200 || other.status == 200);
        let first = match first.code() {
            "UPLOAD_INCOMPLETE" => confirm(&stage.agent, &upload, &bytes[0]).await,
            _ => first,
        };
        match first.status {
            200 => {
                let key = first.data()["object_key"].as_str().expect("a key");
                let (_, read) = fetch(&stage.alice, format!("/objects/{key}"), &[]).await;
                assert!(read == bytes[0], "other bytes");
            }
            _ => drop(first.refused(409, "SHA256_MISMATCH")),
        }
    }
}

/// However many confirm at once, there is one file and one event.
async fn confirmations_have_one_effect(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let mut socket = stage.alice.connect().await;
    let bytes = noise(10_000);
    let upload = stage.request(10_000).await;
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    let confirms = (0..8).map(|n| {
        let agent = stage.agent.on(&stage.nodes[n % 2]);
        let (upload, bytes) = (&upload, &bytes);
        async move {
            confirm(&agent, upload, bytes)
                .await
                .expect(200)
                .data()
                .clone()
        }
    });
    let answers = join_all(confirms).await;
    assert!(
        answers.windows(2).all(|pair| pair[0] == pair[1]),
        "{answers:?}"
    );
    socket.event("file.confirmed").await;
    let events = "select count(*) from event where kind = 'file.confirmed'";
    assert_eq!(count(stage.database(), events).await, 1);
}

on_stores!(confirmations_have_one_effect: folder, bucket, direct);

/// A right and a wrong confirmation at once: either a file, or nothing.
async fn a_right_and_a_wrong_confirmation_have_one_winner(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    for _ in 0..8 {
        let upload = stage.request(5).await;
        bring(&stage.agent, &upload, b"right").await.expect(200);
        let other = stage.agent.on(&stage.nodes[1]);
        let (right, wrong) = tokio::join!(
            confirm(&stage.agent, &upload, b"right"),
            confirm(&other, &upload, b"wrong")
        );
        assert_eq!((wrong.status, wrong.code()), (409, "SHA256_MISMATCH"));
        match right.status {
            200 => {
                let key = right.data()["object_key"]
                    .as_str()
                    .expect("a key")
                    .to_owned();
                let (answer, read) = fetch(&stage.alice, format!("/objects/{key}"), &[]).await;
                assert_eq!((answer.status, read.as_slice()), (200, b"right".as_slice()));
            }
            _ => drop(right.refused(409, "SHA256_MISMATCH")),
        }
    }
}

on_stores!(a_right_and_a_wrong_confirmation_have_one_winner: folder, bucket, direct);

/// A confirmation beside the PUT sees all of the bytes or none.
async fn a_confirmation_beside_the_put_sees_whole_bytes(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let bytes = noise(500_000);
    for _ in 0..4 {
        let upload = stage.request(500_000).await;
        let putting = bring(&stage.agent, &upload, &bytes);
        let confirming = async {
            loop {
                let answer = confirm(&stage.agent.on(&stage.nodes[1]), &upload, &bytes).await;
                match answer.status {
                    200 => return answer,
                    _ => drop(answer.refused(409, "UPLOAD_INCOMPLETE")),
                }
            }
        };
        let (put, file) = tokio::join!(putting, confirming);
        put.expect(200);
        let path = format!(
            "/objects/{}",
            file.data()["object_key"].as_str().expect("a key")
        );
        assert!(fetch(&stage.alice, &path, &[]).await.1 == bytes);
    }
}

on_stores!(a_confirmation_beside_the_put_sees_whole_bytes: folder, bucket, direct);

/// Parallel confirmations of bytes past the node: one copies and hashes them, and the others have
/// its answer.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_confirmations_read_the_bytes_once() {
    const BYTES: usize = 4 << 20;
    let (stage, proxy) = behind_a_proxy(StoreKind::Direct).await;
    let bytes = noise(BYTES);
    let upload = stage.request(BYTES as u64).await;
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    let before = proxy.sent();
    let confirms = (0..10).map(|n| {
        let agent = stage.agent.on(&stage.nodes[n % 2]);
        let (upload, bytes) = (&upload, &bytes);
        async move { confirm(&agent, upload, bytes).await.expect(200) }
    });
    let answers = join_all(confirms).await;
    for answer in &answers {
        assert_eq!(answer.data(), answers[0].data());
    }
    let read = proxy.sent() - before;
    assert!(
        (BYTES..BYTES * 3 / 2).contains(&read),
        "{read} bytes were read"
    );
    let live = "select count(*) from live_object where sha256 is not null";
    assert_eq!(count(stage.database(), live).await, 1);
}
