//! The limits table, row by row over two nodes.

mod stage;

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

use self::stage::Stage;
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
    (Limit::SendCodeDay,           "POST /auth/send-code"),
    (Limit::AgentTokenRevoke,      "DELETE /agents/{agent_id}/token"),
    (Limit::WebhookCall,           "PUT /agents/{agent_id}/webhook"),
    (Limit::WebhookOrigin,         "POST /agents/{agent_id}/webhook/test"),
    (Limit::ApprovalRequest,       "POST /agents/{agent_id}/conversations/{conversation_id}/approvals"),
    (Limit::TurnStop,              "POST /conversations/{conversation_id}/stop"),
    (Limit::PushRegister,          "PUT /users/me/devices/{device_id}/push"),
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

/// Rows beside another row of the same call. Tests of codes and of webhooks use up each alone.
const OF_OTHER_TESTS: &[Limit] = &[Limit::SendCodeDay, Limit::WebhookCall, Limit::WebhookOrigin];

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
        if ![IN_POSTGRES, OF_FRAMES, OF_OTHER_TESTS]
            .concat()
            .contains(limit)
        {
            prove(&mut stage, *limit).await;
        }
    }
}
