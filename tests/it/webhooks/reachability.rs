//! The life of an agent's reachability: retries, `unreachable`, an ack, and pauses that receivers
//! ask for.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use super::{
    BUSY, FAST, deliveries, shown, talking, until, until_caught_up, until_logged, until_unreachable,
};
use crate::support::{Call, Reply, nodes_with};

#[tokio::test(flavor = "multi_thread")]
async fn seven_failed_retries_make_an_agent_unreachable_until_it_acks() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.answer(500);
    let mut owner = alice.on(&b).connect().await;
    alice.say(&conversation, "one").await.expect(201);
    alice.say(&conversation, "two").await.expect(201);
    let told = owner.event("agent.state_changed").await;
    assert_eq!(told["data"]["state"], "unreachable");

    let calls = receiver.messages();
    let attempts: Vec<i64> = calls.iter().map(Call::attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5, 6, 7, 8]);
    let ids: BTreeSet<&str> = calls.iter().map(Call::delivery).collect();
    assert_eq!(ids.len(), 1, "the id is stable");
    let signatures: BTreeSet<&str> = calls
        .iter()
        .map(|call| call.header("webhook-signature"))
        .collect();
    assert_eq!(
        signatures.len(),
        8,
        "each attempt has a signature of its own"
    );
    let log = deliveries(&alice, &agent, "status=exhausted").await;
    assert_eq!(log.len(), 1);
    assert_eq!(log[0]["attempts"].as_array().expect("a list").len(), 8);
    let now = shown(&alice, &agent).await;
    assert_eq!(now["state"], "unreachable");
    assert!(now["unreachable_since"].is_string());

    // Sends are accepted, and nothing is delivered.
    receiver.answer(200);
    alice.say(&conversation, "three").await.expect(201);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.messages().len(), 8);

    let acked = agent
        .on(&b)
        .post(format!("/agents/{}/ack", agent.id), json!({}))
        .await;
    assert_eq!(acked.expect(200).data()["state"], "active");
    assert_eq!(
        owner.event("agent.state_changed").await["data"]["state"],
        "active"
    );
    until_caught_up(&alice, &agent).await;
    assert_eq!(receiver.texts()[8..], ["one", "two", "three"]);
    assert_eq!(receiver.messages()[8].attempt(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_in_the_middle_of_an_outage_gets_everything_once() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.answer(500);
    alice.say(&conversation, "one").await.expect(201);
    until_unreachable(&alice, &agent).await;
    alice.say(&conversation, "two").await.expect(201);
    receiver.answer(200);

    let mut socket = agent.on(&b).connect().await;
    for text in ["one", "two"] {
        let event = socket.event("message.created").await;
        assert_eq!(event["data"]["payload"]["text"], text);
    }
    let cursor = socket.cursor.clone();
    socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    until(&alice, &agent, "active", |now| now["state"] == "active").await;
    alice.say(&conversation, "three").await.expect(201);
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], "three");
    let cursor = socket.cursor.clone();
    socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    until_caught_up(&alice, &agent).await;
    assert_eq!(
        receiver.texts().len(),
        8,
        "a socket is online, so nothing is posted"
    );
    drop(socket);
    alice.say(&conversation, "four").await.expect(201);
    receiver
        .until("take-over", |calls| calls.len() == 2 + 8 + 1)
        .await;
    assert_eq!(receiver.texts()[8..], ["four"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_may_ask_for_a_pause_or_for_the_end() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|call| Reply {
        retry_after: Some(1800),
        ..Reply::status(if (call.seq(), call.attempt()) == (3, 1) {
            429
        } else {
            200
        })
    });
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    let failed = until_logged(&alice, &agent, "status=failed", |log| !log.is_empty()).await;
    assert!(failed[0]["next_attempt_at"].is_string());
    // Other events wait, too: the receiver asked for a pause.
    alice.say(&conversation, "two").await.expect(201);
    a.advance(Duration::from_secs(1700)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.messages().len(), 1);
    b.advance(Duration::from_secs(120)).await;
    let alice = alice.refreshed().await;
    receiver
        .until("three messages", |calls| calls.len() >= 5)
        .await;
    assert_eq!(receiver.texts(), ["one", "one", "two"]);

    receiver.answer(410);
    alice.say(&conversation, "three").await.expect(201);
    until_unreachable(&alice, &agent).await;
    assert_eq!(receiver.messages().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_in_the_middle_of_the_retries_ends_them() {
    let [a, b] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.answer(500);
    alice.say(&conversation, "one").await.expect(201);
    until_logged(&alice, &agent, "status=failed", |log| !log.is_empty()).await;
    let mut socket = agent.on(&b).connect().await;
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], "one");
    let cursor = socket.cursor.clone();
    socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    until_caught_up(&alice, &agent).await;
    receiver.answer(200);
    drop(socket);
    // The time of the retry comes. The agent has the event already.
    a.advance(Duration::from_secs(10)).await;
    alice.say(&conversation, "two").await.expect(201);
    receiver.receives(4).await;
    assert_eq!(receiver.texts(), ["one", "two"]);
    let log = until_logged(&alice, &agent, "status=exhausted", |log| !log.is_empty()).await;
    assert_eq!(log[0]["attempts"].as_array().map(Vec::len), Some(1));
    // A failure of an old event leaves no mark on the agent.
    assert_ne!(shown(&alice, &agent).await["state"], "unreachable");
}
