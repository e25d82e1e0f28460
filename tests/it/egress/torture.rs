//! Receivers that misbehave in every way, and workers that are killed. Nothing is lost, nothing is
//! tried more than eight times, and the order of a conversation holds.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    receivers::{OUTCOMES, TLS_OUTCOMES},
    signatures::{Delivery, verified_by_python},
    stock_verifies,
};
use crate::support::{
    Agent, Authority,
    Behaviour::{self, *},
    FaultyReceiver, ProcessNode, User, World, patiently,
};

/// Messages of each conversation.
const MESSAGES: usize = 6;
/// The interface: one attempt and seven retries.
const MAX_ATTEMPTS: usize = 8;
/// Every third turn of a receiver is bad. With three in a row, no delivery uses up its attempts.
const BAD_TURN: usize = 3;
/// Longest wait for the last delivery.
const PATIENCE: Duration = Duration::from_secs(90);

/// An agent, its receiver and its conversation.
struct Line {
    behaviour: Behaviour,
    agent: Agent,
    receiver: FaultyReceiver,
    secret: String,
    conversation: String,
}

/// The behaviours that end a delivery's life or ask for real hours have tests of their own.
fn behaviours() -> Vec<(Behaviour, bool)> {
    let own_tests = [Gone, TooMany, Unavailable];
    let plain = OUTCOMES.iter().map(|(behaviour, _)| (*behaviour, false));
    let tls = TLS_OUTCOMES.iter().map(|(behaviour, _)| (*behaviour, true));
    plain
        .chain(tls)
        .filter(|(behaviour, _)| !own_tests.contains(behaviour))
        .collect()
}

async fn line(
    alice: &User,
    base: &str,
    authority: &Authority,
    (behaviour, tls): (Behaviour, bool),
    agent: Agent,
) -> Line {
    // The first turn is the challenge.
    let plan = move |n| {
        if n % BAD_TURN == 1 { behaviour } else { Well }
    };
    let receiver = if tls {
        FaultyReceiver::tls(authority, plan).await
    } else {
        FaultyReceiver::plain(plan).await
    };
    let path = format!("/agents/{}/webhook", agent.id);
    let answer = alice
        .at(base)
        .put(path, json!({ "url": receiver.url() }))
        .await;
    let webhook = answer.expect(200).data().clone();
    assert_eq!(webhook["status"], "active", "{behaviour:?}: {webhook}");
    Line {
        behaviour,
        conversation: alice.talk_to(&agent).await,
        agent,
        receiver,
        secret: webhook["secret"].as_str().expect("a secret").to_owned(),
    }
}

/// The messages of a line, in the order in which the receiver accepted each first.
fn accepted(line: &Line) -> Vec<String> {
    let mut texts = Vec::new();
    for request in line
        .receiver
        .requests()
        .iter()
        .filter(|request| request.accepted)
    {
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        let text = body["data"]["payload"]["text"].as_str();
        if let Some(text) = text.map(str::to_owned)
            && !texts.contains(&text)
        {
            texts.push(text);
        }
    }
    texts
}

fn is_done(line: &Line) -> bool {
    accepted(line).len() >= MESSAGES
}

/// Kills a worker and starts another, again and again, until all is delivered.
async fn kill_until_done(world: &World, workers: &mut Vec<ProcessNode>, lines: &[Line]) -> usize {
    let started = Instant::now();
    let mut kills = 0;
    while !lines.iter().all(is_done) {
        assert!(started.elapsed() < PATIENCE, "{:#?}", waiting(lines));
        // Real time, in which deliveries are under way.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        if kills < 4 {
            kills += 1;
            drop(workers.remove(0));
            workers.push(ProcessNode::start_in(world).await);
        }
        // The leases of the dead end, and the waits of retries.
        world.advance(Duration::from_secs(31)).await;
    }
    kills
}

fn waiting(lines: &[Line]) -> Vec<(Behaviour, Vec<String>)> {
    let open = lines.iter().filter(|line| !is_done(line));
    open.map(|line| (line.behaviour, accepted(line))).collect()
}

/// Judges every request of a line, and adds them for the script.
fn judge(line: &Line, now: i64, all: &mut Vec<Delivery>) {
    let behaviour = line.behaviour;
    let expected: Vec<String> = (0..MESSAGES).map(|n| format!("message {n}")).collect();
    assert_eq!(accepted(line), expected, "{behaviour:?}");
    let mut attempts: HashMap<String, usize> = HashMap::new();
    for request in line.receiver.requests().iter() {
        assert!(
            stock_verifies(&line.secret, &request.headers, &request.body),
            "{behaviour:?}: {:?}",
            request.headers
        );
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        assert_eq!(body["agent_id"], line.agent.id.as_str());
        assert_eq!(body["delivery_id"], request.headers["webhook-id"].as_str());
        let attempt = body["attempt"].as_u64().expect("a number");
        assert!(
            (1..=MAX_ATTEMPTS as u64).contains(&attempt),
            "{behaviour:?}: {attempt}"
        );
        *attempts
            .entry(request.headers["webhook-id"].clone())
            .or_default() += 1;
        all.push(Delivery::genuine(
            &line.secret,
            &request.headers,
            &request.body,
            now,
        ));
    }
    let most = attempts.values().max().copied().unwrap_or_default();
    assert!(most <= MAX_ATTEMPTS, "{behaviour:?}: {most} attempts");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_receivers_and_killed_workers_lose_nothing() {
    let authority = Authority::new();
    let folder = std::env::temp_dir().join(format!("blindpipe-ca-{}", crate::support::ulid()));
    std::fs::write(&folder, authority.pem()).expect("a file");
    let world = World::new(&[
        ("LIMITS_OFF", "true"),
        ("EGRESS_TIMEOUT_MS", "1000"),
        ("WEBHOOK_RETRY_SECONDS", "60"),
        ("SSL_CERT_FILE", folder.to_str().expect("a path")),
        // A call of the environment's proxy would meet nobody.
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("HTTPS_PROXY", "http://127.0.0.1:9"),
        ("ALL_PROXY", "http://127.0.0.1:9"),
    ])
    .await;
    // Users and their sends are on a node that delivers nothing.
    let front = world.node_with(&[("WEBHOOK_WORKER", "false")]).await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(ProcessNode::start_in(&world).await);
    }
    let alice = front.user("alice").await;
    let base = workers[2].base.clone();
    let mut lines = Vec::new();
    for (n, behaviour) in behaviours().into_iter().enumerate() {
        let agent = front.agent(&alice, &format!("agent {n}")).await;
        lines.push(line(&alice, &base, &authority, behaviour, agent).await);
    }
    assert!(lines.len() >= 30);
    let sends = join_all(lines.iter().map(async |line| {
        for n in 0..MESSAGES {
            let body = json!({ "payload": { "type": "text", "text": format!("message {n}") } });
            let path = format!("/conversations/{}/messages", line.conversation);
            patiently(async || alice.post(&path, body.clone()).await)
                .await
                .0
                .expect(201);
        }
    }));
    let (_, kills) = tokio::join!(sends, kill_until_done(&world, &mut workers, &lines));
    assert!(kills >= 2, "{kills}");
    std::fs::remove_file(&folder).ok();
    let now = blindpipe::clock::Clock::default().now().timestamp();
    let mut all = Vec::new();
    for line in &lines {
        judge(line, now, &mut all);
    }
    verified_by_python(&all);
}
