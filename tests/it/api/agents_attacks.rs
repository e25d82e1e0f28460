//! Attacks on agents, by the rows of the table of attacks.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Caller, ProcessNode, blocked, connect, nodes, nodes_with, spawn};

/// Every route about one agent, with a body that would pass.
fn routes(agent: &str) -> Vec<(Method, String, Value)> {
    let at = |way: &str| format!("/agents/{agent}{way}");
    vec![
        (Method::GET, at(""), json!({})),
        (Method::DELETE, at(""), json!({})),
        (
            Method::PATCH,
            at(""),
            json!({ "tools": [], "permission_scopes": [] }),
        ),
        (
            Method::POST,
            at("/token/regenerate"),
            json!({ "emergency": true }),
        ),
        (Method::DELETE, at("/token"), json!({})),
        (
            Method::POST,
            at("/keys/register"),
            json!({ "public_key": "", "signing_public_key": "", "timestamp": "", "signature": "" }),
        ),
        (Method::POST, at("/keys/check"), json!({ "key_id": "" })),
        (Method::GET, at("/keys"), json!({})),
        (Method::POST, at("/ack"), json!({})),
    ]
}

fn is_the_agents(path: &str) -> bool {
    path.ends_with("/ack")
}

/// 25: another's agent looks exactly like one that was never there.
#[tokio::test(flavor = "multi_thread")]
async fn attack_25_another_s_agent_is_like_none() {
    let [a, b] = nodes().await;
    let [alice, bob, eve] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("eve").await,
    ];
    let agent = a.agent(&alice, "helper").await;
    bob.talk_to(&agent).await;
    let gone = a.agent(&alice, "gone").await;
    alice
        .delete(format!("/agents/{}", gone.id))
        .await
        .expect(200);
    let missing = uuid::Uuid::from_u128(7).to_string();
    for (caller, related) in [(&eve, false), (&bob, true)] {
        let caller = caller.on(&b);
        let bodies = |id: &str| {
            let calls = routes(id)
                .into_iter()
                .filter(|(_, path, _)| !is_the_agents(path));
            let calls: Vec<_> = calls.collect();
            let caller = caller.clone();
            async move {
                let mut bodies = Vec::new();
                for (method, path, body) in calls {
                    // Related users may see the card and the keys, and nothing else.
                    let seen = related && (path.ends_with("/keys/check") || method == Method::GET);
                    if !seen {
                        let call = caller.request(method, path).json(&body);
                        bodies.push(
                            caller
                                .send(call)
                                .await
                                .refused(404, "AGENT_NOT_REGISTERED")
                                .body,
                        );
                    }
                }
                bodies
            }
        };
        let real = bodies(&agent.id).await;
        for other in [&missing, &gone.id, "not-an-id", "%00", "..%2f", "x'--"] {
            assert_eq!(real, bodies(other).await, "{other}");
        }
    }
    // Nothing of all that had an effect.
    agent.on(&b).poll("").await.expect(200);
}

/// 26: tokens of the other kind, and of another agent.
#[tokio::test(flavor = "multi_thread")]
async fn attack_26_tokens_open_only_what_is_theirs() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    let nobody = a.anon();
    let call = async |caller: &Caller, method: &Method, path: &str, body: &Value| {
        caller
            .send(caller.request(method.clone(), path).json(body))
            .await
    };
    for (method, path, body) in routes(&agent.id) {
        let either = path.contains("/keys") || method == Method::GET || method == Method::PATCH;
        if is_the_agents(&path) {
            // Its owner is not the agent; neither is its sister.
            for token in [&alice.access_token, &other.token] {
                call(&nobody.with_token(token), &method, &path, &body)
                    .await
                    .refused(401, "AGENT_TOKEN_INVALID");
            }
        } else if either {
            call(&nobody.with_token(&other.token), &method, &path, &body)
                .await
                .refused(401, "AGENT_TOKEN_INVALID");
        } else {
            // Not even its own token.
            for token in [&agent.token, &other.token] {
                call(&nobody.with_token(token), &method, &path, &body)
                    .await
                    .refused(401, "UNAUTHORIZED");
            }
        }
        call(&nobody, &method, &path, &body).await.expect(401);
    }
    agent.poll("").await.expect(200);
}

/// 28: old tokens after emergency, DELETE and seven days, and a race of regenerations. The first
/// three are in `agents_tokens`; here is what a stolen token tries while it is being revoked.
#[tokio::test(flavor = "multi_thread")]
async fn attack_28_what_a_stolen_token_began_does_not_outlive_it() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "agent_manifest_update=10000/s,agent_tier_1=10000/s,agent_token_regenerate=100/24h",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}", agent.id);
    // Both nodes know the token, and it lives when the changes are begun: they wait for the agent's
    // row, behind the revocation.
    let thief = [agent.on(&a), agent.on(&b)];
    for thief in &thief {
        thief.poll("").await.expect(200);
    }
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.execute("select 1 from agent for update", &[])
        .await
        .expect("locked");
    let revoke = {
        let (alice, path) = (alice.on(&b), format!("{path}/token"));
        spawn(async move { alice.delete(path).await })
    };
    blocked(&tx, 1).await;
    let changes: Vec<_> = (0..6)
        .map(|n| {
            let (thief, path) = (thief[n % 2].clone(), path.clone());
            let manifest =
                json!({ "name": format!("stolen {n}"), "tools": [], "permission_scopes": [] });
            spawn(async move { thief.patch(path, manifest).await })
        })
        .collect();
    blocked(&tx, 7).await;
    tx.commit().await.expect("released");
    revoke.await.expect("no panic").expect(200);
    for change in changes {
        change
            .await
            .expect("no panic")
            .refused(401, "AGENT_TOKEN_INVALID");
    }
    assert_eq!(
        alice.get(&path).await.expect(200).data()["manifest_version"],
        0
    );
}

/// 29: bombs in place of manifests.
#[tokio::test(flavor = "multi_thread")]
async fn attack_29_manifest_bombs() {
    let [a] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "agent_manifest_update=1000/s,agent_tier_1=1000/s,default_user=1000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&a).await;
    let (alice, agent) = (alice.at(&node.base), agent.at(&node.base));
    let with = |extra: &str| format!(r#"{{"tools":[],"permission_scopes":[],{extra}}}"#);
    let keys = |n: usize| {
        (0..n)
            .map(|n| format!(r#""k{n}":0"#))
            .collect::<Vec<_>>()
            .join(",")
    };
    let scope = |scope: &str, level: &str| {
        format!(
            r#"{{"tools":[],"permission_scopes":[{{"scope":"{scope}","sensitivity":"{level}"}}]}}"#
        )
    };
    let bombs: Vec<(u16, String)> = vec![
        (
            413,
            format!("{}{}", with(r#""x":0"#), " ".repeat(128 * 1024 + 16 * 1024)),
        ),
        (413, "[".repeat(1_000_000)),
        (413, with(&keys(100_000))),
        (400, "[".repeat(100_000)),
        (
            400,
            with(&format!(
                r#""x":{}{}"#,
                "[".repeat(60_000),
                "]".repeat(60_000)
            )),
        ),
        (
            400,
            with(&format!(
                r#""x":{}{}"#,
                r#"{"a":"#.repeat(64),
                "0".to_owned() + &"}".repeat(64)
            )),
        ),
        (400, with(r#""x":1e400"#)),
        (400, with(r#""x":"\u0000""#)),
        (400, with(r#""\u0000":1"#)),
        (400, with(r#""x":"\ud800""#)),
        (400, with(r#""x":1,"x":2"#)),
        (400, with(r#""tools":[]"#)),
        (400, scope("notification:send", "none")),
        (400, scope("filesystem:read", "low")),
        (400, scope("clipboard:read", "low")),
        (400, scope("location:read", "medium")),
        (400, scope("location:read", "low")),
    ];
    for (status, bomb) in &bombs {
        let code = if *status == 413 {
            "MANIFEST_TOO_LARGE"
        } else {
            "VALIDATION_ERROR"
        };
        let call = agent.request(Method::PATCH, format!("/agents/{}", agent.id));
        let what: String = bomb.chars().take(80).collect();
        // A refusal before the end of a large body may cut the connection under the client.
        match agent
            .try_send(
                call.header("content-type", "application/json")
                    .body(bomb.clone()),
            )
            .await
        {
            Ok(answer) => {
                assert_eq!(
                    (answer.status, answer.code()),
                    (*status, code),
                    "{what}: {}",
                    answer.body
                );
            }
            Err(error) => assert_eq!(*status, 413, "{what}: {error:?}"),
        }
        let create = format!(r#"{{"display_name":"x","manifest":{bomb}}}"#);
        if let Ok(answer) = alice
            .try_send(alice.request(Method::POST, "/agents").body(create))
            .await
        {
            assert!(
                [400, 413].contains(&answer.status),
                "{what}: {}",
                answer.body
            );
        }
    }
    // Many keys that fit are no bomb; and none of all those was kept.
    let many = with(&keys(8_000));
    let call = agent
        .request(Method::PATCH, format!("/agents/{}", agent.id))
        .body(many);
    assert_eq!(
        agent.send(call).await.expect(200).data()["manifest_version"],
        1
    );
    let failed = node.metric("http_requests_total", "status=\"500\"").await;
    assert_eq!(failed, 0.0);
}
