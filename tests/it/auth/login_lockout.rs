//! The counts in Postgres, by the operator's numbers: failed logins and wrong codes over two nodes.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Answer, Caller, PASSWORD, TestNode, User, nodes_with, patiently, psql, ulid};

/// Three failures, a quarter of an hour; four wrong codes in ten minutes. Nothing else is met by
/// accident.
const OVERRIDES: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_login_fail=3/900s,auth_code_tries=4/10min,\
     auth_login_ip=100000/s,auth_send_code=100000/s,auth_send_code_day=100000/s,auth_register_ip=100000/s,default_ip=100000/s",
);

fn login(email: &str, password: &str) -> Value {
    json!({ "email": email, "account_password": password, "turnstile_token": "dev-pass" })
}

async fn fail(node: &TestNode, email: &str) -> Answer {
    node.anon()
        .post("/auth/login", login(email, "a wrong password"))
        .await
}

/// The seconds that a locked account asks to wait.
async fn locked(caller: &Caller, email: &str) -> u64 {
    let answer = caller
        .post("/auth/login", login(email, PASSWORD))
        .await
        .refused(423, "ACCOUNT_LOCKED");
    answer.body["error"]["params"]["retry_after"]
        .as_u64()
        .expect("seconds")
}

async fn bucket(user: &User, scope: &str) -> Value {
    let answer = user.get("/limits").await.expect(200);
    let all = answer.data().as_array().expect("a list");
    all.iter()
        .find(|bucket| bucket["scope"] == scope)
        .expect("a row")
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_failures_lock_for_so_long_as_the_operator_says() {
    let [a, b] = nodes_with(&[OVERRIDES]).await;
    let alice = a.user("alice").await;
    // Parallel guesses over both nodes get three, of an account and of an unknown e-mail alike.
    let unknown = format!("{}@example.org", ulid().to_string().to_lowercase());
    for email in [&alice.email, &unknown] {
        let answers = join_all((0..40).map(|n| fail([&a, &b][n % 2], email))).await;
        let wrong = answers.iter().filter(|answer| answer.status == 401).count();
        let refused = answers.iter().filter(|answer| answer.status == 423).count();
        assert_eq!((wrong, refused), (3, 37));
    }
    assert!((890..=900).contains(&locked(&b.anon(), &alice.email).await));
    let shown = bucket(&alice.on(&b), "auth_login_fail").await;
    assert_eq!(
        (&shown["limit"], &shown["count"], &shown["remaining"]),
        (&json!("3/15min"), &json!(3), &json!(0))
    );
    assert!(
        (890_000..=900_000).contains(&shown["resets_in_ms"].as_u64().expect("ms")),
        "{shown}"
    );
    // Knocking does not lengthen the lock.
    a.advance(Duration::from_secs(600)).await;
    assert!((285..=300).contains(&locked(&a.anon(), &alice.email).await));
    a.advance(Duration::from_secs(300)).await;
    b.anon()
        .post("/auth/login", login(&alice.email, PASSWORD))
        .await
        .expect(200);

    // A failure is forgotten once none has followed it for the window, and not before.
    for (pause, fourth) in [(890, 423), (901, 401)] {
        a.advance(Duration::from_secs(3600)).await;
        fail(&a, &alice.email)
            .await
            .refused(401, "INVALID_CREDENTIALS");
        fail(&b, &alice.email)
            .await
            .refused(401, "INVALID_CREDENTIALS");
        a.advance(Duration::from_secs(pause)).await;
        fail(&b, &alice.email)
            .await
            .refused(401, "INVALID_CREDENTIALS");
        assert_eq!(fail(&a, &alice.email).await.status, fourth, "{pause} s");
    }
    // A success clears the count.
    a.advance(Duration::from_secs(3600)).await;
    for _ in 0..3 {
        for node in [&a, &b] {
            fail(node, &alice.email)
                .await
                .refused(401, "INVALID_CREDENTIALS");
        }
        b.anon()
            .post("/auth/login", login(&alice.email, PASSWORD))
            .await
            .expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failure_can_be_enough_and_a_changed_number_holds_at_once() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "auth_login_fail=1/30s")]).await;
    let alice = a.user("alice").await;
    fail(&a, &alice.email)
        .await
        .refused(401, "INVALID_CREDENTIALS");
    assert!((20..=30).contains(&locked(&a.anon(), &alice.email).await));
    // An operator who makes it longer, or forgives more, need not wait for the locks of before.
    let longer = a
        .world
        .node_with(&[("LIMIT_OVERRIDES", "auth_login_fail=1/h")])
        .await;
    assert!(locked(&longer.anon(), &alice.email).await > 3500);
    let milder = a
        .world
        .node_with(&[("LIMIT_OVERRIDES", "auth_login_fail=9/h")])
        .await;
    milder
        .anon()
        .post("/auth/login", login(&alice.email, PASSWORD))
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_wrong_codes_in_such_a_window_as_the_operator_says() {
    let [a, b] = nodes_with(&[OVERRIDES]).await;
    let alice = a.user("alice").await;
    let attempt = async |node: &TestNode, code: &str| {
        let body = json!({ "email": alice.email, "code": code, "turnstile_token": "dev-pass" });
        patiently(async || node.anon().post("/auth/login-code", body.clone()).await)
            .await
            .0
    };
    a.anon().code(&alice.email, "login").await;
    // Exactly four of many at once, over both nodes.
    let answers = join_all((0..40).map(|n| attempt([&a, &b][n % 2], "1"))).await;
    let wrong = answers.iter().filter(|answer| answer.status == 400).count();
    assert_eq!(wrong, 4);
    for answer in answers.into_iter().filter(|answer| answer.status != 400) {
        let params = &answer.refused(429, "RATE_LIMITED").body["error"]["params"];
        assert_eq!(
            (&params["scope"], &params["limit"]),
            (&json!("auth_code_tries"), &json!("4/10min"))
        );
        let ms = params["retry_after_ms"].as_u64().expect("ms");
        assert!((580_000..=600_000).contains(&ms), "{ms}");
    }
    assert_eq!(
        bucket(&alice.on(&b), "auth_code_tries").await["remaining"],
        0
    );
    // The window slides: what was wrong nine minutes ago counts, and eleven minutes ago does not.
    psql(
        &a.world.database,
        "update code_guard set failures[1] = failures[1] - interval '9 min'",
    )
    .await;
    let refused = attempt(&b, "1").await.refused(429, "RATE_LIMITED");
    let ms = refused.body["error"]["params"]["retry_after_ms"]
        .as_u64()
        .expect("ms");
    assert!((40_000..=60_000).contains(&ms), "{ms}");
    a.advance(Duration::from_millis(ms)).await;
    a.anon().code(&alice.email, "login").await;
    attempt(&a, "1").await.refused(400, "CODE_INVALID");
    attempt(&b, "1").await.refused(429, "RATE_LIMITED");
    a.advance(Duration::from_secs(601)).await;
    let code = a.anon().code(&alice.email, "login").await;
    b.anon()
        .post(
            "/auth/login-code",
            json!({ "email": alice.email, "code": code }),
        )
        .await
        .expect(200);
}
