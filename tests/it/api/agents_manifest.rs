//! Manifests: shape, size, version, limit, recipients of the event.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Agent, Answer, ProcessNode, nodes, nodes_with};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "agent_manifest_update=1000/s,agent_tier_1=1000/s",
);
const CAP: usize = 128 * 1024;

fn manifest(scopes: &[(&str, &str)]) -> Value {
    let scopes: Vec<Value> = scopes
        .iter()
        .map(|(scope, level)| json!({ "scope": scope, "sensitivity": level }))
        .collect();
    json!({ "name": "helper", "tools": [], "permission_scopes": scopes })
}

async fn put(agent: &Agent, body: impl Into<reqwest::Body>) -> Answer {
    let call = agent.request(Method::PATCH, format!("/agents/{}", agent.id));
    agent
        .send(call.header("content-type", "application/json").body(body))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_replaces_the_one_before_and_its_users_hear_of_it() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    bob.talk_to(&agent).await;
    let mut sockets = [alice.on(&b).connect().await, bob.on(&b).connect().await];
    let first = manifest(&[("notification:send", "low"), ("files:write", "medium")]);
    let answer = put(&agent, first.to_string()).await.expect(200);
    let told = json!({ "agent_id": agent.id, "manifest_version": 1, "changed_scopes": ["files:write", "notification:send"] });
    assert_eq!(
        *answer.data(),
        json!({
            "manifest_version": 1, "size_bytes": first.to_string().len(), "warnings": [],
            "changed_scopes": ["files:write", "notification:send"],
        })
    );
    for socket in &mut sockets {
        assert_eq!(socket.event("agent.manifest_updated").await["data"], told);
    }
    // Wrapped, with a version; unknown keys are kept, byte for byte.
    let second = r#"{ "x-later": [1.00, {"deep": null}], "tools":[{"name":"t","scope":"files:write","extra":true}],
        "permission_scopes":[{"scope":"files:write","sensitivity":"high"},{"scope":"notification:send","sensitivity":"low"}] }"#;
    let answer = put(
        &agent.on(&b),
        format!(r#"{{"manifest": {second}, "if_version": 1}}"#),
    )
    .await
    .expect(200);
    assert_eq!(
        (
            &answer.data()["manifest_version"],
            &answer.data()["size_bytes"]
        ),
        (&json!(2), &json!(second.len()))
    );
    assert_eq!(answer.data()["changed_scopes"], json!(["files:write"]));
    let raw = alice
        .request(Method::GET, format!("/agents/{}", agent.id))
        .send()
        .await
        .expect("an answer");
    let text = raw.text().await.expect("text");
    assert!(text.contains(&format!(r#""manifest":{second}"#)), "{text}");
    // An undeclared scope of a tool is stored, and warned of.
    let odd = json!({ "tools": [{ "name": "t", "scope": "nowhere" }], "permission_scopes": [] });
    let answer = put(&agent, odd.to_string()).await.expect(200);
    assert_eq!(answer.data()["warnings"][0]["path"], "tools[0].scope");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_version_is_refused_and_one_of_a_race_wins() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let body =
        |version: i32| json!({ "manifest": manifest(&[]), "if_version": version }).to_string();
    put(&agent, body(0)).await.expect(200);
    let refused = put(&agent, body(0)).await.refused(409, "VERSION_MISMATCH");
    assert_eq!(refused.body["error"]["params"]["current_version"], 1);
    let agents = [agent.on(&a), agent.on(&b)];
    let answers =
        futures_util::future::join_all((0..20).map(|n| put(&agents[n % 2], body(1)))).await;
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 200).count(),
        1
    );
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 409).count(),
        19
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_manifest_does_not_use_up_the_one_a_minute() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let good = manifest(&[]).to_string();
    for bad in ["", "{", "{}", "[]", r#"{"tools":[]}"#, r#"{"manifest":7}"#] {
        put(&agent, bad).await.refused(400, "VALIDATION_ERROR");
    }
    put(&agent, "x".repeat(200 * 1024))
        .await
        .refused(413, "MANIFEST_TOO_LARGE");
    put(
        &agent,
        json!({ "manifest": manifest(&[]), "if_version": 7 }).to_string(),
    )
    .await
    .refused(409, "VERSION_MISMATCH");
    let agents = [agent.on(&a), agent.on(&b)];
    let answers =
        futures_util::future::join_all((0..10).map(|n| put(&agents[n % 2], good.clone()))).await;
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 200).count(),
        1
    );
    let refused = answers
        .into_iter()
        .find(|answer| answer.status != 200)
        .expect("nine");
    let params = &refused.refused(429, "RATE_LIMITED").body["error"]["params"];
    assert_eq!(
        (&params["scope"], &params["limit"]),
        (&json!("agent_manifest_update"), &json!("1/60s"))
    );
    // Invalid ones stay free of it, not of everything.
    put(&agent, "{}").await.refused(400, "VALIDATION_ERROR");
    a.advance(Duration::from_secs(60)).await;
    put(&agent, good).await.expect(200);
}

/// A valid manifest of exactly so many bytes.
fn of_size(bytes: usize) -> String {
    let frame = |fill: &str| format!(r#"{{"tools":[],"permission_scopes":[],"x":"{fill}"}}"#);
    frame(&"x".repeat(bytes - frame("").len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_has_128_kb_and_not_a_byte_more() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&a).await;
    let agent = a.agent(&alice, "helper").await.at(&node.base);
    let large = async || node.metric("manifests_large_total", "").await;
    let wrapped = |manifest: &str| format!(r#"{{ "manifest": {manifest}, "if_version": null }}"#);
    let warnings = |answer: &Answer| answer.data()["warnings"].as_array().map(Vec::len);
    let answer = put(&agent, of_size(64 * 1024 - 1)).await.expect(200);
    assert_eq!((warnings(&answer), large().await), (Some(0), 0.0));
    let answer = put(&agent, of_size(64 * 1024)).await.expect(200);
    assert_eq!(answer.data()["warnings"][0]["code"], "large");
    assert_eq!(large().await, 1.0);
    for body in [of_size(CAP), wrapped(&of_size(CAP))] {
        assert_eq!(
            put(&agent, body).await.expect(200).data()["size_bytes"],
            CAP
        );
    }
    for body in [
        of_size(CAP + 1),
        wrapped(&of_size(CAP + 1)),
        of_size(10 * CAP),
    ] {
        put(&agent, body).await.refused(413, "MANIFEST_TOO_LARGE");
    }
    // With an agent to be, it is the same.
    let create = |manifest: &str| format!(r#"{{"display_name":"x","manifest":{manifest}}}"#);
    alice
        .post_raw("/agents", create(&of_size(CAP)))
        .await
        .expect(201);
    alice
        .post_raw("/agents", create(&of_size(CAP + 1)))
        .await
        .refused(413, "MANIFEST_TOO_LARGE");
    alice
        .post_raw("/agents", create("{}"))
        .await
        .refused(400, "VALIDATION_ERROR");
    alice
        .post_raw("/agents", create("[]"))
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_is_judged_before_the_body_is_read() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let mut stream = tokio::net::TcpStream::connect(a.base.trim_start_matches("http://"))
        .await
        .expect("connected");
    let head = format!(
        "PATCH /agents/{} HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nAuthorization: Bearer {}\r\nContent-Length: 1000000000\r\n\r\n",
        agent.id, agent.token
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut back = String::new();
    // Nothing of the body is ever sent; the answer comes all the same, and then the end.
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut back)).await;
    read.expect("soon").expect("closed");
    assert!(
        back.starts_with("HTTP/1.1 413") && back.contains("MANIFEST_TOO_LARGE"),
        "{back}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_not_read_without_end() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "agent_tier_1=5/60s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let good = manifest(&[]).to_string();
    put(&agent, good.clone()).await.expect(200);
    let scope = |answer: &Answer| answer.body["error"]["params"]["scope"].clone();
    for _ in 0..4 {
        assert_eq!(
            scope(&put(&agent, good.clone()).await.refused(429, "RATE_LIMITED")),
            "agent_manifest_update"
        );
    }
    for body in [good, "{".to_owned()] {
        assert_eq!(
            scope(&put(&agent, body).await.refused(429, "RATE_LIMITED")),
            "agent_tier_1"
        );
    }
}
