//! A change of `SERVER_SECRET`, under which the secrets of webhooks are sealed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{BUSY, FAST, blocked, deliveries, shown, talking, until};
use crate::support::{
    Agent, ProcessNode, Receiver, User, World, connect, server_secrets, services,
};

/// The names of two secrets.
const OLD: u8 = 2;
const NEW: u8 = 9;
/// Upkeep every second that otherwise comes every minute.
const OFTEN: (&str, &str) = ("UPKEEP_SPEED", "60");

async fn node(world: &World, secrets: &[u8]) -> ProcessNode {
    node_with(world, secrets, "true").await
}

/// A node that delivers webhooks or not.
async fn node_with(world: &World, secrets: &[u8], delivers: &str) -> ProcessNode {
    let ring = server_secrets(secrets);
    let own = [
        ("SERVER_SECRET", &*ring),
        OFTEN,
        ("WEBHOOK_WORKER", delivers),
    ];
    ProcessNode::start_in_with(world, &own).await
}

/// Replaces a node by one with another ring.
async fn replace(world: &World, node_before: &mut ProcessNode, secrets: &[u8]) {
    node_before.terminate();
    let ended = node_before.ended(Duration::from_secs(60)).await;
    assert_eq!(ended, Some(0), "{}", node_before.log());
    *node_before = node(world, secrets).await;
}

/// Waits until a gauge that the node has measured is `wanted`.
async fn until_gauge(node: &ProcessNode, name: &str, wanted: f64) {
    for _ in 0..1_200 {
        let is_measured = node.metrics().await.contains(&format!("\n{name} "));
        if is_measured && node.metric(name, "").await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} is not {wanted}: {}", node.metrics().await);
}

async fn last_error(by: &User, agent: &Agent) -> Value {
    let answer = by.get(agent.webhook("")).await.expect(200);
    answer.data()["last_error"].clone()
}

/// Alice and her agent with a webhook, which the first node has sealed under the old secret. That
/// node is gone.
async fn sealed_under_old(world: &Arc<World>) -> (User, Agent, Receiver, String) {
    let old = server_secrets(&[OLD]);
    let first = world.node_with(&[("SERVER_SECRET", &old)]).await;
    let found = talking(&first).await;
    first.drain().await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_delivers_through_all_steps_of_a_change() {
    let world = World::new(&[BUSY, FAST]).await;
    let (alice, agent, receiver, conversation) = sealed_under_old(&world).await;
    let mut nodes = [node(&world, &[OLD]).await, node(&world, &[OLD]).await];
    // Two secrets sign until after the change.
    let path = agent.webhook("/rotate-secret");
    let body = json!({ "overlap_seconds": 604_800 });
    alice.at(&nodes[0].base).post(path, body).await.expect(200);

    let mut calls = 2;
    for secrets in [&[OLD, NEW][..], &[NEW, OLD], &[NEW]] {
        for place in &mut nodes {
            replace(&world, place, secrets).await;
            let text = format!("under {secrets:?}");
            let said = alice.at(&place.base).say(&conversation, &text).await;
            said.expect(201);
            calls += 1;
            let heard = receiver.receives(calls).await;
            let signed = heard[calls - 1].header("webhook-signature");
            assert_eq!(signed.split(' ').count(), 2, "{signed}");
        }
        for node in &nodes {
            until_gauge(node, "webhook_secrets_old", 0.0).await;
            until_gauge(node, "webhook_secrets_unreadable", 0.0).await;
        }
    }
    let alice = alice.at(&nodes[1].base);
    assert_eq!(last_error(&alice, &agent).await, json!(null));
}

/// The last step comes first: nothing can be signed. The owner hears of it, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_does_not_open_is_shown_to_the_owner_until_its_key_is_back() {
    let world = World::new(&[BUSY, FAST]).await;
    let (alice, agent, receiver, conversation) = sealed_under_old(&world).await;
    let mut nodes = [node(&world, &[NEW]).await, node(&world, &[NEW]).await];
    let owner = alice.at(&nodes[1].base);
    let mut socket = owner.connect().await;
    alice
        .at(&nodes[0].base)
        .say(&conversation, "one")
        .await
        .expect(201);
    let told = socket.event("agent.state_changed").await;
    assert_eq!(told["data"]["state"], "unreachable");
    assert_eq!(shown(&owner, &agent).await["state"], "unreachable");
    assert_eq!(last_error(&owner, &agent).await, "secret_unreadable");
    until_gauge(&nodes[0], "webhook_secrets_unreadable", 1.0).await;
    let logs = nodes.iter().map(ProcessNode::log).collect::<String>();
    assert!(
        logs.contains("a webhook's secret cannot be opened"),
        "{logs}"
    );
    let tested = owner.post(agent.webhook("/test"), json!({})).await;
    tested.expect(200);
    let failed = deliveries(&owner, &agent, "status=exhausted").await;
    assert_eq!(failed[0]["attempts"][0]["error"], "secret_unreadable");
    assert_eq!(receiver.messages().len(), 0);

    for place in &mut nodes {
        replace(&world, place, &[NEW, OLD]).await;
    }
    let owner = alice.at(&nodes[0].base);
    until(&owner, &agent, "active", |now| now["state"] == "active").await;
    receiver.receives(3).await;
    assert_eq!(receiver.texts(), ["one"]);
    assert_eq!(last_error(&owner, &agent).await, json!(null));
    for node in &nodes {
        until_gauge(node, "webhook_secrets_old", 0.0).await;
    }
}

/// Another node seals the secret anew between the claim of a node that cannot open it and the
/// note that it cannot. The claim is given back at once, not after its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_opens_again_during_a_claim_holds_nothing_up() {
    let world = World::new(&[BUSY, FAST]).await;
    let (alice, agent, receiver, conversation) = sealed_under_old(&world).await;
    let sender = node_with(&world, &[OLD], "false").await;
    let said = alice.at(&sender.base).say(&conversation, "one").await;
    said.expect(201);
    let admin = connect(&services().postgres.admin_url()).await;
    let mut client = connect(&world.database).await;
    let lock = client.transaction().await.expect("begun");
    lock.batch_execute("select 1 from agent for no key update")
        .await
        .expect("locked");
    let _without_old = node(&world, &[NEW]).await;
    while blocked(&admin, &world.database, "agents.lock")
        .await
        .is_none()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let both = node_with(&world, &[NEW, OLD], "false").await;
    until_gauge(&both, "webhook_secrets_old", 0.0).await;
    let from = Instant::now();
    lock.rollback().await.expect("released");
    receiver.receives(3).await;
    // A lease is thirty seconds.
    assert!(from.elapsed() < Duration::from_secs(10));
    assert_eq!(receiver.texts(), ["one"]);
    let owner = alice.at(&both.base);
    assert_eq!(last_error(&owner, &agent).await, json!(null));
    assert_ne!(shown(&owner, &agent).await["state"], "unreachable");
}

/// Without the old secret its owner sets another, by either of three routes.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_mends_a_secret_that_does_not_open() {
    let world = World::new(&[BUSY, FAST]).await;
    let (alice, agent, receiver, conversation) = sealed_under_old(&world).await;
    let mut place = node(&world, &[OLD]).await;
    let mut texts = Vec::new();
    for (secret, route) in (NEW..).zip(["rotate-secret", "verify", "put"]) {
        replace(&world, &mut place, &[secret]).await;
        let alice = alice.at(&place.base);
        alice.say(&conversation, route).await.expect(201);
        texts.push(route);
        until(&alice, &agent, "unreachable", |now| {
            now["state"] == "unreachable"
        })
        .await;
        let mended = match route {
            "put" => {
                let body = json!({ "url": receiver.url });
                alice.put(agent.webhook(""), body).await
            }
            _ => {
                let path = agent.webhook(&format!("/{route}"));
                alice.post(path, json!({})).await
            }
        };
        assert!(mended.expect(200).data()["secret"].is_string());
        receiver.receives(2 + texts.len()).await;
        assert_eq!(receiver.texts(), texts);
        assert_eq!(shown(&alice, &agent).await["state"], "active");
        assert_eq!(last_error(&alice, &agent).await, json!(null));
    }
}
