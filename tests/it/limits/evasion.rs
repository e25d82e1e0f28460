//! A caller has one budget, however the call is written.

use std::path::Path;

use blindpipe::routes::{self, Access};
use blindpipe_protocol::limits::{Limit, Per};
use devcluster::certs::Certificates;
use reqwest::{Method, Version};
use serde_json::json;

use crate::support::{Caller, User, World, forged, nodes_with};

fn scratch() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("blindpipe-evasion-{}", crate::support::ulid()))
}

/// Settings of a node that terminates TLS itself, and a client that knows its authority.
fn over_tls(folder: &Path) -> (Vec<(String, String)>, reqwest::Client) {
    let certificates = Certificates::prepare(folder).expect("certificates");
    let path = |path: &Path| path.display().to_string();
    let settings = vec![
        ("TLS_CERT_FILE".to_owned(), path(&certificates.cert)),
        ("TLS_KEY_FILE".to_owned(), path(&certificates.key)),
    ];
    let authority = std::fs::read(&certificates.ca).expect("a certificate");
    let authority = reqwest::Certificate::from_pem(&authority).expect("a certificate");
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([authority])
        .build()
        .expect("a client");
    (settings, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_31_node_token_path_method_protocol_and_address_share_one_budget() {
    let world = World::new(&[(
        "LIMIT_OVERRIDES",
        "default_user=12/10min,agent_tier_1=12/10min",
    )])
    .await;
    let (a, b) = (world.node().await, world.node().await);
    let folder = scratch();
    let (settings, h2) = over_tls(&folder);
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let tls = world.node_with(&settings).await;
    let tls_base = tls.base.replace("http://127.0.0.1", "https://localhost");

    let alice = a.user("alice").await;
    let second = alice.refreshed().await;
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}/token/regenerate", agent.id);
    let regenerated = alice
        .post(path, serde_json::json!({ "emergency": false }))
        .await
        .expect(200);
    let new_token = regenerated.data()["token"].as_str().expect("a token");

    for (old, new, route) in [
        (
            alice.caller.clone(),
            second.caller.clone(),
            "/users/me/devices".to_owned(),
        ),
        (
            agent.caller.clone(),
            agent.with_token(new_token),
            format!("/agents/{}/keys", agent.id),
        ),
    ] {
        let bearer = |caller: &Caller| {
            caller
                .request(Method::GET, "/")
                .build()
                .expect("a request")
                .headers()["authorization"]
                .clone()
        };
        let spoofed = |caller: &Caller, hop: &str| {
            let request = caller.request(Method::GET, &route);
            request.header("x-forwarded-for", format!("{hop}, 10.9.9.9"))
        };
        let by_h2 = async |caller: &Caller| {
            let request = h2.get(format!("{tls_base}{route}"));
            let answer = request.header("authorization", bearer(caller)).send().await;
            let answer = answer.expect("an answer");
            assert_eq!(answer.version(), Version::HTTP_2);
            answer.status().as_u16()
        };
        let status = async |n: usize| {
            let caller = [&old, &new][n / 6 % 2];
            match n % 6 {
                0 => caller.get(&route).await.status,
                1 => caller.on(&b).get(&route).await.status,
                2 => caller.get(format!("/v1{route}")).await.status,
                3 => {
                    let head = caller.request(Method::HEAD, &route);
                    caller.send(head).await.status
                }
                4 => by_h2(caller).await,
                _ => {
                    let request = spoofed(caller, &format!("203.0.113.{n}"));
                    caller.send(request).await.status
                }
            }
        };
        // Twelve pass, two of each kind, and then none of any kind.
        for n in 0..24 {
            let expected = if n < 12 { 200 } else { 429 };
            assert_eq!(status(n).await, expected, "{route}: {n}");
        }
        // Other spellings of the path are other paths, and lead nowhere.
        for path in [
            format!("/{route}"),
            format!("{route}/"),
            route
                .replace("/users", "/%75sers")
                .replace("/agents", "/%61gents"),
            format!("/v1/v1{route}"),
            format!("/x/..{route}"),
        ] {
            let answer = old.get(&path).await;
            assert!(
                [404, 429].contains(&answer.status),
                "{path}: {}",
                answer.status
            );
        }
    }
    std::fs::remove_dir_all(folder).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_has_ten_times_the_budget_of_an_address() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "auth_passkey_begin=2/10min")]).await;
    let callers = [a.anon(), b.anon()];
    let begin = async |n: usize, ip: String| {
        let caller = &callers[n % 2];
        let request = caller
            .request(Method::POST, "/auth/passkey/begin")
            .header("x-forwarded-for", ip);
        caller.send(request.json(&serde_json::json!({}))).await
    };
    // A /64 of its own for each call.
    for n in 0..20 {
        let answer = begin(n, format!("2001:db8:7:{n:x}::1")).await.expect(200);
        assert!(
            answer
                .header("ratelimit")
                .expect("a header")
                .contains("r=1;")
        );
    }
    let refused = begin(0, "2001:db8:7:ffff::1".to_owned())
        .await
        .refused(429, "RATE_LIMITED");
    let params = &refused.body["error"]["params"];
    assert_eq!(params["scope"], "auth_passkey_begin");
    begin(0, "2001:db8:8::1".to_owned()).await.expect(200);
    // An IPv4 address has no site.
    for n in 0..30 {
        begin(n, format!("192.0.2.{n}")).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_may_write_ports_beside_addresses() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "auth_passkey_begin=2/10min")]).await;
    let caller = a.anon();
    let begin = async |hop: &str| {
        let request = caller
            .request(Method::POST, "/auth/passkey/begin")
            .header("x-forwarded-for", hop);
        caller
            .send(request.json(&serde_json::json!({})))
            .await
            .status
    };
    for (hops, statuses) in [
        (
            ["203.0.113.7:1", "203.0.113.7:2", "203.0.113.7"],
            [200, 200, 429],
        ),
        (
            ["203.0.113.8:1", "[2001:db8::1]:2", "[2001:db8::1]"],
            [200, 200, 200],
        ),
    ] {
        for (hop, status) in hops.into_iter().zip(statuses) {
            assert_eq!(begin(hop).await, status, "{hop}");
        }
    }
}

/// The calls of a principal that each of its budgets admits.
const ADMITTED_CALLS: usize = 4;

/// Budgets of a few calls for everything that counts by principal.
fn few_calls() -> String {
    let counts = |limit: &&Limit| {
        use Per::{Agent, AgentAndRoute, Principal, User, UserAndRoute};
        let per = limit.per();
        matches!(per, Agent | AgentAndRoute | Principal | User | UserAndRoute)
    };
    let own = Limit::ALL.iter().filter(counts);
    let own = own.map(|limit| format!("{}={ADMITTED_CALLS}/10min", limit.scope()));
    let made_up = "agent_token_unknown=3/10min".to_owned();
    Vec::from_iter(own.chain([made_up])).join(",")
}

/// The path of a template, with an agent's id and made-up ids.
fn filled(template: &str, agent: &str) -> String {
    let made_up = crate::support::ulid().to_string();
    let part = |part: &str| match part.strip_prefix('{') {
        Some("agent_id}") => agent.to_owned(),
        Some(_) => made_up.clone(),
        None => part.to_owned(),
    };
    Vec::from_iter(template.split('/').map(part)).join("/")
}

/// Calls a route until it refuses. Each call before that is beyond Postgres, which cannot answer.
async fn is_refused_by_its_budget(caller: &Caller, method: &Method, path: &str) {
    for n in 0..=ADMITTED_CALLS {
        // A send is read before it is charged.
        let body = json!({
            "client_message_id": crate::support::ulid().to_string(), "conversation_id": crate::support::ulid().to_string(),
            "payload": { "type": "text" },
        });
        let call = caller.request(method.clone(), path).json(&body);
        let answer = caller.send(call).await;
        if answer.status == 429 {
            return;
        }
        assert!(answer.status >= 500, "{method} {path}: {}", answer.status);
        assert!(n < ADMITTED_CALLS, "{method} {path}: no budget");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_of_a_proven_caller_asks_postgres_nothing() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", &few_calls())]).await;
    let alice: User = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let poll = format!("/agents/{}/messages/poll", agent.id);
    agent.get(&poll).await.expect(200);
    // Made-up tokens of an address have a budget as well.
    let stranger = a.anon();
    let made_up = |n: u32| stranger.with_token(&forged(&format!("{n:08}"), n));
    for n in 0..3 {
        let refused = made_up(n).get(&poll).await;
        refused.refused(401, "AGENT_TOKEN_INVALID");
    }
    // Nobody can ask Postgres any more. A caller beyond the budget is told so all the same.
    crate::support::psql(
        &a.world.database,
        "alter table session rename to session_away; alter table agent_token rename to agent_token_away;
         drop view live_session cascade; drop view live_agent_token cascade",
    )
    .await;
    let callers = [
        (Access::User, &alice.caller),
        (Access::Agent, &agent.caller),
    ];
    for route in routes::table() {
        // A revocation has no budget: nothing may hold it up.
        let has_none = route.path == "/agents/{agent_id}/token";
        for (kind, caller) in callers {
            if has_none || ![kind, Access::Either].contains(&route.caller) {
                continue;
            }
            let path = filled(route.path, &agent.id);
            is_refused_by_its_budget(caller, &route.method, &path).await;
        }
    }
    let refused = made_up(3).get(&poll).await;
    refused.refused(429, "RATE_LIMITED");
}
