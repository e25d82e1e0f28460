//! Receivers that misbehave in every way, and workers that are killed. Nothing is lost, nothing is
//! tried more than eight times, and the order of a conversation holds.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
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
    FaultyReceiver, ProcessNode, TestNode, User, World, patiently,
};

/// Messages of each conversation.
const MESSAGES: usize = 4;
/// The interface: one attempt and seven retries.
const MAX_ATTEMPTS: usize = 8;
/// Every third turn of a receiver is bad, so no delivery uses up its attempts.
const BAD_TURN: usize = 3;
/// Workers that are killed.
const KILLS: usize = 4;
/// Longest wait for the last delivery.
const PATIENCE: Duration = Duration::from_secs(120);

/// An agent, its receiver and its conversations with two users.
struct Line {
    behaviour: Behaviour,
    agent: Agent,
    receiver: FaultyReceiver,
    secret: String,
    conversations: Vec<String>,
}

fn behaviours() -> Vec<(Behaviour, bool)> {
    let plain = OUTCOMES.iter().map(|(behaviour, _)| (*behaviour, false));
    let tls = TLS_OUTCOMES.iter().map(|(behaviour, _)| (*behaviour, true));
    plain.chain(tls).collect()
}

impl Line {
    async fn new(
        users: &[User],
        base: &str,
        authority: &Authority,
        (behaviour, tls): (Behaviour, bool),
        agent: Agent,
    ) -> Self {
        // The first turn is the challenge.
        let plan = move |n| {
            if n % BAD_TURN == 1 { behaviour } else { Well }
        };
        let receiver = if tls {
            FaultyReceiver::tls(authority, plan).await
        } else {
            FaultyReceiver::plain(plan).await
        };
        let body = json!({ "url": receiver.url() });
        let answer = users[0].at(base).put(agent.webhook(""), body).await;
        let webhook = answer.expect(200).data().clone();
        assert_eq!(webhook["status"], "active", "{behaviour:?}: {webhook}");
        let conversations = join_all(users.iter().map(|user| user.talk_to(&agent)));
        Line {
            behaviour,
            conversations: conversations.await,
            agent,
            receiver,
            secret: webhook["secret"].as_str().expect("a secret").to_owned(),
        }
    }

    /// The messages of a conversation, in the order in which the receiver accepted each first.
    fn accepted(&self, conversation: &str) -> Vec<String> {
        let mut texts = Vec::new();
        let requests = self.receiver.requests();
        for request in requests.iter().filter(|request| request.accepted) {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            let text = body["data"]["payload"]["text"].as_str();
            if body["conversation_id"] == conversation
                && let Some(text) = text.map(str::to_owned)
                && !texts.contains(&text)
            {
                texts.push(text);
            }
        }
        texts
    }

    fn is_done(&self) -> bool {
        let mut conversations = self.conversations.iter();
        conversations.all(|conversation| self.accepted(conversation).len() >= MESSAGES)
    }

    /// Acks nothing in particular: a sign of life, which an unreachable agent needs.
    async fn revive(&self, front: &TestNode) {
        let path = format!("/agents/{}/ack", self.agent.id);
        let agent = self.agent.on(front);
        let acked = patiently(async || agent.post(&path, json!({})).await).await;
        acked.0.expect(200);
    }
}

/// Kills a worker and starts another, again and again, until all is delivered. Returns the number
/// of killed ones.
async fn kill_until_done(
    (world, front): (&World, &TestNode),
    workers: &mut Vec<ProcessNode>,
    lines: &[Line],
    sent: &AtomicBool,
) -> usize {
    let started = Instant::now();
    let mut kills = 0;
    while !sent.load(SeqCst) || !lines.iter().all(Line::is_done) {
        assert!(started.elapsed() < PATIENCE, "{:#?}", waiting(lines));
        // Real time, in which deliveries are under way.
        let wait = Duration::from_millis(800 + rand::random::<u64>() % 1200);
        tokio::time::sleep(wait).await;
        if kills < KILLS {
            kills += 1;
            drop(workers.remove(rand::random::<u64>() as usize % workers.len()));
            workers.push(ProcessNode::start_in(world).await);
        }
        let gone = lines.iter().filter(|line| line.behaviour == Gone);
        join_all(gone.map(|line| line.revive(front))).await;
        if sent.load(SeqCst) {
            // The leases of the dead end, and so does the longest pause of a receiver.
            world.advance(Duration::from_secs(3601)).await;
        }
    }
    kills
}

fn waiting(lines: &[Line]) -> Vec<(Behaviour, Vec<Vec<String>>)> {
    let open = lines.iter().filter(|line| !line.is_done());
    open.map(|line| {
        let conversations = line.conversations.iter();
        let accepted = conversations.map(|conversation| line.accepted(conversation));
        (line.behaviour, accepted.collect())
    })
    .collect()
}

/// Judges every request of a line, and adds them for the script.
fn judge(line: &Line, now: i64, all: &mut Vec<Delivery>) {
    let behaviour = line.behaviour;
    let expected: Vec<String> = (0..MESSAGES).map(|n| format!("message {n}")).collect();
    for conversation in &line.conversations {
        assert_eq!(line.accepted(conversation), expected, "{behaviour:?}");
    }
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
        let id = request.headers["webhook-id"].clone();
        *attempts.entry(id).or_default() += 1;
        all.push(Delivery::genuine(
            &line.secret,
            &request.headers,
            &request.body,
            now,
        ));
    }
    let max = attempts.values().max().copied().unwrap_or_default();
    assert!(max <= MAX_ATTEMPTS, "{behaviour:?}: {max} attempts");
    if behaviour == Gone {
        // No delivery goes on after a 410.
        let ends = line.receiver.requests();
        let ends = ends.iter().filter(|request| !request.accepted).count();
        assert!(ends > 0, "it was played");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
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
    let users = [front.user("alice").await, front.user("bob").await];
    let base = workers[2].base.clone();
    let mut lines = Vec::new();
    for (n, behaviour) in behaviours().into_iter().enumerate() {
        let agent = front.agent(&users[0], &format!("agent {n}")).await;
        lines.push(Line::new(&users, &base, &authority, behaviour, agent).await);
    }
    assert!(lines.len() >= 40);
    let sent = AtomicBool::new(false);
    let sends = async {
        let to = |line: &Line| -> Vec<(User, String)> {
            let conversations = line.conversations.iter().cloned();
            users.iter().cloned().zip(conversations).collect()
        };
        join_all(lines.iter().flat_map(to).map(async |(user, conversation)| {
            for n in 0..MESSAGES {
                let body = json!({ "payload": { "type": "text", "text": format!("message {n}") } });
                let path = format!("/conversations/{conversation}/messages");
                let sent = patiently(async || user.post(&path, body.clone()).await).await;
                sent.0.expect(201);
            }
        }))
        .await;
        sent.store(true, SeqCst);
    };
    let kills = kill_until_done((&world, &front), &mut workers, &lines, &sent);
    let ((), kills) = tokio::join!(sends, kills);
    assert!(kills >= 2, "{kills}");
    std::fs::remove_file(&folder).ok();
    let now = blindpipe::clock::Clock::default().now().timestamp();
    let mut all = Vec::new();
    for line in &lines {
        judge(line, now, &mut all);
    }
    verified_by_python(&all);
}
