//! Robots: what they cost themselves, and that they cost nobody else.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Answer, Authenticator, Caller, FaultMode, PASSWORD, SiteVerify, TURNSTILE_SECRET, TestNode,
    User, nodes_with, spawn, ulid,
};

async fn nodes_of<const N: usize>(service: &SiteVerify, limits: &str) -> [TestNode; N] {
    let url = service.url();
    nodes_with(&[
        ("TURNSTILE_URL", url.as_str()),
        ("TURNSTILE_SECRET", TURNSTILE_SECRET),
        ("LIMIT_OVERRIDES", limits),
    ])
    .await
}

async fn register(node: &TestNode, service: &SiteVerify) -> User {
    let caller = node.anon();
    let email = format!("u{}@example.org", ulid().to_string().to_lowercase());
    let ask = json!({ "email": email, "scene": "register", "turnstile_token": service.token() });
    caller.post("/auth/send-code", ask).await.expect(200);
    let code = node.world.mailed_code(&email).await;
    let mut body = User::registration(&email, "alice", &code);
    body["turnstile_token"] = json!(service.token());
    let answer = caller.post("/auth/register", body).await.expect(201);
    User::signed_in(caller, email, &answer)
}

fn login(email: &str, token: &str) -> Value {
    json!({ "email": email, "account_password": PASSWORD, "turnstile_token": token })
}

async fn log_in_from(caller: &Caller, ip: &str, body: &Value) -> Answer {
    let request = caller
        .request(Method::POST, "/auth/login")
        .header("x-forwarded-for", ip);
    caller.send(request.json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passkey_s_answer_may_bring_a_human_token_which_is_checked() {
    let service = SiteVerify::start().await;
    let [a] = nodes_of(&service, "auth_human_ip=100000/s").await;
    let alice = register(&a, &service).await;
    let mut key = Authenticator::enrol(&alice, "key").await;
    let caller = a.anon();
    let mut body = key.answer(&caller).await;
    body["turnstile_token"] = json!("never issued");
    caller
        .post("/auth/passkey/complete", body.clone())
        .await
        .refused(403, "TURNSTILE_FAILED");
    // A robot's token has used up no challenge.
    body["turnstile_token"] = json!(service.token());
    caller
        .post("/auth/passkey/complete", body)
        .await
        .expect(200);
    let body = key.answer(&caller).await;
    caller
        .post("/auth/passkey/complete", body)
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_junk_human_tokens_of_three_addresses_stop_no_login() {
    let service = SiteVerify::start().await;
    let [a] = nodes_of(&service, "auth_human_ip=100000/s,auth_login_ip=100000/s").await;
    let alice = register(&a, &service).await;
    service.set(FaultMode::Slow(Duration::from_millis(400)));
    // The time that a good token takes to begin a login, which costs no hash, if it succeeds.
    let good = async |n: usize| {
        let caller = a.anon();
        let request = caller
            .request(Method::POST, "/auth/passkey/begin")
            .header("x-forwarded-for", format!("198.51.100.{n}"))
            .json(&json!({ "turnstile_token": service.token() }));
        let started = Instant::now();
        let answer = caller.send(request).await;
        (answer.status == 200).then(|| started.elapsed())
    };
    let calm = good(0).await.expect("a login without a flood");
    // Four people of an address have a place at once, and the next ones wait for theirs.
    let neighbours = join_all((0..6).map(|_| good(0))).await;
    assert!(neighbours.iter().all(Option::is_some), "{neighbours:?}");
    // Two seconds, and on a machine that is busy otherwise as much as that makes of it.
    let bar = Duration::from_secs(2).max(4 * calm);
    // Each repeats its call as soon as it is answered, so that ninety are always under way.
    let junk: Vec<_> = (0..90)
        .map(|n| {
            let (caller, body) = (a.anon(), login(&alice.email, "junk"));
            spawn(async move {
                loop {
                    log_in_from(&caller, &format!("192.0.2.{}", n % 3), &body).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut times = Vec::new();
    for n in 1..=10 {
        times.push(good(n).await);
    }
    let soon = times
        .iter()
        .filter(|took| took.is_some_and(|took| took < bar))
        .count();
    assert!(soon >= 9, "{times:?}, calm {calm:?}");
    // Whole logins succeed as well, hashes and all.
    let mut statuses = Vec::new();
    for n in 11..=15 {
        let body = login(&alice.email, &service.token());
        let address = format!("198.51.100.{n}");
        statuses.push(log_in_from(&a.anon(), &address, &body).await.status);
    }
    let succeeded = statuses.iter().filter(|status| **status == 200).count();
    assert!(succeeded >= 4, "{statuses:?}");
    // Thirty calls of each address are under way, and four of them have a place.
    assert_eq!(service.max_open_per_ip(), 4);
    junk.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_may_be_refused_as_a_human_thirty_times_in_ten_minutes() {
    let service = SiteVerify::start().await;
    let [a, b] = nodes_of(&service, "default_ip=100000/s,auth_register_ip=100000/s").await;
    let alice = register(&a, &service).await;
    let callers = [a.anon(), b.anon()];
    // Humans cost nothing.
    for n in 0..35 {
        let body = login(&alice.email, &service.token());
        log_in_from(&callers[n % 2], "192.0.2.7", &body)
            .await
            .expect(200);
    }
    // Every route that takes a token counts into one budget.
    let email = &alice.email;
    let bodies = [
        ("/auth/login", login(email, "junk")),
        (
            "/auth/send-code",
            json!({ "email": email, "scene": "login", "turnstile_token": "junk" }),
        ),
        (
            "/auth/login-code",
            json!({ "email": email, "code": "1", "turnstile_token": "junk" }),
        ),
        ("/auth/passkey/begin", json!({ "turnstile_token": "junk" })),
    ];
    let refused_from = async |ip: &'static str, n: usize| {
        let ((path, body), caller) = (&bodies[n % 4], &callers[n % 2]);
        let request = caller
            .request(Method::POST, path)
            .header("x-forwarded-for", ip);
        caller.send(request.json(body)).await
    };
    let refused = async |n| refused_from("192.0.2.7", n).await;
    for n in 0..30 {
        refused(n).await.refused(403, "TURNSTILE_FAILED");
    }
    service.questions();
    for n in 0..8 {
        let answer = refused(n).await.refused(429, "RATE_LIMITED");
        let params = &answer.body["error"]["params"];
        let shown = (&params["scope"], &params["limit"]);
        assert_eq!(shown, (&json!("auth_human_ip"), &json!("30/10min")));
    }
    assert!(service.questions().is_empty(), "it is not asked any more");
    // Each is charged before it is asked about, so no burst finds the budget open.
    let burst = join_all((0..40).map(|n| refused_from("192.0.2.9", n))).await;
    let out_of_budget = burst.iter().filter(|answer| answer.status == 429).count();
    assert_eq!(out_of_budget, 10);
    let body = login(&alice.email, &service.token());
    log_in_from(&callers[0], "192.0.2.8", &body)
        .await
        .expect(200);
    a.advance(Duration::from_secs(601)).await;
    let body = login(&alice.email, &service.token());
    log_in_from(&callers[0], "192.0.2.7", &body)
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_opens_the_breaker_of_the_human_check_for_others() {
    let service = SiteVerify::start().await;
    let [a] = nodes_of(&service, "auth_login_ip=100000/s").await;
    let alice = register(&a, &service).await;
    let caller = a.anon();
    let log_in = async |ip: String| {
        let body = login(&alice.email, &service.token());
        log_in_from(&caller, &ip, &body).await
    };
    // Punished for its own junk by an answer that is no verdict, from however many addresses.
    service.set(FaultMode::Says(
        "429 Too Many Requests",
        "<html>slower</html>",
    ));
    for n in 0..8 {
        log_in(format!("192.0.2.{n}"))
            .await
            .refused(503, "SERVICE_UNAVAILABLE");
    }
    service.set(FaultMode::Well);
    log_in("198.51.100.1".to_owned()).await.expect(200);
    // An address meets a failure again and again.
    service.set(FaultMode::Says("502 Bad Gateway", "no"));
    for _ in 0..8 {
        log_in("192.0.2.9".to_owned())
            .await
            .refused(503, "SERVICE_UNAVAILABLE");
    }
    service.set(FaultMode::Well);
    log_in("198.51.100.2".to_owned()).await.expect(200);
    // Five addresses in a row: the service is away, and is spared.
    service.set(FaultMode::Says("502 Bad Gateway", "no"));
    for n in 0..5 {
        log_in(format!("192.0.2.1{n}"))
            .await
            .refused(503, "SERVICE_UNAVAILABLE");
    }
    service.questions();
    join_all((0..10).map(|n| log_in(format!("192.0.2.2{n}")))).await;
    // Twice, if it is asked again in this second: a call without an answer is repeated.
    assert!(service.questions().len() <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_wrong_codes_leave_the_owner_a_way_in() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "default_ip=100000/s,auth_send_code=100000/s,auth_send_code_day=100000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let attempt = async |path: &str, code: &str, token: Option<&str>| {
        let mut body = json!({ "email": alice.email, "code": code });
        if path == "/auth/reset-password" {
            body["new_account_password"] = json!(PASSWORD);
        }
        if let Some(token) = token {
            body["turnstile_token"] = json!(token);
        }
        b.anon().post(path, body).await
    };
    let left = async || {
        let answer = alice.get("/limits").await.expect(200);
        let rows = answer.data().as_array().expect("a list").iter();
        let mut tries = rows.filter(|row| row["scope"] == "auth_code_tries");
        tries.next().expect("the row")["remaining"].clone()
    };
    // Without a live code no try could be right, so none is counted.
    for n in 0..12 {
        let path = ["/auth/login-code", "/auth/reset-password"][n % 2];
        attempt(path, "00000000", None)
            .await
            .refused(400, "CODE_INVALID");
    }
    assert_eq!(left().await, 10);
    let code = a.anon().code(&alice.email, "login").await;
    attempt("/auth/login-code", &code, None).await.expect(200);

    // With one, three are anybody's. From then on robots get no verdict, and use nothing up.
    let code = a.anon().code(&alice.email, "reset").await;
    for _ in 0..3 {
        attempt("/auth/reset-password", "1", None)
            .await
            .refused(400, "CODE_INVALID");
    }
    for path in ["/auth/reset-password", "/auth/login-code"] {
        for token in [None, Some("dev-fail")] {
            for given in ["1", code.as_str()] {
                attempt(path, given, token)
                    .await
                    .refused(403, "TURNSTILE_FAILED");
            }
        }
    }
    assert_eq!(left().await, 7);
    // The owner's client shows the challenge and gets in.
    let human = Some("dev-pass");
    attempt("/auth/reset-password", &code, human)
        .await
        .expect(200);
    let code = a.anon().code(&alice.email, "login").await;
    attempt("/auth/login-code", &code, human).await.expect(200);
    // The hour slides.
    a.advance(Duration::from_secs(3601)).await;
    let code = a.anon().code(&alice.email, "login").await;
    attempt("/auth/login-code", &code, None).await.expect(200);
}
