//! Webhooks: routes, order, retries, faults, large events.

mod batches;
mod budgets;
mod deletions;
mod fairness;
mod faults;
mod large_events;
mod log;
mod order;
mod reachability;
mod replies;
mod routes;
mod server_secret;
mod stops;
mod suspension;
mod wake_ups;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Agent, Receiver, TestNode, User};

/// All seven retries within about a second.
const FAST: (&str, &str) = ("WEBHOOK_RETRY_SECONDS", "1");
/// More calls than a user may make otherwise.
const BUSY: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "default_user=10000/min,user_message_send=1000/s,agent_poll=1000/s,ws_connect=1000/s,agent_object_get=1000/s",
);

/// Sets a webhook; the answer's data.
async fn put(by: &User, agent: &Agent, url: &str) -> Value {
    let body = json!({ "url": url });
    let answer = by.put(agent.webhook(""), body).await.expect(200);
    answer.data().clone()
}

/// An agent of Alice with a verified webhook.
async fn registered(node: &TestNode) -> (User, Agent, Receiver) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let receiver = Receiver::start().await;
    let shown = put(&alice, &agent, &receiver.url).await;
    assert_eq!(shown["status"], "active", "{shown}");
    (alice, agent, receiver)
}

/// An agent with a webhook, its owner, and their conversation. The receiver has got the two events
/// of its beginning.
async fn talking(node: &TestNode) -> (User, Agent, Receiver, String) {
    let (alice, agent, receiver) = registered(node).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    (alice, agent, receiver, conversation)
}

async fn deliveries(by: &User, agent: &Agent, query: &str) -> Vec<Value> {
    let path = format!("/agents/{}/deliveries?{query}", agent.id);
    let answer = by.get(path).await.expect(200);
    answer.data().as_array().expect("a list").clone()
}

/// Waits until the log is as `holds` says.
async fn until_logged(
    by: &User,
    agent: &Agent,
    query: &str,
    holds: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    for _ in 0..2_400 {
        let log = deliveries(by, agent, query).await;
        if holds(&log) {
            return log;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{:#?}", deliveries(by, agent, query).await);
}

async fn shown(by: &User, agent: &Agent) -> Value {
    let answer = by.get(format!("/agents/{}", agent.id)).await.expect(200);
    answer.data().clone()
}

/// Waits until the agent is in a state, or has acked something.
async fn until(by: &User, agent: &Agent, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..2_400 {
        let now = shown(by, agent).await;
        if holds(&now) {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not {what}: {}", shown(by, agent).await);
}

async fn until_caught_up(by: &User, agent: &Agent) {
    until(by, agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
}

async fn until_unreachable(by: &User, agent: &Agent) {
    let holds = |now: &Value| now["state"] == "unreachable";
    until(by, agent, "unreachable", holds).await;
}

/// The backend of a wake-up in `database` that waits for a lock.
async fn blocked_wake_up(admin: &tokio_postgres::Client, database: &str) -> Option<i32> {
    blocked(admin, database, "webhooks.wake").await
}

/// The backend in `database` that waits for a lock in a statement of this name.
async fn blocked(admin: &tokio_postgres::Client, database: &str, statement: &str) -> Option<i32> {
    let find = "select pid from pg_stat_activity
        where query like '%' || $2 || '%' and wait_event_type = 'Lock' and datname = $1";
    let (_, name) = database.rsplit_once('/').expect("a database");
    let rows = admin.query(find, &[&name, &statement]).await.expect("rows");
    rows.first().map(|row| row.get("pid"))
}
