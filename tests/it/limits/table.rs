//! The limits table, row by row over two nodes.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use axum::http::HeaderMap;
use blindpipe::{
    limits::table::{IN_POSTGRES, Limit, Overrides},
    routes,
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::support::{
    Agent, Answer, Caller, PASSWORD, Socket, TestNode, User, forged, knock, nodes, psql, ulid,
    wrong_secret,
};

/// Every row in its order, with a route that it counts.
#[rustfmt::skip]
const ROUTES: &[(Limit, &str)] = &[
    (Limit::LoginFail,             "POST /auth/login"),
    (Limit::RegisterIp,            "POST /auth/register"),
    (Limit::RegisterEmail,         "POST /auth/register"),
    (Limit::SendCode,              "POST /auth/send-code"),
    (Limit::Refresh,               "POST /auth/refresh"),
    (Limit::PasskeyBegin,          "POST /auth/passkey/begin"),
    (Limit::KeysLookup,            "GET /keys/users/{user_id}/devices"),
    (Limit::KeysGroupRotate,       "POST /keys/groups/{conversation_id}/rotate"),
    (Limit::KeysRotationRequest,   "POST /keys/rotation/request"),
    (Limit::AgentMessageSend,      "POST /agents/{agent_id}/messages"),
    (Limit::AgentConversationSend, "POST /agents/{agent_id}/conversations/{conversation_id}/messages"),
    (Limit::AgentTyping,           "POST /agents/{agent_id}/typing"),
    (Limit::AgentFileUpload,       "POST /agents/{agent_id}/files"),
    (Limit::AgentManifestUpdate,   "PATCH /agents/{agent_id}"),
    (Limit::AgentTokenRegenerate,  "POST /agents/{agent_id}/token/regenerate"),
    (Limit::AgentConversations,    "GET /agents/{agent_id}/conversations"),
    (Limit::AgentPoll,             "GET /agents/{agent_id}/messages/poll"),
    (Limit::AgentGrantRequest,     "POST /agents/{agent_id}/grants/request"),
    (Limit::AgentObjectGet,        "GET /objects/{object_key}"),
    (Limit::UserMessagesList,      "GET /conversations/{conversation_id}/messages"),
    (Limit::UserConversationsList, "GET /conversations"),
    (Limit::UserSearch,            "GET /search"),
    (Limit::GroupMemberAdd,        "POST /groups/{conversation_id}/members"),
    (Limit::GroupAgentInstance,    "POST /groups/{conversation_id}/agent-instances"),
    (Limit::UserMessageSend,       "POST /conversations/{conversation_id}/messages"),
    (Limit::UserFileUpload,        "POST /files"),
    (Limit::UserObjectGet,         "GET /objects/{object_key}"),
    (Limit::KeysBackupRead,        "GET /keys/backup"),
    (Limit::LoginIp,               "POST /auth/login"),
    (Limit::HumanIp,               "POST /auth/send-code"),
    (Limit::CodeTries,             "POST /auth/login-code"),
    (Limit::ShareOpen,             "GET /share/{share_id}"),
    (Limit::WsConnectIp,           "GET /ws"),
    (Limit::WsConnect,             "GET /ws"),
    (Limit::ConversationOpen,      "POST /conversations"),
    (Limit::AuthRenew,             "GET /ws"),
    (Limit::StreamBegin,           "GET /ws"),
    (Limit::DefaultUser,           "GET /limits"),
    (Limit::DefaultIp,             "POST /auth/logout"),
    (Limit::AgentTokenWrong,       "GET /limits"),
    (Limit::AgentTokenUnknown,     "GET /limits"),
    (Limit::AgentTier1,            "GET /limits"),
    (Limit::AgentTier2,            "GET /limits"),
    (Limit::AgentTier3,            "GET /limits"),
];

/// Rows of frames, which `frames.rs` beside this file tests.
const OF_FRAMES: &[Limit] = &[Limit::AuthRenew, Limit::StreamBegin];

#[test]
fn every_row_has_its_route() {
    // The name of a parameter, or whether it takes the rest of the path, makes no other route.
    let plain = |route: &str| {
        let parts = route
            .split('/')
            .map(|part| if part.starts_with('{') { "{}" } else { part });
        parts.collect::<Vec<_>>().join("/")
    };
    let there: HashSet<String> = routes::table()
        .iter()
        .map(|route| plain(&format!("{} {}", route.method, route.path)))
        .collect();
    assert_eq!(
        ROUTES.iter().map(|(limit, _)| *limit).collect::<Vec<_>>(),
        Limit::ALL
    );
    for (limit, route) in ROUTES {
        let is_there = there.contains(&plain(route));
        assert!(is_there, "{}: {route}", limit.scope());
    }
}

/// The players.
struct Stage {
    nodes: [TestNode; 2],
    user: User,
    /// The user whose cookie is used again and again.
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
        let direct = user
            .post(
                "/conversations",
                json!({ "type": "direct", "user_id": refresher.id }),
            )
            .await;
        let direct = direct.expect(201).data()["conversation_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let busy = [
            nodes[0].agent(&user, "second").await,
            nodes[0].agent(&user, "third").await,
        ];
        group_of(&nodes[0], &user, &busy[0], 11).await;
        group_of(&nodes[0], &user, &busy[1], 101).await;
        let group = user
            .post("/groups", json!({ "title": "crew", "member_ids": [] }))
            .await
            .expect(201);
        let group = group.data()["conversation_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let stranger = nodes[0].anon();
        let email = format!("{}@example.org", ulid().to_string().to_lowercase());
        let calls = AtomicU32::new(0);
        Stage {
            nodes,
            user,
            refresher,
            agent,
            busy,
            conversation,
            direct,
            group,
            stranger,
            email,
            calls,
        }
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

    /// Decisions that a node's own share has made, here and in the tests beside this one.
    async fn fallbacks(&self) -> f64 {
        self.nodes[0].metric("limiter_fallback_total", &[]).await
    }

    /// The request of an upload.
    fn upload(&self) -> Value {
        json!({
            "filename": "x", "content_type": "text/plain", "size": 1, "conversation_id": self.conversation,
        })
    }

    /// A call that `limit` counts, at alternating nodes; none of those whose routes are to come.
    async fn call(&self, limit: Limit) -> Option<Answer> {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let node = &self.nodes[n as usize % 2];
        let (user, agent, stranger) = (
            self.user.on(node),
            self.agent.on(node),
            self.stranger.on(node),
        );
        let text = json!({ "payload": { "type": "text" } });
        let fresh = format!("{n}-{}", self.email);
        Some(match limit {
            Limit::RegisterIp => {
                stranger
                    .post(
                        "/auth/register",
                        User::registration(&fresh, "x", "00000000"),
                    )
                    .await
            }
            Limit::RegisterEmail => {
                let body = User::registration(&self.email, "x", "00000000");
                node.anon().post("/auth/register", body).await
            }
            Limit::SendCode => {
                node.anon()
                    .post("/auth/send-code", code_for(&self.email, "dev-pass"))
                    .await
            }
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
                agent
                    .post(format!("/agents/{}/typing", agent.id), body)
                    .await
            }
            Limit::AgentMessageSend => agent.say(&self.conversation, "x").await,
            Limit::AgentConversationSend => {
                let path = format!(
                    "/agents/{}/conversations/{}/messages",
                    agent.id, self.conversation
                );
                agent.post(path, text).await
            }
            Limit::UserMessageSend => {
                user.post(
                    format!("/conversations/{}/messages", self.conversation),
                    text,
                )
                .await
            }
            Limit::AgentFileUpload => {
                let path = format!("/agents/{}/files", agent.id);
                agent.post(path, self.upload()).await
            }
            Limit::UserFileUpload => user.post("/files", self.upload()).await,
            Limit::AgentObjectGet => agent.get(format!("/objects/{}", "0".repeat(32))).await,
            Limit::UserObjectGet => user.get(format!("/objects/{}", "0".repeat(32))).await,
            Limit::ShareOpen => stranger.get("/share/unknown").await,
            Limit::KeysLookup => user.get(format!("/keys/users/{}/devices", user.id)).await,
            Limit::KeysGroupRotate => stale_rotation(&user, &self.group).await,
            Limit::KeysRotationRequest => {
                user.post(
                    "/keys/rotation/request",
                    json!({ "conversation_id": self.direct }),
                )
                .await
            }
            Limit::KeysBackupRead => user.get("/keys/backup").await,
            Limit::AgentManifestUpdate => {
                let request =
                    agent.request(reqwest::Method::PATCH, format!("/agents/{}", agent.id));
                agent
                    .send(
                        request
                            .json(&json!({ "manifest": { "tools": [], "permission_scopes": [] } })),
                    )
                    .await
            }
            Limit::AgentTokenRegenerate => {
                let path = format!("/agents/{}/token/regenerate", agent.id);
                user.post(path, json!({ "emergency": false })).await
            }
            Limit::AgentConversations => {
                agent
                    .get(format!("/agents/{}/conversations", agent.id))
                    .await
            }
            Limit::UserMessagesList => {
                user.get(format!("/conversations/{}/messages", self.conversation))
                    .await
            }
            Limit::UserSearch => user.get("/search?q=crew").await,
            Limit::ConversationOpen => {
                // A route each has a default budget of its own.
                let path = ["/groups", "/conversations"][n as usize / 2 % 2];
                let body = json!({ "type": "group", "member_ids": [] });
                user.post(path, body).await
            }
            Limit::UserConversationsList => user.get("/conversations").await,
            Limit::GroupMemberAdd => {
                let path = format!("/groups/{}/members", self.group);
                user.post(path, json!({ "user_ids": [self.refresher.id] }))
                    .await
            }
            Limit::GroupAgentInstance => {
                let path = format!("/groups/{}/agent-instances", self.group);
                user.post(path, json!({ "agent_id": agent.id, "visibility": "all" }))
                    .await
            }
            Limit::AgentGrantRequest => {
                // Of no conversation, which is found out after the charge.
                let body =
                    json!({ "conversation_id": ulid().to_string(), "scopes": ["location:read"] });
                agent
                    .post(format!("/agents/{}/grants/request", agent.id), body)
                    .await
            }
            Limit::AgentPoll => agent.poll("").await,
            Limit::WsConnectIp => knock(&stranger).await,
            Limit::WsConnect => frame(&agent).await,
            Limit::DefaultUser => user.get("/limits").await,
            Limit::DefaultIp => stranger.post("/auth/logout", json!({})).await,
            Limit::HumanIp => {
                let body = json!({ "email": fresh, "account_password": "x", "turnstile_token": "dev-fail" });
                stranger.post("/auth/login", body).await
            }
            Limit::AgentTokenUnknown => {
                let token = forged("neverwas", n);
                stranger.with_token(&token).get("/limits").await
            }
            Limit::AgentTokenWrong => {
                agent
                    .with_token(&wrong_secret(&agent.token, n))
                    .get("/limits")
                    .await
            }
            Limit::AgentTier1 => agent.get("/limits").await,
            Limit::AgentTier2 => self.busy[0].on(node).get("/limits").await,
            Limit::AgentTier3 => self.busy[1].on(node).get("/limits").await,
            _ => return None,
        })
    }
}

/// A rotation of an epoch that is not the conversation's.
async fn stale_rotation(user: &User, group: &str) -> Answer {
    user.post(
        format!("/keys/groups/{group}/rotate"),
        json!({ "base_epoch": 7, "wrapped_keys": [] }),
    )
    .await
}

fn code_for(email: &str, turnstile: &str) -> Value {
    json!({ "email": email, "scene": "register", "turnstile_token": turnstile })
}

/// Puts the agent into a group of so many.
async fn group_of(node: &TestNode, owner: &User, agent: &Agent, members: usize) {
    let owner: uuid::Uuid = owner.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let sql = format!(
        "insert into conversation (conversation_id, kind, created_by) values ('{id}', 'group', '{owner}');
         insert into member (conversation_id, principal_id, principal_kind, role, instance_id)
         values ('{id}', '{}', 'agent', 'agent', gen_random_uuid());
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
    socket
        .say(json!({ "type": "auth", "agent_id": agent.id, "token": agent.token }))
        .await;
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
    Answer {
        status,
        headers: HeaderMap::default(),
        body: Value::Null,
    }
}

/// Whether an answer's budget is the row's. An upgrade's answer is the socket's, and a refused
/// credential is nobody's call.
fn is_of_row(limit: Limit, answer: &Answer) -> bool {
    let (scope, count, seconds, _) = limit.row();
    let policy = answer.header("ratelimit-policy").unwrap_or_default();
    matches!(answer.status, 101 | 401)
        || limit == Limit::WsConnect
        || policy.contains(&format!("\"{scope}\";q={count};w={seconds}"))
}

/// Insists that an answer says what the row says; the wait of a refusal.
fn judge(limit: Limit, answer: &Answer) -> Option<Duration> {
    let (scope, count, seconds, _) = limit.row();
    if limit == Limit::WsConnect {
        return (answer.status == 429).then_some(Duration::from_secs(seconds));
    }
    let refused = answer.status == 429;
    assert!(is_of_row(limit, answer), "{scope}: {answer:?}");
    if answer.status != 101 && answer.status != 401 {
        let left = answer.header("ratelimit").unwrap_or_default();
        let left = left
            .split(&format!("\"{scope}\";r="))
            .nth(1)
            .and_then(|rest| rest.split(';').next());
        let left: u32 = left.and_then(|n| n.parse().ok()).expect("what is left");
        assert!(
            if refused { left == 0 } else { left < count },
            "{scope}: {left}"
        );
    }
    if !refused {
        return None;
    }
    assert_eq!(answer.code(), "RATE_LIMITED");
    let params = &answer.body["error"]["params"];
    let shown = Overrides::default().budget(limit).to_string();
    assert_eq!(
        (&params["scope"], &params["limit"]),
        (&json!(scope), &json!(shown)),
        "{answer:?}"
    );
    let ms = params["retry_after_ms"].as_u64().expect("ms");
    assert!((1..=seconds * 1000).contains(&ms), "{scope}: {ms}");
    assert_eq!(
        answer.header("retry-after"),
        Some(ms.div_ceil(1000).to_string().as_str())
    );
    Some(Duration::from_millis(ms))
}

async fn prove(stage: &mut Stage, limit: Limit) {
    let (scope, count, seconds, _) = limit.row();
    let window = Duration::from_secs(seconds);
    if limit == Limit::ConversationOpen {
        // The stage has opened some.
        stage.nodes[0].advance(window).await;
    }
    stage.log_in().await;
    let tries = count + count / 4 + 5;
    for attempt in 0.. {
        assert!(
            attempt < 10,
            "{scope}: no undisturbed window for {tries} calls"
        );
        let (started, before) = (Instant::now(), stage.fallbacks().await);
        let calls = stream::iter(0..tries).map(|_| stage.call(limit));
        let answers: Vec<Answer> = calls
            .buffer_unordered(24)
            .map(|answer| answer.expect("a route"))
            .collect()
            .await;
        let took = started.elapsed();
        assert!(
            answers.iter().all(|answer| answer.status != 500),
            "{scope}: {answers:?}"
        );
        let overloaded = answers.iter().any(|answer| answer.status == 503);
        let admitted = answers.iter().filter(|answer| answer.status != 429).count();
        let odd =
            admitted != count as usize || answers.iter().any(|answer| !is_of_row(limit, answer));
        // Only within one window is the number what the row says, and only while the node can ask
        // Redis and Postgres: on a busy machine a second can be too short, and an answer too late,
        // so that the node's share decides.
        if took >= window || overloaded || odd && stage.fallbacks().await > before {
            match seconds {
                1 => tokio::time::sleep(window).await,
                _ => stage.nodes[0].advance(window).await,
            }
            stage.log_in().await;
            continue;
        }
        let waits: Vec<Duration> = answers
            .iter()
            .filter_map(|answer| judge(limit, answer))
            .collect();
        assert_eq!(answers.len() - waits.len(), count as usize, "{scope}");
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
    assert_eq!(
        judge(limit, &retry),
        None,
        "{scope}: a lone retry after the wait is refused"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_admits_exactly_its_calls_over_two_nodes() {
    let mut stage = Stage::new().await;
    for limit in Limit::ALL {
        // The tests of what Postgres counts are beside the logins and the codes.
        if ![IN_POSTGRES, OF_FRAMES].concat().contains(limit) {
            prove(&mut stage, *limit).await;
        }
    }
}
