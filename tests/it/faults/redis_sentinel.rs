//! Sentinels choose another master of Redis in mid-load: after a crash, and on request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use super::load::{LOAD_LIMITS, Load, Revoked, is_closed_by_the_sweep};
use crate::support::{Agent, Socket, TestNode, User, nodes_with, redis_sentinels, spawn};

/// A hint takes milliseconds, and the sweep that would replace it up to half a second and more.
const MAX_HINT: Duration = Duration::from_millis(150);
/// Hints in a row that are judged together, and those among them that may be late.
const HINTS: usize = 10;
const MAX_LATE_HINTS: usize = 2;

/// Asks both nodes all the time whether they are ready. Ends with the number of answers, or panics
/// at the first other one.
fn watch_readiness(
    nodes: &[TestNode; 2],
    stop: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<usize> {
    let urls = nodes
        .each_ref()
        .map(|node| format!("{}/health/ready", node.admin));
    let stop = stop.clone();
    spawn(async move {
        let mut answers = 0;
        while !stop.load(SeqCst) {
            for url in &urls {
                let answer = reqwest::get(url).await.expect("an answer");
                assert_eq!(answer.status(), 200, "a node is not ready");
                answers += 1;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        answers
    })
}

/// Waits until hints reach the other node at once, which says that both have the new master.
pub async fn until_hints_are_fast(alice: &User, conversation: &str, socket: &mut Socket) {
    let since = Instant::now();
    loop {
        let mut late = 0;
        for n in 0..HINTS {
            let text = format!("hint {n}");
            let sent = Instant::now();
            alice.say(conversation, &text).await.expect(201);
            let event = socket.event("message.created").await;
            assert_eq!(event["data"]["payload"]["text"], text);
            late += usize::from(sent.elapsed() > MAX_HINT);
        }
        if late <= MAX_LATE_HINTS {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(40), "hints stay away");
    }
}

/// The limit of eleven polls is exact over both nodes, which only a Redis that both share can do:
/// their own shares would be ten together. On a starved machine a call to Redis may be late, and
/// another agent is tried.
pub async fn limits_are_exact(nodes: &[TestNode; 2], alice: &User) {
    let mut seen = Vec::new();
    while !seen.contains(&11) {
        assert!(seen.len() < 4, "{seen:?} polls were admitted");
        let agent = nodes[0].agent(alice, "poller").await;
        let calls = (0..30).map(async |n| agent.on(&nodes[n % 2]).poll("").await.status);
        let statuses = join_all(calls).await;
        seen.push(statuses.iter().filter(|status| **status == 200).count());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
async fn a_failover_of_redis_by_its_sentinels_loses_nothing_and_is_followed() {
    let mut redis = redis_sentinels("failover").await;
    let url = redis.url();
    let nodes: [TestNode; 2] =
        nodes_with(&[("LIMIT_OVERRIDES", LOAD_LIMITS), ("REDIS_URL", &url)]).await;
    let alice = nodes[0].user("alice").await;
    let thief = alice.login(&nodes[1], None).await;
    let thief_socket = thief.on(&nodes[1]).connect().await;
    let second_thief = alice.login(&nodes[1], None).await;
    let agent = nodes[0].agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.on(&nodes[1]).connect().await;
    let _others = [
        agent.on(&nodes[0]).connect().await,
        agent.on(&nodes[1]).connect().await,
    ];
    until_hints_are_fast(&alice, &conversation, &mut socket).await;
    limits_are_exact(&nodes, &alice).await;

    let load = Load::start(&nodes).await;
    let stop = Arc::<AtomicBool>::default();
    let readiness = watch_readiness(&nodes, &stop);
    load.until_acked(50).await;
    redis.servers[0].kill();
    // Without any master: requests refuse the device at once, and its socket ends by the sweep.
    let revoked = Revoked::watch(&nodes, &alice, &thief).await;
    is_closed_by_the_sweep(thief_socket).await;
    load.until_acked(50).await;
    let port = redis.servers[1].port();
    let redis = tokio::task::spawn_blocking(move || {
        redis.until_master_is(port).expect("promoted");
        // The old master comes back as a replica of the new one.
        redis.servers[0].restart().expect("restarted");
        redis
    })
    .await
    .expect("no panic");
    until_hints_are_fast(&alice, &conversation, &mut socket).await;
    limits_are_exact(&nodes, &alice).await;
    // The three sockets of the agent have their slots on the new master too.
    let refused = Socket::open(&agent.on(&nodes[0]).caller).await;
    refused_for_its_slot(refused, &agent).await;
    load.until_acked(50).await;
    revoked.was_refused().await;

    // A planned change back. The old master is told to follow, and cuts its clients.
    let revoked = Revoked::watch(&nodes, &alice, &second_thief).await;
    let port = redis.servers[0].port();
    let redis = tokio::task::spawn_blocking(move || {
        redis.fail_over_to(port).expect("promoted");
        redis
    })
    .await
    .expect("no panic");
    until_hints_are_fast(&alice, &conversation, &mut socket).await;
    limits_are_exact(&nodes, &alice).await;
    load.until_acked(50).await;
    revoked.was_refused().await;
    stop.store(true, SeqCst);
    assert!(readiness.await.expect("ready all the time") > 20);
    let outcome = load.judge().await;
    assert_eq!(outcome.max_resyncs, 0);
    drop(redis);
}

/// The agent's fourth socket is refused.
async fn refused_for_its_slot(mut socket: Socket, agent: &Agent) {
    let auth = serde_json::json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
    socket.say(auth).await;
    socket.expect_close(4409).await;
}
