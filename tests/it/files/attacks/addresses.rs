//! Upload addresses that are used for another thing, and confirmations that are not true.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use crate::{
    files::{Stage, StoreKind, bring, bring_by_token, confirm, count, fetch, path_of, unknown},
    support::{ProcessNode, connect},
};

/// An address serves its upload, its method and its time.
async fn attack_37_an_upload_address_is_for_one_thing(kind: StoreKind) {
    let stage = Stage::new(kind).await;
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

on_stores!(attack_37_an_upload_address_is_for_one_thing: folder, bucket);

/// The bucket's own address writes a single key, by PUT alone, for 15 minutes.
#[tokio::test(flavor = "multi_thread")]
async fn attack_37_an_address_of_the_bucket_is_for_one_thing() {
    let stage = Stage::new(StoreKind::Direct).await;
    let [upload, other] = [stage.request(1).await, stage.request(1).await];
    let url = upload["upload_url"].as_str().expect("a URL");
    assert!(url.contains("X-Amz-Expires=900"), "{url}");
    bring(&stage.agent, &upload, b"x").await.expect(200);
    let client = reqwest::Client::new();
    let (plain, query) = url.split_once('?').expect("a query");
    let other_url = other["upload_url"].as_str().expect("a URL");
    let other_plain = other_url.split('?').next().expect("an address");
    let longer = url.replace("X-Amz-Expires=900", "X-Amz-Expires=9000");
    for (method, address) in [
        (Method::GET, url),
        (Method::HEAD, url),
        (Method::DELETE, url),
        (Method::PUT, plain),
        (Method::PUT, &format!("{other_plain}?{query}")),
        (Method::PUT, &longer),
    ] {
        let call = client.request(method.clone(), address).body("y");
        let answer = call.send().await.expect("an answer");
        assert_eq!(answer.status(), 403, "{method} {address}");
    }
    // The bytes are confirmed by their owner alone.
    let thief = stage.nodes[1].agent(&stage.alice, "thief").await;
    confirm(&thief, &upload, b"x")
        .await
        .refused(404, "NOT_FOUND");
    confirm(&stage.agent, &upload, b"x").await.expect(200);
    confirm(&stage.agent, &other, b"x")
        .await
        .refused(409, "UPLOAD_INCOMPLETE");
}

async fn attack_38_a_confirmation_proves_the_bytes(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    // A process of its own, because tests share the counters of this one.
    let b = ProcessNode::start(&stage.nodes[1]).await;
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
    confirm(&agent.at(&b.base), &upload, b"right")
        .await
        .refused(409, "SHA256_MISMATCH");
    let audit =
        "select count(*) from upload_audit where announced_sha256 <> received_sha256 and size = 5";
    assert_eq!(count(stage.database(), audit).await, 1);
    let rejected = "select count(*) from upload where state = 'rejected' and object_key is null";
    assert_eq!(count(stage.database(), rejected).await, 1);
    let counted = b.metric("uploads_total", "sha256_mismatch").await;
    assert_eq!(counted, 1.0);
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
    let second = confirm(&agent.at(&b.base), &upload, b"right")
        .await
        .expect(200);
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

on_stores!(attack_38_a_confirmation_proves_the_bytes: folder, bucket, direct);

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
}
