//! What wakes a device, and what a push says.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use super::Scene;
use crate::support::{Agent, User, ulid};

fn backup(device: &str, key: u8) -> Value {
    json!({
        "device_id": device, "public_key": BASE64.encode([key; 32]), "signing_public_key": BASE64.encode([key + 1; 32]),
        "backup_a": BASE64.encode([1; 60]), "backup_b": BASE64.encode([2; 60]), "argon2_salt": BASE64.encode([9; 32]),
        "argon2_params": { "m": 65536, "t": 3, "p": 4 },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_wakes_and_its_content_is_no_part_of_it() {
    let scene = Scene::new().await;
    let mine = scene.alice.say(&scene.conversation, "my own").await;
    mine.expect(201);
    let message = scene.says("a secret text").await;
    let pushed = &scene.service.receives(1).await[0];
    let content = &pushed.content;
    assert_eq!(content["event"], "message.created");
    assert_eq!(content["event_id"], *message);
    assert_eq!(content["conversation_id"], *scene.conversation);
    assert_eq!(content.get("id"), None);
    assert!(content["count"].as_i64() >= Some(1), "{content}");
    assert_eq!(content.as_object().expect("an object").len(), 4);
    assert_eq!(pushed.header("ttl"), "86400");
    assert_eq!(pushed.header("urgency"), "normal");
    let topic = pushed.header("topic");
    assert_eq!(topic.len(), 32);
    assert!(!topic.contains(&scene.conversation[..8]), "{topic}");
    let key = scene.nodes[1].anon().get("/push/key").await.expect(200);
    let key = key.data()["public_key"].as_str().expect("a key").to_owned();
    assert!(
        pushed
            .header("authorization")
            .ends_with(&format!("k={key}"))
    );
    scene.stays_at(1).await;
}

/// All pushes have one length, whatever they say.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_wakes_with_an_approval_a_tool_call_and_a_grant_at_once() {
    let scene = Scene::new().await;
    let agent = scene.nodes[1].agent(&scene.bob, "helper").await;
    let manifest = json!({ "manifest": { "tools": [], "permission_scopes": [{ "scope": "location:read", "sensitivity": "high" }] } });
    let place = format!("/agents/{}", agent.id);
    agent.patch(&place, manifest).await.expect(200);
    let conversation = scene.alice.talk_to(&agent).await;

    let asked = json!({
        "payload": { "type": "encrypted", "c": "a sealed question" }, "kind": "approve",
        "digest": BASE64.encode([7; 32]), "client_message_id": ulid().to_string(),
    });
    let path = format!("{place}/conversations/{conversation}/approvals");
    let asked = agent.post(path, asked).await.expect(201);
    let first = scene.service.receives(1).await;
    assert_eq!(first[0].event(), "approval.requested");
    assert_eq!(first[0].content["id"], asked.data()["approval_id"]);
    assert_eq!(first[0].content["conversation_id"], *conversation);

    let wanted = json!({ "conversation_id": conversation, "scopes": ["location:read"] });
    let grant = agent.post(format!("{place}/grants/request"), wanted).await;
    let grant = grant.expect(201).data()["grant_id"].clone();
    let second = scene.service.receives(2).await;
    assert_eq!(second[1].event(), "grant.requested");
    assert_eq!(second[1].content["id"], grant);
    assert_eq!(second[1].header("urgency"), "normal");

    let decision = format!("/grants/{}/decision", grant.as_str().expect("an id"));
    let approve = json!({ "decision": "approve" });
    scene.alice.post(decision, approve).await.expect(200);
    let request = ulid().to_string();
    call(&agent, &conversation, &request).await;
    let third = scene.service.receives(3).await;
    assert_eq!(third[2].event(), "artifact_request");
    assert_eq!(third[2].content["id"], *request);
    assert_eq!(third[2].header("urgency"), "high");
    assert_eq!(third[2].header("ttl"), "30");
    let topics: Vec<&str> = third.iter().map(|push| push.header("topic")).collect();
    assert_eq!(topics[0], topics[2]);
    let length = third[0].sealed.len();
    assert!(third.iter().all(|push| push.sealed.len() == length));
    // The message of the approval wakes nobody beside it.
    scene.stays_at(3).await;
}

async fn call(agent: &Agent, conversation: &str, request: &str) {
    let body = json!({
        "request_id": request, "conversation_id": conversation, "tool": "look", "scope": "location:read",
        "payload": { "arguments": {} },
    });
    let path = format!("/agents/{}/artifact-requests", agent.id);
    agent.post(path, body).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_oneself_wake_and_keys_of_others_do_not() {
    let scene = Scene::new().await;
    let laptop = scene.alice.login(&scene.nodes[1], Some("laptop")).await;
    let put = async |user: &User, key| {
        let kept = user
            .post("/keys/backup", backup(&user.device_id, key))
            .await;
        kept.expect(201);
    };
    put(&scene.bob, 30).await;
    put(&laptop, 40).await;
    let first = scene.service.receives(1).await;
    assert_eq!(first[0].event(), "key.device_added");
    assert_eq!(first[0].content.get("conversation_id"), None);
    scene.advance(11).await;
    laptop.get("/keys/backup").await.expect(200);
    let second = scene.service.receives(2).await;
    assert_eq!(second[1].event(), "key.backup_accessed");
    // Only the device with a subscription has it.
    scene.stays_at(2).await;
}
