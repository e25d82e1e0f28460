//! Wake-ups of turns: nodes tell the workers of them, and nobody else.

use std::time::{Duration, Instant};

use fred::interfaces::{KeysInterface, SortedSetsInterface};
use uuid::Uuid;

use super::{BUSY, blocked_wake_up, talking, until_caught_up};
use crate::support::{
    ProcessNode, Receiver, TestNode, User, Wire, World, connect, directory_entry, nodes_with,
    redis_client, services,
};

const MESSAGES: usize = 10;
/// A worker looks for due turns by itself each second.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The key of the directory's entry for nodes that deliver.
fn workers_key(world: &World) -> String {
    let entry = directory_entry(&Uuid::nil().to_string());
    format!("{}:{entry}", world.setting("REDIS_PREFIX"))
}

/// The channels of the nodes in a sorted set, once there are so many.
async fn channels_in(world: &World, key: &str, expected: usize) -> Vec<String> {
    let redis = redis_client(world.setting("REDIS_URL")).await;
    for _ in 0..400 {
        let listed = redis.zrange(key, 0, -1, None, false, None, false).await;
        let listed: Vec<String> = listed.expect("an answer");
        if listed.len() == expected {
            return listed.iter().map(|node| format!("n:{node}")).collect();
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{key} does not list {expected} nodes");
}

/// Sends messages, each when the one before has arrived. Returns how many arrived at once.
async fn count_at_once(alice: &User, conversation: &str, receiver: &Receiver) -> usize {
    let (mut at_once, before) = (0, receiver.events().len());
    for n in 1..=MESSAGES {
        let sent = Instant::now();
        alice.say(conversation, &n.to_string()).await.expect(201);
        let calls = receiver.receives(before + n).await;
        at_once += usize::from(calls[before + n - 1].from.duration_since(sent) < AT_ONCE);
    }
    at_once
}

/// Sends messages through `node` and asserts that each wake-up went to all workers alone.
async fn assert_told(
    node: &TestNode,
    alice: &User,
    conversation: &str,
    receiver: &Receiver,
    workers: usize,
    all: usize,
) {
    let world = &node.world;
    let workers = channels_in(world, &workers_key(world), workers).await;
    let nodes = format!("{}:nodes", world.setting("REDIS_PREFIX"));
    let nodes = channels_in(world, &nodes, all).await;
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut wire = Wire::of(world, &nodes).await;
    let at_once = count_at_once(&alice.on(node), conversation, receiver).await;
    assert!(at_once > MESSAGES / 2, "{at_once} arrived at once");
    let mut told = wire.take();
    told.retain(|one| one.text().contains("wake_webhooks"));
    let wakes = told.len() / workers.len();
    assert!((1..=MESSAGES).contains(&wakes), "{told:?}");
    for worker in &workers {
        let own = told.iter().filter(|one| one.channel == *worker);
        assert_eq!(own.count(), wakes, "{worker} of {told:?}");
    }
    assert_eq!(told.len(), wakes * workers.len(), "{told:?}");
}

/// Workers are processes of their own. A hint that is lost costs them a second.
#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_go_to_workers_alone() {
    let [a, _b] = nodes_with(&[BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let _workers = [
        ProcessNode::start_worker(&a, &[]).await,
        ProcessNode::start_worker(&a, &[]).await,
    ];
    let (alice, _agent, receiver, conversation) = talking(&a).await;
    Box::pin(assert_told(&a, &alice, &conversation, &receiver, 2, 4)).await;
    // Redis forgets who the workers are, so nobody is told.
    let redis = redis_client(a.world.setting("REDIS_URL")).await;
    let forgotten: u32 = redis.del(workers_key(&a.world)).await.expect("an answer");
    assert_eq!(forgotten, 1);
    let before = receiver.events().len();
    alice.say(&conversation, "untold").await.expect(201);
    let calls = receiver.receives(before + 1).await;
    assert_eq!(calls[before].text(), "untold");
}

/// Nodes deliver beside their requests, but for one.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_deliver_is_told_nothing() {
    let [a, _b] = nodes_with(&[BUSY]).await;
    let no_worker = [("WEBHOOK_WORKER", "false")];
    let other = a.world.node_with(&no_worker).await;
    let _idle = a.world.node_with(&no_worker).await;
    let (alice, _agent, receiver, conversation) = talking(&a).await;
    Box::pin(assert_told(&other, &alice, &conversation, &receiver, 2, 4)).await;
}

/// A wake-up is a transaction of its own. A send to an agent without a webhook goes without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_to_an_agent_without_a_webhook_makes_no_wake_up() {
    let [node] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&node).await;
    let pulling = node.agent(&alice, "puller").await;
    let pulled = alice.talk_to(&pulling).await;
    until_caught_up(&alice, &agent).await;
    let database = &node.world.database;
    let admin = connect(&services().postgres.admin_url()).await;
    let mut client = connect(database).await;
    let lock = client.transaction().await.expect("begun");
    let held = "lock table webhook_turn in exclusive mode";
    lock.batch_execute(held).await.expect("locked");
    for n in 0..MESSAGES {
        alice.say(&pulled, &n.to_string()).await.expect(201);
    }
    assert_eq!(blocked_wake_up(&admin, database).await, None);
    alice.say(&conversation, "one").await.expect(201);
    while blocked_wake_up(&admin, database).await.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    lock.rollback().await.expect("released");
    receiver.receives(3).await;
}
