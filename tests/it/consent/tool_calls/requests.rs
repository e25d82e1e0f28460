//! Requests and answers: their ids, their addressees, their frames and their sizes.

use serde_json::{Value, json};

use super::{
    super::{Stage, ask, call, decide, declare, devices, group_with, respond, text},
    ended,
};
use crate::support::{Agent, User, ulid};

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

/// Another agent that the user talks with, under a grant of its own.
async fn other_agent(stage: &Stage) -> (Agent, String) {
    let developer = stage.nodes[0].user("other").await;
    let other = stage.nodes[0].agent(&developer, "other").await;
    declare(&other, &[("notification:send", "low")]).await;
    let conversation = stage.alice.talk_to(&other).await;
    let body = json!({ "conversation_id": conversation, "scopes": ["notification:send"] });
    let asked = ask(&other, body).await.expect(201);
    let grant = text(asked.data(), "grant_id");
    decide(&stage.alice, &grant, json!({ "decision": "approve" }))
        .await
        .expect(200);
    (other, conversation)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_takes_the_request_id_of_another() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    let (other, conversation) = other_agent(&stage).await;
    // The other agent is first with an id that it can compute.
    let body = stage.request("notification:send");
    let mut squat = body.clone();
    squat["conversation_id"] = json!(conversation);
    call(&other, squat).await.expect(201);
    call(&stage.agent, body.clone()).await.expect(201);
    let id = text(&body, "request_id");

    // The id alone is ambiguous. With its agent, each call has an outcome of its own.
    let answer = |agent: Option<&str>, status: &str| match agent {
        Some(agent) => json!({ "agent_id": agent, "status": status }),
        None => json!({ "status": status }),
    };
    respond(&stage.alice, &id, answer(None, "executed"))
        .await
        .refused(400, "VALIDATION_ERROR");
    let path = format!("/artifact-requests/{id}/claim");
    let refused = stage.alice.post(path.clone(), json!({})).await;
    refused.refused(400, "VALIDATION_ERROR");
    let named = json!({ "agent_id": stage.agent.id });
    stage.alice.post(path, named).await.expect(200);
    let stranger = "01a21531-af76-75b7-b0e0-5c7086953b59";
    respond(&stage.alice, &id, answer(Some(stranger), "executed"))
        .await
        .refused(404, "NOT_FOUND");
    respond(&stage.alice, &id, answer(Some(&other.id), "denied"))
        .await
        .expect(200);
    let mut socket = stage.alice.on(&stage.nodes[1]).connect().await;
    let frame = |agent: Option<&str>| {
        let mut frame = answer(agent, "executed");
        frame["type"] = json!("artifact_response");
        frame["request_id"] = json!(id);
        frame
    };
    socket.say(frame(None)).await;
    let refused = socket.expect("error").await;
    assert_eq!(refused["error"]["code"], "VALIDATION_ERROR");
    socket.say(frame(Some(&stage.agent.id))).await;
    socket.expect("artifact.responded").await;
    assert_eq!(ended(&stage.agent, &id).await["status"], "executed");
    assert_eq!(ended(&other, &id).await["status"], "denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_two_members_under_one_id() {
    let stage = Stage::new().await;
    let bob = stage.nodes[1].user("bob").await;
    bob.talk_to(&stage.agent).await;
    let group = group_with(&stage.alice, &[&bob], &stage.agent).await;
    let mut body = stage.request("notification:send");
    body["conversation_id"] = json!(group);
    for user in [&stage.alice, &bob] {
        body["user_id"] = json!(user.id);
        let made = call(&stage.agent, body.clone()).await.expect(201);
        assert_eq!(made.data()["user_id"], json!(user.id));
        let found = call(&stage.agent, body.clone()).await.expect(200);
        assert_eq!(found.data()["user_id"], json!(user.id));
    }
    body.as_object_mut().expect("a body").remove("user_id");
    call(&stage.agent, body)
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_asked_for_under_the_scope_of_its_entry() {
    let stage = Stage::new().await;
    let manifest = json!({
        "tools": [
            { "name": "pay", "scope": "location:read" },
            { "name": "any" },
        ],
        "permission_scopes": [
            { "scope": "notification:send", "sensitivity": "low" },
            { "scope": "location:read", "sensitivity": "high" },
        ],
    });
    let path = format!("/agents/{}", stage.agent.id);
    stage.agent.patch(path, manifest).await.expect(200);
    stage.grant(&["notification:send", "location:read"]).await;
    let request = |tool: &str, scope: &str| {
        let mut body = stage.request(scope);
        body["tool"] = json!(tool);
        body
    };
    call(&stage.agent, request("pay", "notification:send"))
        .await
        .refused(403, "SCOPE_NOT_DECLARED");
    for (tool, scope, sensitivity) in [
        ("pay", "location:read", "high"),
        ("any", "notification:send", "low"),
        // The manifest lists tools, and this is none of them.
        ("other", "notification:send", "high"),
    ] {
        let made = call(&stage.agent, request(tool, scope)).await.expect(201);
        assert_eq!(made.data()["sensitivity"], sensitivity, "{tool}");
        assert_eq!(made.data()["prompt_required"], sensitivity == "high");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_device_claims_a_call_and_alone_answers_it() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    let devices = devices(&stage, 6).await;
    let claim = |id: &str| format!("/artifact-requests/{id}/claim");
    let id = text(&stage.call("notification:send").await, "request_id");
    let claims = devices.iter().map(|device| {
        let path = claim(&id);
        async move { device.post(path, json!({})).await }
    });
    let answers = futures_util::future::join_all(claims).await;
    let first = answers.iter().position(|answer| answer.status == 200);
    let first = first.expect("one has it");
    let done = json!({ "status": "executed" });
    for (n, answer) in answers.into_iter().enumerate() {
        if n == first {
            assert_eq!(answer.data()["status"], "pending");
            continue;
        }
        answer.refused(409, "ALREADY_DECIDED");
        let late = respond(&devices[n], &id, done.clone()).await;
        late.refused(409, "ALREADY_DECIDED");
    }
    // A lost 200 is asked for again. What has ended is nobody's.
    let device = &devices[first];
    device.post(claim(&id), json!({})).await.expect(200);
    respond(device, &id, done.clone()).await.expect(200);
    let again = device.post(claim(&id), json!({})).await;
    again.refused(409, "ALREADY_DECIDED");
    let bob = stage.nodes[1].user("bob").await;
    bob.post(claim(&id), json!({}))
        .await
        .refused(404, "NOT_FOUND");

    // A claim moves no deadline, and a call that names a device is that device's.
    let mut body = stage.request("notification:send");
    body["device_id"] = json!("device-1");
    call(&stage.agent, body.clone()).await.expect(201);
    let id = text(&body, "request_id");
    let foreign = devices[0].post(claim(&id), json!({})).await;
    foreign.refused(403, "FORBIDDEN");
    devices[1].post(claim(&id), json!({})).await.expect(200);
    stage.advance(300).await;
    assert_eq!(ended(&stage.agent, &id).await["reason"], "device_timeout");
    let device = devices[1].clone().refreshed().await;
    let late = device.post(claim(&id), json!({})).await;
    late.refused(409, "TOOL_CALL_EXPIRED");
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
