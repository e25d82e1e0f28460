//! Opening conversations.

use std::collections::HashSet;

use serde_json::json;

use crate::support::{nodes, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn two_have_one_conversation_however_often_it_is_opened() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    for body in
        [json!({ "type": "agent", "agent_id": agent.id }), json!({ "type": "direct", "user_id": bob.id })]
    {
        let users = [alice.on(&a), alice.on(&b)];
        let answers = futures_util::future::join_all(
            (0..10).map(|n| users[n % 2].post("/conversations", body.clone())),
        )
        .await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 9);
        let ids: HashSet<&str> =
            answers.iter().filter_map(|answer| answer.data()["conversation_id"].as_str()).collect();
        assert_eq!(ids.len(), 1);
    }
    // From the other side it is the same one.
    let hers = alice.post("/conversations", json!({ "type": "direct", "user_id": bob.id })).await.expect(200);
    let his = bob.post("/conversations", json!({ "type": "direct", "user_id": alice.id })).await.expect(200);
    assert_eq!(hers.data()["conversation_id"], his.data()["conversation_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_tells_both_and_makes_the_relation() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    let mut its = agent.on(&b).connect().await;
    let mut hers = alice.on(&b).connect().await;
    let answer =
        alice.post("/conversations", json!({ "type": "agent", "agent_id": agent.id })).await.expect(201);
    let conversation = answer.data();
    assert_eq!((&conversation["type"], &conversation["member_count"]), (&json!("agent"), &json!(2)));
    assert_eq!(conversation["relation"]["state"], "active");
    let names: Vec<_> = conversation["members"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|member| &member["display_name"])
        .collect();
    assert_eq!(names, ["alice", "helper"]);
    for socket in [&mut its, &mut hers] {
        assert_eq!(socket.event("relation.created").await["data"]["agent_id"], agent.id);
        assert_eq!(&socket.event("conversation.created").await["data"], conversation);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_needs_another_who_exists() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let open = async |body| alice.post("/conversations", body).await;
    open(json!({ "type": "direct", "user_id": alice.id })).await.refused(400, "VALIDATION_ERROR");
    open(json!({ "type": "direct", "user_id": ulid().to_string() })).await.refused(404, "NOT_FOUND");
    open(json!({ "type": "agent", "agent_id": uuid::Uuid::nil() }))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    open(json!({ "type": "agent", "agent_id": "x" })).await.refused(400, "VALIDATION_ERROR");
    open(json!({ "type": "party" })).await.refused(400, "VALIDATION_ERROR");
    open(json!({})).await.refused(400, "VALIDATION_ERROR");
}
