//! The Turnstile verification over Cloudflare's protocol.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Authenticator, Caller, FaultMode, PASSWORD, SiteVerify, TURNSTILE_SECRET, TestNode,
    User, nodes_with, ulid,
};

fn address() -> String {
    format!("u{}@example.org", ulid().to_string().to_lowercase())
}

async fn world<const N: usize>(service: &SiteVerify, more: &[(&str, &str)]) -> [TestNode; N] {
    let url = service.url();
    let mut settings = vec![
        ("TURNSTILE_URL", url.as_str()),
        ("TURNSTILE_SECRET", TURNSTILE_SECRET),
        ("TURNSTILE_HOSTNAMES", "app.example.org,www.example.org"),
        ("TURNSTILE_ACTIONS", "login,register"),
        (
            "LIMIT_OVERRIDES",
            "default_ip=100000/s,auth_register_ip=100000/s,auth_passkey_begin=100000/s",
        ),
    ];
    settings.extend(more);
    nodes_with(&settings).await
}

async fn send_code(caller: &Caller, email: &str, token: &str) -> Answer {
    let body = json!({ "email": email, "scene": "register", "turnstile_token": token });
    caller.post("/auth/send-code", body).await
}

async fn register(node: &TestNode, service: &SiteVerify, name: &str) -> User {
    let (caller, email) = (node.anon(), address());
    send_code(&caller, &email, &service.token())
        .await
        .expect(200);
    let mut body = User::registration(&email, name, &node.world.mailed_code(&email).await);
    body["turnstile_token"] = json!(service.token());
    let answer = caller.post("/auth/register", body).await.expect(201);
    User::signed_in(caller, email, &answer)
}

/// Row 6 of the attacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_counts_once_where_and_for_what_it_was_earned() {
    let service = SiteVerify::start().await;
    let [a, b] = world(&service, &[]).await;
    let callers = [a.anon(), b.anon()];
    for _ in 0..5 {
        let token = service.token();
        let emails: Vec<_> = (0..8).map(|_| address()).collect();
        let calls = emails
            .iter()
            .enumerate()
            .map(|(n, email)| send_code(&callers[n % 2], email, &token));
        let answers = join_all(calls).await;
        assert_eq!(
            answers.iter().filter(|answer| answer.status == 200).count(),
            1
        );
        for answer in answers.into_iter().filter(|answer| answer.status != 200) {
            answer.refused(403, "TURNSTILE_FAILED");
        }
    }
    let keys: Vec<_> = service
        .questions()
        .iter()
        .map(|question| question["idempotency_key"].to_string())
        .collect();
    assert_eq!(
        (
            keys.len(),
            keys.iter().collect::<std::collections::HashSet<_>>().len()
        ),
        (40, 40)
    );

    for (token, passes) in [
        (service.token_of("www.example.org", "register", false), true),
        (service.token_of("app.example.org", "login", true), false),
        (service.token_of("evil.example", "login", false), false),
        (service.token_of("app.example.org", "vote", false), false),
        (service.token_of("", "", false), false),
        ("never issued".to_owned(), false),
        ("x".repeat(2048), false),
    ] {
        let answer = send_code(&callers[0], &address(), &token).await;
        if passes {
            answer.expect(200)
        } else {
            answer.refused(403, "TURNSTILE_FAILED")
        };
    }
    service.questions();
    for (token, status, code) in [
        (json!(""), 400, "VALIDATION_ERROR"),
        (json!("x".repeat(2049)), 400, "VALIDATION_ERROR"),
        (json!("x".repeat(2 * 1024 * 1024)), 413, "PAYLOAD_TOO_LARGE"),
        (json!(["x"]), 400, "VALIDATION_ERROR"),
        (Value::Null, 400, "VALIDATION_ERROR"),
    ] {
        let body = json!({ "email": address(), "scene": "login", "turnstile_token": token });
        let call = callers[1]
            .request(reqwest::Method::POST, "/auth/send-code")
            .json(&body);
        // A refusal before the body was read may cut the connection under the client.
        if let Ok(answer) = callers[1].try_send(call).await {
            answer.refused(status, code);
        }
    }
    assert_eq!(service.questions(), Vec::<Value>::new());
    // The service is told who asks, and with what.
    let token = service.token();
    send_code(&callers[0], &address(), &token).await.expect(200);
    let asked = &service.questions()[0];
    assert_eq!(
        (&asked["secret"], &asked["response"]),
        (&json!(TURNSTILE_SECRET), &json!(token))
    );
    assert!(
        asked["remoteip"]
            .as_str()
            .expect("an address")
            .starts_with("10.")
    );
}

/// Row F18 of the faults.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_does_not_answer_passes_nobody() {
    let service = SiteVerify::start().await;
    let [a] = world(&service, &[]).await;
    let alice = register(&a, &service, "alice").await;
    let mut key = Authenticator::enrol(&alice, "key").await;
    let caller = a.anon();
    let login = |token: String| {
        let body =
            json!({ "email": alice.email, "account_password": PASSWORD, "turnstile_token": token });
        caller.post("/auth/login", body)
    };
    for mood in [
        FaultMode::Hangs,
        FaultMode::Closes,
        FaultMode::Cuts,
        FaultMode::Says("500 Internal Server Error", "{\"success\":true}"),
        FaultMode::Says("502 Bad Gateway", "<html>no</html>"),
        FaultMode::Says("200 OK", "<html>yes</html>"),
        FaultMode::Says("200 OK", "{}"),
        FaultMode::Says("200 OK", "true"),
        FaultMode::Says("200 OK", "{\"success\":\"true\"}"),
        FaultMode::Says("200 OK", "{\"success\":1}"),
        FaultMode::Says("200 OK", ""),
        FaultMode::Says("302 Found", "{}"),
        FaultMode::Says(
            "200 OK",
            "{\"success\":true,\"error-codes\":[\"internal-error\"]}",
        ),
        FaultMode::Says(
            "200 OK",
            "{\"success\":false,\"error-codes\":[\"invalid-input-secret\"]}",
        ),
    ] {
        service.set(mood);
        let started = Instant::now();
        let refused = login(service.token())
            .await
            .refused(503, "SERVICE_UNAVAILABLE");
        assert!(refused.header("retry-after").is_some());
        // Three seconds at most; the rest is what a busy machine may add.
        assert!(
            started.elapsed() < Duration::from_secs(6),
            "{mood:?}: {:?}",
            started.elapsed()
        );
        // It was asked: after five misses in a row it would not be.
        service.set(FaultMode::Well);
        login(service.token()).await.expect(200);
    }
    // Of five clients: one alone would not prove that the service is away.
    service.set(FaultMode::Closes);
    for _ in 0..5 {
        let body = json!({ "email": alice.email, "account_password": PASSWORD, "turnstile_token": service.token() });
        caller
            .stranger()
            .post("/auth/login", body)
            .await
            .refused(503, "SERVICE_UNAVAILABLE");
    }
    // Now it is asked once a second only; those who come in between are told at once.
    service.set(FaultMode::Hangs);
    let (started, asked) = (Instant::now(), service.requests());
    let answers = join_all((0..25).map(|_| {
        let body = json!({ "email": alice.email, "account_password": PASSWORD, "turnstile_token": service.token() });
        let stranger = caller.stranger();
        async move { stranger.post("/auth/login", body).await }
    }));
    let answers = answers.await;
    assert!(answers.iter().all(|answer| answer.status == 503));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    let asked = service.requests() - asked;
    assert!(asked <= 12, "asked {asked} times");
    // A caller that needs no verification gets in meanwhile.
    key.sign_in(&caller).await.expect(200);
    alice.refreshed().await;

    service.set(FaultMode::Well);
    // The second after which it is asked again is real.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    login(service.token()).await.expect(200);
    for _ in 0..3 {
        login(service.token()).await.expect(200);
    }
    login("never issued".to_owned())
        .await
        .refused(403, "TURNSTILE_FAILED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_costs_the_human_no_token() {
    let service = SiteVerify::start().await;
    let [a] = world(&service, &[]).await;
    let caller = a.anon();
    send_code(&caller, &address(), &service.token())
        .await
        .expect(200);
    service.questions();
    service.set(FaultMode::CutsOnce);
    for _ in 0..10 {
        let token = service.token();
        send_code(&caller, &address(), &token).await.expect(200);
        let asked = service.questions();
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0], asked[1]);
        // Used up all the same.
        send_code(&caller, &address(), &token)
            .await
            .refused(403, "TURNSTILE_FAILED");
        service.questions();
    }
}

/// Row 7 of the attacks.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_cannot_use_up_a_victims_budgets() {
    let service = SiteVerify::start().await;
    let [a, b] = world(&service, &[("LIMIT_OVERRIDES", "default_ip=30/min")]).await;
    let victim = register(&a, &service, "victim").await;
    let fresh = address();
    let callers = [a.anon(), b.anon()];
    // A hundred each, from as many addresses, with tokens that are no good and ones that were used.
    let used = service.token();
    send_code(&a.anon(), &address(), &used).await.expect(200);
    for n in 0..100 {
        let token = if n % 2 == 0 {
            "never issued"
        } else {
            used.as_str()
        };
        let stranger = callers[n % 2].stranger();
        send_code(&stranger, &fresh, token)
            .await
            .refused(403, "TURNSTILE_FAILED");
        let mut body = User::registration(&fresh, "x", "12345678");
        body["turnstile_token"] = json!(token);
        stranger
            .post("/auth/register", body)
            .await
            .refused(403, "TURNSTILE_FAILED");
        let body = json!({ "email": victim.email, "account_password": "a wrong password", "turnstile_token": token });
        stranger
            .post("/auth/login", body)
            .await
            .refused(403, "TURNSTILE_FAILED");
    }
    // A code a minute, five in ten, five failures: the victim has them all.
    send_code(&a.anon(), &fresh, &service.token())
        .await
        .expect(200);
    let mut body = User::registration(&fresh, "x", &a.world.mailed_code(&fresh).await);
    body["turnstile_token"] = json!(service.token());
    b.anon().post("/auth/register", body).await.expect(201);
    let login = |password: &str| {
        let body = json!({ "email": victim.email, "account_password": password, "turnstile_token": service.token() });
        let caller = a.anon();
        async move { caller.post("/auth/login", body).await }
    };
    for _ in 0..4 {
        login("a wrong password")
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    login(PASSWORD).await.expect(200);
}
