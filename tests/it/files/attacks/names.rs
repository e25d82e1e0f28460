//! Names and types as weapons.

use serde_json::json;

use crate::files::{Stage, StoreKind, bring, confirm, fetch};

/// A name never reaches the store, and a download is never shown as a page.
async fn attack_36_a_name_is_only_a_name(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let long = "x".repeat(10_000);
    let body = |name: &str, kind: &str| {
        json!({
            "filename": name, "content_type": kind, "size": 4, "conversation_id": stage.conversation,
        })
    };
    for name in ["a\u{0}b", "a\r\nset-cookie: x=y", "\u{7f}", "a\tb", &long] {
        stage
            .agent
            .post(stage.agent_files(), body(name, "text/plain"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    stage
        .agent
        .post(stage.agent_files(), body("x", "text/html\r\nx: y"))
        .await
        .refused(400, "VALIDATION_ERROR");
    for name in [
        "../../etc/passwd",
        "..\\..\\x",
        "/abs",
        "a\"; filename=b",
        "ä \u{202e}txt",
        ".",
    ] {
        let answer = stage
            .agent
            .post(stage.agent_files(), body(name, "text/html"))
            .await
            .expect(201);
        let upload = answer.data().clone();
        bring(&stage.agent, &upload, b"<p>x").await.expect(200);
        let file = confirm(&stage.agent, &upload, b"<p>x").await.expect(200);
        let key = file.data()["object_key"]
            .as_str()
            .expect("a key")
            .to_owned();
        assert!(
            key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "{key}"
        );
        let (answer, _) = fetch(&stage.alice, format!("/objects/{key}"), &[]).await;
        let shown = answer
            .header("content-disposition")
            .expect("a header")
            .to_owned();
        assert!(
            shown.starts_with("attachment; filename*=UTF-8''"),
            "{shown}"
        );
        assert!(!shown.contains(['/', '\\', '"']), "{shown}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    // Everything lies below the store's folder, under random keys.
    let copies = if kind == StoreKind::Direct { 2 } else { 1 };
    assert_eq!(stage.stored().len(), 6 * copies);
    for file in stage.stored() {
        let name = file.file_name().and_then(|name| name.to_str());
        let is_key =
            |name: &str| name.len() == 32 && name.bytes().all(|b| b.is_ascii_alphanumeric());
        assert!(name.is_some_and(is_key), "{}", file.display());
    }
}

on_stores!(attack_36_a_name_is_only_a_name: folder, bucket, direct);
