//! The three steps.

use serde_json::{Value, json};

use super::{
    Stage, StoreKind, ask, bring, bring_by_token, confirm, fetch, hash, noise, path_of, request,
    unknown,
};

/// Request on one node, bytes on another, confirmation on the first: members hear of the file and
/// read it.
async fn a_file_is_uploaded_in_three_steps(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let [a, b] = &stage.nodes;
    let bytes = noise(300_000);
    let mut socket = stage.alice.on(b).connect().await;

    let upload = stage.request(bytes.len() as u64).await;
    assert!(upload["expires_at"].is_string());
    confirm(&stage.agent, &upload, &bytes)
        .await
        .refused(409, "UPLOAD_INCOMPLETE");
    let answer = bring(&stage.agent.on(b), &upload, &bytes).await.expect(200);
    if kind != StoreKind::Direct {
        let expected = json!({
            "upload_id": upload["upload_id"], "size": bytes.len(), "received_sha256": hash(&bytes),
        });
        assert_eq!(answer.data(), &expected);
    }
    let answer = confirm(&stage.agent.on(a), &upload, &bytes)
        .await
        .expect(200);
    let file = answer.data().clone();
    assert_eq!(
        (&file["state"], &file["size"], &file["sha256"]),
        (
            &json!("confirmed"),
            &json!(bytes.len()),
            &json!(hash(&bytes))
        )
    );
    let event = socket.event("file.confirmed").await;
    let mut expected = file.clone();
    expected["conversation_id"] = json!(stage.conversation);
    expected.as_object_mut().expect("an object").remove("state");
    assert_eq!(event["data"], expected);

    let path = format!("/objects/{}", file["object_key"].as_str().expect("a key"));
    for caller in [&stage.alice.on(b).caller, &stage.agent.on(a).caller] {
        let (answer, read) = fetch(caller, &path, &[]).await;
        assert_eq!(answer.status, 200);
        assert!(read == bytes, "other bytes");
    }
    let mallory = b.user("mallory").await;
    mallory.get(&path).await.refused(404, "NOT_FOUND");
    assert_eq!(answer.status, 200);
}

on_stores!(a_file_is_uploaded_in_three_steps: folder, bucket, direct);

/// Users have the same steps; a token serves instead of the signature.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_uploads_with_a_token() {
    let stage = Stage::new(StoreKind::Folder).await;
    let bob = stage.nodes[1].user("bob").await;
    let group = stage.alice.group_with(&[&bob]).await;
    let empty: &[u8] = b"";
    for bytes in [b"ciphertext".as_slice(), empty] {
        let upload = request(&bob, "/files", &group, bytes.len() as u64).await;
        let url = upload["upload_url"].as_str().expect("a URL");
        assert!(url.starts_with("https://localhost/files/"), "{url}");
        bring_by_token(&bob, "/files", &upload, bytes)
            .await
            .expect(200);
        let file = confirm(&bob, &upload, bytes).await.expect(200);
        let key = file.data()["object_key"]
            .as_str()
            .expect("a key")
            .to_owned();
        let (answer, read) = fetch(&stage.alice, format!("/objects/{key}"), &[]).await;
        assert_eq!((answer.status, read.as_slice()), (200, bytes));
        // The alias serves the address too.
        let other = request(&bob, "/v1/files", &group, 1).await;
        let path = format!(
            "/v1{}",
            path_of(other["upload_url"].as_str().expect("a URL"))
        );
        let call = bob.stranger().request(reqwest::Method::PUT, &path);
        bob.stranger().send(call.body("x")).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_members_upload() {
    let stage = Stage::new(StoreKind::Folder).await;
    let [a, b] = &stage.nodes;
    let mallory = b.user("mallory").await;
    for conversation in [stage.conversation.clone(), unknown()] {
        ask(&mallory, "/files", &conversation, 1)
            .await
            .refused(403, "NOT_CONVERSATION_MEMBER_UPLOAD");
    }
    let other = a.agent(&stage.alice, "other").await;
    ask(
        &other,
        &format!("/agents/{}/files", other.id),
        &stage.conversation,
        1,
    )
    .await
    .refused(403, "NOT_CONVERSATION_MEMBER_UPLOAD");

    // An upload that was requested before its uploader left ends with the membership.
    let bob = a.user("bob").await;
    let group = stage.alice.group_with(&[&bob]).await;
    let [early, late] = [
        request(&bob, "/files", &group, 1).await,
        request(&bob, "/files", &group, 1).await,
    ];
    bring(&bob, &late, b"x").await.expect(200);
    stage
        .alice
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    bring(&bob, &early, b"x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER_UPLOAD");
    confirm(&bob, &late, b"x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER_UPLOAD");

    // An agent whose relation has ended.
    let relations = stage.alice.get("/relations").await.expect(200);
    let relation = relations.data()[0]["relation_id"].as_str().expect("an id");
    let upload = stage.request(1).await;
    stage
        .alice
        .delete(format!("/relations/{relation}"))
        .await
        .expect(200);
    bring(&stage.agent, &upload, b"x")
        .await
        .refused(403, "RELATION_REVOKED");
    ask(&stage.agent, &stage.agent_files(), &stage.conversation, 1)
        .await
        .refused(403, "RELATION_REVOKED");
}

/// A signed address is worth no more than the credential that asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_signed_address_dies_with_its_credential() {
    let stage = Stage::new(StoreKind::Folder).await;
    let upload = stage.request(1).await;
    let path = format!("/agents/{}/token", stage.agent.id);
    stage.alice.delete(path).await.expect(200);
    bring(&stage.agent.on(&stage.nodes[1]), &upload, b"x")
        .await
        .refused(403, "FORBIDDEN");
    assert_eq!(stage.stored().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_checked() {
    let stage = Stage::new(StoreKind::Folder).await;
    let right = json!({
        "filename": "x", "content_type": "text/plain", "size": 1, "conversation_id": stage.conversation,
    });
    let with = |name: &str, value: Value| {
        let mut body = right.clone();
        body[name] = value;
        body
    };
    for body in [
        with("size", json!(-1)),
        with("size", json!("1")),
        with("size", json!(1.5)),
        with("content_type", json!("text")),
        with("content_type", json!("")),
        with("filename", json!("")),
        with("conversation_id", json!("x")),
        json!({}),
    ] {
        let answer = stage.agent.post(stage.agent_files(), body.clone()).await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "VALIDATION_ERROR"),
            "{body}"
        );
    }
    for sha256 in ["", "xyz", &"g".repeat(64), &"0".repeat(63)] {
        let body = json!({ "upload_id": unknown(), "sha256": sha256 });
        stage
            .agent
            .post("/files/confirm", body)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}
