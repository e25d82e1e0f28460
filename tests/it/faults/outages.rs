//! Outages that the service must survive: a killed node, a killed or silent Redis, a crashed
//! Postgres.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use devcluster::services::send_signal;
use serde_json::json;

use crate::support::{
    Agent, Held, ProcessNode, Proxy, Socket, TestNode, User, channel_to, nodes_with, private_redis,
    psql, publish, redis_client, sealed, spawn, ulid,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,agent_poll=1000/s,ws_connect=1000/s",
);

/// Sends `n` messages one after the other, each until it is acked, as a careful client does: the
/// same id again after an unknown outcome. The text is the number.
async fn send_all(alice: &User, conversation: &str, n: usize) {
    for i in 0..n {
        let body = json!({ "payload": { "type": "text", "n": i }, "client_message_id": ulid().to_string() });
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let request = alice
                .request(
                    reqwest::Method::POST,
                    format!("/conversations/{conversation}/messages"),
                )
                .json(&body);
            match alice.try_send(request).await {
                Ok(answer) if answer.status == 201 || answer.status == 200 => break,
                Ok(answer) if answer.status == 503 => {}
                Ok(answer) => panic!("{answer:?}"),
                Err(_) => {}
            }
            assert!(Instant::now() < deadline, "message {i} is not acked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Takes messages until `n` have come, and insists that they are `from..n` in order and that inbox
/// numbers rise by one.
struct Checker {
    next: usize,
    inbox: i64,
    cursor: String,
}

impl Checker {
    fn new() -> Self {
        Checker {
            next: 0,
            inbox: 0,
            cursor: String::new(),
        }
    }

    /// Reads until all `n` have come (true) or the socket is cut (false).
    async fn read(&mut self, socket: &mut Socket, n: usize) -> bool {
        while self.next < n {
            let Ok(frame) = socket.next().await else {
                return false;
            };
            if frame["type"] != "event" {
                continue;
            }
            let inbox = frame["seq"].as_i64().expect("a number");
            assert!(
                self.inbox == 0 || inbox == self.inbox + 1,
                "inbox {inbox} after {}",
                self.inbox
            );
            self.inbox = inbox;
            self.cursor = frame["cursor"].as_str().expect("a cursor").to_owned();
            if frame["event"] == "message.created" {
                assert_eq!(
                    frame["data"]["payload"]["n"], self.next,
                    "lost, doubled or reordered"
                );
                self.next += 1;
            }
        }
        true
    }
}

async fn pair(node: &TestNode) -> (User, Agent, String) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    (alice, agent, conversation)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_loses_and_doubles_nothing() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut b = ProcessNode::start(&a).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.at(&b.base).connect().await;
    let sender = spawn({
        let (alice, conversation) = (alice.clone(), conversation.clone());
        async move { send_all(&alice, &conversation, 1000).await }
    });
    let mut checker = Checker::new();
    assert!(checker.read(&mut socket, 400).await);
    b.kill();
    assert!(
        !checker.read(&mut socket, 1000).await,
        "the node was killed in the middle"
    );
    let mut socket = agent.connect_from(Some(&checker.cursor)).await;
    assert!(checker.read(&mut socket, 1000).await);
    sender.await.expect("every message acked");
    socket.expect_silence(Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_sender_s_node_loses_and_doubles_nothing() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut b = ProcessNode::start(&a).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.connect().await;
    let moved = Arc::new(AtomicBool::new(false));
    // Sends through the node that dies, then through the other one: the id decides whether the last
    // one counted.
    let sender = spawn({
        let (here, there, conversation, moved) = (
            alice.clone(),
            alice.at(&b.base),
            conversation.clone(),
            moved.clone(),
        );
        async move {
            for i in 0..600 {
                let body = json!({ "payload": { "type": "text", "n": i }, "client_message_id": ulid().to_string() });
                loop {
                    let caller = if moved.load(Ordering::Relaxed) {
                        &here
                    } else {
                        &there
                    };
                    let request = caller
                        .request(
                            reqwest::Method::POST,
                            format!("/conversations/{conversation}/messages"),
                        )
                        .json(&body);
                    match caller.try_send(request).await {
                        Ok(answer) if answer.status < 300 => break,
                        Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                        Err(_) => moved.store(true, Ordering::Relaxed),
                    }
                }
            }
        }
    });
    let mut checker = Checker::new();
    assert!(checker.read(&mut socket, 200).await);
    b.kill();
    assert!(checker.read(&mut socket, 600).await);
    sender.await.expect("every message acked");
    assert!(moved.load(Ordering::Relaxed));
    socket.expect_silence(Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_and_restarted_redis_loses_and_doubles_nothing() {
    let mut redis = private_redis("killed").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.on(&b).connect().await;
    let sender = spawn({
        let (alice, conversation) = (alice.clone(), conversation.clone());
        async move { send_all(&alice, &conversation, 1000).await }
    });
    let mut checker = Checker::new();
    assert!(checker.read(&mut socket, 300).await);
    redis.kill();
    assert!(checker.read(&mut socket, 600).await);
    tokio::task::spawn_blocking(move || redis.restart().map(|()| redis))
        .await
        .expect("no panic")
        .expect("restarted");
    assert!(checker.read(&mut socket, 1000).await);
    sender.await.expect("every message acked");
    socket.expect_silence(Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_sends_are_acked_and_delivered_by_the_sweep() {
    let mut redis = private_redis("down").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (alice, agent, conversation) = pair(&a).await;
    redis.kill();
    let mut socket = agent.on(&b).connect().await;
    socket.expect("caught_up").await;
    let mut worst = Duration::ZERO;
    for n in 0..8 {
        let started = Instant::now();
        let text = format!("{n}");
        alice.say(&conversation, &text).await.expect(201);
        let acked = started.elapsed();
        assert!(acked < Duration::from_secs(2), "acked after {acked:?}");
        assert_eq!(
            socket.event("message.created").await["data"]["payload"]["text"],
            text
        );
        worst = worst.max(started.elapsed());
        tokio::time::sleep(Duration::from_millis(130)).await;
    }
    assert!(
        worst < Duration::from_millis(2500),
        "delivered after {worst:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_costs_milliseconds_not_minutes() {
    let mut redis = private_redis("hung").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.on(&b).connect().await;
    redis.signal("STOP");
    let mut checker = Checker::new();
    let started = Instant::now();
    send_all(&alice, &conversation, 20).await;
    let spent = started.elapsed();
    // Five misses of 250 ms open the breaker; one more call a second tries again.
    assert!(spent < Duration::from_secs(5), "{spent:?}");
    assert!(checker.read(&mut socket, 20).await);
    redis.signal("CONT");
    // Hints flow again: the next one is there long before a sweep.
    let mut fast = false;
    for n in 20..60 {
        let started = Instant::now();
        let body = json!({ "payload": { "type": "text", "n": n } });
        alice
            .post(format!("/conversations/{conversation}/messages"), body)
            .await
            .expect(201);
        assert!(checker.read(&mut socket, n + 1).await);
        fast |= started.elapsed() < Duration::from_millis(100);
        if fast {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(fast, "hints did not come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_subscriptions_are_noticed_and_made_anew() {
    use fred::interfaces::ClientLike;
    let redis = private_redis("deaf").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.on(&b).connect().await;
    let admin = redis_client(&url).await;
    let kill = fred::cmd!("CLIENT");
    admin
        .custom::<(), _>(kill, vec!["KILL", "TYPE", "pubsub"])
        .await
        .expect("subscribers cut");
    let mut checker = Checker::new();
    let mut fast = 0;
    for n in 0..60 {
        let started = Instant::now();
        let body = json!({ "payload": { "type": "text", "n": n } });
        alice
            .post(format!("/conversations/{conversation}/messages"), body)
            .await
            .expect(201);
        assert!(checker.read(&mut socket, n + 1).await);
        let took = started.elapsed();
        assert!(
            took < Duration::from_millis(2500),
            "delivered after {took:?}"
        );
        fast = if took < Duration::from_millis(100) {
            fast + 1
        } else {
            0
        };
        if fast == 5 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("hints did not come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_redis_loses_nothing() {
    use fred::interfaces::{ClientLike, LuaInterface};
    let redis = private_redis("flushed").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.on(&b).connect().await;
    let admin = redis_client(&url).await;
    let mut checker = Checker::new();
    send_all(&alice, &conversation, 20).await;
    admin.flushall::<()>(false).await.expect("flushed");
    admin.script_flush(false).await.expect("scripts flushed");
    let body = json!({ "payload": { "type": "text", "n": 20 } });
    alice
        .post(format!("/conversations/{conversation}/messages"), body)
        .await
        .expect(201);
    assert!(checker.read(&mut socket, 21).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_stop_sends_its_sockets_away_and_ends() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut b = ProcessNode::start(&a).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.at(&b.base).connect().await;
    socket.expect("caught_up").await;
    let cursor = socket.cursor.clone();
    send_signal(b.pid(), "TERM");
    let hint = socket.expect("reconnect").await;
    assert!(hint["after_ms"].as_u64().expect("a wait") <= 5000);
    socket.expect_close(1012).await;
    assert_eq!(b.ended(Duration::from_secs(30)).await, Some(0));
    alice.say(&conversation, "meanwhile").await.expect(201);
    let mut socket = agent.connect_from(Some(&cursor)).await;
    assert_eq!(
        socket.event("message.created").await["data"]["payload"]["text"],
        "meanwhile"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_backend_costs_a_retry_and_nothing_else() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.on(&b).connect().await;
    let sender = spawn({
        let (alice, conversation) = (alice.clone(), conversation.clone());
        async move { send_all(&alice, &conversation, 500).await }
    });
    let mut checker = Checker::new();
    assert!(checker.read(&mut socket, 100).await);
    for n in 1..=5 {
        // Every connection of both nodes is cut, commits under way included.
        let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid()";
        psql(&a.world.database, cut).await;
        assert!(checker.read(&mut socket, 100 + n * 50).await);
    }
    assert!(checker.read(&mut socket, 500).await);
    sender.await.expect("every message acked");
    socket.expect_silence(Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_see_postgres_delivers_nothing_and_catches_up_later() {
    let redis = private_redis("blind").await;
    let url = redis.url();
    let prefix = ulid().to_string();
    let [a] = nodes_with(&[
        RAISED_LIMITS,
        ("REDIS_URL", &url),
        ("REDIS_PREFIX", &prefix),
    ])
    .await;
    let database = a.world.setting("DATABASE_URL").to_owned();
    let (_, place) = database.split_once('@').expect("a role in the URL");
    let (address, _) = place.split_once('/').expect("a database in the URL");
    let proxy = Proxy::before(address).await;
    let behind_proxy = database.replace(address, &proxy.address);
    let b = a.world.node_with(&[("DATABASE_URL", &behind_proxy)]).await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut socket = agent.on(&b).connect().await;
    socket.event("conversation.created").await;
    socket.expect("caught_up").await;
    proxy.hold(Held::Both);
    // Real time: ten seconds without a look are the node's own measure. Its call to Postgres still
    // hangs then.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    // A hint with a body, as another node would send it.
    let client = redis_client(&url).await;
    let id = uuid::Uuid::parse_str(&agent.id).expect("a UUID");
    let mut pair = id.as_bytes().to_vec();
    pair.extend_from_slice(&3_i64.to_be_bytes());
    let pair = BASE64.encode(pair);
    let hint = format!(
        "!{} {pair} \"event\":\"message.created\",\"data\":{{}}",
        ulid()
    );
    let channel = channel_to(&a.world, &agent.id).await;
    let hint = sealed(&a.world, &socket.cursor, &channel, &hint);
    publish(&a.world, &client, &channel, &hint).await;
    socket.expect_silence(Duration::from_millis(500)).await;
    proxy.hold(Held::Nothing);
    alice.say(&conversation, "after").await.expect(201);
    assert_eq!(
        socket.event("message.created").await["data"]["payload"]["text"],
        "after"
    );
}
