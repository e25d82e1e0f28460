//! Row 25 of the attacks, over the table of routes: nobody reads or changes another's record by its
//! id. Each route with an id is called by everybody who has no right to it, and its answer must be
//! the one for an id that does not exist.
//!
//! A new route joins by itself. If it has an id of a new kind, or needs a body to pass its shape,
//! this test fails until the kind is in [`Stage::real`] or the body is in [`body`].

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::{
    clock::iso,
    routes::{self, Access, Route},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::files;
use crate::support::{Agent, Answer, Authenticator, Caller, TestNode, User, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "default_user=100000/s,agent_tier_1=100000/s,keys_lookup=100000/s,user_messages_list=100000/s,\
     user_message_send=100000/s,agent_conversation_message_send=100000/s,agent_message_send=100000/s,\
     default_ip=100000/s,agent_typing=100000/s,agent_poll=100000/s",
);

/// Routes whose id anybody may name: a principal to block, and ids that are secrets themselves.
const FOR_ANYBODY: [&str; 3] = [
    "/users/me/blocks/{principal_id}",
    "/share/{share_id}",
    "/shares/{share_id}",
];

/// A body that passes the shape of a route.
pub fn body(route: &str) -> Value {
    match route {
        "PATCH /conversations/{conversation_id}" => json!({ "title": "mine" }),
        "POST /conversations/{conversation_id}/read" => json!({ "message_id": ulid().to_string() }),
        "PATCH /groups/{conversation_id}/members/{principal_id}" => json!({ "role": "admin" }),
        "POST /groups/{conversation_id}/members" => json!({ "user_ids": [ulid().to_string()] }),
        "POST /groups/{conversation_id}/agent-instances" => {
            json!({ "agent_id": uuid::Uuid::nil() })
        }
        "POST /keys/groups/{conversation_id}/rotate" => {
            json!({ "base_epoch": 0, "wrapped_keys": [] })
        }
        "POST /agents/{agent_id}/token/regenerate" => json!({ "emergency": true }),
        "POST /agents/{agent_id}/keys/check" => json!({ "key_id": "0".repeat(32) }),
        "POST /agents/{agent_id}/keys/register" => json!({
            "public_key": "A".repeat(43) + "=", "signing_public_key": "A".repeat(43) + "=",
            "timestamp": "2026-01-01T00:00:00.000Z", "signature": "A".repeat(86) + "==",
        }),
        "PUT /users/me/devices/{device_id}/push" => json!({
            "kind": "webpush", "endpoint": "http://127.0.0.1:9/x", "auth": "A".repeat(22),
            // A point on P-256.
            "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        }),
        // A session's additions stay for the routes after this one.
        "POST /users/me/sessions/{session_id}/undo" => json!({ "ids": [] }),
        "POST /grants/{grant_id}/decision" => json!({ "decision": "approve" }),
        "POST /artifact-requests/{request_id}/response" => json!({ "status": "executed" }),
        "POST /approvals/{approval_id}/decision" => json!({
            "decision": "approved", "decided_at": real_time(), "key_id": "0".repeat(32),
            "signature": "A".repeat(86) + "==",
        }),
        "POST /agents/{agent_id}/conversations/{conversation_id}/approvals" => json!({
            "payload": { "type": "encrypted" }, "kind": "approve", "digest": BASE64.encode([7; 32]),
        }),
        _ if route.ends_with("/messages") => json!({ "payload": { "type": "text" } }),
        _ => json!({}),
    }
}

/// The time of nodes whose clock no test has moved.
#[expect(clippy::disallowed_methods, reason = "these tests move no clock")]
fn real_time() -> String {
    iso(chrono::Utc::now())
}

/// A user's records of every kind, and those who have no right to them.
pub struct Stage {
    pub node: TestNode,
    pub owner: User,
    pub agent: Agent,
    /// The ids of the owner's records, by the names of the routes' variables.
    pub real: BTreeMap<&'static str, String>,
    pub other_user: User,
    other_agent: Agent,
    /// Was a member of the owner's group.
    ex_member: User,
}

impl Stage {
    pub async fn new() -> Self {
        let [node] = nodes_with(&[RAISED_LIMITS]).await;
        let [owner, friend, other_user, ex_member] = [
            node.user("owner").await,
            node.user("friend").await,
            node.user("other").await,
            node.user("ex").await,
        ];
        let agent = node.agent(&owner, "helper").await;
        let other_agent = node.agent(&other_user, "spy").await;
        let text = |value: &Value| value.as_str().expect("an id").to_owned();
        let pair = owner.talk_to(&agent).await;
        let shown = owner
            .get(format!("/conversations/{pair}"))
            .await
            .expect(200);
        let relation = text(&shown.data()["relation"]["relation_id"]);
        let group = owner.group_with(&[&friend, &ex_member]).await;
        let path = format!("/groups/{group}/members/{}", ex_member.id);
        owner.delete(path).await.expect(200);
        let path = format!("/groups/{group}/agent-instances");
        let instance = owner
            .post(path, json!({ "agent_id": agent.id }))
            .await
            .expect(201);
        let manifest = json!({ "manifest": { "tools": [],
            "permission_scopes": [{ "scope": "notes.read", "sensitivity": "low" }] } });
        agent
            .patch(format!("/agents/{}", agent.id), manifest)
            .await
            .expect(200);
        let asked = json!({ "conversation_id": pair, "scopes": ["notes.read"] });
        let path = format!("/agents/{}/grants/request", agent.id);
        let grant = agent.post(path, asked).await.expect(201);
        let file = files::request(&owner, "/files", &pair, 5).await;
        files::bring(&owner, &file, "bytes").await.expect(200);
        let file = files::confirm(&owner, &file, b"bytes").await.expect(200);
        let upload = files::request(&owner, "/files", &pair, 5).await;
        // Nobody listens there, so the webhook stays unverified. It is there all the same.
        let path = format!("/agents/{}/webhook", agent.id);
        let nowhere = json!({ "url": "http://127.0.0.1:1/" });
        owner.put(path, nowhere).await.expect(200);
        let path = format!("/users/me/devices/{}/push", owner.device_id);
        let subscription = body("PUT /users/me/devices/{device_id}/push");
        owner.put(path, subscription).await.expect(200);
        Authenticator::enrol(&owner, "key").await;
        let passkeys = owner.get("/users/me/passkeys").await.expect(200);
        let message = owner.say(&group, "of the owner").await.expect(201);
        let question = json!({ "payload": { "type": "encrypted" }, "kind": "approve",
            "digest": BASE64.encode([7; 32]) });
        let path = format!("/agents/{}/conversations/{group}/approvals", agent.id);
        let approval = agent.post(path, question).await.expect(201);
        let sessions = owner.get("/users/me/sessions").await.expect(200);
        let real = BTreeMap::from([
            ("agent_id", agent.id.clone()),
            ("approval_id", text(&approval.data()["approval_id"])),
            ("conversation_id", group),
            ("device_id", owner.device_id.clone()),
            ("grant_id", text(&grant.data()["grant_id"])),
            ("instance_id", text(&instance.data()["instance_id"])),
            ("message_id", text(&message.data()["message_id"])),
            ("passkey_id", text(&passkeys.data()[0]["passkey_id"])),
            ("principal_id", friend.id.clone()),
            ("relation_id", relation),
            ("session_id", text(&sessions.data()[0]["session_id"])),
            // A tool call ends by itself, so its id is none here. The tests of tool calls have
            // theirs.
            ("request_id", ulid().to_string()),
            // Nothing was delivered. The tests of webhooks have deliveries.
            ("delivery_id", uuid::Uuid::from_u128(8).to_string()),
            ("object_key", text(&file.data()["object_key"])),
            ("upload_id", text(&upload["upload_id"])),
            ("user_id", owner.id.clone()),
        ]);
        Stage {
            node,
            owner,
            agent,
            real,
            other_user,
            other_agent,
            ex_member,
        }
    }

    /// The route's path with real ids, or with ids that do not exist. `own` is the agent that the
    /// caller names beside them.
    pub fn path(&self, route: &Route, is_real: bool, own: Option<&Agent>) -> String {
        let fill = |part: &str| {
            let Some(name) = part
                .strip_prefix('{')
                .and_then(|part| part.strip_suffix('}'))
            else {
                return part.to_owned();
            };
            if let (Some(agent), "agent_id") = (own, name) {
                return agent.id.clone();
            }
            match self.real.get(name) {
                Some(real) if is_real => real.clone(),
                Some(_) if ["agent_id", "delivery_id"].contains(&name) => {
                    uuid::Uuid::from_u128(7).to_string()
                }
                Some(_) => ulid().to_string(),
                None => panic!("{}: no id of the kind {name} yet", route.path),
            }
        };
        route
            .path
            .split('/')
            .map(fill)
            .collect::<Vec<_>>()
            .join("/")
    }
}

/// An answer without what differs between any two.
fn face(answer: Answer) -> (u16, Value) {
    (answer.status, answer.body)
}

async fn call(caller: &Caller, route: &Route, path: String) -> Answer {
    let request = caller.request(route.method.clone(), path);
    let named = format!("{} {}", route.method, route.path);
    caller.send(request.json(&body(&named))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_25_another_s_id_is_like_none_on_every_route() {
    let stage = Box::pin(Stage::new()).await;
    let nobody = stage.node.anon();
    let with_ids = |route: &&Route| route.path.contains('{') && route.caller != Access::Public;
    let table = routes::table();
    let mut judged = 0;
    for route in table.iter().filter(with_ids) {
        if FOR_ANYBODY.contains(&route.path) {
            continue;
        }
        let without = call(&nobody, route, stage.path(route, true, None)).await;
        assert_eq!(without.status, 401, "{} {}", route.method, route.path);
        let spy = &stage.other_agent;
        let callers = [
            ("another user", &stage.other_user.caller, None),
            ("an ex-member", &stage.ex_member.caller, None),
            ("another agent", &spy.caller, None),
            ("another agent by its own name", &spy.caller, Some(spy)),
        ];
        for (who, caller, own) in callers {
            // A route of one agent and nothing else is its own by its own name.
            let others = route.path.replace("{agent_id}", "");
            if own.is_some() && (!route.path.contains("{agent_id}") || !others.contains('{')) {
                continue;
            }
            let real = face(call(caller, route, stage.path(route, true, own)).await);
            let none = face(call(caller, route, stage.path(route, false, own)).await);
            let what = format!("{} {} by {who}", route.method, route.path);
            assert_eq!(real, none, "{what}");
            assert!([401, 403, 404].contains(&real.0), "{what}: {real:?}");
            judged += 1;
        }
    }
    assert!(judged > 60, "{judged}");
    // The ids were real, and nothing has changed: the owner reads them all.
    for route in table.iter().filter(with_ids) {
        let is_read = route.method == Method::GET && !FOR_ANYBODY.contains(&route.path);
        if is_read {
            let caller = match route.caller {
                Access::Agent => &stage.agent.caller,
                _ => &stage.owner.caller,
            };
            let answer = call(caller, route, stage.path(route, true, None)).await;
            assert_eq!(answer.status, 200, "{}: {answer:?}", route.path);
        }
    }
    let owner = &stage.owner;
    let group = format!("/conversations/{}", stage.real["conversation_id"]);
    let group = owner.get(group).await.expect(200);
    assert_eq!(
        (&group.data()["member_count"], &group.data()["title"]),
        (&json!(3), &json!("a group"))
    );
    for (list, key) in [
        ("/users/me/devices", "device_id"),
        ("/users/me/passkeys", "passkey_id"),
        ("/relations", "relation_id"),
    ] {
        let listed = owner.get(list).await.expect(200);
        let listed = listed.data().as_array().expect("a list").clone();
        assert!(
            listed.iter().any(|one| one[key] == json!(stage.real[key])),
            "{list}"
        );
    }
}
