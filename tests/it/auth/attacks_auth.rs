//! Attacks on codes, registration and reset, by their numbers in the list of attacks.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, FULL_HASHES, PASSWORD, Shift, TestNode, User, connect, nodes, nodes_with, ulid,
};

/// No budget is met by accident.
const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_register_email=100000/s,auth_register_ip=100000/s,auth_send_code=100000/s,auth_send_code_day=100000/s,auth_login_ip=100000/s,default_ip=100000/s,\
     auth_human_ip=100000/s",
);

fn address() -> String {
    format!("u{}@example.org", ulid().to_string().to_lowercase())
}

fn login(email: &str, password: &str) -> Value {
    json!({ "email": email, "account_password": password, "turnstile_token": "dev-pass" })
}

fn send_code(email: &str, scene: &str) -> Value {
    json!({ "email": email, "scene": scene, "turnstile_token": "dev-pass" })
}

/// The parts of an answer that an outsider can compare.
fn face(answer: &Answer) -> (u16, Value, Vec<(String, String)>) {
    let own = ["x-request-id", "date", "ratelimit"];
    let headers = answer
        .headers
        .iter()
        .filter(|(name, _)| !own.contains(&name.as_str()));
    let headers = headers
        .map(|(name, value)| (name.to_string(), format!("{value:?}")))
        .collect();
    (answer.status, answer.body.clone(), headers)
}

/// Its name, its path, the number of pairs, its body for an address.
type Call = (&'static str, &'static str, usize, fn(&str) -> Value);

/// How much longer a call takes for the known address than for unknown ones, by so many pairs in
/// turn.
async fn shift(a: &TestNode, known: &str, (what, path, pairs, body): Call) -> Shift {
    let (caller, client) = (a.anon(), connect(&a.world.database).await);
    let (mut of_known, mut of_unknown) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
    for n in 0..pairs {
        // Both are as they were before each pair: neither is counted out, and no row is there for
        // one alone.
        let anew = "delete from login_guard; delete from code_guard; delete from email_code";
        client.batch_execute(anew).await.expect("forgotten");
        let stranger = address();
        let mut pair = [(&mut of_known, known), (&mut of_unknown, stranger.as_str())];
        if n % 2 == 0 {
            pair.reverse();
        }
        let mut faces = Vec::new();
        for (times, email) in pair {
            let started = Instant::now();
            let answer = caller.post(path, body(email)).await;
            times.push(started.elapsed().as_secs_f64());
            faces.push(face(&answer));
        }
        assert_eq!(faces[0], faces[1], "{what}");
    }
    Shift::between(&of_known, &of_unknown)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
async fn attack_01_known_and_unknown_addresses_look_alike() {
    let [a] = nodes_with(&[RAISED_LIMITS, FULL_HASHES]).await;
    let alice = a.user("alice").await;
    let calls: [Call; 6] = [
        ("register code", "/auth/send-code", 250, |email| {
            send_code(email, "register")
        }),
        ("login code", "/auth/send-code", 250, |email| {
            send_code(email, "login")
        }),
        ("reset code", "/auth/send-code", 250, |email| {
            send_code(email, "reset")
        }),
        // Each is a hash.
        ("login", "/auth/login", 200, |email| {
            login(email, "a wrong password")
        }),
        (
            "code login",
            "/auth/login-code",
            250,
            |email| json!({ "email": email, "code": "12345678" }),
        ),
        (
            "reset",
            "/auth/reset-password",
            250,
            |email| json!({ "email": email, "code": "12345678", "new_account_password": "a new password" }),
        ),
    ];
    for call in calls {
        let first = shift(&a, &alice.email, call).await;
        tracing::info!(what = call.0, ?first, "known against unknown");
        if first.is_material() {
            // Once in a thousand times it is chance. A real difference comes again, in the same
            // direction.
            let again = shift(&a, &alice.email, call).await;
            let real = again.is_material() && (first.medians > 0.0) == (again.medians > 0.0);
            assert!(
                !real,
                "{}: known against unknown {first:?}, then {again:?}",
                call.0
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_02_a_taken_address_shows_only_to_its_owner() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    a.advance(Duration::from_secs(61)).await;
    let (caller, unknown) = (a.anon(), address());
    let register = async |email: &str, code: &str| {
        caller
            .post("/auth/register", User::registration(email, "x", code))
            .await
    };
    let known = register(&alice.email, "1")
        .await
        .refused(400, "CODE_INVALID");
    let other = register(&unknown, "1").await.refused(400, "CODE_INVALID");
    assert_eq!(known.body, other.body);
    let code = caller.code(&alice.email, "register").await;
    register(&alice.email, &code)
        .await
        .refused(409, "EMAIL_TAKEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_03_codes_cannot_be_guessed() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    // Five wrong tries burn a code.
    let (caller, email) = (a.anon(), address());
    let code = caller.code(&email, "register").await;
    let wrong = if code == "00000000" {
        "00000001"
    } else {
        "00000000"
    };
    let register = async |node: &TestNode, code: &str| {
        caller
            .on(node)
            .post("/auth/register", User::registration(&email, "x", code))
            .await
    };
    for node in [&a, &b, &a, &b, &a] {
        register(node, wrong).await.refused(400, "CODE_INVALID");
    }
    register(&b, &code).await.refused(400, "CODE_INVALID");
    // Ten wrong ones an hour, over all scenes, codes sent again, and nodes; then not even a right
    // one counts.
    let alice = a.user("alice").await;
    for n in 0..10 {
        let scene = ["login", "reset"][n % 2];
        // Only a try of a live code counts.
        caller.code(&alice.email, scene).await;
        let (path, mut body) = match scene {
            "login" => (
                "/auth/login-code",
                json!({ "email": alice.email, "code": "1" }),
            ),
            _ => (
                "/auth/reset-password",
                json!({ "email": alice.email, "code": "1", "new_account_password": PASSWORD }),
            ),
        };
        // Three are anybody's; the others need a human.
        if n >= 3 {
            body["turnstile_token"] = json!("dev-pass");
        }
        caller
            .on(if n % 4 < 2 { &a } else { &b })
            .post(path, body)
            .await
            .refused(400, "CODE_INVALID");
    }
    let code = caller.code(&alice.email, "login").await;
    let body = json!({ "email": alice.email, "code": code, "turnstile_token": "dev-pass" });
    let refused = caller
        .post("/auth/login-code", body.clone())
        .await
        .refused(429, "RATE_LIMITED");
    let params = &refused.body["error"]["params"];
    assert_eq!(
        (&params["scope"], &params["limit"]),
        (&json!("auth_code_tries"), &json!("10/h"))
    );
    assert!(
        refused
            .header("retry-after")
            .expect("a wait")
            .parse::<u64>()
            .expect("seconds")
            > 3000
    );
    // The owner's password is not concerned.
    caller
        .post("/auth/login", login(&alice.email, PASSWORD))
        .await
        .expect(200);
    a.advance(Duration::from_secs(3601)).await;
    let code = caller.code(&alice.email, "login").await;
    caller
        .post(
            "/auth/login-code",
            json!({ "email": alice.email, "code": code }),
        )
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_04_a_code_is_good_for_its_purpose_its_owner_and_ten_minutes() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let (caller, other) = (a.anon(), b.anon());
    let enter = async |scene: &str, email: &str, code: &str| {
        let (path, body) = match scene {
            "register" => ("/auth/register", User::registration(email, "x", code)),
            "login" => ("/auth/login-code", json!({ "email": email, "code": code })),
            _ => (
                "/auth/reset-password",
                json!({ "email": email, "code": code, "new_account_password": PASSWORD }),
            ),
        };
        other.post(path, body).await
    };
    // Another purpose.
    for (asked, used) in [
        ("login", "reset"),
        ("reset", "login"),
        ("register", "login"),
        ("login", "register"),
    ] {
        let code = caller.code(&alice.email, asked).await;
        enter(used, &alice.email, &code)
            .await
            .refused(400, "CODE_INVALID");
        a.advance(Duration::from_secs(3601)).await;
    }
    // Another's.
    let code = caller.code(&alice.email, "login").await;
    enter("login", &bob.email, &code)
        .await
        .refused(400, "CODE_INVALID");
    // Twice.
    enter("login", &alice.email, &code).await.expect(200);
    enter("login", &alice.email, &code)
        .await
        .refused(400, "CODE_INVALID");
    // After a newer one.
    let old = caller.code(&alice.email, "login").await;
    let new = caller.code(&alice.email, "login").await;
    enter("login", &alice.email, &old)
        .await
        .refused(400, "CODE_INVALID");
    enter("login", &alice.email, &new).await.expect(200);
    // At 599 s and at 601 s.
    let code = caller.code(&alice.email, "login").await;
    a.advance(Duration::from_secs(590)).await;
    enter("login", &alice.email, &code).await.expect(200);
    let code = caller.code(&alice.email, "login").await;
    a.advance(Duration::from_secs(601)).await;
    enter("login", &alice.email, &code)
        .await
        .refused(400, "CODE_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_05_of_many_who_use_a_code_at_once_one_succeeds() {
    let [a, b, c] = nodes_with(&[RAISED_LIMITS]).await;
    let email = address();
    let callers = [a.anon(), b.anon(), c.anon()];
    let code = callers[0].code(&email, "register").await;
    // As many at once as a node hashes at once, and some more: nobody is to be turned away for
    // that.
    let tries = (0..50)
        .map(|n| callers[n % 3].post("/auth/register", User::registration(&email, "x", &code)));
    let answers = join_all(tries).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(made, 1);
    let known = ["CODE_INVALID", "RATE_LIMITED", "SERVICE_UNAVAILABLE"];
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 201 || known.contains(&answer.code())),
        "{answers:?}"
    );
    let alice = a.user("alice").await;
    let code = callers[0].code(&alice.email, "login").await;
    let tries = (0..50).map(|n| {
        callers[n % 3].post(
            "/auth/login-code",
            json!({ "email": alice.email, "code": code }),
        )
    });
    let answers = join_all(tries).await;
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 200).count(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_an_address_gets_so_many_codes_a_day() {
    let limits = format!(
        "{},auth_send_code_day=3/24h",
        RAISED_LIMITS.1.replace("auth_send_code_day=100000/s,", "")
    );
    let [a, b] = nodes_with(&[(RAISED_LIMITS.0, &limits)]).await;
    let email = address();
    // Each scene has its own code, and the address one budget.
    for (node, scene) in [(&a, "register"), (&b, "login"), (&b, "reset")] {
        let body = send_code(&email, scene);
        node.anon().post("/auth/send-code", body).await.expect(200);
    }
    for node in [&a, &b] {
        let body = send_code(&email, "register");
        let limited = node.anon().post("/auth/send-code", body).await;
        let limited = limited.refused(429, "RATE_LIMITED");
        assert_eq!(
            limited.body["error"]["params"]["scope"],
            "auth_send_code_day"
        );
    }
    a.anon().code(&address(), "register").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_a_stranger_without_a_human_cannot_use_up_anyones_budget() {
    let [a] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "default_ip=100000/s,auth_register_ip=100000/s,auth_human_ip=100000/s",
    )])
    .await;
    let (caller, email) = (a.anon(), address());
    for _ in 0..100 {
        let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-fail" });
        caller
            .post("/auth/send-code", body)
            .await
            .refused(403, "TURNSTILE_FAILED");
    }
    let code = a.anon().code(&email, "register").await;
    let again = send_code(&email, "register");
    let limited = a
        .anon()
        .post("/auth/send-code", again)
        .await
        .refused(429, "RATE_LIMITED");
    let params = &limited.body["error"]["params"];
    assert_eq!(
        (&params["scope"], &params["limit"]),
        (&json!("auth_send_code"), &json!("1/60s"))
    );
    let ms = params["retry_after_ms"].as_u64().expect("ms");
    assert!((1..=60_000).contains(&ms));
    assert_eq!(
        limited.header("retry-after"),
        Some(ms.div_ceil(1000).to_string().as_str())
    );
    assert!(
        limited
            .header("ratelimit")
            .expect("a header")
            .starts_with("\"auth_send_code\";r=0;")
    );
    for _ in 0..10 {
        let mut body = User::registration(&email, "x", &code);
        body["turnstile_token"] = json!("dev-fail");
        caller
            .post("/auth/register", body)
            .await
            .refused(403, "TURNSTILE_FAILED");
        let mut body = login(&email, PASSWORD);
        body["turnstile_token"] = json!("dev-fail");
        caller
            .post("/auth/login", body)
            .await
            .refused(403, "TURNSTILE_FAILED");
    }
    caller
        .post("/auth/register", User::registration(&email, "x", &code))
        .await
        .expect(201);
    caller
        .post("/auth/login", login(&email, PASSWORD))
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_08_an_address_is_one_address_however_it_is_written() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "default_ip=100000/s")]).await;
    let caller = a.anon();
    for email in [
        "a@b.c\r\nBcc: x@y.z",
        "a@b.c\nTo: x@y.z",
        "a@b.c,x@y.z",
        "<a@b.c>",
        "A <a@b.c>",
        "a@b.c\u{0}",
        "a@b.c ",
        "\u{430}lice@example.org",
        "alice@ex\u{e4}mple.org",
        "alice@example",
        "alice",
        "@example.org",
        "alice@",
    ] {
        caller
            .post("/auth/send-code", send_code(email, "login"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let email = address();
    caller
        .post("/auth/send-code", send_code(&email, "register"))
        .await
        .expect(200);
    let shouted = send_code(&email.to_uppercase(), "login");
    b.anon()
        .post("/auth/send-code", shouted)
        .await
        .refused(429, "RATE_LIMITED");
    // The login's count, too.
    for n in 0..5 {
        let email = if n % 2 == 0 {
            email.to_uppercase()
        } else {
            email.clone()
        };
        b.anon()
            .post("/auth/login", login(&email, "a wrong password"))
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    caller
        .post("/auth/login", login(&email, PASSWORD))
        .await
        .refused(423, "ACCOUNT_LOCKED");
}
