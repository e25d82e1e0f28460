//! Nodes that are killed in the middle: a confirmed file always has its bytes, and other bytes go.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{Stage, StoreKind, bring, confirm, count, fetch, hash, noise, path_of};
use crate::support::{Answer, Caller, ProcessNode, blocked, connect, spawn};

/// The time after which the lease of a killed node's write has ended.
const AFTER_LEASE: Duration = Duration::from_secs(181);
/// The time after which the lease of a killed node's copy has ended.
const AFTER_ADOPTION: Duration = Duration::from_secs(901);
/// The time after which another node may copy an upload's bytes.
const AFTER_ADOPTION_LEASE: Duration = Duration::from_secs(31);

async fn try_confirm(
    agent: &Caller,
    upload: &Value,
    bytes: &[u8],
) -> Result<Answer, reqwest::Error> {
    let body = json!({ "upload_id": upload["upload_id"], "sha256": hash(bytes) });
    let call = agent.request(reqwest::Method::POST, "/files/confirm");
    agent.try_send(call.json(&body)).await
}

/// Killed while bytes arrive: they lie under a temporary name, and go.
async fn bytes_of_a_node_that_dies_while_they_arrive_go(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let mut doomed = ProcessNode::start(&stage.nodes[0]).await;
    let bytes = noise(1_000_000);
    let upload = stage.request(bytes.len() as u64).await;
    let path = path_of(upload["upload_url"].as_str().expect("a URL"));
    let address = doomed.base.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\ncontent-length: 1000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(&bytes[..900_000]).await.expect("sent");
    let is_written = |stage: &Stage| stage.receiving().into_iter().any(|size| size > 500_000);
    for _ in 0..200 {
        if is_written(&stage) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(is_written(&stage), "{:?}", stage.receiving());
    doomed.kill();

    // The upload is still pending, and takes its bytes elsewhere.
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    let file = confirm(&stage.agent, &upload, &bytes).await.expect(200);
    // A bucket keeps nothing of a PUT that is cut.
    let left = if kind == StoreKind::Folder { 2 } else { 1 };
    assert_eq!(stage.stored().len(), left);
    stage.nodes[0].advance(AFTER_LEASE).await;
    stage.until_stored(1).await;
    assert_eq!(stage.receiving().len(), 1);
    let path = format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    );
    let alice = stage.alice.refreshed().await;
    assert!(fetch(&alice, &path, &[]).await.1 == bytes);
}

on_stores!(bytes_of_a_node_that_dies_while_they_arrive_go: folder, bucket);

/// Killed after the rename and before the commit that tells of it. A lock holds the commit up.
async fn bytes_that_no_commit_tells_of_go(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let mut doomed = ProcessNode::start(&stage.nodes[0]).await;
    let bytes = noise(300_000);
    let upload = stage.request(bytes.len() as u64).await;
    let mut client = connect(stage.database()).await;
    let held = client.transaction().await.expect("begun");
    held.batch_execute("select 1 from upload for update")
        .await
        .expect("locked");
    let putting = spawn({
        let (agent, upload, bytes) = (stage.agent.at(&doomed.base), upload.clone(), bytes.clone());
        async move {
            let path = path_of(upload["upload_url"].as_str().expect("a URL")).to_owned();
            let call = agent
                .stranger()
                .request(reqwest::Method::PUT, path)
                .body(bytes);
            agent.try_send(call).await.is_err()
        }
    });
    blocked(&held, 1).await;
    let whole = |stage: &Stage| {
        let files = stage.stored();
        files
            .iter()
            .any(|file| file.metadata().is_ok_and(|file| file.len() == 300_000))
    };
    assert!(whole(&stage), "the object is there before its commit");
    doomed.kill();
    assert!(putting.await.expect("no panic"), "the client has no answer");
    held.commit().await.expect("ended");

    confirm(&stage.agent, &upload, &bytes)
        .await
        .refused(409, "UPLOAD_INCOMPLETE");
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    confirm(&stage.agent, &upload, &bytes).await.expect(200);
    stage.nodes[0].advance(AFTER_LEASE).await;
    stage.until_stored(1).await;
    assert!(whole(&stage));
}

on_stores!(bytes_that_no_commit_tells_of_go: folder, bucket);

/// Killed while it takes over what a client wrote to the bucket, before the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_no_commit_tells_of_goes() {
    let stage = Stage::new(StoreKind::Direct).await;
    let mut doomed = ProcessNode::start(&stage.nodes[0]).await;
    let bytes = noise(300_000);
    let upload = stage.request(bytes.len() as u64).await;
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    // Its commit waits.
    let hold = "create function hold() returns trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
        create trigger hold before update of state on upload for each row execute function hold()";
    let mut client = connect(stage.database()).await;
    client.batch_execute(hold).await.expect("a trigger");
    let held = client.transaction().await.expect("begun");
    held.batch_execute("select pg_advisory_xact_lock(1)")
        .await
        .expect("locked");
    let confirming = spawn({
        let (agent, upload, bytes) = (stage.agent.at(&doomed.base), upload.clone(), bytes.clone());
        async move { try_confirm(&agent, &upload, &bytes).await.is_err() }
    });
    blocked(&held, 1).await;
    assert_eq!(
        stage.stored().len(),
        2,
        "the copy is there before its commit"
    );
    doomed.kill();
    assert!(
        confirming.await.expect("no panic"),
        "the client has no answer"
    );
    held.commit().await.expect("ended");

    // The dead node's lease has not ended.
    let early = confirm(&stage.agent, &upload, &bytes).await;
    let early = early.refused(503, "SERVICE_UNAVAILABLE");
    assert!(early.header("retry-after").is_some());
    assert_eq!(stage.stored().len(), 2);
    stage.nodes[0].advance(AFTER_ADOPTION_LEASE).await;
    confirm(&stage.agent, &upload, &bytes).await.expect(200);
    assert_eq!(stage.stored().len(), 3);
    stage.nodes[0].advance(AFTER_ADOPTION).await;
    stage.until_stored(2).await;
    // The original goes an hour after its address.
    stage.nodes[0].advance(Duration::from_secs(3600)).await;
    stage.until_stored(1).await;
}

/// Killed between the PUT and the confirmation, and again before the confirmation's commit.
async fn a_confirmation_that_dies_is_repeated_elsewhere(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let mut socket = stage.alice.connect().await;
    let mut doomed = ProcessNode::start(&stage.nodes[0]).await;
    let bytes = noise(50_000);
    let upload = stage.request(bytes.len() as u64).await;
    bring(&stage.agent.at(&doomed.base), &upload, &bytes)
        .await
        .expect(200);

    let mut client = connect(stage.database()).await;
    let held = client.transaction().await.expect("begun");
    held.batch_execute("select 1 from conversation for update")
        .await
        .expect("locked");
    let confirming = spawn({
        let (agent, upload, bytes) = (stage.agent.at(&doomed.base), upload.clone(), bytes.clone());
        async move { try_confirm(&agent, &upload, &bytes).await.is_err() }
    });
    blocked(&held, 1).await;
    doomed.kill();
    assert!(confirming.await.expect("no panic"));
    held.commit().await.expect("ended");
    let file = confirm(&stage.agent, &upload, &bytes).await.expect(200);
    socket.event("file.confirmed").await;
    let events = "select count(*) from event where kind = 'file.confirmed'";
    assert_eq!(count(stage.database(), events).await, 1);
    let path = format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    );
    assert!(fetch(&stage.alice, &path, &[]).await.1 == bytes);
}

on_stores!(a_confirmation_that_dies_is_repeated_elsewhere: folder, bucket, direct);
