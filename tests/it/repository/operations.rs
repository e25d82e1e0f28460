//! The operator's view: probes, versions, TLS, settings.

use std::{path::Path, process::Command, time::Duration};

use devcluster::certs::Certificates;
use serde_json::{Value, json};

use crate::support::{ProcessNode, blocked, connect, nodes, nodes_with, psql, spawn};

async fn admin(url: String) -> (u16, Value) {
    let answer = reqwest::get(url).await.expect("an answer");
    (
        answer.status().as_u16(),
        answer.json().await.unwrap_or(Value::Null),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_are_on_the_admin_listener_only() {
    let [a] = nodes().await;
    let (status, live) = admin(format!("{}/health/live", a.admin)).await;
    assert_eq!((status, &live["data"]["status"]), (200, &json!("ok")));
    let mut ready = Value::Null;
    for _ in 0..100 {
        ready = admin(format!("{}/health/ready", a.admin)).await.1;
        if ready["data"]["backplane"] == true {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        ready["data"],
        json!({ "status": "ready", "draining": false, "postgres": true, "backplane": true })
    );
    assert_eq!(
        a.anon().get("/health").await.expect(200).body,
        json!({ "data": { "status": "ok" } })
    );
    for path in ["/metrics", "/health/live", "/health/ready"] {
        a.anon().get(path).await.refused(404, "NOT_FOUND");
    }
    let version = a.anon().get("/version").await.expect(200);
    assert_eq!(
        (&version.data()["supported"], &version.data()["default"]),
        (&json!(["v1"]), &json!("v1"))
    );
    assert!(version.header("strict-transport-security").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_its_redis_is_ready_and_says_so() {
    let [a] = nodes_with(&[("REDIS_URL", "redis://127.0.0.1:1/0")]).await;
    let (status, ready) = admin(format!("{}/health/ready", a.admin)).await;
    assert_eq!((status, &ready["data"]["backplane"]), (200, &json!(false)));
    // Registration, limits and all, from the node's own share.
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let body = json!({ "conversation_id": conversation, "payload": { "type": "text" } });
    let answers = futures_util::future::join_all(
        (0..20).map(|_| agent.post(format!("/agents/{}/messages", agent.id), body.clone())),
    )
    .await;
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 201).count(),
        5
    );
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 429).count(),
        15
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_speaks_tls_and_nothing_else() {
    let folder = std::env::temp_dir().join(format!("blindpipe-tls-{}", crate::support::ulid()));
    let certificates = Certificates::prepare(&folder).expect("certificates");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let [cert, key] = [text(&certificates.cert), text(&certificates.key)];
    let [a] = nodes_with(&[
        ("TLS_CERT_FILE", &cert),
        ("TLS_KEY_FILE", &key),
        ("TRUSTED_PROXIES", ""),
    ])
    .await;
    let ca = reqwest::Certificate::from_pem(&std::fs::read(&certificates.ca).expect("the CA"))
        .expect("a certificate");
    let http = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([ca])
        .build()
        .expect("a client");
    let base = a.base.replace("http://127.0.0.1", "https://localhost");
    let answer = http
        .get(format!("{base}/version"))
        .send()
        .await
        .expect("an answer");
    assert_eq!(
        (answer.status().as_u16(), answer.version()),
        (200, reqwest::Version::HTTP_2)
    );
    // Plain HTTP is cut, also when it claims to have come through a proxy.
    let plain = reqwest::Client::new()
        .get(format!("{}/version", a.base))
        .header("x-forwarded-proto", "https")
        .send()
        .await;
    assert!(plain.is_err(), "{plain:?}");
    std::fs::remove_dir_all(folder).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_fills_the_log_by_answers_that_are_meant() {
    let [a] = nodes().await;
    let process = ProcessNode::start(&a).await;
    let caller = a.anon().at(&process.base);
    for path in [
        "/auth/device/code",
        "/auth/device/verify",
        "/auth/device/poll",
    ] {
        let planned = caller.post(path, json!({})).await;
        planned.refused(501, "NOT_AVAILABLE_IN_V1");
    }
    let log = process.log();
    assert!(!log.contains("ERROR"), "{log}");
}

fn serve(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    run("serve", settings)
}

/// The exit code and standard error of a subcommand.
pub(super) fn run(subcommand: &str, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_blindpipe"))
        .arg(subcommand)
        .env_clear()
        .envs(settings.iter().copied())
        .output()
        .expect("a process");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_health_check_asks_whether_the_node_is_ready() {
    let [a] = nodes().await;
    let admin = a.admin.trim_start_matches("http://").to_owned();
    let check = async |admin: String| {
        tokio::task::spawn_blocking(move || run("healthcheck", &[("ADMIN_ADDR", &admin)]).0)
            .await
            .expect("no panic")
    };
    assert_eq!(check(admin.clone()).await, Some(0));
    a.drain().await;
    assert_eq!(check(admin).await, Some(1), "nobody is there");
    assert_eq!(check("nonsense".to_owned()).await, Some(1));
}

#[test]
fn all_faults_of_the_settings_are_said_at_once() {
    let (code, said) = serve(&[
        ("LISTEN_ADDR", "everywhere"),
        ("DATABASE_POOL_SIZE", "0"),
        ("LIMIT_OVERRIDES", "nonsense=1/s"),
        ("ACCESS_TOKEN_KEYS", "k:c2hvcnQ="),
        ("PROFILE", "staging"),
    ]);
    assert_eq!(code, Some(1));
    for name in [
        "LISTEN_ADDR",
        "DATABASE_POOL_SIZE",
        "LIMIT_OVERRIDES",
        "ACCESS_TOKEN_KEYS",
        "PROFILE",
        "DATABASE_URL",
        "REDIS_URL",
        "SERVER_SECRET",
        "MAIL_URL",
    ] {
        assert!(said.contains(&format!("{name}: ")), "{name} in {said}");
    }
    assert!(!said.contains("c2hvcnQ"), "a secret is repeated: {said}");
}

#[test]
fn what_is_wrong_only_together_is_said_too() {
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let ring = format!("k:{key}");
    let right = [
        ("DATABASE_URL", "postgresql://x"),
        ("REDIS_URL", "redis://x"),
        ("SERVER_SECRET", key),
        ("ACCESS_TOKEN_KEYS", &ring),
        ("MAIL_URL", "file:///x"),
    ];
    let off = [
        ("LIMITS_OFF", "true"),
        ("QUICK_HASHES", "true"),
        ("UPKEEP_SPEED", "2"),
    ];
    let (code, said) = serve(&[right.as_slice(), &off].concat());
    assert_eq!(code, Some(1));
    for name in [
        "TLS_CERT_FILE or TRUSTED_PROXIES",
        "LIMITS_OFF",
        "QUICK_HASHES",
        "UPKEEP_SPEED",
        "MAIL_URL",
        "TURNSTILE_SECRET",
    ] {
        assert!(said.contains(name), "{name} in {said}");
    }
    let dev = [
        ("PROFILE", "dev"),
        ("LISTEN_ADDR", "0.0.0.0:0"),
        ("TRUSTED_PROXIES", "127.0.0.1/32"),
    ];
    let (code, said) = serve(&[right.as_slice(), &dev].concat());
    assert_eq!(code, Some(1));
    assert!(said.contains("loopback"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_an_older_schema_and_migrations_run_once() {
    let [a] = nodes().await;
    psql(&a.world.database, "delete from refinery_schema_history where version = (select max(version) from refinery_schema_history)").await;
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let ring = format!("k:{key}");
    let mail = format!("file://{}", a.world.mail_dir.display());
    let (code, said) = serve(&[
        ("PROFILE", "dev"),
        ("LISTEN_ADDR", "127.0.0.1:0"),
        ("ADMIN_ADDR", "127.0.0.1:0"),
        ("TRUSTED_PROXIES", "127.0.0.1/32"),
        ("DATABASE_URL", a.world.setting("DATABASE_URL")),
        // Behind a pooler the role has a time-out of its own, for this wait.
        (
            "DATABASE_TIMEOUT_MS",
            a.world.setting("DATABASE_TIMEOUT_MS"),
        ),
        ("DATABASE_REQUIRE_DURABLE", "false"),
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("SERVER_SECRET", key),
        ("ACCESS_TOKEN_KEYS", &ring),
        ("MAIL_URL", &mail),
    ]);
    assert_eq!(code, Some(1));
    assert!(said.contains("blindpipe migrate"), "{said}");

    // Four at once on an empty database: one does the work.
    let empty = format!("{}_empty", a.world.database);
    let name = empty.rsplit('/').next().expect("a name");
    psql(&a.world.database, &format!("create database {name}")).await;
    let runs = (0..4).map(|_| blindpipe::db::migrate::run_at(&empty));
    let applied: Vec<usize> = futures_util::future::join_all(runs)
        .await
        .into_iter()
        .map(|run| run.expect("migrated"))
        .collect();
    assert_eq!(applied.iter().filter(|n| **n > 0).count(), 1, "{applied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_finishes_what_it_began() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let id: uuid::Uuid = group.parse::<ulid::Ulid>().expect("a ULID").into();
    let mut client = connect(&a.world.database).await;
    let held = client.transaction().await.expect("begun");
    let lock = "select 1 from conversation where conversation_id = $1 for update";
    held.execute(lock, &[&id]).await.expect("locked");
    let mut begun = vec![spawn({
        let (alice, group) = (alice.clone(), group.clone());
        async move { alice.say(&group, "x").await.status }
    })];
    for n in 0..4 {
        let (alice, group) = (alice.clone(), group.clone());
        let title = json!({ "title": format!("title {n}") });
        begun.push(spawn(async move {
            alice
                .patch(format!("/conversations/{group}"), title)
                .await
                .status
        }));
    }
    // All five are at work, and wait for the group.
    blocked(&held, 5).await;
    let address = a.base.trim_start_matches("http://").to_owned();
    let released = async {
        while tokio::net::TcpStream::connect(&address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        held.rollback().await.expect("released");
    };
    tokio::join!(a.drain(), released);
    let mut statuses = Vec::new();
    for one in begun {
        statuses.push(one.await.expect("no panic"));
    }
    assert_eq!(statuses, [201, 200, 200, 200, 200]);
    alice.on(&b).say(&group, "elsewhere").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_an_allowed_origin_may_call_and_others_are_told_nothing() {
    let [a] = nodes().await;
    let preflight = |origin: &'static str| {
        let caller = a.anon();
        async move {
            let request = caller
                .request(reqwest::Method::OPTIONS, "/conversations")
                .header("origin", origin);
            caller
                .send(request.header("access-control-request-method", "POST"))
                .await
                .expect(200)
        }
    };
    let allowed = preflight("https://localhost").await;
    assert_eq!(
        allowed.header("access-control-allow-origin"),
        Some("https://localhost")
    );
    assert_eq!(
        allowed.header("access-control-allow-credentials"),
        Some("true")
    );
    assert_eq!(
        preflight("https://evil.example")
            .await
            .header("access-control-allow-origin"),
        None
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dev_node_behind_a_proxy_of_another_host_answers_nobody() {
    let [a] = nodes().await;
    let caller = a.anon();
    for (host, status) in [
        ("localhost:8443", 200),
        ("chat.example.org", 403),
        ("localhost, chat.example.org", 403),
    ] {
        let call = caller.request(reqwest::Method::GET, "/version");
        let answer = caller.send(call.header("x-forwarded-host", host)).await;
        assert_eq!(answer.status, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_word_may_be_a_method_but_not_a_metric() {
    let [a] = nodes().await;
    let caller = a.anon();
    for n in 0..20 {
        let method = reqwest::Method::from_bytes(format!("WORD{n}").as_bytes()).expect("a method");
        caller
            .send(caller.request(method, "/version"))
            .await
            .refused(405, "METHOD_NOT_ALLOWED");
    }
    let text = reqwest::get(format!("{}/metrics", a.admin))
        .await
        .expect("metrics")
        .text()
        .await
        .expect("text");
    assert!(!text.contains("WORD") && text.contains(r#"method="other""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_one_line_of_json_with_the_request_s_id_and_no_secret() {
    let [a] = nodes().await;
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let conversation = alice.talk_to(&a.agent(&alice, "helper").await).await;
    psql(
        &a.world.database,
        "alter table idempotency rename to elsewhere",
    )
    .await;
    let path = format!("/conversations/{conversation}/messages");
    let body = json!({ "payload": { "type": "text", "text": "a word of hers" } });
    let caller = alice.caller.at(&b.base);
    let call = caller
        .request(reqwest::Method::POST, path)
        .header("x-request-id", "find-me-1")
        .json(&body);
    caller.send(call).await.refused(500, "INTERNAL_ERROR");
    let log = b.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let about = lines
        .iter()
        .filter(|line| line["request_id"] == "find-me-1");
    let about: Vec<_> = about.collect();
    assert_eq!(about.len(), 1, "{log}");
    assert_eq!(
        (&about[0]["status"], &about[0]["level"]),
        (&json!(500), &json!("ERROR"))
    );
    assert_eq!(
        about[0]["route"],
        "/conversations/{conversation_id}/messages"
    );
    for secret in [
        &alice.email,
        &alice.access_token,
        &"a word of hers".to_owned(),
    ] {
        assert!(!log.contains(secret.as_str()), "{log}");
    }
}
