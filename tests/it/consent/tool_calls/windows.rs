//! Calls of medium sensitivity: the prompt, and the day of silence after it.

use serde_json::json;

use super::{
    super::{Stage, call, decide, respond, text},
    ended, execute,
};
use crate::support::ulid;

#[tokio::test(flavor = "multi_thread")]
async fn medium_prompts_first_and_is_then_silent_for_a_sliding_day() {
    const HOUR: u64 = 3600;
    let stage = Stage::new().await;
    stage.grant(&["clipboard:read", "filesystem:read"]).await;
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
    decide(
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
async fn silence_ends_thirty_days_after_its_prompt() {
    const HALF_DAY: u64 = 12 * 3600;
    let stage = Stage::new().await;
    stage.grant(&["clipboard:read"]).await;
    let mut alice = stage.alice.clone();
    for half_days in 0..62 {
        let made = stage.call("clipboard:read").await;
        let is_prompt = half_days % 60 == 0;
        assert_eq!(made["prompt_required"], is_prompt, "after {half_days}");
        execute(&alice, &text(&made, "request_id")).await;
        stage.advance(HALF_DAY).await;
        alice = alice.refreshed().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_medium_call_without_an_answer_ends_by_its_user_or_by_its_device() {
    let stage = Stage::new().await;
    stage.grant(&["clipboard:read"]).await;
    let prompted = stage.call("clipboard:read").await;
    assert_eq!(prompted["prompt_required"], true);
    stage.advance(299).await;
    let id = text(&prompted, "request_id");
    assert_eq!(super::outcome(&stage.agent, &id).await, None);
    stage.advance(1).await;
    assert_eq!(ended(&stage.agent, &id).await["reason"], "user_timeout");
    let stage = Stage {
        alice: stage.alice.refreshed().await,
        ..stage
    };
    // Once a person has agreed, a device that stays silent is to blame.
    execute(
        &stage.alice,
        &text(&stage.call("clipboard:read").await, "request_id"),
    )
    .await;
    let silent = stage.call("clipboard:read").await;
    assert_eq!(silent["prompt_required"], false);
    stage.advance(300).await;
    let outcome = ended(&stage.agent, &text(&silent, "request_id")).await;
    assert_eq!(
        (&outcome["status"], &outcome["reason"]),
        (&json!("denied"), &json!("device_timeout"))
    );
}
