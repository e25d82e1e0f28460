//! The places of uploads on a node, over the network: so many of an account and of an address, a
//! short queue, and a pace for those that hold most when few are left.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Stage, StoreKind, path_of, request};
use crate::support::{Caller, ProcessNode, User};

/// At the pace that every body must keep, what a slow upload sends at once lasts for 35 seconds.
const SENT: usize = 560 * 1024;
const SIZE: usize = 600 * 1024;
/// An account's places, and an address's.
const OF_ACCOUNT: usize = 4;
const OF_ADDRESS: usize = 16;
/// A node's places. Where so many are taken, a quarter is left.
const OF_NODE: usize = 256;
const PRESSING: usize = OF_NODE * 3 / 4;

/// An upload that has sent a part of its bytes.
struct Slow(TcpStream);

impl Slow {
    /// Begins to upload from an address.
    async fn begin(node: &ProcessNode, upload: &Value, from: &str, sent: usize) -> Self {
        let path = path_of(upload["upload_url"].as_str().expect("a URL"));
        let address = node.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\nx-forwarded-for: {from}\r\n\
             content-length: {SIZE}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        // A refused upload is not read.
        stream.write_all(&vec![b'x'; sent]).await.ok();
        Slow(stream)
    }

    /// Sends the rest.
    async fn finish(mut self) -> Answered {
        let rest = vec![b'x'; SIZE - SENT];
        self.0.write_all(&rest).await.ok();
        self.answer().await
    }

    /// The answer, once it comes.
    async fn answer(mut self) -> Answered {
        let mut text = Vec::new();
        while !text.windows(4).any(|end| end == b"\r\n\r\n") {
            let n = self.0.read_buf(&mut text).await.expect("an answer");
            assert_ne!(n, 0, "cut after {text:?}");
        }
        let text = String::from_utf8_lossy(&text).to_lowercase();
        Answered {
            status: text[9..12].parse().expect("a status"),
            has_retry_after: text.contains("\r\nretry-after: "),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Answered {
    status: u16,
    has_retry_after: bool,
}

const STORED: Answered = Answered {
    status: 200,
    has_retry_after: false,
};
const FULL: Answered = Answered {
    status: 503,
    has_retry_after: true,
};

/// A user with a conversation to send files to.
struct Uploader {
    user: User,
    conversation: String,
}

impl Uploader {
    async fn new(stage: &Stage, name: &str) -> Self {
        let user = stage.nodes[0].user(name).await;
        let conversation = user.group_with(&[]).await;
        Uploader { user, conversation }
    }

    async fn many(stage: &Stage, n: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for _ in 0..n {
            all.push(Self::new(stage, "many").await);
        }
        all
    }

    async fn request(&self) -> Value {
        let caller: &Caller = &self.user;
        request(caller, "/files", &self.conversation, SIZE as u64).await
    }

    async fn requests(&self, n: usize) -> Vec<Value> {
        join_all((0..n).map(async |_| self.request().await)).await
    }

    /// Begins as many uploads from an address as the account may.
    async fn hold(&self, node: &ProcessNode, from: &str) -> Vec<Slow> {
        begin_all(node, &self.requests(OF_ACCOUNT).await, from).await
    }

    /// Uploads at once.
    async fn upload(&self, node: &ProcessNode, from: &str) -> Answered {
        let upload = self.request().await;
        Slow::begin(node, &upload, from, SIZE).await.answer().await
    }
}

async fn begin_all(node: &ProcessNode, uploads: &[Value], from: &str) -> Vec<Slow> {
    let begun = uploads.iter().map(|one| Slow::begin(node, one, from, SENT));
    join_all(begun).await
}

/// Waits until so many uploads have places.
async fn until_open(node: &ProcessNode, n: usize) {
    for _ in 0..400 {
        if node.metric("uploads_open", "").await == n as f64 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let open = node.metric("uploads_open", "").await;
    panic!("{open} uploads have places, not {n}");
}

/// An agent's upload counts to its owner. It waits for two seconds, and takes a place that is given
/// back meanwhile. Another account goes on beside it.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_holds_its_places_keeps_nobody_else_out() {
    let stage = Stage::new(StoreKind::Folder).await;
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let alice = Uploader {
        conversation: stage.alice.group_with(&[]).await,
        user: stage.alice.clone(),
    };
    let bob = Uploader::new(&stage, "bob").await;
    let mut held = alice.hold(&node, "10.1.0.1").await;
    until_open(&node, OF_ACCOUNT).await;
    let of_agent = async || {
        let upload = stage.request(SIZE as u64).await;
        Slow::begin(&node, &upload, "10.1.0.2", SIZE)
            .await
            .answer()
            .await
    };
    let (fifth, beside) = tokio::join!(of_agent(), bob.upload(&node, "10.1.0.1"));
    assert_eq!((fifth, beside), (FULL, STORED));
    let last = held.pop().expect("an upload");
    let (fifth, last) = tokio::join!(of_agent(), async {
        // The agent's upload waits by now, and for less than its two seconds.
        tokio::time::sleep(Duration::from_millis(300)).await;
        last.finish().await
    });
    assert_eq!((fifth, last), (STORED, STORED));
    for upload in held {
        assert_eq!(upload.finish().await, STORED);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_sixteen_places_whoever_uploads() {
    let stage = Stage::new(StoreKind::Folder).await;
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let uploaders = Uploader::many(&stage, OF_ADDRESS / OF_ACCOUNT).await;
    let last = Uploader::new(&stage, "last").await;
    let mut held = Vec::new();
    for uploader in &uploaders {
        held.extend(uploader.hold(&node, "10.2.0.1").await);
    }
    until_open(&node, OF_ADDRESS).await;
    let (here, elsewhere) = tokio::join!(
        last.upload(&node, "10.2.0.1"),
        last.upload(&node, "10.2.0.2")
    );
    assert_eq!((here, elsewhere), (FULL, STORED));
    let finished = join_all(held.into_iter().map(Slow::finish)).await;
    assert!(finished.iter().all(|answer| *answer == STORED));
}

/// With a quarter of the node's places left, the account that holds most of them must be fast. Its
/// uploads have sent as much as everybody's.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_most_places_must_be_fast_when_few_are_left() {
    const OF_OTHERS: usize = OF_ACCOUNT - 1;
    let stage = Stage::new(StoreKind::Folder).await;
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let others = Uploader::many(&stage, (PRESSING - OF_ACCOUNT).div_ceil(OF_OTHERS)).await;
    let alice = Uploader::new(&stage, "alice").await;
    let requested = join_all(others.iter().map(|other| other.requests(OF_OTHERS))).await;
    // Each of the others has an address of its own.
    let held = requested
        .iter()
        .enumerate()
        .map(async |(n, uploads)| begin_all(&node, uploads, &format!("10.3.0.{n}")).await);
    let mut held: Vec<Slow> = join_all(held).await.into_iter().flatten().collect();
    let of_alice = alice.hold(&node, "10.4.0.1").await;
    until_open(&node, held.len() + OF_ACCOUNT).await;
    for answer in join_all(of_alice.into_iter().map(Slow::answer)).await {
        assert_eq!(answer.status, 408);
    }
    let other = held.pop().expect("an upload");
    assert_eq!(other.finish().await, STORED);
}
