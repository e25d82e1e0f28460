//! The tables, row by row, against the running service.

use std::collections::HashSet;

use blindpipe::{
    error::Code,
    gateway::close::Close,
    limits::table::Limit,
    metrics::SERIES,
    routes::{self, Access},
};
use serde_json::json;

use crate::support::{ProcessNode, World, nodes, ulid};

/// A path with something well-formed in place of each variable.
fn filled(path: &str, agent: &str) -> String {
    let path = path.replace("{agent_id}", agent);
    let filled = path.split('/').map(|part| {
        if part.starts_with('{') {
            ulid().to_string()
        } else {
            part.to_owned()
        }
    });
    filled.collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_who_must_not_call_it() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let [one, other] = [a.agent(&alice, "one").await, a.agent(&alice, "other").await];
    for route in routes::table() {
        let (tokens, code): (&[&str], _) = match route.caller {
            Access::Public => continue,
            Access::User => (&["", "junk", &one.token], "UNAUTHORIZED"),
            // Any agent may ask; it finds nothing of another's.
            Access::Agent if !route.path.contains("{agent_id}") => {
                (&["", "junk", &alice.access_token], "AGENT_TOKEN_INVALID")
            }
            Access::Agent => (
                &["", "junk", &other.token, &alice.access_token],
                "AGENT_TOKEN_INVALID",
            ),
            // A text that does not look like an agent's token is refused as an access token.
            Access::Either => (&["", "junk"], "UNAUTHORIZED"),
        };
        let path = filled(route.path, &one.id);
        let nobody = a.anon();
        // Routes below `/auth` have no alias, because the cookie has a path.
        let prefixes = ["", "/v1"].into_iter();
        let has_alias = !path.starts_with("/auth/");
        for prefix in prefixes.filter(|prefix| prefix.is_empty() || has_alias) {
            let call = nobody
                .request(route.method.clone(), format!("{prefix}{path}"))
                .json(&json!({}));
            nobody.send(call).await.refused(401, code);
            for token in tokens {
                let caller = nobody.with_token(token);
                let call = caller
                    .request(route.method.clone(), format!("{prefix}{path}"))
                    .json(&json!({}));
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
        caller
            .send(caller.request(unheard_of, &path))
            .await
            .refused(405, "METHOD_NOT_ALLOWED");
        let alias = caller
            .send(caller.request(route.method.clone(), format!("/v1{path}")))
            .await;
        if path.starts_with("/auth/") {
            alias.refused(404, "NOT_FOUND");
        } else if path.starts_with("/share/") || path.starts_with("/docs/") {
            // An unknown share or asset is a 404 too, but a charged one.
            assert!(alias.header("ratelimit").is_some(), "{path}");
        } else if !path.starts_with("/app") {
            assert_ne!(alias.status, 404, "{path}");
        }
        caller
            .send(caller.request(route.method.clone(), format!("/v9{path}")))
            .await
            .refused(404, "NOT_FOUND");
    }
    for planned in [
        "/auth/device/code",
        "/auth/device/verify",
        "/auth/device/poll",
    ] {
        a.anon()
            .post(planned, json!({}))
            .await
            .refused(501, "NOT_AVAILABLE_IN_V1");
    }
}

#[test]
fn catalogues_have_no_row_twice() {
    let unique = |names: Vec<String>| {
        assert_eq!(
            names.iter().collect::<HashSet<_>>().len(),
            names.len(),
            "{names:?}"
        );
    };
    unique(
        Code::ALL
            .iter()
            .map(|code| code.wire().to_owned())
            .collect(),
    );
    unique(
        Limit::ALL
            .iter()
            .map(|limit| limit.scope().to_owned())
            .collect(),
    );
    unique(
        Close::ALL
            .iter()
            .map(|close| close.code().to_string())
            .collect(),
    );
    unique(
        SERIES
            .iter()
            .map(|(name, _, _)| (*name).to_owned())
            .collect(),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_only_series_of_the_table_and_no_ids() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "x").await.expect(201);
    let text = reqwest::get(format!("{}/metrics", a.admin))
        .await
        .expect("metrics")
        .text()
        .await
        .expect("text");
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let name = line.split(['{', ' ']).next().expect("a name");
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        assert!(SERIES.iter().any(|(known, _, _)| *known == base), "{line}");
        assert!(
            !line.contains(&agent.id) && !line.contains(&conversation) && !line.contains(&alice.id),
            "{line}"
        );
    }
    assert!(text.contains(r#"http_requests_total{route="/conversations/{conversation_id}/messages",method="POST",status="201"}"#), "{text}");
}

/// Any method may be tried at any path. All refusals share a series.
#[tokio::test(flavor = "multi_thread")]
async fn refused_methods_share_a_series() {
    let world = World::new(&[]).await;
    let node = ProcessNode::start_in(&world).await;
    let client = reqwest::Client::new();
    for (method, path) in [
        (reqwest::Method::PUT, "/users/me"),
        (reqwest::Method::TRACE, "/auth/login"),
        (reqwest::Method::DELETE, "/conversations"),
    ] {
        let call = client.request(method, format!("{}{path}", node.base));
        let answer = call.header("x-forwarded-proto", "https").send().await;
        assert_eq!(answer.expect("an answer").status(), 405);
    }
    let text = node.metrics().await;
    let refused: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("status=\"405\""))
        .collect();
    assert_eq!(
        refused,
        ["http_requests_total{route=\"none\",method=\"other\",status=\"405\"} 3"]
    );
    for path in ["/users/me", "/auth/login", "/conversations"] {
        let label = format!("route=\"{path}\"");
        assert!(!text.contains(&label), "{path} has a series");
    }
}
