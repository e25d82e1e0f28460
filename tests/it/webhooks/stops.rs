//! Stops by webhook: a call of its own, at once, beside the deliveries.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{BUSY, FAST, deliveries, talking, until_caught_up};
use crate::support::{Call, ProcessNode, Reply, User, connect, nodes, nodes_with, ulid};

pub(super) async fn stop(user: &User, conversation: &str) {
    let path = format!("/conversations/{conversation}/stop");
    let answer = user.post(path, json!({})).await.expect(200);
    assert_eq!(answer.data()["stopped"], 1);
}

fn stops(calls: &[Call]) -> Vec<&Call> {
    let is_stop = |call: &&Call| call.event() == "turn.stop";
    calls.iter().filter(is_stop).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_overtakes_a_slow_call_and_is_left_out_once_it_is_answered() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|call| match call.text() {
        "slow" => Reply::status(200).after(Duration::from_secs(3)),
        _ => Reply::status(200),
    });
    // Three conversations have a slow call each, so the agent has no slot left.
    let [bob, carol] = [a.user("bob").await, a.user("carol").await];
    for user in [&bob, &carol] {
        let own = user.talk_to(&agent).await;
        user.say(&own, "slow").await.expect(201);
    }
    alice.say(&conversation, "slow").await.expect(201);
    receiver
        .until("slow calls", |calls| {
            calls.iter().filter(|call| call.text() == "slow").count() == 3
        })
        .await;
    let asked_at = Instant::now();
    stop(&alice.on(&b), &conversation).await;
    let calls = receiver
        .until("stop", |calls| !stops(calls).is_empty())
        .await;
    let came = stops(&calls)[0].clone();
    assert!(came.from - asked_at < Duration::from_secs(1));
    let under_way = calls.iter().filter(|call| call.to.is_none());
    assert!(under_way.count() >= 3, "the slow calls go on");
    assert_eq!(came.attempt(), 1);
    assert_eq!(came.conversation(), conversation);
    assert_eq!(came.body["data"]["by"]["id"], json!(alice.id));

    alice.say(&conversation, "next").await.expect(201);
    until_caught_up(&alice, &agent).await;
    let calls = receiver.events();
    assert_eq!(stops(&calls).len(), 1, "not delivered twice");
    let next = calls.iter().find(|call| call.text() == "next");
    assert_eq!(next.expect("delivered").seq(), came.seq() + 1);
    let log = deliveries(&alice, &agent, "limit=100").await;
    let logged: Vec<_> = log
        .iter()
        .filter(|one| one["event"] == "turn.stop")
        .collect();
    assert_eq!(logged.len(), 1);
    assert_eq!(
        (
            &logged[0]["status"],
            &logged[0]["seq"],
            &logged[0]["delivery_id"]
        ),
        (
            &json!("success"),
            &json!(came.seq()),
            &json!(came.delivery())
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_whose_call_fails_is_delivered_in_order() {
    let [a, _b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|call| match call.text() {
        "slow" => Reply::status(200).after(Duration::from_secs(1)),
        _ if call.event() == "turn.stop" => Reply::status(500),
        _ => Reply::status(200),
    });
    alice.say(&conversation, "slow").await.expect(201);
    receiver
        .until("slow call", |calls| {
            calls.iter().any(|call| call.text() == "slow")
        })
        .await;
    stop(&alice, &conversation).await;
    receiver
        .until("stop", |calls| {
            stops(calls).iter().any(|call| call.to.is_some())
        })
        .await;
    receiver.answer(200);
    alice.say(&conversation, "next").await.expect(201);
    until_caught_up(&alice, &agent).await;
    let calls = receiver.events();
    let stops = stops(&calls);
    assert!(stops.len() >= 2, "again in the series");
    let ids: Vec<_> = stops
        .iter()
        .map(|call| (&call.body["event_id"], call.seq()))
        .collect();
    assert!(
        ids.iter().all(|id| *id == ids[0]),
        "the same event: {ids:?}"
    );
    let last = stops.last().expect("one");
    let next = calls.iter().find(|call| call.text() == "next");
    assert!(last.to.expect("answered") <= next.expect("delivered").from);
    assert_eq!(deliveries(&alice, &agent, "status=pending").await.len(), 0);
    let client = connect(&a.world.database).await;
    let kept = "select count(*) from webhook_stop";
    let kept: i64 = client.query_one(kept, &[]).await.expect("a count").get(0);
    assert_eq!(kept, 0, "a failed call leaves no row");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_receiver_gets_a_stop_once_and_a_socket_gets_it_instead() {
    let [a, b] = nodes().await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_millis(300)));
    stop(&alice.on(&b), &conversation).await;
    until_caught_up(&alice, &agent).await;
    assert_eq!(stops(&receiver.events()).len(), 1);
    let mut socket = agent.connect().await;
    stop(&alice, &conversation).await;
    let event = socket.event("turn.stop").await;
    let ack = json!({ "type": "ack", "cursor": event["cursor"] });
    socket.say(ack).await;
    until_caught_up(&alice, &agent).await;
    assert_eq!(stops(&receiver.events()).len(), 1);
    alice
        .post(format!("/conversations/{}/stop", ulid()), json!({}))
        .await
        .refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_in_the_call_for_a_stop_leaves_it_to_the_others() {
    let [a] = nodes_with(&[FAST, BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let mut worker = ProcessNode::start_worker(&a, &[]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|call| match call.event() {
        "turn.stop" => Reply::status(200).after(Duration::from_secs(60)),
        _ => Reply::status(200),
    });
    stop(&alice, &conversation).await;
    receiver
        .until("stop", |calls| !stops(calls).is_empty())
        .await;
    worker.kill();
    receiver.answer(200);
    let _other = a.world.node_with(&[("WEBHOOK_WORKER", "true")]).await;
    // The dead worker's turn and its slots, and the wait for its call.
    a.advance(Duration::from_secs(31)).await;
    alice.say(&conversation, "next").await.expect(201);
    until_caught_up(&alice, &agent).await;
    let calls = receiver.events();
    let answered = stops(&calls)
        .into_iter()
        .filter(|call| call.to.is_some())
        .count();
    assert_eq!(answered, 1, "{calls:#?}");
}
