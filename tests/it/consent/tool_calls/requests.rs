//! Requests and answers: their ids, their addressees, their frames and their sizes.

use serde_json::{Value, json};

use super::{
    super::{Stage, ask, call, decide, declare, devices, group_with, respond, text},
    ended,
};
use crate::support::{User, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_makes_one_call() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    let body = stage.request("notification:send");
    let calls = (0..10).map(|n| {
        let agent = stage.agent.on(&stage.nodes[n % 2]);
        let body = body.clone();
        async move { call(&agent, body).await }
    });
    let answers = futures_util::future::join_all(calls).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    let found = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!((made, found), (1, 9), "{answers:?}");
    let mut alice_socket = stage.alice.connect().await;
    let mut asked = 0;
    alice_socket.expect("caught_up").await;
    stage
        .alice
        .say(&stage.conversation, "the end")
        .await
        .expect(201);
    loop {
        let event = alice_socket.next().await.expect("a frame");
        match event["event"].as_str() {
            Some("artifact_request") => asked += 1,
            Some("message.created") => break,
            _ => {}
        }
    }
    assert_eq!(asked, 1);

    // Another agent of the same user cannot take the id.
    let developer = stage.nodes[0].user("other").await;
    let other = stage.nodes[0].agent(&developer, "other").await;
    declare(&other, &[("notification:send", "low")]).await;
    let conversation = stage.alice.talk_to(&other).await;
    let mut theirs = body.clone();
    theirs["conversation_id"] = json!(conversation);
    call(&other, theirs)
        .await
        .refused(409, "IDEMPOTENCY_CONFLICT");
    for (field, value) in [
        ("request_id", json!("no spaces")),
        ("request_id", json!("x".repeat(129))),
        ("tool", json!("")),
        ("payload", json!("text")),
        ("payload", json!([])),
        ("device_id", json!("")),
    ] {
        let mut bad = stage.request("notification:send");
        bad[field] = value;
        call(&stage.agent, bad)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_user_and_device_that_are_asked_answer() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    let [phone, tablet] = <[User; 2]>::try_from(devices(&stage, 2).await)
        .ok()
        .expect("two");
    let mut body = stage.request("notification:send");
    body["device_id"] = json!("device-9");
    call(&stage.agent, body.clone())
        .await
        .refused(404, "NOT_FOUND");
    body["device_id"] = json!("device-1");
    call(&stage.agent, body.clone()).await.expect(201);
    let id = text(&body, "request_id");
    let done = json!({ "status": "executed" });
    respond(&phone, &id, done.clone())
        .await
        .refused(403, "FORBIDDEN");
    respond(&tablet, &id, done.clone()).await.expect(200);

    let bob = stage.nodes[1].user("bob").await;
    bob.talk_to(&stage.agent).await;
    let group = group_with(&stage.alice, &[&bob], &stage.agent).await;
    let grant =
        json!({ "conversation_id": group, "user_id": bob.id, "scopes": ["notification:send"] });
    let grant = ask(&stage.agent, grant).await.expect(201);
    decide(
        &bob,
        &text(grant.data(), "grant_id"),
        json!({ "decision": "approve" }),
    )
    .await
    .expect(200);
    let mut alice_socket = phone.connect().await;
    alice_socket.expect("caught_up").await;
    let mut bob_socket = bob.connect().await;
    let mut body = stage.request("notification:send");
    body["conversation_id"] = json!(group);
    call(&stage.agent, body.clone())
        .await
        .refused(400, "VALIDATION_ERROR");
    body["user_id"] = json!(bob.id);
    call(&stage.agent, body.clone()).await.expect(201);
    assert_eq!(
        bob_socket.event("artifact_request").await["data"]["request_id"],
        body["request_id"]
    );
    let id = text(&body, "request_id");
    respond(&stage.alice, &id, done.clone())
        .await
        .refused(404, "NOT_FOUND");
    respond(&stage.alice, &ulid().to_string(), done.clone())
        .await
        .refused(404, "NOT_FOUND");
    respond(&bob, &id, done).await.expect(200);
    bob.say(&group, "the end").await.expect(201);
    loop {
        let event = alice_socket.next().await.expect("a frame");
        if event["event"] == "message.created" {
            break;
        }
        assert!(
            event["event"] != "artifact_request" && event["event"] != "artifact_response"
                || event["conversation_id"] != json!(group),
            "{event}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_call_and_answer_with_frames() {
    let stage = Stage::new().await;
    stage.grant(&["clipboard:read"]).await;
    let [a, b] = &stage.nodes;
    let mut agent_socket = stage.agent.on(a).connect().await;
    let mut alice_socket = stage.alice.on(b).connect().await;
    let mut frame = stage.request("clipboard:read");
    frame["type"] = json!("artifact_request");
    frame["ref"] = json!(7);
    agent_socket.say(frame.clone()).await;
    let made = agent_socket.expect("artifact.requested").await;
    assert_eq!(
        (&made["ref"], &made["data"]["status"]),
        (&json!(7), &json!("pending"))
    );
    let asked = alice_socket.event("artifact_request").await;
    assert_eq!(asked["data"]["payload"], frame["payload"]);
    let id = &asked["data"]["request_id"];
    let answer = json!({ "type": "artifact_response", "ref": "r", "request_id": id, "status": "executed", "payload": {} });
    alice_socket.say(answer.clone()).await;
    let done = alice_socket.expect("artifact.responded").await;
    assert_eq!(
        (&done["ref"], &done["data"]["status"]),
        (&json!("r"), &json!("executed"))
    );
    assert_eq!(
        agent_socket.event("artifact_response").await["data"]["status"],
        "executed"
    );
    // Each frame is of one kind of principal, and refused in its place.
    agent_socket.say(answer).await;
    assert_eq!(
        agent_socket.expect("error").await["error"]["code"],
        "FORBIDDEN"
    );
    alice_socket.say(frame.clone()).await;
    assert_eq!(
        alice_socket.expect("error").await["error"]["code"],
        "FORBIDDEN"
    );
    frame["conversation_id"] = json!(ulid().to_string());
    frame["request_id"] = json!(ulid().to_string());
    agent_socket.say(frame).await;
    let refused = agent_socket.expect("error").await;
    assert_eq!(
        (&refused["ref"], &refused["error"]["code"]),
        (&json!(7), &json!("NOT_FOUND"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_as_large_as_messages_and_encrypted_where_it_is_required() {
    const MB: usize = 1024 * 1024;
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    // `{"x":""}` around the text.
    let of = |bytes: usize| json!({ "x": "y".repeat(bytes - 8) });
    let mut body = stage.request("notification:send");
    body["payload"] = of(MB + 1);
    call(&stage.agent, body.clone())
        .await
        .refused(413, "WEBHOOK_PAYLOAD_TOO_LARGE");
    body["payload"] = of(MB);
    call(&stage.agent, body.clone()).await.expect(201);
    let id = text(&body, "request_id");
    let answer = |payload: Value| json!({ "status": "executed", "payload": payload });
    respond(&stage.alice, &id, answer(of(MB + 1)))
        .await
        .refused(413, "MESSAGE_TOO_LARGE");
    respond(&stage.alice, &id, answer(of(MB))).await.expect(200);
    assert_eq!(ended(&stage.agent, &id).await["payload"], of(MB));

    let path = format!("/conversations/{}", stage.conversation);
    stage
        .alice
        .patch(path, json!({ "encryption": "required" }))
        .await
        .expect(200);
    let mut body = stage.request("notification:send");
    call(&stage.agent, body.clone())
        .await
        .refused(400, "VALIDATION_ERROR");
    body["payload"] = json!({ "type": "encrypted", "c": "x" });
    call(&stage.agent, body.clone()).await.expect(201);
    let id = text(&body, "request_id");
    respond(&stage.alice, &id, answer(json!({ "result": 1 })))
        .await
        .refused(400, "VALIDATION_ERROR");
    respond(&stage.alice, &id, answer(body["payload"].clone()))
        .await
        .expect(200);
}
