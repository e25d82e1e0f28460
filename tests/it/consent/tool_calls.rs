//! Tool calls: every state and transition, the windows, and what nodes' deaths leave of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Stage, call, declare, devices, group_with, respond, text};
use crate::support::{Agent, ProcessNode, User, ulid};

/// The outcome of a call, out of the agent's inbox by poll.
async fn outcome(agent: &Agent, request_id: &str) -> Option<Value> {
    let page = agent.poll("limit=100").await.expect(200);
    let events = page.body["data"].as_array().expect("events").clone();
    let mine = events.into_iter().find(|event| {
        event["event"] == "artifact_response" && event["data"]["request_id"] == *request_id
    });
    mine.map(|event| event["data"].clone())
}

/// Waits for the outcome of a call, and for no longer than a sweep takes.
async fn ended(agent: &Agent, request_id: &str) -> Value {
    let since = Instant::now();
    loop {
        if let Some(outcome) = outcome(agent, request_id).await {
            return outcome;
        }
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "{request_id} is open"
        );
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

async fn execute(user: &User, request_id: &str) {
    let answer = json!({ "status": "executed", "payload": { "result": "ok" } });
    respond(user, request_id, answer).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_grant_a_call_is_denied_at_once() {
    let stage = Stage::new().await;
    let mut agent_socket = stage.agent.connect().await;
    let state = stage.call("location:read").await;
    assert_eq!(
        (&state["status"], &state["reason"], &state["code"]),
        (
            &json!("denied"),
            &json!("scope_not_granted"),
            &json!("TOOL_CALL_DENIED")
        )
    );
    let event = agent_socket.event("artifact_response").await;
    for name in ["request_id", "status", "reason", "code"] {
        assert_eq!(event["data"][name], state[name], "{name}");
    }
    // A waiting request grants nothing, and a granted scope not the others.
    stage.ask(&["location:read"]).await;
    assert_eq!(stage.call("location:read").await["status"], "denied");
    stage.grant(&["notification:send"]).await;
    assert_eq!(stage.call("clipboard:read").await["status"], "denied");
    // The user's devices were not asked.
    let mut alice_socket = stage.alice.connect().await;
    alice_socket.expect("caught_up").await;
    loop {
        match alice_socket.next().await {
            Ok(frame) if frame["event"] == "grant.decided" => break,
            Ok(frame) => assert_ne!(frame["event"], "artifact_request"),
            Err(code) => panic!("closed with {code:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn low_runs_without_a_prompt_and_its_result_comes_back() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    let [a, b] = &stage.nodes;
    let mut alice_socket = stage.alice.on(b).connect().await;
    let mut agent_socket = stage.agent.on(a).connect().await;
    let body = stage.request("notification:send");
    let made = call(&stage.agent.on(b), body.clone()).await.expect(201);
    let state = made.data();
    assert_eq!(
        (
            &state["status"],
            &state["sensitivity"],
            &state["prompt_required"]
        ),
        (&json!("pending"), &json!("low"), &json!(false))
    );
    let asked = alice_socket.event("artifact_request").await;
    let asked = &asked["data"];
    for name in ["request_id", "conversation_id", "tool", "scope", "payload"] {
        assert_eq!(asked[name], body[name], "{name}");
    }
    for name in ["sensitivity", "prompt_required", "expires_at", "user_id"] {
        assert_eq!(asked[name], state[name], "{name}");
    }
    let id = text(state, "request_id");
    let result = json!({ "status": "executed", "payload": { "result": [1, null] } });
    let answered = respond(&stage.alice, &id, result.clone()).await.expect(200);
    assert_eq!(answered.data()["status"], "executed");
    for socket in [&mut agent_socket, &mut alice_socket] {
        let outcome = socket.event("artifact_response").await;
        assert_eq!(outcome["data"]["payload"], result["payload"]);
        assert_eq!(outcome["data"]["device_id"], json!(stage.alice.device_id));
        assert!(outcome["data"]["code"].is_null());
    }
    // The device repeats its answer, whose 200 may be lost; any other answer is too late.
    respond(&stage.alice.on(b), &id, result).await.expect(200);
    respond(&stage.alice, &id, json!({ "status": "failed" }))
        .await
        .refused(409, "ALREADY_DECIDED");
    // An agent that starts again finds the result under its id.
    let again = call(&stage.agent.on(a), body).await.expect(200);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.data(), answered.data());
    // Denied by the user, or failed.
    for (answer, status, reason, code) in [
        (
            json!({ "status": "denied" }),
            "denied",
            json!("user_denied"),
            json!("TOOL_CALL_DENIED"),
        ),
        (
            json!({ "status": "denied", "reason": "not now" }),
            "denied",
            json!("not now"),
            json!("TOOL_CALL_DENIED"),
        ),
        (
            json!({ "status": "failed", "reason": "no battery" }),
            "failed",
            json!("no battery"),
            Value::Null,
        ),
    ] {
        let id = text(&stage.call("notification:send").await, "request_id");
        respond(&stage.alice, &id, answer).await.expect(200);
        let outcome = ended(&stage.agent, &id).await;
        assert_eq!(
            (&outcome["status"], &outcome["reason"], &outcome["code"]),
            (&json!(status), &reason, &code)
        );
    }
    // A silent call that no device takes ends as well.
    let id = text(&stage.call("notification:send").await, "request_id");
    stage.advance(300).await;
    assert_eq!(ended(&stage.agent, &id).await["reason"], "device_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn medium_prompts_first_and_is_then_silent_for_a_sliding_day() {
    let stage = Stage::new().await;
    stage.grant(&["clipboard:read", "filesystem:read"]).await;
    const HOUR: u64 = 3600;
    let prompts = async |scope: &str| stage.call(scope).await["prompt_required"] == true;
    let mut alice = stage.alice.clone();
    let first = stage.call("clipboard:read").await;
    assert_eq!(
        (&first["sensitivity"], &first["prompt_required"]),
        (&json!("medium"), &json!(true))
    );
    // Only a call that ran opens the window.
    respond(
        &alice,
        &text(&first, "request_id"),
        json!({ "status": "denied" }),
    )
    .await
    .expect(200);
    let second = stage.call("clipboard:read").await;
    assert_eq!(second["prompt_required"], true);
    execute(&alice, &text(&second, "request_id")).await;
    // It slides with each call: 23 hours and 23 hours.
    for _ in 0..2 {
        stage.advance(23 * HOUR).await;
        alice = alice.refreshed().await;
        let silent = stage.call("clipboard:read").await;
        assert_eq!(silent["prompt_required"], false);
        execute(&alice, &text(&silent, "request_id")).await;
    }
    // Another scope and another device have windows of their own.
    assert!(prompts("filesystem:read").await);
    let tablet = alice.login(&stage.nodes[1], Some("tablet")).await;
    assert!(prompts("clipboard:read").await);
    let mut request = stage.request("clipboard:read");
    for (device, prompt) in [("tablet", true), (&*alice.device_id, false)] {
        request["request_id"] = json!(ulid().to_string());
        request["device_id"] = json!(device);
        let state = call(&stage.agent, request.clone()).await.expect(201);
        assert_eq!(state.data()["prompt_required"], prompt, "{device}");
    }
    let mut tablet_socket = tablet.connect().await;
    let both = stage.call("clipboard:read").await;
    let asked = loop {
        let event = tablet_socket.event("artifact_request").await;
        if event["data"]["request_id"] == both["request_id"] {
            break event;
        }
    };
    assert_eq!(asked["data"]["silent_devices"], json!([alice.device_id]));
    // The window closes after a day without a call, and with the grant.
    stage.advance(24 * HOUR).await;
    let tablet = tablet.refreshed().await;
    request["request_id"] = json!(ulid().to_string());
    let state = call(&stage.agent, request.clone()).await.expect(201);
    assert_eq!(state.data()["prompt_required"], true);
    request["request_id"] = json!(ulid().to_string());
    request["device_id"] = json!("tablet");
    let state = call(&stage.agent, request.clone()).await.expect(201);
    execute(&tablet, &text(state.data(), "request_id")).await;
    request["request_id"] = json!(ulid().to_string());
    let state = call(&stage.agent, request.clone()).await.expect(201);
    assert_eq!(state.data()["prompt_required"], false);
    let grants = tablet.get("/grants?state=approved").await.expect(200);
    let grant = text(&grants.body["data"][0], "grant_id");
    tablet.delete(format!("/grants/{grant}")).await.expect(200);
    let asked = stage.ask(&["clipboard:read"]).await;
    super::decide(
        &tablet,
        &text(&asked, "grant_id"),
        json!({ "decision": "approve" }),
    )
    .await
    .expect(200);
    request["request_id"] = json!(ulid().to_string());
    let state = call(&stage.agent, request).await.expect(201);
    assert_eq!(state.data()["prompt_required"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn high_always_prompts_and_ends_after_thirty_seconds() {
    let stage = Stage::new().await;
    stage.grant(&["location:read"]).await;
    for _ in 0..2 {
        let state = stage.call("location:read").await;
        assert_eq!(
            (&state["sensitivity"], &state["prompt_required"]),
            (&json!("high"), &json!(true))
        );
        execute(&stage.alice, &text(&state, "request_id")).await;
    }
    // A device that comes twenty seconds later is in time; one after thirty is not.
    let in_time = text(&stage.call("location:read").await, "request_id");
    let too_late = text(&stage.call("location:read").await, "request_id");
    stage.advance(20).await;
    let mut alice_socket = stage.alice.on(&stage.nodes[1]).connect().await;
    while alice_socket.event("artifact_request").await["data"]["request_id"] != *in_time {}
    execute(&stage.alice, &in_time).await;
    stage.advance(8).await;
    assert_eq!(
        outcome(&stage.agent, &too_late).await,
        None,
        "after 28 s it is open"
    );
    stage.advance(2).await;
    let swept = Instant::now();
    respond(&stage.alice, &too_late, json!({ "status": "executed" }))
        .await
        .refused(409, "TOOL_CALL_EXPIRED");
    let denied = ended(&stage.agent, &too_late).await;
    assert!(
        swept.elapsed() < Duration::from_secs(2),
        "{:?}",
        swept.elapsed()
    );
    assert_eq!(
        (&denied["status"], &denied["reason"], &denied["code"]),
        (
            &json!("denied"),
            &json!("user_timeout"),
            &json!("TOOL_CALL_DENIED")
        )
    );
    let late = respond(&stage.alice, &too_late, json!({ "status": "executed" })).await;
    let late = late.refused(409, "TOOL_CALL_EXPIRED");
    assert_eq!(late.body["error"]["params"]["reason"], "user_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_outlives_the_node_that_took_it() {
    let stage = Stage::new().await;
    stage.grant(&["location:read"]).await;
    let mut taker = ProcessNode::start(&stage.nodes[0]).await;
    let body = stage.request("location:read");
    let id = text(&body, "request_id");
    call(&stage.agent.at(&taker.base), body.clone())
        .await
        .expect(201);
    taker.kill();
    // The agent starts again elsewhere, asks the same, and finds its call.
    let found = call(&stage.agent, body).await.expect(200);
    assert_eq!(found.data()["status"], "pending");
    stage.advance(28).await;
    assert_eq!(outcome(&stage.agent, &id).await, None);
    stage.advance(2).await;
    let since = Instant::now();
    assert_eq!(ended(&stage.agent, &id).await["reason"], "user_timeout");
    assert!(
        since.elapsed() < Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
}

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
    let grant = super::ask(&stage.agent, grant).await.expect(201);
    super::decide(
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
async fn a_revoked_grant_denies_what_has_not_run() {
    let stage = Stage::new().await;
    let grant = stage.grant(&["location:read"]).await;
    let ran = text(&stage.call("location:read").await, "request_id");
    execute(&stage.alice, &ran).await;
    let waits = text(&stage.call("location:read").await, "request_id");
    let [a, b] = &stage.nodes;
    // At one moment: the grant goes while calls are made and answered.
    let bodies: Vec<Value> = (0..8).map(|_| stage.request("location:read")).collect();
    let calls = bodies.iter().enumerate().map(|(n, body)| {
        let agent = stage.agent.on(if n % 2 == 0 { a } else { b });
        async move { call(&agent, body.clone()).await.expect(201) }
    });
    let revoke = async {
        stage
            .alice
            .on(b)
            .delete(format!("/grants/{grant}"))
            .await
            .expect(200)
    };
    let (answers, _) = tokio::join!(futures_util::future::join_all(calls), revoke);
    for answer in &answers {
        let id = text(answer.data(), "request_id");
        let outcome = ended(&stage.agent, &id).await;
        let reason = outcome["reason"].as_str().expect("a reason");
        match answer.data()["status"].as_str() {
            Some("pending") => assert_eq!(reason, "grant_revoked"),
            _ => assert_eq!(reason, "scope_not_granted"),
        }
    }
    assert_eq!(ended(&stage.agent, &waits).await["reason"], "grant_revoked");
    assert_eq!(ended(&stage.agent, &ran).await["status"], "executed");
    respond(&stage.alice, &waits, json!({ "status": "executed" }))
        .await
        .refused(409, "TOOL_CALL_EXPIRED");
    assert_eq!(stage.call("location:read").await["status"], "denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_manifest_cannot_lower_what_the_user_has_read() {
    let stage = Stage::new().await;
    declare(
        &stage.agent,
        &[("camera:use", "high"), ("clipboard:read", "medium")],
    )
    .await;
    stage.grant(&["camera:use", "clipboard:read"]).await;
    declare(
        &stage.agent,
        &[("camera:use", "low"), ("clipboard:read", "high")],
    )
    .await;
    assert_eq!(stage.call("camera:use").await["sensitivity"], "high");
    assert_eq!(stage.call("clipboard:read").await["sensitivity"], "high");
    // What is no longer declared is no longer granted.
    declare(&stage.agent, &[("clipboard:read", "medium")]).await;
    let state = stage.call("camera:use").await;
    assert_eq!(
        (&state["status"], &state["reason"]),
        (&json!("denied"), &json!("scope_not_granted"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_as_large_as_messages_and_encrypted_where_it_is_required() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    const MB: usize = 1024 * 1024;
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
