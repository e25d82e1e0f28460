//! Agents on a socket, a poll and a webhook: tool calls and the access log are alike on all three.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{Stage, access_log::newest, call, respond, text};
use crate::support::{Agent, Receiver, Socket};

/// The way in which an agent gets its events.
enum Transport {
    Socket(Socket),
    Poll(Agent),
    Webhook(Arc<Receiver>),
}

impl Transport {
    /// The outcome of a call, and the number of its event.
    async fn outcome(&mut self, request_id: &str) -> (Value, i64) {
        let is_wanted = |event: &Value| {
            event["event"] == "artifact_response" && event["data"]["request_id"] == *request_id
        };
        let found = |event: &Value| {
            (
                event["data"].clone(),
                event["seq"].as_i64().expect("a number"),
            )
        };
        match self {
            Transport::Socket(socket) => loop {
                let event = socket.event("artifact_response").await;
                if is_wanted(&event) {
                    return found(&event);
                }
            },
            Transport::Poll(agent) => loop {
                let page = agent.poll("limit=100&wait=5").await.expect(200);
                let events = page.body["data"].as_array().expect("events").clone();
                if let Some(event) = events.iter().find(|event| is_wanted(event)) {
                    return found(event);
                }
                let cursor = text(events.last().expect("an event"), "cursor");
                agent.poll(&format!("cursor={cursor}")).await.expect(200);
            },
            Transport::Webhook(receiver) => {
                let calls = receiver
                    .until("outcome", |calls| {
                        calls.iter().any(|call| is_wanted(&call.body))
                    })
                    .await;
                let call = calls.iter().find(|call| is_wanted(&call.body));
                found(&call.expect("it was found").body)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_are_alike_on_a_socket_a_poll_and_a_webhook() {
    let stage = Stage::new().await;
    let [a, b] = &stage.nodes;
    stage.grant(&["notification:send", "location:read"]).await;
    let agent = &stage.agent;
    let receiver = Arc::new(Receiver::start().await);
    let mut outcomes: Vec<Vec<Value>> = Vec::new();
    for n in 0..3 {
        // The agent changes its transport: what it has not acked waits for the next one.
        let mut transport = match n {
            0 => Transport::Socket(agent.on(b).connect().await),
            1 => Transport::Poll(agent.on(a)),
            _ => {
                let hook = json!({ "url": receiver.url });
                let shown = agent.put(agent.webhook(""), hook).await.expect(200);
                assert_eq!(shown.data()["status"], "active");
                Transport::Webhook(receiver.clone())
            }
        };
        let mut seen = Vec::new();
        for (scope, status) in [
            ("notification:send", "executed"),
            ("notification:send", "failed"),
            ("location:read", "denied"),
            ("clipboard:read", ""),
        ] {
            let id = text(&stage.call(scope).await, "request_id");
            if !status.is_empty() {
                let answer = json!({ "status": status, "payload": { "n": 1 } });
                respond(&stage.alice, &id, answer).await.expect(200);
            }
            let (mut outcome, _) = transport.outcome(&id).await;
            outcome["request_id"] = Value::Null;
            seen.push(outcome);
        }
        // Nobody answers: the deadline reaches every transport.
        let id = text(&stage.call("location:read").await, "request_id");
        stage.advance(30).await;
        let (mut outcome, _) = transport.outcome(&id).await;
        assert_eq!(outcome["reason"], "user_timeout");
        outcome["request_id"] = Value::Null;
        seen.push(outcome);
        outcomes.push(seen);
    }
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0], outcomes[2]);
    let statuses: Vec<&Value> = outcomes[0]
        .iter()
        .map(|outcome| &outcome["status"])
        .collect();
    assert_eq!(
        statuses,
        ["executed", "failed", "denied", "denied", "denied"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_a_webhook_are_logged_with_their_range() {
    let stage = Stage::new().await;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let receiver = Receiver::start().await;
    let hook = json!({ "url": receiver.url });
    agent.put(agent.webhook(""), hook).await.expect(200);
    let logged = async |up_to: i64| {
        for _ in 0..400 {
            let row = newest(alice, "push").await;
            if row["to_seq"].as_i64() == Some(up_to) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not logged up to {up_to}: {}", newest(alice, "push").await);
    };
    for _ in 0..3 {
        alice.say(&stage.conversation, "x").await.expect(201);
    }
    let is_there = |n: usize| {
        move |calls: &[crate::support::Call]| {
            calls
                .iter()
                .filter(|call| call.event() == "message.created")
                .count()
                >= n
        }
    };
    let calls = receiver.until("messages", is_there(3)).await;
    let last = calls
        .iter()
        .map(crate::support::Call::seq)
        .max()
        .expect("an event");
    logged(last).await;
    // A delivery that fails is no read, and the retry is one.
    receiver.answer(500);
    alice.say(&stage.conversation, "y").await.expect(201);
    receiver.until("an attempt", is_there(4)).await;
    assert_eq!(newest(alice, "push").await["to_seq"].as_i64(), Some(last));
    receiver.answer(200);
    stage.advance(7).await;
    logged(last + 1).await;
    // Together the rows hold each event once.
    let rows = super::access_log::log(alice, "limit=100").await;
    let pushed: i64 = rows
        .iter()
        .filter(|row| row["kind"] == "push")
        .map(|row| row["items"].as_i64().expect("a number"))
        .sum();
    let delivered: std::collections::BTreeSet<i64> = receiver
        .events()
        .iter()
        .filter(|call| !call.conversation().is_empty())
        .map(crate::support::Call::seq)
        .collect();
    assert_eq!(usize::try_from(pushed), Ok(delivered.len()), "{rows:?}");
    let replayed = call(agent, stage.request("clipboard:read")).await;
    assert_eq!(replayed.status, 201);
}
