//! A receiver holds up its own agent alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use blindpipe::{clock::Clock, random::Random};
use futures_util::{StreamExt, future::join_all, stream};
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    Agent,
    Behaviour::{Hangs, Well},
    FaultyReceiver, TestNode, User, connect, nodes_with,
};

/// Messages under way at once, to different agents.
const AT_ONCE: usize = 8;
/// Rounds of the comparison at least, and at most on a machine that is busy with other things.
const ROUNDS: std::ops::RangeInclusive<usize> = 5..=20;
/// Bound of the others' p99 beside a bad receiver, to their p99 without it.
const MAX_RATIO: f64 = 1.2;
/// Noise of a busy machine that a delay may have beside a flood.
const NOISE: Duration = Duration::from_millis(300);

struct Line {
    receiver: FaultyReceiver,
    conversation: String,
}

/// Agents of a user, restored into the database: a token costs a hash, and none of these needs one.
async fn agents(node: &TestNode, owner: &User, n: usize) -> Vec<Agent> {
    let random = Random::new(Clock::default());
    let ids: Vec<Uuid> = (0..n).map(|_| random.uuid_v7()).collect();
    let insert = "with made as (insert into agent (agent_id, owner_user_id, display_name)
            select a, user_id, 'restored' from user_account, unnest($1::uuid[]) a where email = $2 returning agent_id),
        boxes as (insert into inbox (principal_id) select agent_id from made)
        insert into inbox_reader (principal_id, device_id, acked_seq) select agent_id, '', 0 from made";
    let client = connect(&node.world.database).await;
    client
        .execute(insert, &[&ids, &owner.email])
        .await
        .expect("restored");
    let agent = |id: Uuid| Agent {
        caller: owner.caller.clone(),
        id: id.to_string(),
        token: String::new(),
    };
    ids.into_iter().map(agent).collect()
}

async fn line(alice: &User, agent: &Agent, receiver: FaultyReceiver) -> Line {
    let body = json!({ "url": receiver.url() });
    let webhook = alice.put(agent.webhook(""), body).await.expect(200);
    assert_eq!(webhook.data()["status"], "active");
    Line {
        conversation: alice.talk_to(agent).await,
        receiver,
    }
}

/// Lines of well-behaved receivers, which have got the events of their beginning.
async fn lines(node: &TestNode, alice: &User, n: usize) -> Vec<Line> {
    let agents = agents(node, alice, n).await;
    let lines = stream::iter(&agents).map(async |agent| {
        let receiver = FaultyReceiver::plain(|_| Well).await;
        line(alice, agent, receiver).await
    });
    let lines: Vec<Line> = lines.buffered(AT_ONCE).collect().await;
    for line in &lines {
        arrives(line, 2).await;
    }
    lines
}

impl Line {
    /// The number of requests that the receiver has accepted.
    fn accepted(&self) -> usize {
        let requests = self.receiver.requests();
        requests.iter().filter(|request| request.accepted).count()
    }
}

/// Waits until a line's receiver has accepted so many.
async fn arrives(line: &Line, n: usize) {
    let started = Instant::now();
    while line.accepted() < n {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(30), "nothing arrives");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a line's receiver has been called so often, whatever it answered.
async fn is_called(line: &Line, n: usize) {
    let started = Instant::now();
    while line.receiver.requests().len() < n {
        let calls = line.receiver.requests().len();
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(30), "{calls} calls of {n}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the bad line has got everything. The time of its retries is moved.
async fn recovers(node: &TestNode, line: &Line, n: usize) {
    for _ in 0..60 {
        node.advance(Duration::from_secs(7)).await;
        for _ in 0..50 {
            if line.accepted() >= n {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    panic!("the bad receiver is not called again");
}

/// Sends `each` messages to every line, and measures from the send's begin to the arrival.
async fn p99(alice: &User, lines: &[Line], each: usize) -> Duration {
    let delays = stream::iter(lines).map(async |line| {
        let mut delays = Vec::new();
        for _ in 0..each {
            let before = line.receiver.requests().len();
            let started = Instant::now();
            alice.say(&line.conversation, "hello").await.expect(201);
            arrives(line, before + 1).await;
            delays.push(started.elapsed());
        }
        delays
    });
    let delays: Vec<Vec<Duration>> = delays.buffer_unordered(AT_ONCE).collect().await;
    let mut delays = delays.concat();
    delays.sort();
    delays[delays.len() * 99 / 100]
}

fn median(delays: &mut [Duration]) -> Duration {
    delays.sort();
    delays[delays.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_receiver_delays_no_other_agent() {
    let [a, b] = nodes_with(&[
        ("LIMITS_OFF", "true"),
        ("EGRESS_TIMEOUT_MS", "1000"),
        ("WEBHOOK_RETRY_SECONDS", "1000"),
    ])
    .await;
    let mut alice = a.user("alice").await;
    let lines = lines(&b, &alice, 49).await;
    let hangs = Arc::new(AtomicBool::new(false));
    let asked = hangs.clone();
    let plan = move |_| if asked.load(SeqCst) { Hangs } else { Well };
    let bad = agents(&a, &alice, 1).await.remove(0);
    let bad_line = line(&alice, &bad, FaultyReceiver::plain(plan).await).await;
    // With three conversations, three calls hang at once.
    let mut users = vec![(alice.clone(), bad_line.conversation.clone())];
    for name in ["bob", "carol"] {
        let user = b.user(name).await;
        let conversation = user.talk_to(&bad).await;
        users.push((user, conversation));
    }
    let mut sent = 2 * users.len();
    let (mut calm, mut beside) = (Vec::new(), Vec::new());
    // The phases take turns, because machines change their speed.
    loop {
        for (hang, phase) in [(false, &mut calm), (true, &mut beside)] {
            recovers(&a, &bad_line, sent).await;
            hangs.store(hang, SeqCst);
            let bad_calls = bad_line.receiver.requests().len();
            for (user, conversation) in &users {
                for _ in 0..3 {
                    user.say(conversation, "lost time").await.expect(201);
                    sent += 1;
                }
            }
            is_called(&bad_line, bad_calls + users.len()).await;
            phase.push(p99(&alice, &lines, 4).await);
            hangs.store(false, SeqCst);
        }
        alice = alice.refreshed().await;
        for (user, _) in &mut users {
            *user = user.refreshed().await;
        }
        let (calm_p99, beside_p99) = (median(&mut calm), median(&mut beside));
        let is_fair = beside_p99 <= calm_p99.mul_f64(MAX_RATIO);
        if calm.len() >= *ROUNDS.start() && is_fair {
            return;
        }
        assert!(
            calm.len() < *ROUNDS.end(),
            "{beside_p99:?} beside a hanging one, else {calm_p99:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flood_of_one_agent_starves_no_other() {
    let [a, b] = nodes_with(&[("LIMITS_OFF", "true")]).await;
    let alice = a.user("alice").await;
    let lines = lines(&b, &alice.on(&b), 20).await;
    let flooded = agents(&a, &alice, 1).await.remove(0);
    let flooded = line(&alice, &flooded, FaultyReceiver::plain(|_| Well).await).await;
    arrives(&flooded, 2).await;
    let calm = p99(&alice, &lines, 5).await;
    let flood = async {
        let mut sent = 0;
        for _ in 0..10 {
            let sends = (0..50).map(|_| alice.say(&flooded.conversation, "flood"));
            let answers = join_all(sends).await.into_iter();
            sent += answers.filter(|answer| answer.status == 201).count();
        }
        sent
    };
    let (sent, beside) = tokio::join!(flood, p99(&alice, &lines, 10));
    assert!(sent >= 400, "{sent}");
    // The sends of the flood share the machine, which the delays feel; a queue behind it would
    // take as long as the flood.
    assert!(
        beside <= calm * 3 + NOISE,
        "{beside:?} beside a flood, else {calm:?}"
    );
    arrives(&flooded, 2 + sent).await;
}
