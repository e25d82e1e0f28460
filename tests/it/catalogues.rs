//! The tables, row by row, against the running service.

use std::{collections::HashSet, time::Duration};

use blindpipe::{
    error::Code,
    gateway::close::Close,
    limits::table::Limit,
    metrics::SERIES,
    routes::{self, Caller},
};
use serde_json::json;

use crate::support::{nodes, nodes_with, ulid};

/// A path with something well-formed in place of each variable.
fn filled(path: &str, agent: &str) -> String {
    let path = path.replace("{agent_id}", agent);
    let filled =
        path.split('/').map(|part| if part.starts_with('{') { ulid().to_string() } else { part.to_owned() });
    filled.collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_who_must_not_call_it() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let [one, other] = [a.agent(&alice, "one").await, a.agent(&alice, "other").await];
    for route in routes::table() {
        let (tokens, code): (&[&str], _) = match route.caller {
            Caller::Public => continue,
            Caller::User => (&["", "junk", &one.token], "UNAUTHORIZED"),
            Caller::Agent => (&["", "junk", &other.token, &alice.access_token], "AGENT_TOKEN_INVALID"),
            // What does not look like an agent's token is refused as an access token.
            Caller::Either => (&["", "junk"], "UNAUTHORIZED"),
        };
        let path = filled(route.path, &one.id);
        let nobody = a.anon();
        for prefix in ["", "/v1"] {
            let call = nobody.request(route.method.clone(), format!("{prefix}{path}")).json(&json!({}));
            nobody.send(call).await.refused(401, code);
            for token in tokens {
                let caller = nobody.with_token(token);
                let call = caller.request(route.method.clone(), format!("{prefix}{path}")).json(&json!({}));
                caller.send(call).await.refused(401, code);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_its_methods_and_an_alias() {
    let [a] = nodes().await;
    let agent = uuid::Uuid::nil().to_string();
    for route in routes::table() {
        let caller = a.anon();
        let path = filled(route.path, &agent);
        let unheard_of = reqwest::Method::from_bytes(b"BREW").expect("a method");
        caller.send(caller.request(unheard_of, &path)).await.refused(405, "METHOD_NOT_ALLOWED");
        let alias = caller.send(caller.request(route.method.clone(), format!("/v1{path}"))).await;
        if path.starts_with("/auth/") {
            alias.refused(404, "NOT_FOUND");
        } else {
            assert_ne!(alias.status, 404, "{path}");
        }
        caller
            .send(caller.request(route.method.clone(), format!("/v9{path}")))
            .await
            .refused(404, "NOT_FOUND");
    }
    for planned in ["/auth/device/code", "/auth/device/verify", "/auth/device/poll"] {
        a.anon().post(planned, json!({})).await.refused(501, "NOT_AVAILABLE_IN_V1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_admits_exactly_its_calls_over_both_nodes() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let user_path = format!("/conversations/{conversation}/messages");
    let agent_path = format!("/agents/{}/messages", agent.id);
    let to_path = format!("/agents/{}/conversations/{conversation}/messages", agent.id);
    let body = json!({ "conversation_id": conversation, "payload": { "type": "text" } });
    for (limit, caller, path, shown) in [
        (Limit::UserMessageSend, &alice.caller, user_path, "10/s"),
        (Limit::AgentMessageSend, &agent.caller, agent_path, "5/s"),
        (Limit::AgentConversationSend, &agent.caller, to_path, "5/s"),
    ] {
        let (scope, most, _) = limit.row();
        let callers = [caller.on(&a), caller.on(&b)];
        let answers =
            futures_util::future::join_all((0..30).map(|n| callers[n % 2].post(&path, body.clone()))).await;
        let admitted = answers.iter().filter(|answer| answer.status == 201).count();
        let longest = answers
            .iter()
            .filter_map(|answer| answer.body["error"]["params"]["retry_after_ms"].as_u64())
            .max();
        // The window is real time: what was admitted in the first second can be more only if the calls took longer.
        assert_eq!(admitted, most as usize, "{scope}");
        for answer in answers {
            assert!(answer.header("ratelimit-policy").expect("a header").contains(scope));
            if answer.status != 201 {
                let refused = answer.refused(429, "RATE_LIMITED");
                let params = &refused.body["error"]["params"];
                assert_eq!((&params["scope"], &params["limit"]), (&json!(scope), &json!(shown)));
                let ms = params["retry_after_ms"].as_u64().expect("ms");
                assert!((1..=1000).contains(&ms));
                assert_eq!(refused.header("retry-after"), Some("1"));
            }
        }
        tokio::time::sleep(Duration::from_millis(longest.expect("a wait"))).await;
        callers[1].post(&path, body.clone()).await.expect(201);
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

#[test]
fn catalogues_have_no_row_twice() {
    let unique =
        |names: Vec<String>| assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    unique(Code::ALL.iter().map(|code| code.wire().to_owned()).collect());
    unique(Limit::ALL.iter().map(|limit| limit.scope().to_owned()).collect());
    unique(Close::ALL.iter().map(|close| close.code().to_string()).collect());
    unique(SERIES.iter().map(|(name, _, _)| (*name).to_owned()).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_only_series_of_the_table_and_no_ids() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "x").await.expect(201);
    let text =
        reqwest::get(format!("{}/metrics", a.admin)).await.expect("metrics").text().await.expect("text");
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name = line.split(['{', ' ']).next().expect("a name");
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(SERIES.iter().any(|(known, _, _)| *known == base), "{line}");
        assert!(
            !line.contains(&agent.id) && !line.contains(&conversation) && !line.contains(&alice.id),
            "{line}"
        );
    }
    assert!(text.contains(r#"http_requests_total{route="/conversations/{conversation_id}/messages",method="POST",status="201"}"#), "{text}");
}
