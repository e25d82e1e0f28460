//! Requests: their shape, their idempotency, their quota, and what a crash leaves of them.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Room, approvals_of, ask_in, question, text, withdraw};
use crate::support::{ProcessNode, connect, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_its_shape() {
    let room = Room::new().await;
    let stranger = room.nodes[0].user("stranger").await;
    for (more, path) in [
        (json!({ "kind": "order" }), "kind"),
        (json!({ "digest": BASE64.encode([7; 31]) }), "digest"),
        (json!({ "digest": "!" }), "digest"),
        (json!({ "quorum": 0 }), "quorum"),
        (json!({ "quorum": 4 }), "quorum"),
        (json!({ "deny_quorum": 4 }), "deny_quorum"),
        (json!({ "of": [room.alice.user.id], "quorum": 2 }), "quorum"),
        (json!({ "of": [stranger.id] }), "of"),
        (json!({ "of": [room.agent.id] }), "of[0]"),
        (json!({ "expires_in_seconds": 59 }), "expires_in_seconds"),
        (
            json!({ "expires_in_seconds": 2_592_001 }),
            "expires_in_seconds",
        ),
        (json!({ "payload": 7 }), "payload"),
        (json!({ "payload": {} }), "payload"),
        (json!({ "in_reply_to": ulid().to_string() }), "in_reply_to"),
    ] {
        let refused = room.try_ask(more.clone()).await;
        let refused = refused.refused(400, "VALIDATION_ERROR");
        let fields = &refused.body["error"]["params"]["fields"];
        assert_eq!(fields[0]["path"], path, "{more}");
    }
    let huge = json!({ "payload": { "type": "encrypted", "c": "x".repeat(1024 * 1024) } });
    let refused = room.try_ask(huge).await;
    refused.refused(413, "WEBHOOK_PAYLOAD_TOO_LARGE");
    // Nothing of these is in the history.
    let history = format!("/conversations/{}/messages", room.group);
    let messages = room.alice.user.get(history).await.expect(200);
    assert_eq!(messages.body["data"], json!([]));
    for more in [
        json!({ "expires_in_seconds": 60 }),
        json!({ "expires_in_seconds": 2_592_000 }),
        json!({ "of": [], "quorum": 3, "deny_quorum": 3 }),
        json!({ "of": [room.bob.user.id, room.bob.user.id] }),
    ] {
        room.ask(more).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_member_asks() {
    let room = Room::new().await;
    let other = room.nodes[0].agent(&room.developer, "other").await;
    ask_in(&other, &room.group, json!({}))
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    ask_in(&room.agent, &ulid().to_string(), json!({}))
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    let path = approvals_of(&room.agent, &room.group);
    other
        .post(path, question(json!({})))
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    // A conversation that requires encryption takes no plaintext.
    let encrypted = json!({ "encryption": "required" });
    let place = format!("/conversations/{}", room.group);
    room.alice.user.patch(place, encrypted).await.expect(200);
    room.try_ask(json!({ "payload": { "type": "text" } }))
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_answers_the_same_approval() {
    let room = Room::new().await;
    let path = approvals_of(&room.agent, &room.group);
    let body = question(json!({ "quorum": 2 }));
    let calls = (0..20).map(|n| {
        let (agent, path, body) = (room.agent.on(room.node(n)), &path, &body);
        async move { agent.post(path, body).await }
    });
    let answers = join_all(calls).await;
    let made: Vec<_> = answers.iter().filter(|one| one.status == 201).collect();
    assert_eq!(made.len(), 1, "{answers:?}");
    for answer in &answers {
        let again = answer.status == 200;
        assert!(again || answer.status == 201, "{answer:?}");
        assert_eq!(answer.data()["duplicate"], json!(again));
        assert_eq!(answer.data()["approval_id"], made[0].data()["approval_id"]);
        let header = answer.header("idempotent-replayed");
        assert_eq!(header, again.then_some("true"));
    }
    // A repeat shows the present state.
    let item = made[0].data();
    withdraw(&room.agent, item).await.expect(200);
    let again = room.agent.post(&path, &body).await.expect(200);
    assert_eq!(again.data()["state"], "withdrawn");
    for (name, value) in [
        ("payload", json!({ "type": "encrypted", "c": "another" })),
        ("kind", json!("ask")),
        ("digest", json!(BASE64.encode([8; 32]))),
        ("quorum", json!(1)),
        ("deny_quorum", json!(2)),
    ] {
        let mut other = body.clone();
        other[name] = value;
        let refused = room.agent.post(&path, other).await;
        refused.refused(409, "IDEMPOTENCY_CONFLICT");
    }
    // A plain message has used this id.
    let plain = json!({ "payload": { "type": "text" }, "client_message_id": ulid().to_string() });
    let sends = format!(
        "/agents/{}/conversations/{}/messages",
        room.agent.id, room.group
    );
    room.agent.post(sends, plain.clone()).await.expect(201);
    let refused = room.agent.post(&path, question(plain)).await;
    refused.refused(409, "IDEMPOTENCY_CONFLICT");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_a_hundred_open_ones_with_a_user() {
    let room = Room::new().await;
    let with = |person: &super::Person| json!({ "of": [person.user.id] });
    let first = room.ask(with(&room.alice)).await;
    for _ in 0..97 {
        room.ask(with(&room.alice)).await;
    }
    let calls = (0..8).map(|n| {
        let (agent, group) = (room.agent.on(room.node(n)), &room.group);
        let more = with(&room.alice);
        async move { ask_in(&agent, group, more).await }
    });
    let answers = join_all(calls).await;
    let made = answers.iter().filter(|one| one.status == 201).count();
    assert_eq!(made, 2, "{answers:?}");
    let everybody = room.try_ask(json!({})).await;
    let refused = everybody.refused(403, "APPROVAL_LIMIT_EXCEEDED");
    let params = &refused.body["error"]["params"];
    assert_eq!(
        (&params["limit"], &params["user_ids"]),
        (&json!(100), &json!([room.alice.user.id]))
    );
    room.ask(with(&room.bob)).await;
    withdraw(&room.agent, &first).await.expect(200);
    room.ask(with(&room.alice)).await;
    let one_more = room.try_ask(with(&room.alice)).await;
    one_more.refused(403, "APPROVAL_LIMIT_EXCEEDED");
}

/// Kills a node in the middle of requests. Each message of an approval has its row, and each row
/// its message; what was answered is there, and a repeat answers it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_leaves_no_half_of_an_approval() {
    let room = Room::new().await;
    let path = approvals_of(&room.agent, &room.group);
    let client = connect(&room.nodes[0].world.database).await;
    for round in 0..3 {
        let mut node = ProcessNode::start(&room.nodes[0]).await;
        let at = room.agent.at(&node.base);
        let bodies: Vec<Value> = (0..60).map(|_| question(json!({}))).collect();
        let calls = bodies.iter().map(|body| {
            let request = at.request(reqwest::Method::POST, &path).json(body);
            let at = &at;
            async move { at.try_send(request).await.ok() }
        });
        let kill = async {
            tokio::time::sleep(Duration::from_millis(40 * (round + 1))).await;
            node.kill();
        };
        let (answers, ()) = tokio::join!(join_all(calls), kill);
        for (body, answer) in bodies.iter().zip(answers) {
            let again = room.agent.post(&path, body).await;
            assert!(matches!(again.status, 200 | 201), "{again:?}");
            if let Some(answer) = answer.filter(|answer| answer.status < 300) {
                assert_eq!(again.status, 200);
                assert_eq!(again.data()["approval_id"], answer.data()["approval_id"]);
            }
            withdraw(&room.agent, again.data()).await.expect(200);
        }
        let row = client
            .query_one(
                "select (select count(*) from message where sender_kind = 'agent') as messages,
                        (select count(*) from approval) as approvals,
                        (select count(*) from approval join message using (conversation_id, seq)
                         where approval_id = message_id) as both",
                &[],
            )
            .await
            .expect("counts");
        let counts = ["messages", "approvals", "both"].map(|name| row.get::<_, i64>(name));
        assert_eq!(counts, [60 * (i64::try_from(round).expect("few") + 1); 3]);
    }
    assert!(text(&room.ask(json!({})).await, "state") == "open");
}
