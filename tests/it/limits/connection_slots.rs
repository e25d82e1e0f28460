//! Connection slots: exactly three of an agent and ten of a user over all nodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe::{
    clock::Clock,
    ids::{AgentId, NodeId, Principal, UserId},
    limits::slots::{ConnectionKind, Slots},
    random::Random,
};
use devcluster::services::send_signal;
use fred::interfaces::ClientLike;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::support::{
    Agent, Caller, ProcessNode, Socket, TestNode, User, knock, knock_and_stay, late, nodes_with,
    private_redis, redis_client, redis_link, spawn,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "ws_connect=100000/s,ws_connect_ip=100000/s",
);

/// A socket that is in, or the code it was closed with. A node that is overloaded, as one is whose
/// machine is too busy to open connections to Postgres within a second, asks to come back.
async fn attempt(caller: &Caller, auth: Value) -> Result<Socket, u16> {
    loop {
        match attempt_once(caller, auth.clone()).await {
            Err(1013) => tokio::time::sleep(Duration::from_millis(100)).await,
            outcome => return outcome,
        }
    }
}

async fn attempt_once(caller: &Caller, auth: Value) -> Result<Socket, u16> {
    let mut socket = Socket::open(caller).await;
    socket.say(auth).await;
    loop {
        match socket.next().await {
            Ok(frame) if frame["type"] == "caught_up" => return Ok(socket),
            Ok(frame) if frame["type"] == "auth.error" => {
                assert_eq!(frame["reason"], "connection_limit");
            }
            Ok(_) => {}
            Err(code) => return Err(code.expect("a code")),
        }
    }
}

async fn agent_at(agent: &Agent, base: &str) -> Result<Socket, u16> {
    let auth = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
    attempt(&agent.caller.at(base), auth).await
}

async fn user_at(user: &User, base: &str) -> Result<Socket, u16> {
    attempt(
        &user.caller.at(base),
        json!({ "type": "auth", "access_token": user.access_token }),
    )
    .await
}

/// Tries until a slot is free; how long that took.
async fn until_in(agent: &Agent, base: &str, within: Duration) -> (Socket, Duration) {
    let started = Instant::now();
    loop {
        match agent_at(agent, base).await {
            Ok(socket) => return (socket, started.elapsed()),
            Err(code) => assert_eq!(code, 4409),
        }
        assert!(
            started.elapsed() < within,
            "no slot after {:?}",
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Parallel tries over two nodes, `n` in all.
async fn storm(agent: &Agent, bases: [&str; 2], n: usize) -> (Vec<Socket>, usize) {
    let tries = (0..n).map(|i| agent_at(agent, bases[i % 2]));
    let (mut sockets, mut refused) = (Vec::new(), 0);
    for outcome in futures_util::future::join_all(tries).await {
        match outcome {
            Ok(socket) => sockets.push(socket),
            Err(code) => {
                assert_eq!(code, 4409);
                refused += 1;
            }
        }
    }
    (sockets, refused)
}

/// Splits sockets into those that the server closes with `code` within the time, and those that
/// stay.
async fn closed(sockets: Vec<Socket>, code: u16, within: Duration) -> (usize, Vec<Socket>) {
    let looks = sockets.into_iter().map(async |mut socket| {
        let end = tokio::time::timeout(within, async {
            loop {
                if let Err(code) = socket.next().await {
                    return code;
                }
            }
        });
        match end.await {
            Ok(ended) => {
                assert_eq!(ended, Some(code));
                None
            }
            Err(_) => Some(socket),
        }
    });
    let all = futures_util::future::join_all(looks).await;
    let n = all.len();
    let stay: Vec<Socket> = all.into_iter().flatten().collect();
    (n - stay.len(), stay)
}

async fn an_agent(node: &TestNode) -> (User, Agent) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    (alice, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_parallel_tries_on_two_nodes_give_three_sockets() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let (alice, agent) = an_agent(&a).await;
    let other = a.agent(&alice, "other").await;
    for _ in 0..5 {
        let (sockets, refused) = storm(&agent, [&a.base, &b.base], 50).await;
        assert_eq!((sockets.len(), refused), (3, 47));
        // Another agent of the same user is not concerned.
        let elsewhere = agent_at(&other, &b.base).await.expect("its own slots");
        drop((sockets, elsewhere));
        // A socket that has gone leaves its slot at once: as soon as the node has read its end.
        let mut again = Vec::new();
        for base in [&a.base, &b.base, &a.base] {
            let (socket, took) = until_in(&agent, base, Duration::from_secs(3)).await;
            assert!(took < Duration::from_secs(3));
            again.push(socket);
        }
        assert_eq!(agent_at(&agent, &b.base).await.err(), Some(4409));
        drop(again);
        until_free(&agent, &a).await;
    }
}

/// Waits until the agent has no connection left, as the slots see it.
async fn until_free(agent: &Agent, node: &TestNode) {
    let started = Instant::now();
    while stored(node, &agent.id).await > 0 {
        assert!(started.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How many connections Redis knows of an agent.
async fn stored(node: &TestNode, agent: &str) -> usize {
    use fred::interfaces::HashesInterface;
    let client = redis_client(node.world.setting("REDIS_URL")).await;
    let key = format!(
        "{}:slots:{{{}}}",
        node.world.setting("REDIS_PREFIX"),
        uuid::Uuid::parse_str(agent).expect("a UUID").simple()
    );
    client.hlen(key).await.expect("a length")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_ten_sockets() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let bases = [&a.base, &b.base];
    let tries = (0..30).map(|i| user_at(&alice, bases[i % 2]));
    let outcomes = futures_util::future::join_all(tries).await;
    assert_eq!(
        outcomes.iter().filter(|outcome| outcome.is_ok()).count(),
        10
    );
    assert!(
        outcomes
            .iter()
            .all(|outcome| !matches!(outcome, Err(code) if *code != 4409))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_s_slots_are_free_in_ten_seconds() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut b = ProcessNode::start(&a).await;
    let (_, agent) = an_agent(&a).await;
    let (sockets, _) = storm(&agent, [&b.base, &b.base], 3).await;
    assert_eq!(sockets.len(), 3);
    assert_eq!(agent_at(&agent, &a.base).await.err(), Some(4409));
    b.kill();
    // Real time: the lease is Redis's, and the promise is ten seconds.
    let (first, took) = until_in(&agent, &a.base, Duration::from_secs(10)).await;
    assert!(
        took > Duration::from_secs(2),
        "a node that may be only slow lost its slots after {took:?}"
    );
    let (second, third) = (
        agent_at(&agent, &a.base).await,
        agent_at(&agent, &a.base).await,
    );
    assert!(second.is_ok() && third.is_ok());
    assert_eq!(agent_at(&agent, &a.base).await.err(), Some(4409));
    drop((first, second, third));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_in_order_frees_its_slots_at_once() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let (_, agent) = an_agent(&a).await;
    let (sockets, _) = storm(&agent, [&b.base, &b.base], 3).await;
    assert_eq!(sockets.len(), 3);
    let readers = futures_util::future::join_all(sockets.into_iter().map(Socket::until_closed));
    tokio::join!(b.drain(), readers);
    for _ in 0..3 {
        std::mem::forget(agent_at(&agent, &a.base).await.expect("a slot"));
    }
    assert_eq!(agent_at(&agent, &a.base).await.err(), Some(4409));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_flush_no_more_than_three_stay_and_the_newest_go() {
    let redis = private_redis("slots-flush").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (_, agent) = an_agent(&a).await;
    let (old, _) = storm(&agent, [&a.base, &b.base], 10).await;
    let admin = redis_client(&url).await;
    admin.flushall::<()>(false).await.expect("flushed");
    let flushed = Instant::now();
    // Redis has forgotten the three, so it lets in more, until the nodes have said what they hold.
    let (new, _) = storm(&agent, [&a.base, &b.base], 10).await;
    assert!(
        !new.is_empty(),
        "the flush was noticed before anybody could come in"
    );
    let (n, new_ones) = (new.len(), closed(new, 4409, Duration::from_secs(5)));
    let (gone, _) = new_ones.await;
    assert_eq!(gone, n, "after {:?}", flushed.elapsed());
    let (gone, old) = closed(old, 4409, Duration::from_secs(1)).await;
    assert_eq!((gone, old.len()), (0, 3), "the oldest stay");
    assert_eq!(agent_at(&agent, &a.base).await.err(), Some(4409));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_sockets_stay_and_three_are_let_in_per_node_until_it_is_back() {
    let mut redis = private_redis("slots-away").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let (_, agent) = an_agent(&a).await;
    let (old, _) = storm(&agent, [&a.base, &a.base], 3).await;
    assert_eq!(old.len(), 3);
    redis.kill();
    // The node that has three refuses a fourth; the other one cannot know of them.
    assert_eq!(agent_at(&agent, &a.base).await.err(), Some(4409));
    let (new, refused) = storm(&agent, [&b.base, &b.base], 8).await;
    assert_eq!((new.len(), refused), (3, 5));
    let (gone, old) = closed(old, 4409, Duration::from_millis(500)).await;
    assert_eq!((gone, old.len()), (0, 3));
    let restarted = tokio::task::spawn_blocking(move || redis.restart().map(|()| redis)).await;
    let _redis = restarted.expect("no panic").expect("restarted");
    let healed = Instant::now();
    let (gone, _) = closed(new, 4409, Duration::from_secs(6)).await;
    assert_eq!(gone, 3, "after {:?}", healed.elapsed());
    let (gone, old) = closed(old, 4409, Duration::from_millis(500)).await;
    assert_eq!((gone, old.len()), (0, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_sends_its_sockets_away_when_it_thaws() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let b = ProcessNode::start(&a).await;
    let (alice, agent) = an_agent(&a).await;
    let conversation = alice.talk_to(&agent).await;
    let (frozen, _) = storm(&agent, [&b.base, &b.base], 3).await;
    assert_eq!(frozen.len(), 3);
    send_signal(b.pid(), "STOP");
    // Real time: the frozen node cannot be told of a moved clock.
    let (mut live, _) = until_in(&agent, &a.base, Duration::from_secs(10)).await;
    alice
        .say(&conversation, "for who is awake")
        .await
        .expect(201);
    live.event("message.created").await;
    send_signal(b.pid(), "CONT");
    for socket in frozen {
        let mut before = socket.expect_close(1012).await;
        assert_eq!(before.pop().expect("a hint")["type"], "reconnect");
        // Nothing of what happened meanwhile was delivered by the node that had lost its place.
        assert!(
            before
                .iter()
                .all(|frame| frame["event"] != "message.created"),
            "{before:?}"
        );
    }
    drop(live);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_holds_a_hundred_unauthenticated_sockets_of_a_node() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let (_, agent) = an_agent(&a).await;
    let stranger = a.anon();
    let mut held = Vec::new();
    for n in 0..100 {
        let (stream, answer) = knock_and_stay(&stranger).await;
        assert_eq!(answer.status, 101, "socket {n}");
        held.push(stream);
    }
    knock(&stranger).await.refused(503, "SERVICE_UNAVAILABLE");
    // Other addresses are not concerned, and who leaves makes room.
    agent_at(&agent, &a.base).await.expect("from elsewhere");
    held.truncate(50);
    let started = Instant::now();
    while knock(&stranger).await.status != 101 {
        assert!(started.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_connected_can_be_read_on_every_node() {
    let redis = private_redis("slots-read").await;
    let random = Random::new(Clock::default());
    let node = || {
        let redis = redis_link(&redis.url(), "test");
        Slots::new(
            redis,
            Clock::default(),
            random.clone(),
            NodeId::generate(&random),
        )
    };
    let (a, b) = (node(), node());
    let (agent, user) = (
        Principal::Agent(AgentId::generate(&random)),
        Principal::User(UserId::generate(&random)),
    );
    // The links are made in the background.
    let started = Instant::now();
    let socket = loop {
        let lease = a
            .take(agent, ConnectionKind::Websocket, "")
            .await
            .expect("a slot");
        if b.connections(&[agent]).await[0].len() == 1 {
            break lease;
        }
        assert!(started.elapsed() < Duration::from_secs(10));
        drop(lease);
        a.flush().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // A webhook call begins only while no socket is open.
    drop(socket);
    a.flush().await;
    let call = b
        .take(agent, ConnectionKind::Webhook, "")
        .await
        .expect("a slot");
    let socket = a
        .take(agent, ConnectionKind::Websocket, "")
        .await
        .expect("a slot");
    let phone = b
        .take(user, ConnectionKind::Websocket, "phone:1")
        .await
        .expect("a slot");
    let all = a.connections(&[agent, user]).await;
    let shown = serde_json::to_value(&all[0]).expect("JSON");
    // Ids of one millisecond have no order.
    for (id, kind) in [(call.id, "webhook"), (socket.id, "websocket")] {
        let shown = shown.as_array().expect("a list");
        let of_kind = shown.iter().find(|connection| connection["kind"] == kind);
        assert_eq!(of_kind.expect(kind)["connection_id"], id.to_string());
    }
    assert!(
        shown[0]["connected_at"]
            .as_str()
            .expect("a time")
            .ends_with('Z')
    );
    assert_eq!(
        all[1]
            .iter()
            .map(|one| one.device_id.as_str())
            .collect::<Vec<_>>(),
        ["phone:1"]
    );
    drop((socket, call, phone));
    a.flush().await;
    b.flush().await;
    assert!(
        a.connections(&[agent, user])
            .await
            .iter()
            .all(Vec::is_empty)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_asserts_very_many_slots_goes_on_beating_and_loses_none() {
    let redis = private_redis("slots-many").await;
    let (port, relay) = late(redis.port(), Duration::from_millis(120)).await;
    let url = redis
        .url()
        .replace(&redis.port().to_string(), &port.to_string());
    let random = Random::new(Clock::default());
    let link = redis_link(&url, "test");
    let slots = Slots::new(
        link,
        Clock::default(),
        random.clone(),
        NodeId::generate(&random),
    );
    // All are let in while Redis is away. To assert them takes 60 round trips, which is longer than
    // a node lives unheard.
    let lost = Arc::new(AtomicU32::new(0));
    let takes = (0..60 * 256).map(|_| {
        slots.take(
            Principal::Agent(AgentId::generate(&random)),
            ConnectionKind::Websocket,
            "",
        )
    });
    let leases = futures_util::future::join_all(takes).await;
    for lease in leases.iter().flatten() {
        let lost = lost.clone();
        lease.on_lost(move || {
            lost.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(leases.iter().flatten().count(), 60 * 256);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let relay = spawn(relay);
    let heartbeats = Arc::new(AtomicU32::new(0));
    let heartbeat = heartbeats.clone();
    slots.start(&tasks, &stop, move |frozen| {
        assert!(!frozen);
        heartbeat.fetch_add(1, Ordering::Relaxed);
    });
    // Real time: the heartbeat's.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(heartbeats.load(Ordering::Relaxed) > 4, "{heartbeats:?}");
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    relay.abort();
}
