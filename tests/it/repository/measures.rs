//! The metrics of delivery, pools and queues.

use serde_json::json;

use crate::support::{ProcessNode, nodes};

#[tokio::test(flavor = "multi_thread")]
async fn delivery_is_measured_from_the_hint_to_the_socket() {
    let [a] = nodes().await;
    // A process of its own, because tests share the counters of this one.
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let there = agent.at(&b.base);
    let mut socket = there.connect().await;
    socket.expect("caught_up").await;
    let start = socket.cursor.clone();
    alice
        .say(&conversation, "over the backplane")
        .await
        .expect(201);
    let event = socket.event("message.created").await;
    socket
        .say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    socket.say(json!({ "type": "ping" })).await;
    socket.expect("pong").await;
    drop(socket);
    let newest = event["cursor"].as_str().expect("a cursor");
    for resume in [newest, &start, "9-1"] {
        let mut socket = there.connect_from(Some(resume)).await;
        socket.expect("caught_up").await;
    }

    for outcome in ["fresh", "current", "replayed", "resync"] {
        let label = format!("outcome=\"{outcome}\"");
        let resumes = b.metric("resumes_total", &label).await;
        assert_eq!(resumes, 1.0, "{outcome}");
    }
    assert!(b.metric("hint_to_socket_seconds_count", "").await >= 1.0);
    assert!(b.metric("mailbox_events_count", "").await >= 1.0);
    assert!(b.metric("inbox_lag_events_count", "").await >= 1.0);
    assert!(b.metric("resume_events_sum", "").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pool_and_queue_is_measured() {
    let [a] = nodes().await;
    a.user("alice").await;
    for pool in ["main", "send", "background", "jobs", "tokens", "webhooks"] {
        let label = format!("pool=\"{pool}\"");
        assert!(
            a.metric("db_connections_max", &[&label]).await > 0.0,
            "{pool}"
        );
    }
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert_eq!(a.metric("build_info", &[&version]).await, 1.0);
    // Nobody registers now: the places of the queue are free again.
    let text = reqwest::get(format!("{}/metrics", a.admin))
        .await
        .expect("metrics");
    let text = text.text().await.expect("text");
    assert!(
        text.contains("hashes_waiting{queue=\"passwords\"}"),
        "{text}"
    );
}
