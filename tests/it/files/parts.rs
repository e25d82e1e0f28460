//! Large objects go to S3 in parts. After each failing path no part is left.

use std::time::Duration;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Stage, StoreKind, bring, confirm, count, faults, fetch, noise, path_of};
use crate::support::{ProcessNode, blocked, connect, spawn};

const PART: usize = 5 << 20;
/// Two whole parts and a rest.
const LARGE: usize = 12_000_000;
/// The time after which the lease of a killed node's write has ended.
const AFTER_LEASE: Duration = Duration::from_secs(181);

/// A PUT of an upload that stops where its test wants it to.
struct Put {
    stream: TcpStream,
}

impl Put {
    /// `length` is the declared one; none for a body in chunks.
    async fn begin(base: &str, upload: &Value, length: Option<usize>) -> Self {
        let path = path_of(upload["upload_url"].as_str().expect("a URL"));
        let address = base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let length = match length {
            Some(n) => format!("content-length: {n}"),
            None => "transfer-encoding: chunked".to_owned(),
        };
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\n{length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        Put { stream }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    async fn chunk(&mut self, bytes: &[u8]) {
        let head = format!("{:x}\r\n", bytes.len());
        self.send(head.as_bytes()).await;
        self.send(bytes).await;
        self.send(b"\r\n").await;
    }

    async fn status(&mut self) -> u16 {
        let mut answer = [0; 12];
        let read = self.stream.read_exact(&mut answer).await;
        read.expect("an answer");
        let text = String::from_utf8_lossy(&answer).into_owned();
        text[9..].parse().expect("a status")
    }
}

/// Waits until the bucket has a whole part.
async fn until_a_part(stage: &Stage) {
    for _ in 0..400 {
        let files = stage.parts().into_iter();
        let mut sizes = files.filter_map(|file| file.metadata().ok());
        if sizes.any(|file| file.len() == PART as u64) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{:?}", stage.parts());
}

async fn all_is_well(stage: &Stage, upload: &Value, bytes: &[u8]) {
    bring(&stage.agent, upload, bytes).await.expect(200);
    let file = confirm(&stage.agent, upload, bytes).await.expect(200);
    let key = file.data()["object_key"]
        .as_str()
        .expect("a key")
        .to_owned();
    let alice = stage.alice.refreshed().await;
    assert!(fetch(&alice, format!("/objects/{key}"), &[]).await.1 == bytes);
    assert!(stage.parts().is_empty(), "{:?}", stage.parts());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_whole_and_leaves_no_parts() {
    let stage = Stage::new(StoreKind::Bucket).await;
    for size in [PART, PART + 1, 2 * PART, LARGE] {
        let bytes = noise(size);
        let upload = stage.request(size as u64).await;
        let mut put = Put::begin(&stage.nodes[0].base, &upload, Some(size)).await;
        put.send(&bytes[..size - 1]).await;
        // More than a part goes in parts.
        if size > PART {
            until_a_part(&stage).await;
        }
        put.send(&bytes[size - 1..]).await;
        assert_eq!(put.status().await, 200);
        let file = confirm(&stage.agent, &upload, &bytes).await.expect(200);
        let key = file.data()["object_key"]
            .as_str()
            .expect("a key")
            .to_owned();
        let (answer, read) = fetch(&stage.alice, format!("/objects/{key}"), &[]).await;
        assert_eq!(answer.status, 200);
        assert!(read == bytes);
        let part = [("range", "bytes=5242870-5242890")];
        let (_, read) = fetch(&stage.alice, format!("/objects/{key}"), &part).await;
        let end = bytes.len().min(5_242_891);
        assert!(read == bytes[5_242_870..end]);
    }
    let left = "select count(*) from object where multipart_id is not null";
    assert_eq!(count(stage.database(), left).await, 0);
    assert!(stage.parts().is_empty(), "{:?}", stage.parts());
}

/// The client goes, is cut for a byte too many, and sends too few.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_given_up_leaves_no_parts() {
    let stage = Stage::new(StoreKind::Bucket).await;
    let bytes = noise(LARGE + 1);
    let upload = stage.request(LARGE as u64).await;
    let base = &stage.nodes[0].base;

    let mut gone = Put::begin(base, &upload, Some(LARGE)).await;
    gone.send(&bytes[..PART + 1000]).await;
    until_a_part(&stage).await;
    drop(gone);
    stage.until_no_parts().await;

    let mut long = Put::begin(base, &upload, None).await;
    long.chunk(&bytes[..PART + 1000]).await;
    until_a_part(&stage).await;
    long.chunk(&bytes[PART + 1000..]).await;
    assert_eq!(long.status().await, 400);
    stage.until_no_parts().await;

    let mut short = Put::begin(base, &upload, None).await;
    short.chunk(&bytes[..PART + 1000]).await;
    until_a_part(&stage).await;
    short.send(b"0\r\n\r\n").await;
    assert_eq!(short.status().await, 400);
    stage.until_no_parts().await;
    stage.until_stored(0).await;

    // A wrong hash: the parts are an object by then, and that goes.
    bring(&stage.agent, &upload, &bytes[..LARGE])
        .await
        .expect(200);
    assert!(stage.parts().is_empty(), "{:?}", stage.parts());
    confirm(&stage.agent, &upload, b"other")
        .await
        .refused(409, "SHA256_MISMATCH");
    stage.until_stored(0).await;
    let upload = stage.request(LARGE as u64).await;
    all_is_well(&stage, &upload, &bytes[..LARGE]).await;
}

/// The store breaks a connection once, and the part is sent again. The store goes for good: 503,
/// and the parts go when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_sent_again_and_a_store_that_goes_keeps_none() {
    let (stage, proxy) = faults::behind_a_proxy(StoreKind::Bucket).await;
    let s3 = stage.s3.as_ref().expect("a server").address.to_string();
    let bytes = noise(LARGE);
    let [broken, failing] = [
        stage.request(LARGE as u64).await,
        stage.request(LARGE as u64).await,
    ];
    let base = &stage.nodes[0].base;
    let mut put = Put::begin(base, &broken, Some(LARGE)).await;
    put.send(&bytes[..PART + 1000]).await;
    until_a_part(&stage).await;
    let refused = proxy.refused();
    proxy.move_to("127.0.0.1:1");
    put.send(&bytes[PART + 1000..2 * PART + 1000]).await;
    proxy.until_refused(refused).await;
    proxy.move_to(&s3);
    put.send(&bytes[2 * PART + 1000..]).await;
    assert_eq!(put.status().await, 200);
    confirm(&stage.agent, &broken, &bytes).await.expect(200);
    assert!(stage.parts().is_empty(), "{:?}", stage.parts());

    let mut put = Put::begin(base, &failing, Some(LARGE)).await;
    put.send(&bytes[..PART + 1000]).await;
    until_a_part(&stage).await;
    proxy.move_to("127.0.0.1:1");
    put.send(&bytes[PART + 1000..]).await;
    assert_eq!(put.status().await, 503);
    assert!(!stage.parts().is_empty());
    proxy.move_to(&s3);
    // The lease of the sweep's first try.
    stage.nodes[0].advance(AFTER_LEASE).await;
    stage.until_no_parts().await;
    stage.until_stored(1).await;
    all_is_well(&stage, &failing, &bytes).await;
}

/// A node is killed between two parts, and between the last one and its commit.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_node_that_dies_go() {
    let stage = Stage::new(StoreKind::Bucket).await;
    let bytes = noise(LARGE);
    let upload = stage.request(LARGE as u64).await;
    let mut doomed = ProcessNode::start(&stage.nodes[0]).await;
    let mut put = Put::begin(&doomed.base, &upload, Some(LARGE)).await;
    put.send(&bytes[..PART + 1000]).await;
    until_a_part(&stage).await;
    doomed.kill();
    let recorded = "select count(*) from object where multipart_id is not null";
    assert_eq!(count(stage.database(), recorded).await, 1);
    // Not before the lease: another node cannot know that the first one is dead.
    stage.ask_for("sweep_objects").await;
    stage.nodes[0].advance(AFTER_LEASE).await;
    stage.until_no_parts().await;
    // The row goes after the parts.
    for _ in 0..400 {
        if count(stage.database(), recorded).await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(count(stage.database(), recorded).await, 0);

    let mut doomed = ProcessNode::start(&stage.nodes[0]).await;
    let mut client = connect(stage.database()).await;
    let held = client.transaction().await.expect("begun");
    held.batch_execute("select 1 from upload for update")
        .await
        .expect("locked");
    let putting = spawn({
        let (base, upload, bytes) = (doomed.base.clone(), upload.clone(), bytes.clone());
        async move {
            let mut put = Put::begin(&base, &upload, Some(LARGE)).await;
            put.send(&bytes).await;
            put.stream.read_exact(&mut [0; 12]).await.is_err()
        }
    });
    blocked(&held, 1).await;
    doomed.kill();
    assert!(putting.await.expect("no panic"), "no answer");
    held.commit().await.expect("ended");
    assert_eq!(stage.stored().len(), 1);
    stage.nodes[0].advance(AFTER_LEASE).await;
    stage.until_stored(0).await;
    all_is_well(&stage, &upload, &bytes).await;
}

/// More large uploads than a node has buffers for: the others are streamed, and nobody waits.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_buffer_a_large_file_is_streamed() {
    let stage = Stage::new(StoreKind::Bucket).await;
    let bob = stage.nodes[0].user("bob").await;
    let other = stage.nodes[0].agent(&bob, "other").await;
    let talk = bob.talk_to(&other).await;
    let files = format!("/agents/{}/files", other.id);
    let bytes = noise(PART + 100_000);
    let size = bytes.len();
    let mut puts = Vec::new();
    for n in 0..8 {
        let upload = match n % 2 {
            0 => stage.request(size as u64).await,
            _ => super::request(&other, &files, &talk, size as u64).await,
        };
        let mut put = Put::begin(&stage.nodes[0].base, &upload, Some(size)).await;
        put.send(&bytes[..PART + 1]).await;
        puts.push(put);
    }
    // Six of them have sent a part.
    let in_parts = "select count(*) from object where multipart_id is not null";
    for _ in 0..400 {
        if count(stage.database(), in_parts).await == 6 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(count(stage.database(), in_parts).await, 6);
    for mut put in puts {
        put.send(&bytes[PART + 1..]).await;
        assert_eq!(put.status().await, 200);
    }
    assert_eq!(stage.stored().len(), 8);
    assert!(stage.parts().is_empty(), "{:?}", stage.parts());
}
