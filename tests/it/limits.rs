//! The limits table, row by row over two nodes, and what is left of it when Redis is away.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use blindpipe::{
    limits::table::{IN_POSTGRES, Limit, Overrides},
    routes,
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::support::{
    Agent, Answer, Caller, PASSWORD, Socket, TestNode, User, knock, nodes, nodes_with, private_redis, psql,
    redis_client, ulid, wrong_secret,
};

/// Rows whose routes may be still to come, and how their paths begin. Any other row, and each of these as soon as the
/// table of routes has such a path, needs a case below.
const TO_COME: &[(Limit, &str)] = &[
    (Limit::KeysGroupRotate, "/keys/groups/"),
    (Limit::KeysRotationRequest, "/keys/rotation/"),
    (Limit::AgentFileUpload, "/agents/{agent_id}/files"),
    (Limit::AgentGrantRequest, "/agents/{agent_id}/grants"),
    (Limit::AgentObjectGet, "/objects/"),
    (Limit::UserSearch, "/search"),
    (Limit::UserFileUpload, "/files"),
    (Limit::UserObjectGet, "/objects/"),
    (Limit::ShareOpen, "/share/"),
];

fn has_route(limit: Limit) -> bool {
    let to_come = TO_COME.iter().find(|(row, _)| *row == limit);
    to_come.is_none_or(|(_, path)| routes::table().iter().any(|route| route.path.starts_with(path)))
}

/// Who plays.
struct Stage {
    nodes: [TestNode; 2],
    user: User,
    /// Whose cookie is used again and again.
    refresher: User,
    agent: Agent,
    /// Agents of the second and the third tier.
    busy: [Agent; 2],
    conversation: String,
    /// With another user.
    direct: String,
    /// Which `user` owns.
    group: String,
    /// Somebody at one address.
    stranger: Caller,
    email: String,
    calls: AtomicU32,
}

impl Stage {
    async fn new() -> Self {
        let nodes = nodes().await;
        let user = nodes[0].user("alice").await;
        let agent = nodes[0].agent(&user, "helper").await;
        let conversation = user.talk_to(&agent).await;
        let refresher = nodes[0].user("refresher").await;
        let direct = user.post("/conversations", json!({ "type": "direct", "user_id": refresher.id })).await;
        let direct = direct.expect(201).data()["conversation_id"].as_str().expect("an id").to_owned();
        let busy = [nodes[0].agent(&user, "second").await, nodes[0].agent(&user, "third").await];
        group_of(&nodes[0], &user, &busy[0], 11).await;
        group_of(&nodes[0], &user, &busy[1], 101).await;
        let group = user.post("/groups", json!({ "title": "crew", "member_ids": [] })).await.expect(201);
        let group = group.data()["conversation_id"].as_str().expect("an id").to_owned();
        let stranger = nodes[0].anon();
        let email = format!("{}@example.org", ulid().to_string().to_lowercase());
        let calls = AtomicU32::new(0);
        Stage { nodes, user, refresher, agent, busy, conversation, direct, group, stranger, email, calls }
    }

    /// An access token does not live as long as some windows, and some calls want a fresh login.
    async fn log_in(&mut self) {
        let (caller, email) = (self.nodes[0].anon(), self.user.email.clone());
        let body = json!({
            "email": email, "account_password": PASSWORD, "turnstile_token": "dev-pass", "device_id": self.user.device_id,
        });
        let answer = caller.post("/auth/login", body).await.expect(200);
        self.user = User::signed_in(caller, email, &answer);
    }

    /// One call that `limit` counts, at alternating nodes; none if there is no such route yet.
    async fn call(&self, limit: Limit) -> Option<Answer> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let node = &self.nodes[n as usize % 2];
        let (user, agent, stranger) = (self.user.on(node), self.agent.on(node), self.stranger.on(node));
        let text = json!({ "payload": { "type": "text" } });
        let fresh = format!("{n}-{}", self.email);
        Some(match limit {
            Limit::RegisterIp => {
                stranger.post("/auth/register", User::registration(&fresh, "x", "00000000")).await
            }
            Limit::RegisterEmail => {
                let body = User::registration(&self.email, "x", "00000000");
                node.anon().post("/auth/register", body).await
            }
            Limit::SendCode => node.anon().post("/auth/send-code", code_for(&self.email, "dev-pass")).await,
            Limit::Refresh => {
                let caller = self.refresher.on(node);
                let request = caller.request(reqwest::Method::POST, "/auth/refresh");
                caller.send(request.header("cookie", &caller.cookie)).await
            }
            Limit::LoginIp => {
                let body = json!({ "email": fresh, "account_password": "wrong wrong", "turnstile_token": "dev-pass" });
                stranger.post("/auth/login", body).await
            }
            Limit::PasskeyBegin => stranger.post("/auth/passkey/begin", json!({})).await,
            Limit::AgentTyping => {
                let body = json!({ "conversation_id": self.conversation, "state": "started" });
                agent.post(format!("/agents/{}/typing", agent.id), body).await
            }
            Limit::AgentMessageSend => agent.say(&self.conversation, "x").await,
            Limit::AgentConversationSend => {
                let path = format!("/agents/{}/conversations/{}/messages", agent.id, self.conversation);
                agent.post(path, text).await
            }
            Limit::UserMessageSend => {
                user.post(format!("/conversations/{}/messages", self.conversation), text).await
            }
            Limit::KeysLookup => user.get(format!("/keys/users/{}/devices", user.id)).await,
            Limit::KeysGroupRotate => stale_rotation(&user, &self.group).await,
            Limit::KeysRotationRequest => {
                user.post("/keys/rotation/request", json!({ "conversation_id": self.direct })).await
            }
            Limit::KeysBackupRead => user.get("/keys/backup").await,
            Limit::AgentManifestUpdate => {
                let request = agent.request(reqwest::Method::PATCH, format!("/agents/{}", agent.id));
                agent
                    .send(request.json(&json!({ "manifest": { "tools": [], "permission_scopes": [] } })))
                    .await
            }
            Limit::AgentTokenRegenerate => {
                let path = format!("/agents/{}/token/regenerate", agent.id);
                user.post(path, json!({ "emergency": false })).await
            }
            Limit::AgentConversations => agent.get(format!("/agents/{}/conversations", agent.id)).await,
            Limit::UserMessagesList => {
                user.get(format!("/conversations/{}/messages", self.conversation)).await
            }
            Limit::UserConversationsList => user.get("/conversations").await,
            Limit::GroupMemberAdd => {
                let path = format!("/groups/{}/members", self.group);
                user.post(path, json!({ "user_ids": [self.refresher.id] })).await
            }
            Limit::GroupAgentInstance => {
                let path = format!("/groups/{}/agent-instances", self.group);
                user.post(path, json!({ "agent_id": agent.id, "visibility": "all" })).await
            }
            Limit::AgentPoll => agent.poll("").await,
            Limit::WsConnectIp => knock(&stranger).await,
            Limit::WsConnect => frame(&agent).await,
            Limit::DefaultUser => user.get("/limits").await,
            Limit::DefaultIp => stranger.post("/auth/send-code", code_for(&fresh, "dev-fail")).await,
            Limit::AgentTokenWrong => agent.with_token(&wrong_secret(&agent.token, n)).get("/limits").await,
            Limit::AgentTier1 => agent.get("/limits").await,
            Limit::AgentTier2 => self.busy[0].on(node).get("/limits").await,
            Limit::AgentTier3 => self.busy[1].on(node).get("/limits").await,
            _ => return None,
        })
    }
}

/// A rotation of an epoch that is not the conversation's.
async fn stale_rotation(user: &User, group: &str) -> Answer {
    user.post(format!("/keys/groups/{group}/rotate"), json!({ "base_epoch": 7, "wrapped_keys": [] })).await
}

fn code_for(email: &str, turnstile: &str) -> Value {
    json!({ "email": email, "scene": "register", "turnstile_token": turnstile })
}

/// Puts the agent into a group of so many.
async fn group_of(node: &TestNode, owner: &User, agent: &Agent, members: usize) {
    let owner: uuid::Uuid = owner.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let sql = format!(
        "insert into conversation (conversation_id, kind, created_by) values ('{id}', 'group', '{owner}');
         insert into member (conversation_id, principal_id, principal_kind, role) values ('{id}', '{}', 'agent', 'agent');
         insert into member (conversation_id, principal_id, principal_kind, role)
         select '{id}', gen_random_uuid(), 'user', 'member' from generate_series(2, {members})",
        agent.id,
        id = uuid::Uuid::from(ulid()),
    );
    psql(&node.world.database, &sql).await;
}

/// A socket's `auth` frame, as an answer: the refusal of a frame has no headers.
async fn frame(agent: &Agent) -> Answer {
    let mut socket = Socket::open(&agent.caller).await;
    socket.say(json!({ "type": "auth", "agent_id": agent.id, "token": agent.token })).await;
    let status = loop {
        match socket.next().await {
            Ok(frame) if frame["reason"] == "rate_limited" => {
                socket.expect_close(4429).await;
                break 429;
            }
            Ok(frame) if frame["type"] == "auth.ok" => break 101,
            Ok(_) => {}
            Err(code) => {
                assert_eq!(code, Some(4409));
                break 101;
            }
        }
    };
    Answer { status, headers: Default::default(), body: Value::Null }
}

/// Insists that an answer says what the row says; the wait of a refusal.
fn judge(limit: Limit, answer: &Answer) -> Option<Duration> {
    let (scope, count, seconds, _) = limit.row();
    if limit == Limit::WsConnect {
        return (answer.status == 429).then_some(Duration::from_secs(seconds));
    }
    let refused = answer.status == 429;
    // An upgrade's answer is the socket's, and a refused credential is nobody's call.
    if answer.status != 101 && answer.status != 401 {
        let policy = answer.header("ratelimit-policy").unwrap_or_default();
        assert!(
            policy.contains(&format!("\"{scope}\";q={count};w={seconds}")),
            "{scope}: {policy:?}, {answer:?}"
        );
        let left = answer.header("ratelimit").unwrap_or_default();
        let left = left.split(&format!("\"{scope}\";r=")).nth(1).and_then(|rest| rest.split(';').next());
        let left: u32 = left.and_then(|n| n.parse().ok()).expect("what is left");
        assert!(if refused { left == 0 } else { left < count }, "{scope}: {left}");
    }
    if !refused {
        return None;
    }
    assert_eq!(answer.code(), "RATE_LIMITED");
    let params = &answer.body["error"]["params"];
    let shown = Overrides::default().budget(limit).to_string();
    assert_eq!((&params["scope"], &params["limit"]), (&json!(scope), &json!(shown)), "{answer:?}");
    let ms = params["retry_after_ms"].as_u64().expect("ms");
    assert!((1..=seconds * 1000).contains(&ms), "{scope}: {ms}");
    assert_eq!(answer.header("retry-after"), Some(ms.div_ceil(1000).to_string().as_str()));
    Some(Duration::from_millis(ms))
}

async fn prove(stage: &mut Stage, limit: Limit) {
    let (scope, count, seconds, _) = limit.row();
    let window = Duration::from_secs(seconds);
    stage.log_in().await;
    let tries = count + count / 4 + 5;
    for attempt in 0.. {
        let started = Instant::now();
        let calls = stream::iter(0..tries).map(|_| stage.call(limit));
        let answers: Vec<Answer> =
            calls.buffer_unordered(24).map(|answer| answer.expect("a route")).collect().await;
        let took = started.elapsed();
        assert!(answers.iter().all(|answer| answer.status < 500), "{scope}: {answers:?}");
        let waits: Vec<Duration> = answers.iter().filter_map(|answer| judge(limit, answer)).collect();
        let admitted = answers.len() - waits.len();
        // Only within one window is the number what the row says; on a busy machine a second can be too short.
        if took >= window {
            assert!(attempt < 10, "{scope}: no {tries} calls in {took:?}");
            tokio::time::sleep(window).await;
            continue;
        }
        assert_eq!(admitted, count as usize, "{scope}");
        let longest = *waits.iter().max().expect("a refusal");
        if seconds == 1 {
            tokio::time::sleep(longest).await;
        } else {
            stage.nodes[0].advance(longest).await;
        }
        break;
    }
    stage.log_in().await;
    let retry = stage.call(limit).await.expect("a route");
    assert_eq!(judge(limit, &retry), None, "{scope}: a lone retry after the wait is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_admits_exactly_its_calls_over_two_nodes() {
    let mut stage = Stage::new().await;
    for limit in Limit::ALL {
        // The tests of what Postgres counts are beside the logins and the codes.
        if has_route(*limit) && !IN_POSTGRES.contains(limit) {
            prove(&mut stage, *limit).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_moves_with_the_clock() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_poll=3/min")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    for node in [&a, &b, &a] {
        agent.on(node).poll("").await.expect(200);
    }
    let refused = agent.on(&b).poll("").await.refused(429, "RATE_LIMITED");
    let ms = refused.body["error"]["params"]["retry_after_ms"].as_u64().expect("ms");
    a.advance(Duration::from_millis(ms)).await;
    agent.on(&b).poll("").await.expect(200);
    agent.on(&a).poll("limit=0").await.refused(400, "VALIDATION_ERROR");
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
    answer.data().as_array().expect("a list").iter().find(|bucket| bucket["scope"] == scope).cloned()
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
        scopes.map(|bucket| place(&bucket["scope"]).expect("a row")).collect()
    };
    for caller in [&alice.caller, &agent.caller] {
        let places = order(&caller.get("/limits").await.expect(200));
        assert!(places.len() > 8 && places.is_sorted(), "{places:?}");
    }
    assert_eq!(bucket(&alice, "agent_poll").await, None);
    assert_eq!(bucket(&agent, "user_search").await, None);
    assert_eq!(bucket(&agent, "auth_login_fail").await, None);
    assert_eq!(bucket(&agent, "agent_tier_2").await, None);
    assert!(bucket(&agent, "agent_tier_1").await.expect("its tier")["remaining"].is_null());

    // What was used on one node is gone on the other, as the operator has set it.
    agent.poll("").await.expect(200);
    a.advance(Duration::from_secs(10)).await;
    agent.on(&b).poll("").await.expect(200);
    let poll = bucket(&agent.on(&b), "agent_poll").await.expect("a row");
    assert_eq!(
        (&poll["remaining"], &poll["limit"], &poll["count"]),
        (&json!(5), &json!("7/10min"), &json!(7))
    );
    assert_eq!((&poll["window_seconds"], &poll["per"]), (&json!(600), &json!("agent")));
    let resets = poll["resets_in_ms"].as_u64().expect("ms");
    assert!((580_000..=590_000).contains(&resets), "{resets}");
    // Looking uses nothing of it.
    assert_eq!(bucket(&agent, "agent_poll").await.expect("a row")["remaining"], 5);
    a.advance(Duration::from_millis(resets)).await;
    assert_eq!(bucket(&agent, "agent_poll").await.expect("a row")["remaining"], 6);

    // What Postgres counts is shown with the rest.
    let alice = alice.refreshed().await;
    let wrong =
        json!({ "email": alice.email, "account_password": "wrong wrong", "turnstile_token": "dev-pass" });
    a.anon().post("/auth/login", wrong.clone()).await.refused(401, "INVALID_CREDENTIALS");
    b.anon().post("/auth/login", wrong.clone()).await.refused(401, "INVALID_CREDENTIALS");
    let login = bucket(&alice.on(&b), "auth_login_fail").await.expect("a row");
    assert_eq!((&login["remaining"], &login["per"]), (&json!(3), &json!("email")));
    for _ in 0..3 {
        a.anon().post("/auth/login", wrong.clone()).await.refused(401, "INVALID_CREDENTIALS");
    }
    let login = bucket(&alice, "auth_login_fail").await.expect("a row");
    assert_eq!(login["remaining"], 0);
    assert!(login["resets_in_ms"].as_u64().expect("ms") > 890_000);
    let code = User::registration(&alice.email, "x", "00000000");
    a.anon().post("/auth/register", code).await.refused(400, "CODE_INVALID");
    assert_eq!(bucket(&alice, "auth_code_tries").await.expect("a row")["remaining"], 9);
    // Where a lookup is charged is where it is looked for.
    for (caller, left) in [(&alice.caller, 58), (&agent.caller, 59)] {
        for _ in left..60 {
            caller.get(format!("/keys/users/{}/devices", alice.id)).await.expect(200);
        }
        assert_eq!(bucket(caller, "keys_lookup").await.expect("a row")["remaining"], left);
    }
    alice.say(&conversation, "x").await.expect(201);
    let sent = bucket(&alice, "user_message_send").await.expect("a row")["remaining"].as_u64();
    assert!(sent >= Some(9), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_each_node_gives_out_its_share_and_no_more() {
    let mut redis = private_redis("limits-away").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url), ("LIMIT_OVERRIDES", "agent_poll=10/10min")]).await;
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
    let ms = refused.body["error"]["params"]["retry_after_ms"].as_u64().expect("ms");
    a.advance(Duration::from_millis(ms)).await;
    poll(&a).await.expect(200);
    // Sends and logins do not wait for Redis either.
    let conversation = alice.refreshed().await.talk_to(&agent).await;
    agent.on(&b).say(&conversation, "x").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_or_flushed_redis_counts_anew_and_no_more_than_that() {
    use fred::interfaces::ClientLike;
    let mut redis = private_redis("limits-anew").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url), ("LIMIT_OVERRIDES", "agent_poll=10/10min")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let use_up = async || {
        let calls = (0..30).map(async |n| agent.on([&a, &b][n % 2]).poll("").await.status);
        futures_util::future::join_all(calls).await.into_iter().filter(|status| *status == 200).count()
    };
    assert_eq!(use_up().await, 10);
    redis_client(&url).await.flushall::<()>(false).await.expect("flushed");
    assert_eq!(use_up().await, 10);
    let restarted = tokio::task::spawn_blocking(move || redis.restart().map(|()| redis)).await;
    let _redis = restarted.expect("no panic").expect("restarted");
    // Until the nodes are connected again each gives out its share, and that once.
    let mut admitted = 0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        admitted += use_up().await;
    }
    assert!((10..=20).contains(&admitted), "{admitted}");
}
