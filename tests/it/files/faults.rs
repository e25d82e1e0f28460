//! A store that is away, slow or failing: 503, nothing half-stored, and all is well afterwards.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
};

use super::{Stage, StoreKind, bring, confirm, count, fetch, noise, path_of};
use crate::support::{Answer, Held, ProcessNode, Proxy, connect, spawn};

/// A stage whose bucket is behind a proxy.
pub async fn behind_a_proxy(kind: StoreKind) -> (Stage, Proxy) {
    let mut before = None;
    let stage = Stage::behind(kind, &[], async |s3| {
        let proxy = Proxy::before(&s3.address.to_string()).await;
        let address = proxy.address.parse().expect("an address");
        before = Some(proxy);
        address
    });
    let stage = stage.await;
    (stage, before.expect("a proxy"))
}

type Piece = Result<Vec<u8>, std::io::Error>;

/// A body whose pieces are sent one after the other.
fn piecewise() -> (mpsc::Sender<Piece>, reqwest::Body) {
    let (more, rest) = mpsc::channel::<Piece>(1);
    let body = futures_util::stream::unfold(rest, async |mut rest: mpsc::Receiver<Piece>| {
        Some((rest.recv().await?, rest))
    });
    (more, reqwest::Body::wrap_stream(Box::pin(body)))
}

#[track_caller]
fn unavailable(answer: Answer) {
    let answer = answer.refused(503, "SERVICE_UNAVAILABLE");
    assert!(answer.header("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_slow_or_failing_answers_503() {
    let (stage, proxy) = behind_a_proxy(StoreKind::Bucket).await;
    let s3 = stage.s3.as_ref().expect("a server").address.to_string();
    let bytes = noise(2_000_000);
    let file = stage.file(&bytes).await;
    let path = format!("/objects/{}", file["object_key"].as_str().expect("a key"));
    let [gone, slow, cut] = [
        stage.request(bytes.len() as u64).await,
        stage.request(bytes.len() as u64).await,
        stage.request(bytes.len() as u64).await,
    ];

    // Nobody listens there.
    proxy.move_to("127.0.0.1:1");
    unavailable(bring(&stage.agent, &gone, &bytes).await);
    unavailable(stage.alice.get(&path).await);
    stage.alice.say(&stage.conversation, "x").await.expect(201);

    // Cut in the middle: the client has sent a part when the store's connection breaks.
    proxy.move_to(&s3);
    let half = bytes[..1_000_000].to_vec();
    let (more, body) = piecewise();
    let url = path_of(cut["upload_url"].as_str().expect("a URL")).to_owned();
    let caller = stage.agent.stranger();
    let call = caller.request(reqwest::Method::PUT, url);
    let putting = caller.send(call.body(body));
    let cutting = async {
        more.send(Ok(half)).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.move_to("127.0.0.1:1");
        more.send(Ok(bytes[1_000_000..].to_vec())).await.ok();
        drop(more);
    };
    unavailable(tokio::join!(putting, cutting).0);

    // Silent: nothing moves, and ten seconds later the caller is told. Real time.
    proxy.move_to(&s3);
    proxy.hold(Held::Both);
    let began = std::time::Instant::now();
    unavailable(bring(&stage.agent, &slow, &bytes).await);
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "{:?}",
        began.elapsed()
    );
    proxy.hold(Held::Nothing);
    proxy.move_to(&s3);

    // Nothing is half-stored, and each upload takes its bytes now.
    stage.nodes[0].advance(Duration::from_secs(181)).await;
    stage.until_stored(1).await;
    for upload in [&gone, &slow, &cut] {
        bring(&stage.agent, upload, &bytes).await.expect(200);
        confirm(&stage.agent, upload, &bytes).await.expect(200);
    }
    assert!(
        fetch(&stage.alice.refreshed().await.caller, &path, &[])
            .await
            .1
            == bytes
    );
}

/// The folder's place is taken by a file: as with a disk that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_gone_answers_503() {
    let stage = Stage::new(StoreKind::Folder).await;
    let upload: Value = stage.request(3).await;
    let folder = stage.nodes[0].world.objects_dir.clone();
    std::fs::remove_dir_all(&folder).expect("removed");
    std::fs::write(&folder, "in the way").expect("written");
    unavailable(bring(&stage.agent, &upload, b"abc").await);
    std::fs::remove_file(&folder).expect("removed");
    std::fs::create_dir_all(&folder).expect("made");
    bring(&stage.agent, &upload, b"abc").await.expect(200);
    confirm(&stage.agent, &upload, b"abc").await.expect(200);
}

/// The folder goes while bytes arrive: the PUT fails at its end, and leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_goes_in_the_middle_answers_503() {
    let stage = Stage::new(StoreKind::Folder).await;
    let bytes = noise(1_000_000);
    let upload = stage.request(bytes.len() as u64).await;
    let folder = stage.nodes[0].world.objects_dir.clone();
    let (more, body) = piecewise();
    let url = path_of(upload["upload_url"].as_str().expect("a URL")).to_owned();
    let caller = stage.agent.stranger();
    let call = caller.request(reqwest::Method::PUT, url);
    let putting = caller.send(call.body(body));
    let removing = async {
        more.send(Ok(bytes[..600_000].to_vec()))
            .await
            .expect("sent");
        for _ in 0..200 {
            let written = stage.stored().into_iter();
            let mut sizes = written.filter_map(|file| file.metadata().ok());
            if sizes.any(|file| file.len() > 300_000) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::fs::remove_dir_all(&folder).expect("removed");
        std::fs::write(&folder, "in the way").expect("written");
        more.send(Ok(bytes[600_000..].to_vec())).await.ok();
        drop(more);
    };
    unavailable(tokio::join!(putting, removing).0);
    std::fs::remove_file(&folder).expect("removed");
    std::fs::create_dir_all(&folder).expect("made");
    bring(&stage.agent, &upload, &bytes).await.expect(200);
    confirm(&stage.agent, &upload, &bytes).await.expect(200);
    assert_eq!(stage.stored().len(), 1);
}

/// A confirmation needs the bucket when clients write past the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_or_slow_confirms_nothing() {
    let (stage, proxy) = behind_a_proxy(StoreKind::Direct).await;
    let s3 = stage.s3.as_ref().expect("a server").address.to_string();
    let upload = stage.request(5).await;
    bring(&stage.agent, &upload, b"right").await.expect(200);
    proxy.move_to("127.0.0.1:1");
    // The address is signed by the node alone.
    stage.request(1).await;
    unavailable(confirm(&stage.agent, &upload, b"right").await);
    // Real time: a step of the store has ten seconds.
    proxy.move_to(&s3);
    proxy.hold(Held::Both);
    unavailable(confirm(&stage.agent, &upload, b"right").await);
    proxy.hold(Held::Nothing);
    proxy.move_to(&s3);
    let complete = "select count(*) from object where sha256 is not null";
    assert_eq!(count(stage.database(), complete).await, 0);
    confirm(&stage.agent, &upload, b"right").await.expect(200);
}

/// A relay that stops reading while its gate is closed. Behind it the kernel's buffers fill.
async fn gate_before(target: SocketAddr, open: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut open = open.clone();
            let server = TcpStream::connect(target).await.expect("a server");
            let (mut from, mut back) = client.into_split();
            let (mut answers, mut to) = server.into_split();
            spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
            spawn(async move {
                let mut some = vec![0; 64 * 1024];
                loop {
                    open.wait_for(|open| *open).await.ok()?;
                    let n = from.read(&mut some).await.ok().filter(|n| *n > 0)?;
                    to.write_all(&some[..n]).await.ok()?;
                }
                #[expect(unreachable_code, reason = "the type of the block")]
                Some(())
            });
        }
    });
    address
}

/// A store that takes nothing for a while makes the client wait. The node holds a part, and goes on
/// when the store does.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_store_holds_the_client_back() {
    const BYTES: usize = 64 << 20;
    let (gate, open) = watch::channel(false);
    let stage = Stage::behind(StoreKind::Bucket, &[], async |s3| {
        gate_before(s3.address, open).await
    });
    let stage = stage.await;
    let node = ProcessNode::start(&stage.nodes[0]).await;
    let upload = stage.request(BYTES as u64).await;
    let path = path_of(upload["upload_url"].as_str().expect("a URL"));
    let address = node.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\ncontent-length: {BYTES}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let before = node.memory();
    let bytes = noise(1 << 20);
    let mut sent = 0;
    // Real time: nothing moves for a second.
    while sent < BYTES {
        let from = sent % bytes.len();
        let writing = stream.write(&bytes[from..]);
        match tokio::time::timeout(Duration::from_secs(1), writing).await {
            Ok(n) => sent += n.expect("taken"),
            Err(_) => break,
        }
    }
    // The rest is in the kernel's buffers of two connections.
    assert!(sent < BYTES / 2, "{sent} bytes were taken");
    let held = node.memory().saturating_sub(before);
    // A part and some chunks.
    assert!(held <= 7 << 20, "the node holds {held} bytes more");
    gate.send(true).expect("a relay");
    while sent < BYTES {
        let from = sent % bytes.len();
        sent += stream.write(&bytes[from..]).await.expect("taken");
    }
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// Waits until a count is `n`, and asks for sweeps meanwhile.
async fn until_count(stage: &Stage, query: &str, n: i64) {
    let mut found = n - 1;
    for turn in 0..400 {
        if turn % 20 == 0 {
            stage.ask_for("sweep_objects").await;
        }
        found = count(stage.database(), query).await;
        if found == n {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{found} rows instead of {n}: {query}");
}

/// The store refuses to delete one object. The others go in the same round, and that one is tried
/// again after ever longer waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_the_store_keeps_holds_up_no_other() {
    let stage = Stage::new(StoreKind::Folder).await;
    let mut keys = Vec::new();
    for n in 0..3 {
        let file = stage.file(&[n]).await;
        keys.push(file["object_key"].as_str().expect("a key").to_owned());
    }
    let client = connect(stage.database()).await;
    let files = stage.stored();
    let is_bad = |path: &&PathBuf| path.ends_with(&keys[0]);
    let bad = files.iter().find(is_bad).expect("its file").clone();
    // A folder with something in it is at its place.
    std::fs::remove_file(&bad).expect("removed");
    std::fs::create_dir(&bad).expect("made");
    std::fs::write(bad.join("inside"), "x").expect("written");
    let end = "update object set delete_at = app_now() - make_interval(hours => case object_key when $1 then 1 else 0 end)";
    client.execute(end, &[&keys[0]]).await.expect("ended");
    stage.until_stored(1).await;
    let count_of = "select count(*) from object";
    // A row goes after its file.
    until_count(&stage, count_of, 1).await;

    // Its second failure is followed by a longer wait.
    stage.nodes[0].advance(Duration::from_secs(61)).await;
    let stepped_back =
        "select count(*) from object where delete_at > app_now() + interval '150 seconds'";
    until_count(&stage, stepped_back, 1).await;
    std::fs::remove_dir_all(&bad).expect("removed");
    stage.nodes[0].advance(Duration::from_secs(300)).await;
    until_count(&stage, count_of, 0).await;
}
