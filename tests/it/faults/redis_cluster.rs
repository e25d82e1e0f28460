//! On a real Redis Cluster of three masters, limits, slots, proofs and hints work as usual.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use blindpipe::{
    clock::Clock,
    limits::{
        Limits, Rule,
        table::{Limit, Overrides},
    },
};
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::support::{
    Agent, ProcessNode, Socket, db, nodes_with, private_redis, redis_cluster, redis_link, services,
    ulid,
};

const RAISED_LIMITS: &str = "agent_poll=11/10min,ws_connect=100000/s,user_message_send=1000/s";

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_uses_redis_works_on_a_cluster() {
    let mut cluster = redis_cluster("whole").await;
    let url = cluster.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url), ("LIMIT_OVERRIDES", RAISED_LIMITS)]).await;
    let alice = a.user("alice").await;
    // Their keys are spread over the masters.
    let mut agents = Vec::new();
    for n in 0..6 {
        agents.push(a.agent(&alice, &format!("agent {n}")).await);
    }
    // Eleven is no multiple of two: the nodes' own shares would be ten together.
    let mut exact = 0;
    for agent in &agents {
        let shares = a.metric("limiter_fallback_total", &[]).await;
        let calls = (0..30).map(async |n| agent.on([&a, &b][n % 2]).poll("").await.status);
        let statuses = futures_util::future::join_all(calls).await;
        let admitted = statuses.iter().filter(|status| **status == 200).count();
        // On a starved machine a call to Redis may be late, and the node's own share decides
        // instead.
        if a.metric("limiter_fallback_total", &[]).await == shares {
            // A call that an overloaded node could not answer may have been counted.
            let failed = statuses.iter().filter(|status| **status == 503).count();
            assert!(admitted <= 11 && admitted + failed >= 11, "{statuses:?}");
            exact += usize::from(failed == 0);
        }
    }
    assert!(exact > 0, "every one was decided without the cluster");

    for agent in &agents {
        let tries = (0..20).map(async |n| attempt(&agent.on([&a, &b][n % 2])).await);
        let sockets = futures_util::future::join_all(tries).await;
        assert_eq!(sockets.iter().filter(|socket| socket.is_some()).count(), 3);
    }

    // Hints cross from node to node, far faster than the sweep would find what they are about.
    let agent = a.agent(&alice, "listener").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.on(&b).connect().await;
    socket.event("conversation.created").await;
    let mut times = Vec::new();
    for n in 0..20 {
        let started = Instant::now();
        alice.say(&conversation, &n.to_string()).await.expect(201);
        assert_eq!(
            socket.event("message.created").await["data"]["payload"]["text"],
            n.to_string()
        );
        times.push(started.elapsed());
    }
    times.sort_unstable();
    assert!(times[10] < Duration::from_millis(250), "{times:?}");

    // A node that never saw the tokens reads the proofs.
    let cold = ProcessNode::start(&a).await;
    for agent in &agents {
        agent.at(&cold.base).get("/limits").await.expect(200);
    }
    assert_eq!(cold.metric("token_cache_total", "hashed").await, 0.0);
    assert_eq!(cold.metric("token_cache_total", "shared").await, 6.0);

    // Without one of its masters a cluster serves nobody, and the nodes go on without it.
    cluster.masters[1].kill();
    let mut acked = 0;
    let started = Instant::now();
    while acked < 10 {
        acked += usize::from(
            alice
                .on(&b)
                .say(&conversation, "without Redis")
                .await
                .status
                == 201,
        );
        assert!(started.elapsed() < Duration::from_secs(20), "{acked}");
    }
}

/// A socket that was let in. An overloaded node asks to come back.
async fn attempt(agent: &Agent) -> Option<Socket> {
    'again: loop {
        let mut socket = Socket::open(&agent.caller).await;
        socket
            .say(json!({ "type": "auth", "agent_id": agent.id, "token": agent.token }))
            .await;
        loop {
            match socket.next().await {
                Ok(frame) if frame["type"] == "caught_up" => return Some(socket),
                Ok(_) => {}
                Err(Some(1013)) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue 'again;
                }
                Err(code) => {
                    assert_eq!(code, Some(4409));
                    return None;
                }
            }
        }
    }
}

/// A limiter without a node around it.
async fn limits(redis_url: &str, overrides: &str) -> Limits {
    let redis = redis_link(redis_url, &ulid().to_string());
    let db = db(&services().postgres.url());
    let overrides: Overrides = overrides.parse().expect("overrides");
    let limits = Limits::start(
        redis,
        Arc::new(str::to_owned),
        db,
        Clock::default(),
        overrides,
        false,
        &TaskTracker::new(),
    );
    // The link is made in the background; a decision with a moment is Redis's.
    let started = Instant::now();
    while limits
        .decide(&[Rule::charge(Limit::UserSearch, ulid())])
        .await
        .moments
        .is_empty()
    {
        assert!(started.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    limits
}

/// Two rules whose keys lie on different masters of a cluster: both are charged, or none.
async fn all_or_nothing(limits: &Limits) {
    for n in 0..20 {
        let (ip, email) = (format!("10.0.0.{n}"), format!("{n}@example.org"));
        let both = [
            Rule::charge(Limit::RegisterIp, &ip),
            Rule::charge(Limit::RegisterEmail, &email),
        ];
        let calls = (0..8).map(|_| limits.decide(&both));
        let decisions = futures_util::future::join_all(calls).await;
        let admitted: Vec<_> = decisions
            .iter()
            .filter(|decision| decision.denied.is_none())
            .collect();
        // Three of an e-mail, ten of an address. A call that is denied by one may for a moment hold
        // a place of the other, which is the larger one here, so that nobody is denied by it.
        assert_eq!(admitted.len(), 3);
        for decision in decisions.iter().filter_map(|decision| decision.denied) {
            assert_eq!(decision.0, 1, "the e-mail's rule denies");
            assert!(decision.1 <= Duration::from_secs(600));
        }
        // The address's budget that denied calls might have used is there: seven of ten.
        let other = [Rule::charge(Limit::RegisterIp, &ip)];
        let mut left = 0;
        while limits.decide(&other).await.denied.is_none() {
            left += 1;
        }
        assert_eq!(left, 7);
        let look = limits
            .decide(&[Rule::ask(Limit::RegisterEmail, &email)])
            .await;
        assert!(look.denied.is_some());
    }
    // A budget that is given back can be used again.
    let rule = [Rule::charge(Limit::RegisterEmail, "again@example.org")];
    for _ in 0..10 {
        let decision = limits.decide(&rule).await;
        assert!(decision.denied.is_none());
        limits.refund(&rule, &decision).await;
    }
}

const REGISTER: &str = "auth_register_email=3/10min";

#[tokio::test(flavor = "multi_thread")]
async fn several_rules_are_charged_together_or_not_at_all() {
    let redis = private_redis("together").await;
    all_or_nothing(&limits(&redis.url(), REGISTER).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_rules_on_several_masters_too() {
    let cluster = redis_cluster("together").await;
    all_or_nothing(&limits(&cluster.url(), REGISTER).await).await;
}
