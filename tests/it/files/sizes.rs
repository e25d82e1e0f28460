//! The largest files, and many uploads at once.

use std::time::Duration;

use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{Stage, StoreKind, ask, bring, confirm, noise, path_of};
use crate::support::ProcessNode;

const LARGEST: usize = 100 << 20;

async fn a_file_has_100_mb_and_not_a_byte_more(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let files = stage.agent_files();
    ask(
        &stage.agent,
        &files,
        &stage.conversation,
        LARGEST as u64 + 1,
    )
    .await
    .refused(413, "FILE_TOO_LARGE");
    let upload = stage.request(LARGEST as u64).await;
    let url = path_of(upload["upload_url"].as_str().expect("a URL"));
    let bytes = bytes::Bytes::from(noise(LARGEST + 1));
    let put = async |body: reqwest::Body| {
        let caller = stage.agent.stranger();
        caller
            .send(caller.request(reqwest::Method::PUT, url).body(body))
            .await
    };
    // In chunks nobody knows the length before the last byte.
    let chunks = |bytes: bytes::Bytes| {
        let chunks = (0..bytes.len()).step_by(1 << 20).map(move |from| {
            let to = (from + (1 << 20)).min(bytes.len());
            Ok::<_, std::io::Error>(bytes.slice(from..to))
        });
        reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))
    };
    let declared = put(bytes.clone().into()).await;
    declared.refused(413, "FILE_TOO_LARGE");
    // The node may close before the client has sent everything, and the answer then be lost.
    let caller = stage.agent.stranger();
    let call = caller
        .request(reqwest::Method::PUT, url)
        .body(chunks(bytes.clone()));
    if let Ok(answer) = caller.try_send(call).await {
        answer.refused(413, "FILE_TOO_LARGE");
    }
    put(chunks(bytes.slice(..LARGEST))).await.expect(200);
    confirm(&stage.agent, &upload, &bytes[..LARGEST])
        .await
        .expect(200);
    stage.until_stored(1).await;
}

on_stores!(a_file_has_100_mb_and_not_a_byte_more: folder, bucket);

/// The bucket takes what comes. The confirmation takes 100 MB, and not a byte more.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_100_mb_and_not_a_byte_more_past_the_node() {
    let stage = Stage::new(StoreKind::Direct).await;
    let upload = stage.request(LARGEST as u64).await;
    let bytes = noise(LARGEST + 1);
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    confirm(&stage.agent, &upload, &bytes)
        .await
        .refused(409, "UPLOAD_INCOMPLETE");
    let bytes = &bytes[..LARGEST];
    bring(&stage.agent, &upload, bytes).await.expect(200);
    confirm(&stage.agent, &upload, bytes).await.expect(200);
}

/// Fifty uploads at once hold at most a megabyte each. Each has sent 6 MB of 7 and waits: a bucket
/// gets some in parts, which the node keeps, and the others as a stream.
async fn fifty_uploads_hold_at_most_a_megabyte_each(kind: StoreKind) {
    const UPLOADS: usize = 50;
    let stage = Stage::new(kind).await;
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let bytes = noise(7 << 20);
    let mut agents = vec![stage.agent.clone()];
    let mut conversations = vec![stage.conversation.clone()];
    while agents.len() * 4 < UPLOADS {
        // An account has four places, and an address sixteen.
        let owner = stage.nodes[0].user("many").await;
        let agent = stage.nodes[0].agent(&owner, "one of many").await;
        conversations.push(owner.talk_to(&agent).await);
        agents.push(agent);
    }
    // All addresses first: a client that sends nothing for ten seconds is cut off.
    let mut paths = Vec::new();
    for n in 0..=UPLOADS {
        let its = n.saturating_sub(1) / 4;
        let (agent, conversation) = (&agents[its], &conversations[its]);
        let files = format!("/agents/{}/files", agent.id);
        let upload = super::request(agent, &files, conversation, bytes.len() as u64).await;
        paths.push(path_of(upload["upload_url"].as_str().expect("a URL")).to_owned());
    }
    let begun = async |n: usize, part: &[u8]| {
        let path = &paths[n];
        let address = node.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\nx-forwarded-for: 10.0.0.{n}\r\ncontent-length: {}\r\n\r\n",
            bytes.len()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream.write_all(part).await.expect("taken");
        stream
    };
    let is_stored = async |mut stream: TcpStream| {
        let mut answer = [0; 12];
        let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await;
        read.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
    };
    // The first one warms the process up.
    is_stored(begun(0, &bytes).await).await;
    let before = node.memory();
    let part = &bytes[..6 << 20];
    let beginning = (1..paths.len()).map(|n| begun(n, part));
    let mut streams = futures_util::future::join_all(beginning).await;
    let mut most = 0;
    for _ in 0..10 {
        most = most.max(node.memory());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(node.metric("uploads_open", "").await, UPLOADS as f64);
    let each = most.saturating_sub(before) / UPLOADS as u64;
    assert!(each <= 1 << 20, "{each} bytes each");
    let rest = &bytes[6 << 20..];
    let finishing = streams.drain(..).map(async |mut stream| {
        stream.write_all(rest).await.expect("taken");
        is_stored(stream).await;
    });
    futures_util::future::join_all(finishing).await;
}

on_stores!(fifty_uploads_hold_at_most_a_megabyte_each: folder, bucket);
