//! Attacks on passwords and their checks, by their numbers in the list of attacks.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Caller, FULL_HASHES, PASSWORD, ProcessNode, User, connect, nodes, nodes_with, patiently,
    private_redis, psql, ulid,
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

#[tokio::test(flavor = "multi_thread")]
async fn attack_09_a_password_gets_five_tries_whatever_is_flushed_or_killed() {
    let mut redis = private_redis("locks").await;
    let url = redis.url();
    let [a] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let mut b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let strangers = [a.anon(), a.anon().at(&b.base)];
    // A hundred at once on two nodes; an unknown address is treated alike.
    for email in [alice.email.clone(), address()] {
        let tries = (0..100)
            .map(|n| strangers[n % 2].post("/auth/login", login(&email, "a wrong password")));
        let answers = join_all(tries).await;
        let evaluated = answers.iter().filter(|answer| answer.status == 401).count();
        let locked: Vec<_> = answers
            .into_iter()
            .filter(|answer| answer.status == 423)
            .collect();
        assert_eq!((evaluated, locked.len()), (5, 95));
        for answer in locked {
            let wait = answer.body["error"]["params"]["retry_after"]
                .as_u64()
                .expect("seconds");
            assert!((1..=900).contains(&wait), "{wait}");
            assert_eq!(
                answer.header("retry-after"),
                Some(wait.to_string().as_str())
            );
            answer.refused(423, "ACCOUNT_LOCKED");
        }
    }
    // It comes back empty.
    redis.kill();
    redis.restart().expect("started again");
    b.kill();
    let b = ProcessNode::start(&a).await;
    for caller in [a.anon(), a.anon().at(&b.base)] {
        caller
            .post("/auth/login", login(&alice.email, PASSWORD))
            .await
            .refused(423, "ACCOUNT_LOCKED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_locking_somebody_out_leaves_the_other_ways_in() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut socket = alice.on(&b).connect().await;
    for _ in 0..5 {
        a.anon()
            .post("/auth/login", login(&alice.email, "a wrong password"))
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    a.anon()
        .post("/auth/login", login(&alice.email, PASSWORD))
        .await
        .refused(423, "ACCOUNT_LOCKED");
    let alice = alice.on(&b).refreshed().await;
    alice.get("/users/me").await.expect(200);
    socket.say(json!({ "type": "ping" })).await;
    socket.expect("pong").await;
    let code = a.anon().code(&alice.email, "login").await;
    b.anon()
        .post(
            "/auth/login-code",
            json!({ "email": alice.email, "code": code }),
        )
        .await
        .expect(200);
    // Fifteen minutes, and it is over; a success forgets what was before it.
    a.anon()
        .post("/auth/login", login(&alice.email, PASSWORD))
        .await
        .refused(423, "ACCOUNT_LOCKED");
    a.advance(Duration::from_secs(901)).await;
    for _ in 0..2 {
        for _ in 0..4 {
            let wrong = login(&alice.email, "a wrong password");
            a.anon()
                .post("/auth/login", wrong)
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
async fn attack_11_one_address_may_fail_thirty_times_in_ten_minutes() {
    let [a] = nodes().await;
    // A process of its own, because tests share the counters of this one.
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    // The hop that the trusted proxy adds last is the caller's.
    let log_in = async |caller: &Caller, ip: &str, email: &str, password: &str| {
        let request = caller
            .request(reqwest::Method::POST, "/auth/login")
            .header("x-forwarded-for", ip);
        caller.send(request.json(&login(email, password))).await
    };
    let callers = [a.anon(), a.anon().at(&b.base)];
    // Over two nodes. Of IPv6, a whole /64 is one address.
    for ips in [
        ["192.0.2.7", "192.0.2.7"],
        ["2001:db8::1", "2001:db8::ffff:1:2:3"],
    ] {
        let mut failed = 0;
        for n in 0..33 {
            let answer = log_in(&callers[n % 2], ips[n % 2], &address(), "a wrong password").await;
            match answer.status {
                401 => failed += 1,
                _ => {
                    let refused = answer.refused(429, "RATE_LIMITED");
                    let params = &refused.body["error"]["params"];
                    let shown = (&params["scope"], &params["limit"]);
                    assert_eq!(shown, (&json!("auth_login_ip"), &json!("30/10min")));
                }
            }
        }
        assert_eq!(failed, 30);
        log_in(&callers[0], ips[0], &alice.email, PASSWORD)
            .await
            .refused(429, "RATE_LIMITED");
    }
    // Somebody who watches the metrics sees it rise.
    assert_eq!(b.metric("password_logins_total", "wrong").await, 30.0);
    // Successes cost nothing, and other addresses are not concerned.
    for _ in 0..33 {
        log_in(&callers[0], "192.0.2.8", &alice.email, PASSWORD)
            .await
            .expect(200);
    }
    a.advance(Duration::from_secs(601)).await;
    log_in(&callers[0], "192.0.2.7", &alice.email, PASSWORD)
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_11_a_burst_of_failures_gets_no_more_than_that() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let callers = [a.anon(), b.anon()];
    let log_in = async |n: usize, ip: &str, email: &str, password: &str| {
        let caller = &callers[n % 2];
        let request = caller
            .request(reqwest::Method::POST, "/auth/login")
            .header("x-forwarded-for", ip);
        caller.send(request.json(&login(email, password))).await
    };
    // Successes cost nothing, however many: the whole budget is there for what follows.
    for n in 0..31 {
        let answer = log_in(n, "192.0.2.9", &alice.email, PASSWORD)
            .await
            .expect(200);
        let left = answer
            .header("ratelimit")
            .expect("a header")
            .split(';')
            .nth(1);
        assert_eq!(left, Some("r=30"), "{n}");
    }
    let strangers: Vec<String> = (0..60).map(|_| address()).collect();
    // A caller that is told to come again has not failed, and used up nothing.
    let tries = strangers.iter().enumerate().map(|(n, email)| {
        let log_in = &log_in;
        patiently(async move || log_in(n, "192.0.2.9", email, "a wrong password").await)
    });
    let (mut judged, mut limited) = (0, 0);
    for (answer, _) in join_all(tries).await {
        if answer.status == 401 {
            answer.refused(401, "INVALID_CREDENTIALS");
            judged += 1;
        } else {
            let refused = answer.refused(429, "RATE_LIMITED");
            assert_eq!(refused.body["error"]["params"]["scope"], "auth_login_ip");
            limited += 1;
        }
    }
    assert_eq!((judged, limited), (30, 30));
    // A refused call was not tried.
    let rows = psql(
        &a.world.database,
        "select email from login_guard where failures > 0",
    )
    .await;
    let tried = rows
        .iter()
        .filter(|row| matches!(row, tokio_postgres::SimpleQueryMessage::Row(_)))
        .count();
    assert_eq!(tried, 30);
    for n in 0..2 {
        log_in(n, "192.0.2.10", &alice.email, PASSWORD)
            .await
            .expect(200);
        log_in(n, "192.0.2.9", &alice.email, PASSWORD)
            .await
            .refused(429, "RATE_LIMITED");
    }
    // Neither what is refused for other reasons: a lock, a robot.
    let locked = address();
    for n in 0..5 {
        log_in(n, "192.0.2.11", &locked, "a wrong password")
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    for n in 0..20 {
        log_in(n, "192.0.2.11", &locked, "a wrong password")
            .await
            .refused(423, "ACCOUNT_LOCKED");
        let mut robot = login(&alice.email, PASSWORD);
        robot["turnstile_token"] = json!("dev-fail");
        let caller = &callers[n % 2];
        let request = caller
            .request(reqwest::Method::POST, "/auth/login")
            .header("x-forwarded-for", "192.0.2.11");
        caller
            .send(request.json(&robot))
            .await
            .refused(403, "TURNSTILE_FAILED");
    }
    let answer = log_in(0, "192.0.2.11", &alice.email, PASSWORD)
        .await
        .expect(200);
    assert!(
        answer
            .header("ratelimit")
            .expect("a header")
            .contains(";r=25;")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_12_passwords_count_to_their_last_byte() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let caller = a.anon();
    let register = async |email: &str, password: &str| {
        let code = caller.code(email, "register").await;
        let mut body = User::registration(email, "x", &code);
        body["account_password"] = json!(password);
        caller.post("/auth/register", body).await
    };
    let alike = "x".repeat(72);
    for password in [
        format!("{alike}-a tail"),
        "\u{1f511}\u{1f512}\u{1f513}".repeat(3),
        "\u{1f511}".repeat(256),
        "y".repeat(1024),
        " leading and trailing ".to_owned(),
    ] {
        let email = address();
        register(&email, &password).await.expect(201);
        for wrong in [
            format!("{alike}-another"),
            format!("{password} "),
            password.trim().to_owned() + "!",
        ] {
            let wrong = caller.post("/auth/login", login(&email, &wrong)).await;
            assert!(matches!(wrong.status, 400 | 401), "{wrong:?}");
        }
        caller
            .post("/auth/login", login(&email, &password))
            .await
            .expect(200);
    }
    let refused = [
        "short77",
        "äöüßéèç",
        "password",
        "PASSWORD",
        "12345678",
        "iloveyou",
        "Qwertyuiop",
        "p@ssw0rd",
        "metallica",
        "Blindpipe",
    ]
    .map(str::to_owned);
    for password in refused.into_iter().chain([
        "z".repeat(1025),
        "z".repeat(60_000),
        "nul\u{0}inside".to_owned(),
    ]) {
        let mut body = User::registration(&address(), "x", "12345678");
        body["account_password"] = json!(password);
        caller
            .post("/auth/register", body)
            .await
            .refused(400, "VALIDATION_ERROR");
        let reset =
            json!({ "email": address(), "code": "12345678", "new_account_password": password });
        caller
            .post("/auth/reset-password", reset)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let mut body = User::registration(&address(), "x", "12345678");
    body["account_password"] = json!("z".repeat(1024 * 1024));
    caller
        .post("/auth/register", body)
        .await
        .refused(413, "PAYLOAD_TOO_LARGE");
}

/// Other tests hash with the least work.
#[tokio::test(flavor = "multi_thread")]
async fn hashes_of_passwords_and_tokens_have_their_full_cost_by_default() {
    let [a] = nodes_with(&[FULL_HASHES]).await;
    let alice = a.user("alice").await;
    a.agent(&alice, "agent").await;
    let client = connect(&a.world.database).await;
    let sql =
        "select (select password_hash from user_account), (select bcrypt_hash from agent_token)";
    let row = client.query_one(sql, &[]).await.expect("two hashes");
    let [password, token]: [String; 2] = [row.get(0), row.get(1)];
    assert!(password.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
    assert!(token.starts_with("$2b$10$"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_a_flood_of_logins_is_turned_away_and_hurts_nobody() {
    let [a] = nodes_with(&[RAISED_LIMITS, FULL_HASHES]).await;
    // A process of its own: both ends of so many sockets are more files than one process may have
    // on many machines.
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let (caller, her) = (a.anon().at(&b.base), alice.caller.at(&b.base));
    let flood = async {
        let tries = (0..500).map(|_| {
            let (caller, body) = (caller.clone(), login(&address(), "a wrong password"));
            async move { caller.post("/auth/login", body).await }
        });
        join_all(tries).await
    };
    let probes = async {
        let mut worst = Duration::ZERO;
        for _ in 0..20 {
            let started = Instant::now();
            her.get("/users/me").await.expect(200);
            worst = worst.max(started.elapsed());
        }
        worst
    };
    let (answers, worst) = tokio::join!(flood, probes);
    let count = |status: u16| {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .count()
    };
    // The rest found no place in the queue, or no database connection in time; nothing broke.
    assert_eq!(count(401) + count(503), 500);
    assert!(
        count(401) >= 1 && count(503) >= 1,
        "{} and {}",
        count(401),
        count(503)
    );
    assert!(
        answers
            .iter()
            .filter(|answer| answer.status == 503)
            .all(|answer| answer.header("retry-after").is_some())
    );
    // Not a measurement: only that a request is never queued behind five hundred hashes.
    assert!(worst < Duration::from_secs(5), "{worst:?}");
    // Nobody was counted for what we could not try.
    let rows = psql(
        &a.world.database,
        "select email from login_guard where failures > 0",
    )
    .await;
    let counted = rows
        .iter()
        .filter(|row| matches!(row, tokio_postgres::SimpleQueryMessage::Row(_)))
        .count();
    assert_eq!(counted, count(401));
    caller
        .post("/auth/login", login(&alice.email, PASSWORD))
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_14_nothing_can_be_slipped_into_a_body() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let caller = a.anon();
    let email = address();
    let bodies: [(&str, Value); 5] = [
        ("/auth/send-code", send_code(&email, "login")),
        (
            "/auth/register",
            User::registration(&email, "x", "12345678"),
        ),
        ("/auth/login", login(&email, PASSWORD)),
        (
            "/auth/login-code",
            json!({ "email": email, "code": "12345678" }),
        ),
        (
            "/auth/reset-password",
            json!({ "email": email, "code": "12345678", "new_account_password": PASSWORD }),
        ),
    ];
    for (path, right) in bodies {
        for (name, value) in [
            ("user_id", json!(ulid().to_string())),
            ("role", json!("admin")),
            ("__proto__", json!({ "admin": true })),
            ("constructor", json!({})),
            ("authenticated_at", json!("2099-01-01T00:00:00Z")),
        ] {
            let mut body = right.clone();
            body[name] = value;
            let refused = caller
                .post(path, body)
                .await
                .refused(400, "VALIDATION_ERROR");
            assert_eq!(
                refused.body["error"]["params"]["fields"][0]["path"], name,
                "{path}"
            );
        }
        let text = right.to_string();
        let twice = format!(
            "{},\"email\":\"victim@example.org\"}}",
            &text[..text.len() - 1]
        );
        caller
            .post_raw(path, twice)
            .await
            .refused(400, "VALIDATION_ERROR");
        let escaped = format!(
            "{},\"\\u0065mail\":\"victim@example.org\"}}",
            &text[..text.len() - 1]
        );
        caller
            .post_raw(path, escaped)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}
