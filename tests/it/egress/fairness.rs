//! A receiver holds up its own agent alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::json;

use crate::support::{
    Agent,
    Behaviour::{Hangs, Well},
    FaultyReceiver, TestNode, User, nodes_with,
};

/// Agents beside the bad one.
const AGENTS: usize = 20;
/// Messages to each of them per round.
const MESSAGES: usize = 10;
/// Noise of a busy machine that a delay may have beside the ratio.
const NOISE: Duration = Duration::from_millis(60);

struct Line {
    receiver: FaultyReceiver,
    conversation: String,
}

async fn line(node: &TestNode, alice: &User, name: &str, receiver: FaultyReceiver) -> Line {
    let agent: Agent = node.agent(alice, name).await;
    let path = format!("/agents/{}/webhook", agent.id);
    let webhook = alice
        .put(path, json!({ "url": receiver.url() }))
        .await
        .expect(200);
    assert_eq!(webhook.data()["status"], "active");
    let conversation = alice.talk_to(&agent).await;
    Line {
        receiver,
        conversation,
    }
}

async fn lines(node: &TestNode, alice: &User) -> Vec<Line> {
    let mut lines = Vec::new();
    for n in 0..AGENTS {
        let receiver = FaultyReceiver::plain(|_| Well).await;
        lines.push(line(node, alice, &format!("agent {n}"), receiver).await);
    }
    lines
}

/// Sends to every line and measures from the send's begin to the arrival. Sorted.
async fn delays(alice: &User, lines: &[Line]) -> Vec<Duration> {
    let all = join_all(lines.iter().map(async |line| {
        let mut delays = Vec::new();
        for _ in 0..MESSAGES {
            let before = line.receiver.requests().len();
            let started = Instant::now();
            alice.say(&line.conversation, "hello").await.expect(201);
            while line.receiver.requests().len() <= before {
                assert!(
                    started.elapsed() < Duration::from_secs(30),
                    "nothing arrives"
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            delays.push(started.elapsed());
        }
        delays
    }));
    let mut delays: Vec<Duration> = all.await.into_iter().flatten().collect();
    delays.sort();
    delays
}

fn p95(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 95 / 100]
}

/// Waits until every line has got what its beginning caused, and nothing more comes.
async fn settle(lines: &[Line]) {
    let count = || -> usize {
        lines
            .iter()
            .map(|line| line.receiver.requests().len())
            .sum()
    };
    let mut seen = count();
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await; // quiet means that nothing comes
        let now = count();
        if now == seen && now >= lines.len() {
            return;
        }
        seen = now;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_receiver_delays_no_other_agent() {
    let [a, b] = nodes_with(&[
        ("LIMITS_OFF", "true"),
        ("EGRESS_TIMEOUT_MS", "2000"),
        ("WEBHOOK_RETRY_SECONDS", "1000"),
    ])
    .await;
    let alice = a.user("alice").await;
    let lines = lines(&b, &alice.on(&b)).await;
    let hangs = Arc::new(AtomicBool::new(false));
    let asked = hangs.clone();
    let receiver =
        FaultyReceiver::plain(move |_| if asked.load(SeqCst) { Hangs } else { Well }).await;
    let bad = line(&a, &alice, "bad", receiver).await;
    settle(&lines).await;
    let (mut calm, mut beside) = (Vec::new(), Vec::new());
    // Turns, because machines change their speed.
    for _ in 0..3 {
        hangs.store(false, SeqCst);
        calm.extend(delays(&alice, &lines).await);
        hangs.store(true, SeqCst);
        for n in 0..20 {
            alice
                .say(&bad.conversation, &format!("lost time {n}"))
                .await
                .expect(201);
        }
        let before = bad.receiver.requests().len();
        beside.extend(delays(&alice, &lines).await);
        assert!(
            bad.receiver.requests().len() >= before.min(1),
            "it hangs meanwhile"
        );
    }
    calm.sort();
    beside.sort();
    let (calm, beside) = (p95(&calm), p95(&beside));
    assert!(
        beside <= calm.mul_f64(1.2) + NOISE,
        "{beside:?} beside a hanging one, else {calm:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flood_of_one_agent_starves_no_other() {
    let [a, b] = nodes_with(&[("LIMITS_OFF", "true")]).await;
    let alice = a.user("alice").await;
    let lines = lines(&b, &alice.on(&b)).await;
    let flooded = line(&a, &alice, "flooded", FaultyReceiver::plain(|_| Well).await).await;
    settle(&lines).await;
    let calm = delays(&alice, &lines).await;
    let before = flooded.receiver.requests().len();
    let flood = async {
        let mut sent = 0;
        for _ in 0..10 {
            let sends = (0..50).map(|_| alice.say(&flooded.conversation, "flood"));
            sent += join_all(sends)
                .await
                .into_iter()
                .filter(|answer| answer.status == 201)
                .count();
        }
        sent
    };
    let (sent, beside) = tokio::join!(flood, delays(&alice, &lines));
    assert!(sent >= 400, "{sent}");
    let (calm, beside) = (p95(&calm), p95(&beside));
    // The sends of the flood share the machine, which the delays feel; a queue behind it would
    // take as long as the flood.
    assert!(
        beside <= calm * 3 + NOISE * 5,
        "{beside:?} beside a flood, else {calm:?}"
    );
    let started = Instant::now();
    while flooded.receiver.requests().len() < before + sent {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the flood arrives too"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
