//! The metrics of delivery, pools and queues.

use serde_json::json;

use crate::support::nodes;

#[tokio::test(flavor = "multi_thread")]
async fn delivery_is_measured_from_the_hint_to_the_socket() {
    let [a, b] = nodes().await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let group = alice.group_with(&[&bob]).await;
    let resumes = async |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        b.metric("resumes_total", &[&label]).await
    };
    let outcomes = ["fresh", "current", "replayed", "resync"];
    let mut before = Vec::new();
    for outcome in outcomes {
        before.push(resumes(outcome).await);
    }
    let delivered = b.metric("hint_to_socket_seconds_count", &[]).await;
    let depths = b.metric("mailbox_events_count", &[]).await;
    let lags = b.metric("inbox_lag_events_count", &[]).await;

    let start = bob.start_of_inbox().await;
    let mut socket = bob.on(&b).connect().await;
    alice.say(&group, "over the backplane").await.expect(201);
    let event = socket.event("message.created").await;
    socket
        .say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    socket.say(json!({ "type": "ping" })).await;
    socket.expect("pong").await;
    let newest = event["cursor"].as_str().expect("a cursor").to_owned();
    bob.on(&b).connect_from(Some(&newest)).await;
    bob.on(&b).connect_from(Some(&start)).await;
    bob.on(&b).connect_from(Some("9-1")).await;

    for (outcome, before) in outcomes.into_iter().zip(before) {
        assert!(resumes(outcome).await > before, "{outcome}");
    }
    assert!(b.metric("hint_to_socket_seconds_count", &[]).await > delivered);
    assert!(b.metric("mailbox_events_count", &[]).await > depths);
    assert!(b.metric("inbox_lag_events_count", &[]).await > lags);
    assert!(b.metric("resume_events_sum", &[]).await > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pool_and_queue_is_measured() {
    let [a] = nodes().await;
    a.user("alice").await;
    for pool in ["main", "send", "quiet", "jobs", "tokens", "webhooks"] {
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
