//! A story for any bucket. The suite tells it to its S3 server; `STORE_SETTINGS` names another one,
//! such as `STORE_SETTINGS="OBJECT_STORE_URL=azure://files OBJECT_STORE_ENDPOINT=…"`.

use std::time::Duration;

use blindpipe::{
    node,
    objects::{Backend, ObjectKey},
};
use reqwest::Method;
use serde_json::Value;

use super::{Stage, StoreKind, confirm, fetch, noise, path_of};
use crate::support::connect;

/// Nodes over the bucket of the environment, or over an S3 server of this process.
async fn stage(direct: bool) -> Stage {
    let given = std::env::var("STORE_SETTINGS").unwrap_or_default();
    let mut settings: Vec<(&str, &str)> = given
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='))
        .collect();
    if settings.is_empty() {
        let kind = if direct {
            StoreKind::Direct
        } else {
            StoreKind::Bucket
        };
        return Stage::new(kind).await;
    }
    if direct {
        settings.push(("OBJECT_STORE_DIRECT", "true"));
    }
    Stage::with(StoreKind::Folder, &settings).await
}

/// Brings the bytes to the node or to the bucket, with the headers that the bucket wants.
async fn bring(stage: &Stage, upload: &Value, bytes: &[u8]) -> u16 {
    let url = upload["upload_url"].as_str().expect("a URL");
    let request = match url.starts_with("https://localhost") {
        true => stage.agent.stranger().request(Method::PUT, path_of(url)),
        false => reqwest::Client::new().put(url),
    };
    let headers = upload["upload_headers"].as_object().into_iter().flatten();
    let request = headers.fold(request, |request, (name, value)| {
        request.header(name, value.as_str().expect("a text"))
    });
    let answer = request.body(bytes.to_vec()).send().await;
    answer.expect("an answer").status().as_u16()
}

/// The store as an operator's own program sees it.
fn store(stage: &Stage) -> Backend {
    let world = &stage.nodes[0].world;
    let setting = |name: &str| {
        let mut all = world.environment();
        all.find(|(known, _)| *known == name)
            .map(|(_, value)| value.to_owned())
    };
    let settings = node::read_settings(setting).expect("settings");
    Backend::open(&settings).expect("a store")
}

async fn keys(stage: &Stage) -> Vec<ObjectKey> {
    let client = connect(stage.database()).await;
    let rows = client.query("select object_key from object", &[]).await;
    let rows = rows.expect("keys");
    rows.iter()
        .map(|row| ObjectKey::from_stored(row.get(0)))
        .collect()
}

/// Waits until Postgres knows so many keys, and looks that the bucket has no others of `known`.
async fn until_left(stage: &Stage, known: &[ObjectKey], n: usize) {
    for turn in 0..400 {
        if turn % 20 == 0 {
            stage.ask_for("sweep_objects").await;
        }
        if keys(stage).await.len() == n {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let left = keys(stage).await;
    assert_eq!(left.len(), n);
    let store = store(stage);
    for key in known {
        let size = store.size(key).await.expect("an answer");
        assert_eq!(size.is_some(), left.contains(key), "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_keeps_what_is_confirmed_and_nothing_else() {
    let stage = stage(false).await;
    let large = noise(12_000_000);
    for bytes in [&b""[..], b"x", &large[..300_000], &large] {
        let upload = stage.request(bytes.len() as u64).await;
        assert_eq!(bring(&stage, &upload, bytes).await, 200, "{}", bytes.len());
        let file = confirm(&stage.agent, &upload, bytes).await.expect(200);
        let path = format!(
            "/objects/{}",
            file.data()["object_key"].as_str().expect("a key")
        );
        let (answer, read) = fetch(&stage.alice.on(&stage.nodes[1]), &path, &[]).await;
        assert_eq!(answer.status, 200);
        assert!(read == bytes, "{}", bytes.len());
    }
    let file = stage.file(&large[..300_000]).await;
    let path = format!("/objects/{}", file["object_key"].as_str().expect("a key"));
    let (answer, read) = fetch(&stage.alice, &path, &[("range", "bytes=1000-2999")]).await;
    assert_eq!((answer.status, read.as_slice()), (206, &large[1000..3000]));

    // A wrong hash, a body that is too long, and one whose client goes.
    let upload = stage.request(12_000_000).await;
    assert_eq!(bring(&stage, &upload, &large).await, 200);
    let known = keys(&stage).await;
    confirm(&stage.agent, &upload, b"other")
        .await
        .refused(409, "SHA256_MISMATCH");
    until_left(&stage, &known, 5).await;
    let upload = stage.request(11_000_000).await;
    let chunks = futures_util::stream::iter(
        [&large[..6_000_000], &large[6_000_000..]]
            .map(|part| Ok::<_, std::io::Error>(part.to_vec())),
    );
    let path = path_of(upload["upload_url"].as_str().expect("a URL")).to_owned();
    let stranger = stage.agent.stranger();
    let call = stranger.request(Method::PUT, path);
    let call = call.body(reqwest::Body::wrap_stream(chunks));
    if let Ok(answer) = stranger.try_send(call).await {
        answer.refused(400, "VALIDATION_ERROR");
    }
    until_left(&stage, &known, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_clients_write_to_keeps_what_is_confirmed() {
    let stage = stage(true).await;
    let bytes = noise(7_000_000);
    let upload = stage.request(bytes.len() as u64).await;
    confirm(&stage.agent, &upload, &bytes)
        .await
        .refused(409, "UPLOAD_INCOMPLETE");
    assert!(bring(&stage, &upload, &bytes).await < 300);
    let file = confirm(&stage.agent, &upload, &bytes).await.expect(200);
    let path = format!(
        "/objects/{}",
        file.data()["object_key"].as_str().expect("a key")
    );
    assert!(fetch(&stage.alice, &path, &[]).await.1 == bytes);
    let wrong = stage.request(5).await;
    assert!(bring(&stage, &wrong, b"wrong").await < 300);
    confirm(&stage.agent, &wrong, b"right")
        .await
        .refused(409, "SHA256_MISMATCH");
    // The clients' keys go an hour after their addresses.
    let known = keys(&stage).await;
    stage.nodes[0]
        .advance(Duration::from_secs(3600 + 901))
        .await;
    until_left(&stage, &known, 1).await;
}
