//! The states of a call, and what moves it from one to the next.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    super::{Stage, ask, call, decide, declare, respond, text},
    ended, execute, outcome,
};
use crate::support::{ProcessNode, connect, request_upkeep};

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
    // The reason is the same before the sweep and after it.
    for _ in 0..2 {
        let late = respond(&stage.alice, &id, json!({ "status": "executed" })).await;
        let late = late.refused(409, "TOOL_CALL_EXPIRED");
        assert_eq!(late.body["error"]["params"]["reason"], "device_timeout");
        assert_eq!(ended(&stage.agent, &id).await["reason"], "device_timeout");
    }
}

/// An agent without a relation reads no result, and after seven days nobody does.
#[tokio::test(flavor = "multi_thread")]
async fn results_end_with_the_relation() {
    let stage = Stage::new().await;
    let asked = json!({
        "conversation_id": stage.conversation, "scopes": ["notification:send"], "reason": "to remind you",
    });
    let grant = ask(&stage.agent, asked).await.expect(201);
    let approved = json!({ "decision": "approve" });
    decide(&stage.alice, &text(grant.data(), "grant_id"), approved)
        .await
        .expect(200);
    let body = stage.request("notification:send");
    call(&stage.agent, body.clone()).await.expect(201);
    execute(&stage.alice, &text(&body, "request_id")).await;
    let again = call(&stage.agent, body.clone()).await.expect(200);
    assert_eq!(again.data()["payload"], json!({ "result": "ok" }));
    let relations = stage.alice.get("/relations").await.expect(200);
    let relation = text(&relations.data()[0], "relation_id");
    let ended = stage.alice.delete(format!("/relations/{relation}")).await;
    ended.expect(200);
    let again = call(&stage.agent, body).await.expect(200);
    assert_eq!(again.data()["status"], "executed");
    assert!(again.data()["payload"].is_null(), "{}", again.body);
    let client = connect(&stage.nodes[0].world.database).await;
    let left = async || -> i64 {
        let sql = "select (select count(*) from tool_call where result is not null)
                        + (select count(*) from agent_grant where reason is not null)";
        client.query_one(sql, &[]).await.expect("a count").get(0)
    };
    assert_eq!(left().await, 2);
    stage.advance(7 * 86_400 + 1).await;
    request_upkeep(&stage.nodes[0].world.database, "purge_relations").await;
    let since = Instant::now();
    while left().await > 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "something stays");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
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
    // A scope that is no longer declared is no longer granted.
    declare(&stage.agent, &[("clipboard:read", "medium")]).await;
    let state = stage.call("camera:use").await;
    assert_eq!(
        (&state["status"], &state["reason"]),
        (&json!("denied"), &json!("scope_not_granted"))
    );
}
