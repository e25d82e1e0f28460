//! Codes, registration, login, sessions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Caller, PASSWORD, TestNode, User, nodes, nodes_with, psql, ulid};

fn address() -> String {
    format!("u{}@example.org", ulid().to_string().to_lowercase())
}

fn login(email: &str, password: &str) -> Value {
    json!({ "email": email, "account_password": password, "turnstile_token": "dev-pass" })
}

#[tokio::test(flavor = "multi_thread")]
async fn registering_signs_in() {
    let [a, b] = nodes().await;
    let (caller, email) = (a.anon(), address());
    let code = caller.code(&email, "register").await;
    // Any node takes the code; the address is the same in capitals.
    let mut body = User::registration(&email.to_uppercase(), "alice", &code);
    body.as_object_mut().expect("an object").remove("device_id");
    let answer = caller.on(&b).post("/auth/register", body).await.expect(201);
    let data = answer.data();
    assert_eq!((&data["expires_in_seconds"], &data["is_new_device"]), (&json!(300), &json!(true)));
    assert_eq!(data["key_backup"], json!({ "exists": false, "device_ids": [] }));
    assert!(data["device_id"].as_str().expect("a device").starts_with("provisional-"));
    let cookie = answer.header("set-cookie").expect("a cookie");
    let (value, attributes) = cookie.split_once(';').expect("attributes");
    assert!(value.strip_prefix("refresh_token=").expect("the name").len() > 40);
    assert_eq!(attributes, " HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age=2592000");
    let answer = caller.post("/auth/login", login(&email, PASSWORD)).await.expect(200);
    assert_eq!(answer.data()["user_id"], data["user_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_is_good_once_for_its_purpose_and_ten_minutes() {
    let [a, b] = nodes().await;
    let register = async |caller: &Caller, email: &str, code: &str| {
        caller.post("/auth/register", User::registration(email, "x", code)).await
    };

    let (caller, email) = (a.anon(), address());
    let code = caller.code(&email, "login").await;
    register(&caller, &email, &code).await.refused(400, "CODE_INVALID");

    let (caller, email) = (a.anon(), address());
    let old = caller.code(&email, "register").await;
    a.advance(Duration::from_secs(61)).await;
    let new = caller.code(&email, "register").await;
    register(&caller, &email, &old).await.refused(400, "CODE_INVALID");
    a.advance(Duration::from_secs(601)).await;
    register(&caller, &email, &new).await.refused(400, "CODE_INVALID");

    // Used by many at once on two nodes: one account. (Five tries, or the limit of registrations would interfere.)
    let (caller, email) = (a.anon(), address());
    let code = caller.code(&email, "register").await;
    let callers = [caller.on(&a), caller.on(&b)];
    let tries = (0..5).map(|n| register(&callers[n % 2], &email, &code));
    let answers = futures_util::future::join_all(tries).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    assert!(
        answers.iter().all(|answer| answer.status == 201 || answer.code() == "CODE_INVALID"),
        "{answers:?}"
    );

    // Five wrong tries burn it.
    let (caller, email) = (a.anon(), address());
    let code = caller.code(&email, "register").await;
    let wrong = if code == "00000000" { "00000001" } else { "00000000" };
    for _ in 0..4 {
        register(&caller, &email, wrong).await.refused(400, "CODE_INVALID");
    }
    psql(&a.world.database, "select 1").await;
    register(&caller, &email, wrong).await.refused(400, "CODE_INVALID");
    let limited = register(&caller, &email, &code).await.refused(429, "RATE_LIMITED");
    assert_eq!(limited.body["error"]["params"]["scope"], "auth_register_email");
    a.advance(Duration::from_secs(400)).await;
    register(&caller, &email, &code).await.refused(429, "RATE_LIMITED");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_wrong_codes_an_hour_are_enough_whatever_the_code() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "auth_register_email=1000/s,auth_register_ip=1000/s,auth_send_code=1000/s",
    )])
    .await;
    let (caller, email) = (a.anon(), address());
    for n in 0..10 {
        if n % 3 == 0 {
            caller.code(&email, "register").await;
        }
        let node = if n % 2 == 0 { &a } else { &b };
        caller
            .on(node)
            .post("/auth/register", User::registration(&email, "x", "1"))
            .await
            .refused(400, "CODE_INVALID");
    }
    let code = caller.code(&email, "register").await;
    let refused = caller
        .post("/auth/register", User::registration(&email, "x", &code))
        .await
        .refused(429, "RATE_LIMITED");
    let params = &refused.body["error"]["params"];
    assert_eq!((&params["scope"], &params["limit"]), (&json!("auth_code_tries"), &json!("10/h")));
    a.advance(Duration::from_secs(3601)).await;
    let code = caller.code(&email, "register").await;
    caller.post("/auth/register", User::registration(&email, "x", &code)).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_address_shows_only_to_its_owner() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    a.advance(Duration::from_secs(61)).await;
    let (caller, unknown) = (a.anon(), address());
    let known = caller
        .post("/auth/register", User::registration(&alice.email, "x", "1"))
        .await
        .refused(400, "CODE_INVALID");
    let other = caller
        .post("/auth/register", User::registration(&unknown, "x", "1"))
        .await
        .refused(400, "CODE_INVALID");
    assert_eq!(known.body, other.body);
    let code = caller.code(&alice.email, "register").await;
    caller
        .post("/auth/register", User::registration(&alice.email, "x", &code))
        .await
        .refused(409, "EMAIL_TAKEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_failures_lock_known_and_unknown_addresses_alike() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    for email in [alice.email.clone(), address()] {
        // All at once on two nodes: five are tried, the rest find the lock.
        let callers = [a.anon(), b.anon()];
        let tries = (0..20).map(|n| callers[n % 2].post("/auth/login", login(&email, "a wrong password")));
        let answers = futures_util::future::join_all(tries).await;
        let wrong = answers.iter().filter(|answer| answer.status == 401).count();
        let locked: Vec<_> = answers.into_iter().filter(|answer| answer.status == 423).collect();
        assert_eq!((wrong, locked.len()), (5, 15));
        for answer in locked {
            let wait = answer.body["error"]["params"]["retry_after"].as_u64().expect("seconds");
            assert!((890..=900).contains(&wait), "{wait}");
            assert_eq!(answer.header("retry-after"), Some(wait.to_string().as_str()));
            answer.refused(423, "ACCOUNT_LOCKED");
        }
    }
    let caller = a.anon();
    caller.post("/auth/login", login(&alice.email, PASSWORD)).await.refused(423, "ACCOUNT_LOCKED");
    // What is signed in stays so.
    let alice = alice.refreshed().await;
    a.advance(Duration::from_secs(901)).await;
    caller.post("/auth/login", login(&alice.email, PASSWORD)).await.expect(200);
    // A success forgets the failures before it.
    for _ in 0..2 {
        for _ in 0..4 {
            caller
                .post("/auth/login", login(&alice.email, "a wrong password"))
                .await
                .refused(401, "INVALID_CREDENTIALS");
        }
        caller.post("/auth/login", login(&alice.email, PASSWORD)).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_failures_from_one_address_are_enough() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "auth_login_ip=3/10min")]).await;
    let alice = a.user("alice").await;
    let caller = a.anon();
    for _ in 0..3 {
        caller
            .post("/auth/login", login(&address(), "a wrong password"))
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    let refused =
        caller.post("/auth/login", login(&alice.email, PASSWORD)).await.refused(429, "RATE_LIMITED");
    assert_eq!(refused.body["error"]["params"]["scope"], "auth_login_ip");
    // Another address is not concerned, and successes cost nothing.
    let other = a.anon();
    for _ in 0..4 {
        other.post("/auth/login", login(&alice.email, PASSWORD)).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refreshing_rotates_and_a_stolen_token_ends_the_session() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let refresh = async |node: &TestNode, cookie: &str| {
        let caller = node.anon();
        caller.send(caller.request(reqwest::Method::POST, "/auth/refresh").header("cookie", cookie)).await
    };
    let next = |answer: &crate::support::Answer| {
        answer.header("set-cookie").expect("a cookie").split(';').next().expect("a value").to_owned()
    };

    // Two tabs, two nodes, twenty requests: one successor.
    let calls = (0..20).map(|n| refresh(if n % 2 == 0 { &a } else { &b }, &alice.cookie));
    let answers = futures_util::future::join_all(calls).await;
    let second = next(&answers[0]);
    assert!(answers.iter().all(|answer| answer.status == 200 && next(answer) == second));
    assert_ne!(second, alice.cookie);
    let third = next(&refresh(&b, &second).await.expect(200));

    let socket = alice.on(&b).connect().await;
    a.advance(Duration::from_secs(11)).await;
    refresh(&a, &second).await.refused(401, "TOKEN_EXPIRED");
    refresh(&b, &third).await.refused(401, "TOKEN_EXPIRED");
    alice.on(&b).post("/agents", json!({ "display_name": "x" })).await.refused(401, "UNAUTHORIZED");
    assert_eq!(socket.expect_close(4403).await.last().expect("a frame")["reason"], "refresh_reuse");

    let bob = a.user("bob").await;
    for cookie in [
        "",
        "refresh_token=",
        "refresh_token=junk",
        &format!("{0}; {0}", bob.cookie),
        &bob.cookie[..bob.cookie.len() - 2],
    ] {
        refresh(&a, cookie).await.refused(401, "TOKEN_EXPIRED");
    }
    a.advance(Duration::from_secs(30 * 86_400)).await;
    refresh(&a, &bob.cookie).await.refused(401, "TOKEN_EXPIRED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_without_a_human_cannot_use_up_anyones_budget() {
    let [a] = nodes().await;
    let (caller, email) = (a.anon(), address());
    for _ in 0..5 {
        let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-fail" });
        caller.post("/auth/send-code", body).await.refused(403, "TURNSTILE_FAILED");
    }
    let code = a.anon().code(&email, "register").await;
    let again = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
    let limited = a.anon().post("/auth/send-code", again).await.refused(429, "RATE_LIMITED");
    let params = &limited.body["error"]["params"];
    assert_eq!((&params["scope"], &params["limit"]), (&json!("auth_send_code"), &json!("1/60s")));
    let ms = params["retry_after_ms"].as_u64().expect("ms");
    assert!((1..=60_000).contains(&ms));
    assert_eq!(limited.header("retry-after"), Some(ms.div_ceil(1000).to_string().as_str()));
    assert!(limited.header("ratelimit").expect("a header").starts_with("\"auth_send_code\";r=0;"));
    let mut body = User::registration(&email, "x", &code);
    body["turnstile_token"] = json!("dev-fail");
    caller.post("/auth/register", body).await.refused(403, "TURNSTILE_FAILED");
    caller.post("/auth/register", User::registration(&email, "x", &code)).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_must_have_its_form() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "auth_register_ip=1000/s")]).await;
    let caller = a.anon();
    let right = User::registration(&address(), "x", "12345678");
    for (field, value) in [
        ("email", json!("no address")),
        ("email", json!("a@b.c\r\nBcc: d@e.f")),
        ("email", Value::Null),
        ("account_password", json!("seven77")),
        ("account_password", json!("x".repeat(1025))),
        ("account_password", json!("nul\u{0}in the middle")),
        ("display_name", json!("")),
        ("display_name", json!("two\nlines")),
        ("turnstile_token", json!("x".repeat(2049))),
        ("device_id", json!("spaces are not allowed")),
        ("device_id", json!("x".repeat(129))),
        ("user_id", json!("mass assignment")),
    ] {
        let mut body = right.clone();
        body[field] = value.clone();
        let refused = caller.post("/auth/register", body).await.refused(400, "VALIDATION_ERROR");
        let fault = &refused.body["error"]["params"]["fields"][0];
        assert!(fault["path"] == field || fault["rule"] == "nul", "{field} {value}: {fault}");
        assert!(fault["rule"].is_string() && fault["message"].is_string());
    }
    for field in ["email", "code", "account_password", "display_name", "device_locale", "turnstile_token"] {
        let mut body = right.clone();
        body.as_object_mut().expect("an object").remove(field);
        let refused = caller.post("/auth/register", body).await.refused(400, "VALIDATION_ERROR");
        let fault = &refused.body["error"]["params"]["fields"][0];
        assert_eq!((&fault["path"], &fault["rule"]), (&json!(field), &json!("required")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_page_cannot_use_the_account_endpoints() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let refresh = |origin: &'static str| {
        alice.send(
            alice
                .request(reqwest::Method::POST, "/auth/refresh")
                .header("cookie", &alice.cookie)
                .header("origin", origin),
        )
    };
    refresh("https://evil.example").await.refused(403, "ORIGIN_NOT_ALLOWED");
    refresh("null").await.refused(403, "ORIGIN_NOT_ALLOWED");
    refresh("https://localhost").await.expect(200);
}
