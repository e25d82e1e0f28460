//! Limits as callers see them, and the remaining ones while Redis is away.

use std::time::{Duration, Instant};

use blindpipe::limits::table::Limit;
use serde_json::{Value, json};

use crate::support::{
    Answer, Caller, ProcessNode, TestNode, User, World, late, nodes_with, private_redis,
    redis_client, spawn,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_window_moves_with_the_clock() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_poll=3/min")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    for node in [&a, &b, &a] {
        agent.on(node).poll("").await.expect(200);
    }
    let refused = agent.on(&b).poll("").await.refused(429, "RATE_LIMITED");
    let ms = refused.body["error"]["params"]["retry_after_ms"]
        .as_u64()
        .expect("ms");
    a.advance(Duration::from_millis(ms)).await;
    // A malformed call is charged like any other.
    agent
        .on(&a)
        .poll("limit=0")
        .await
        .refused(400, "VALIDATION_ERROR");
    a.advance(Duration::from_secs(60)).await;
    for node in [&a, &b, &a] {
        agent.on(node).poll("").await.expect(200);
    }
    agent.poll("").await.refused(429, "RATE_LIMITED");
}

/// The bucket of a scope, as `GET /limits` shows it.
async fn bucket(caller: &Caller, scope: &str) -> Option<Value> {
    let answer = caller.get("/limits").await.expect(200);
    assert!(answer.body["next_cursor"].is_null());
    answer
        .data()
        .as_array()
        .expect("a list")
        .iter()
        .find(|bucket| bucket["scope"] == scope)
        .cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_sees_what_is_left() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_poll=7/10min")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    a.anon().get("/limits").await.refused(401, "UNAUTHORIZED");
    // In the order of the table, and only what is the caller's.
    let order = |answer: &Answer| -> Vec<usize> {
        let scopes = answer.data().as_array().expect("a list").iter();
        let place = |scope: &Value| Limit::ALL.iter().position(|limit| *scope == limit.scope());
        scopes
            .map(|bucket| place(&bucket["scope"]).expect("a row"))
            .collect()
    };
    for caller in [&alice.caller, &agent.caller] {
        let places = order(&caller.get("/limits").await.expect(200));
        assert!(places.len() > 8 && places.is_sorted(), "{places:?}");
    }
    assert_eq!(bucket(&alice, "agent_poll").await, None);
    // Budgets of an address are shared with others.
    for scope in [
        "auth_login_ip",
        "auth_human_ip",
        "default_ip",
        "ws_connect_ip",
    ] {
        assert_eq!(bucket(&alice, scope).await, None, "{scope}");
        assert_eq!(bucket(&agent, scope).await, None, "{scope}");
    }
    assert!(bucket(&alice, "auth_renew").await.is_some());
    assert!(bucket(&agent, "stream_begin").await.is_some());
    assert_eq!(bucket(&agent, "user_search").await, None);
    assert_eq!(bucket(&agent, "auth_login_fail").await, None);
    assert_eq!(bucket(&agent, "agent_tier_2").await, None);
    assert!(bucket(&agent, "agent_tier_1").await.expect("its tier")["remaining"].is_null());

    // A budget used on one node is gone on the other, as the operator has set it.
    agent.poll("").await.expect(200);
    a.advance(Duration::from_secs(10)).await;
    agent.on(&b).poll("").await.expect(200);
    let poll = bucket(&agent.on(&b), "agent_poll").await.expect("a row");
    assert_eq!(
        (&poll["remaining"], &poll["limit"], &poll["count"]),
        (&json!(5), &json!("7/10min"), &json!(7))
    );
    assert_eq!(
        (&poll["window_seconds"], &poll["per"]),
        (&json!(600), &json!("agent"))
    );
    let resets = poll["resets_in_ms"].as_u64().expect("ms");
    assert!((580_000..=590_000).contains(&resets), "{resets}");
    // Looking uses nothing of it.
    assert_eq!(
        bucket(&agent, "agent_poll").await.expect("a row")["remaining"],
        5
    );
    a.advance(Duration::from_millis(resets)).await;
    assert_eq!(
        bucket(&agent, "agent_poll").await.expect("a row")["remaining"],
        6
    );

    // Budgets that Postgres counts are shown with the rest.
    let alice = alice.refreshed().await;
    let wrong = json!({ "email": alice.email, "account_password": "wrong wrong", "turnstile_token": "dev-pass" });
    a.anon()
        .post("/auth/login", wrong.clone())
        .await
        .refused(401, "INVALID_CREDENTIALS");
    b.anon()
        .post("/auth/login", wrong.clone())
        .await
        .refused(401, "INVALID_CREDENTIALS");
    let login = bucket(&alice.on(&b), "auth_login_fail")
        .await
        .expect("a row");
    assert_eq!(
        (&login["remaining"], &login["per"]),
        (&json!(3), &json!("email"))
    );
    for _ in 0..3 {
        a.anon()
            .post("/auth/login", wrong.clone())
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    let login = bucket(&alice, "auth_login_fail").await.expect("a row");
    assert_eq!(login["remaining"], 0);
    assert!(login["resets_in_ms"].as_u64().expect("ms") > 890_000);
    // A try without a live code costs nothing.
    for (live, left) in [(false, 10), (true, 9)] {
        if live {
            a.advance(Duration::from_secs(61)).await;
            a.anon().code(&alice.email, "register").await;
        }
        let code = User::registration(&alice.email, "x", "1");
        a.anon()
            .post("/auth/register", code)
            .await
            .refused(400, "CODE_INVALID");
        assert_eq!(
            bucket(&alice, "auth_code_tries").await.expect("a row")["remaining"],
            left
        );
    }
    // Where a lookup is charged is where it is looked for.
    for (caller, left) in [(&alice.caller, 58), (&agent.caller, 59)] {
        for _ in left..60 {
            caller
                .get(format!("/keys/users/{}/devices", alice.id))
                .await
                .expect(200);
        }
        assert_eq!(
            bucket(caller, "keys_lookup").await.expect("a row")["remaining"],
            left
        );
    }
    alice.say(&conversation, "x").await.expect(201);
    let sent = bucket(&alice, "user_message_send").await.expect("a row")["remaining"].as_u64();
    assert!(sent >= Some(9), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_each_node_gives_out_its_share_and_no_more() {
    let mut redis = private_redis("limits-away").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[
        ("REDIS_URL", &url),
        ("LIMIT_OVERRIDES", "agent_poll=10/10min"),
    ])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    // Both nodes have said that they live, and each has heard of the other.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    redis.kill();
    let poll = async |node: &TestNode| agent.on(node).poll("").await;
    for node in [&a, &b] {
        let mut admitted = 0;
        for _ in 0..12 {
            let answer = poll(node).await;
            if answer.status == 200 {
                admitted += 1;
                continue;
            }
            let refused = answer.refused(429, "RATE_LIMITED");
            assert_eq!(refused.body["error"]["params"]["scope"], "agent_poll");
            assert_eq!(refused.body["error"]["params"]["limit"], "10/10min");
        }
        assert_eq!(admitted, 5, "half of the budget on each of two nodes");
    }
    // A lone retry after the wait passes here, too.
    let refused = poll(&a).await.refused(429, "RATE_LIMITED");
    let ms = refused.body["error"]["params"]["retry_after_ms"]
        .as_u64()
        .expect("ms");
    a.advance(Duration::from_millis(ms)).await;
    poll(&a).await.expect(200);
    // Sends and logins do not wait for Redis either.
    let conversation = alice.refreshed().await.talk_to(&agent).await;
    agent.on(&b).say(&conversation, "x").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_far_away_is_waited_for_as_long_as_the_operator_says() {
    let redis = private_redis("limits-far").await;
    let (port, relay) = late(redis.port(), Duration::from_millis(300)).await;
    spawn(relay);
    let url = redis
        .url()
        .replace(&redis.port().to_string(), &port.to_string());
    for (patience, counts_alone) in [("2000", false), ("250", true)] {
        let world = World::new(&[("REDIS_URL", &url), ("REDIS_TIMEOUT_MS", patience)]).await;
        let node = ProcessNode::start_in(&world).await;
        let caller = Caller::to(&world, &node.base);
        let mut alone = 0;
        for _ in 0..15 {
            let before = node.metric("limiter_fallback_total", "").await;
            caller
                .post("/auth/passkey/begin", json!({}))
                .await
                .expect(200);
            alone += u32::from(node.metric("limiter_fallback_total", "").await > before);
            // The link takes some round trips of its own.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(alone == 15, counts_alone, "{alone} with {patience} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_or_flushed_redis_counts_anew_and_no_more_than_that() {
    use fred::interfaces::ClientLike;
    let mut redis = private_redis("limits-anew").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[
        ("REDIS_URL", &url),
        ("LIMIT_OVERRIDES", "agent_poll=10/10min"),
    ])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let use_up = async || {
        let calls = (0..30).map(async |n| agent.on([&a, &b][n % 2]).poll("").await.status);
        let statuses = futures_util::future::join_all(calls).await;
        let of = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
        (of(200), of(503))
    };
    for flushed in [false, true] {
        if flushed {
            redis_client(&url)
                .await
                .flushall::<()>(false)
                .await
                .expect("flushed");
        }
        // A call that an overloaded node could not answer may have been counted.
        let (admitted, failed) = use_up().await;
        assert!(
            admitted <= 10 && admitted + failed >= 10,
            "{admitted}, {failed} failed"
        );
    }
    let restarted = tokio::task::spawn_blocking(move || redis.restart().map(|()| redis)).await;
    let _redis = restarted.expect("no panic").expect("restarted");
    // Until the nodes are connected again each gives out its share, and that once.
    let mut admitted = 0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        admitted += use_up().await.0;
    }
    assert!((10..=20).contains(&admitted), "{admitted}");
}

/// Calls at once are decided together; some of them are cut in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_cut_do_not_hold_up_those_they_are_decided_with() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "user_conversations_list=30/10min,ws_connect=1000/s",
    )])
    .await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    for round in 0..3 {
        let cut: Vec<_> = (0..40)
            .map(|n| {
                let caller = bob.on(if n % 2 == 0 { &a } else { &b }).caller;
                spawn(async move { caller.get("/users/me").await })
            })
            .collect();
        let kept: Vec<_> = (0..20)
            .map(|n| {
                let caller = alice.on(if n % 2 == 0 { &a } else { &b }).caller;
                spawn(async move { caller.get("/conversations").await })
            })
            .collect();
        tokio::task::yield_now().await;
        cut.iter().for_each(tokio::task::JoinHandle::abort);
        let mut admitted = 0;
        for call in kept {
            match call.await.expect("no panic") {
                answer if answer.status == 200 => admitted += 1,
                answer => drop(answer.refused(429, "RATE_LIMITED")),
            }
        }
        // Exactly as many as there are, whatever became of the others.
        assert_eq!(admitted, [20, 10, 0][round]);
    }
}
