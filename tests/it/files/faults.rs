//! A store that is away, slow or failing: 503, nothing half-stored, and all is well afterwards.

use std::time::Duration;

use serde_json::Value;

use super::{LIMITS, Stage, StoreKind, bring, confirm, fetch, noise, path_of};
use crate::support::{Answer, Held, Proxy, S3Server, nodes_with, services};

/// A stage whose bucket is behind a proxy.
pub async fn behind_a_proxy() -> (Stage, Proxy) {
    tokio::task::spawn_blocking(services)
        .await
        .expect("no panic");
    let s3 = S3Server::start().await;
    let proxy = Proxy::before(&s3.address.to_string()).await;
    let address = proxy.address.parse().expect("an address");
    let bucket = s3.settings(address);
    let mut settings = vec![("LIMIT_OVERRIDES", LIMITS)];
    settings.extend(bucket.iter().map(|(name, value)| (*name, value.as_str())));
    let nodes = nodes_with(&settings).await;
    let alice = nodes[0].user("alice").await;
    let agent = nodes[0].agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let stage = Stage {
        nodes,
        alice,
        agent,
        conversation,
        s3: Some(s3),
    };
    (stage, proxy)
}

#[track_caller]
fn unavailable(answer: Answer) {
    let answer = answer.refused(503, "SERVICE_UNAVAILABLE");
    assert!(answer.header("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_slow_or_failing_answers_503() {
    let (stage, proxy) = behind_a_proxy().await;
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
    let (more, rest) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body =
        futures_util::stream::unfold(rest, async |mut rest: tokio::sync::mpsc::Receiver<_>| {
            Some((rest.recv().await?, rest))
        });
    let url = path_of(cut["upload_url"].as_str().expect("a URL")).to_owned();
    let caller = stage.agent.stranger();
    let call = caller.request(reqwest::Method::PUT, url);
    let putting = caller.send(call.body(reqwest::Body::wrap_stream(Box::pin(body))));
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
