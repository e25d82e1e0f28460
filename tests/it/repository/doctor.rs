//! `blindpipe doctor`, with parts that are good and parts that are not.

use std::{process::Command, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::db::migrate;
use devcluster::services::SERVING_ROLE;
use fred::{
    interfaces::ClientLike,
    types::{ClusterHash, CustomCommand},
};
use serde_json::json;

use crate::support::{
    ProcessNode, Receiver, S3Server, SMTP_PASSWORD, Secrecy, SmtpServer, World, connect,
    empty_database, followed_postgres, free_port, give_role_timeouts, h2::Tls, pgbouncer,
    private_redis, psql, redis_client, services, serving, through, ulid,
};

/// Settings in which nothing is wrong.
fn sound() -> Vec<(&'static str, String)> {
    let random = || BASE64.encode(rand::random::<[u8; 32]>());
    vec![
        ("SERVER_SECRET", random()),
        ("ACCESS_TOKEN_KEYS", format!("k1:{}", random())),
        ("MAX_SOCKETS", "100".to_owned()),
    ]
}

/// The exit code and the report for sound settings with some others.
async fn examine(world: &World, own: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blindpipe"));
    command
        .arg("doctor")
        .env_clear()
        .envs(world.environment())
        .envs(sound())
        .envs(own.iter().copied());
    let ran = tokio::task::spawn_blocking(move || command.output());
    let ran = ran.await.expect("no panic").expect("a program");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let all = [said.as_bytes(), &ran.stderr].concat();
    let all = String::from_utf8_lossy(&all);
    for secret in [SMTP_PASSWORD, "a secret of the tests"] {
        assert!(!all.contains(secret), "{all}");
    }
    (ran.status.code().expect("a code"), said)
}

/// Asserts that a part, and nothing else, has a fault, and that a remedy follows.
async fn finds(world: &World, own: &[(&str, &str)], part: &str) {
    let (code, said) = examine(world, own).await;
    let faults: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("FAULT"))
        .collect();
    assert_eq!(code, 1, "{said}");
    assert!(
        faults.len() == 1 && faults[0].contains(&format!(" {part}: ")),
        "{part}: {said}"
    );
    let place = said.find(faults[0]).expect("the line") + faults[0].len();
    assert!(said[place..].trim_start().starts_with("remedy: "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_without_faults_is_told_so() {
    let world = World::new(&[]).await;
    let (code, said) = examine(&world, &[]).await;
    assert_eq!(code, 0, "{said}");
    for part in [
        "settings",
        "machine.files",
        "SERVER_SECRET",
        "ACCESS_TOKEN_KEYS",
        "tls",
        "dns",
        "postgres.version",
        "postgres.primary",
        "postgres.schema",
        "postgres.role",
        "postgres.connections",
        "postgres.timeouts",
        "webhooks.secrets",
        "push.secrets",
        "postgres.clock",
        "redis.version",
        "redis.policy",
        "redis.latency",
        "redis.clock",
        "mail",
        "objects",
    ] {
        assert!(
            said.contains(&format!("ok       {part}: ")),
            "{part}: {said}"
        );
    }
    assert!(said.contains("0 fault(s)"), "{said}");
    let usual = [
        ("DATABASE_POOL_SIZE", "8"),
        ("SEND_WRITERS", "1"),
        ("WEBHOOK_WORKER", "true"),
    ];
    let (_, said) = examine(&world, &usual).await;
    // As `docs/scaling.md` and the chart's README count them.
    assert!(said.contains("a node opens about 24"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_server_that_webhooks_need_is_not_to_be_removed() {
    let world = World::new(&[]).await;
    let [old, new] = [(); 2].map(|()| BASE64.encode(rand::random::<[u8; 32]>()));
    let both = format!("{new},{old}");
    let node = world.node_with(&[("SERVER_SECRET", &old)]).await;
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let receiver = Receiver::start().await;
    let body = json!({ "url": receiver.url });
    alice.put(agent.webhook(""), body).await.expect(200);
    node.drain().await;

    let (code, said) = examine(&world, &[("SERVER_SECRET", &*both)]).await;
    let warned = said.contains("warning  webhooks.secrets: 1 ");
    assert!(code == 0 && warned, "{said}");
    finds(&world, &[("SERVER_SECRET", &new)], "webhooks.secrets").await;

    let own = [("SERVER_SECRET", &*both), ("UPKEEP_SPEED", "60")];
    let _node = ProcessNode::start_in_with(&world, &own).await;
    let mut said = String::new();
    for _ in 0..120 {
        (_, said) = examine(&world, &[("SERVER_SECRET", &*new)]).await;
        if said.contains("ok       webhooks.secrets: ") {
            return;
        }
    }
    panic!("{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_time_outs_behind_a_pooler_is_found() {
    let Some(pooler) = pgbouncer("doctor").await else {
        return;
    };
    let world = World::new(&[]).await;
    let url = through(Some(pooler.port()), &serving(&world.database));
    let own = [("DATABASE_URL", &*url), ("DATABASE_TIMEOUT_MS", "5000")];
    finds(&world, &own, "postgres.timeouts").await;

    give_role_timeouts(&world.database, Duration::from_secs(5)).await;
    end_backends(&world).await;
    let (code, said) = examine(&world, &own).await;
    let good = said.contains("ok       postgres.timeouts: ");
    assert!(code == 0 && good, "{said}");

    let (_, name) = world.database.rsplit_once('/').expect("a database");
    let reset = format!("alter role {SERVING_ROLE} in database \"{name}\" reset lock_timeout");
    psql(&services().postgres.admin_url(), &reset).await;
    end_backends(&world).await;
    let (code, said) = examine(&world, &own).await;
    let warned = said.contains("warning  postgres.timeouts: ") && said.contains("no lock_timeout");
    assert!(code == 0 && warned, "{said}");
}

/// Ends the pooler's connections to Postgres, which are older than the role's settings.
async fn end_backends(world: &World) {
    let sql = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and usename = 'blindpipe_serve'";
    psql(&world.database, sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_machine_and_the_settings_are_found() {
    let world = World::new(&[]).await;
    let repeated = BASE64.encode([7; 32]);
    finds(&world, &[("SERVER_SECRET", &repeated)], "SERVER_SECRET").await;
    let key = BASE64.encode(rand::random::<[u8; 32]>());
    let twice = [
        ("SERVER_SECRET", &*key),
        ("ACCESS_TOKEN_KEYS", &format!("k1:{key}")),
    ];
    finds(&world, &twice, "ACCESS_TOKEN_KEYS").await;
    finds(&world, &[("MAX_SOCKETS", "9999999")], "machine.files").await;
    finds(&world, &[("LIMIT_OVERRIDES", "x=1/s")], "LIMIT_OVERRIDES").await;

    let [certificate, other] = [Tls::new(), Tls::new()];
    let [cert, key] = certificate.settings();
    let [_, wrong_key] = other.settings();
    finds(&world, &[cert, wrong_key], "tls").await;
    // A browser would not know the authority; a client that does is served.
    let (code, said) = examine(&world, &[cert, key]).await;
    assert!(code == 0 && said.contains("warning  tls: "), "{said}");
    let known = ("SSL_CERT_FILE", certificate.authority_file());
    let (_, said) = examine(&world, &[cert, key, known]).await;
    assert!(said.contains("ok       tls: "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_postgres_are_found() {
    let world = World::new(&[]).await;
    let away = "postgres://127.0.0.1:1/none";
    finds(&world, &[("DATABASE_URL", away)], "postgres").await;
    finds(
        &world,
        &[("DATABASE_URL", &world.database)],
        "postgres.role",
    )
    .await;
    let empty = serving(&empty_database().await);
    finds(&world, &[("DATABASE_URL", &empty)], "postgres.schema").await;
    // The Postgres of the tests does not wait for the disk.
    let strict = [("DATABASE_REQUIRE_DURABLE", "true")];
    finds(&world, &strict, "postgres.durability").await;
    finds(
        &world,
        &[("DATABASE_POOL_SIZE", "1000")],
        "postgres.connections",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_found_and_is_none_after_its_promotion() {
    let [primary, standby] = followed_postgres("doctor").await;
    migrate::run_at(&primary.url()).await.expect("migrated");
    let granted = migrate::grant_at(&primary.url(), SERVING_ROLE).await;
    granted.expect("granted");
    let caught_up = "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
    let head = connect(&primary.url()).await;
    let head = head
        .query_one("select pg_current_wal_insert_lsn()::text", &[])
        .await;
    let head: String = head.expect("a position").get(0);
    let behind = connect(&standby.url()).await;
    while !behind
        .query_one(caught_up, &[&head])
        .await
        .expect("an answer")
        .get::<_, bool>(0)
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let world = World::new(&[]).await;
    let url = standby.serving_url();
    finds(&world, &[("DATABASE_URL", &url)], "postgres.primary").await;
    standby.promote().expect("promoted");
    let (code, said) = examine(&world, &[("DATABASE_URL", &url)]).await;
    assert_eq!(code, 0, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_redis_mail_and_the_object_store_are_found() {
    let world = World::new(&[]).await;
    finds(&world, &[("REDIS_URL", "redis://127.0.0.1:1/0")], "redis").await;
    let redis = private_redis("doctor").await;
    let client = redis_client(&redis.url()).await;
    let command = CustomCommand::new_static("CONFIG", ClusterHash::Random, false);
    let arguments = vec!["SET", "maxmemory-policy", "allkeys-lru"];
    let set: String = client.custom(command, arguments).await.expect("set");
    assert_eq!(set, "OK");
    finds(&world, &[("REDIS_URL", &redis.url())], "redis.policy").await;

    let folder = std::env::temp_dir().join(format!("blindpipe-doctor-{}", ulid()));
    let mut server = SmtpServer::new(&folder, free_port(), Secrecy::Tls);
    server.start().await;
    let ca = server.ca().to_str().expect("UTF-8").to_owned();
    let [url, wrong] = [SMTP_PASSWORD, "another"].map(|password| server.url(password));
    let trusted = ("SSL_CERT_FILE", &*ca);
    finds(&world, &[("MAIL_URL", &wrong), trusted], "mail").await;
    finds(&world, &[("MAIL_URL", &url)], "mail").await;
    let (code, said) = examine(&world, &[("MAIL_URL", &url), trusted]).await;
    assert_eq!(code, 0, "{said}");
    assert!(server.taken().is_empty(), "nothing is sent");
    server.stop();
    std::fs::remove_dir_all(&folder).ok();

    let store = Arc::new(S3Server::start().await);
    let settings = S3Server::settings(store.address);
    let mut settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let (code, said) = examine(&world, &settings).await;
    assert_eq!(code, 0, "{said}");
    let left = walk(&store.bucket());
    assert_eq!(left, 0, "the probe is deleted");
    settings.push(("OBJECT_STORE_SECRET", "another"));
    finds(&world, &settings, "objects").await;
    finds(
        &world,
        &[("OBJECT_STORE_URL", "file:///proc/none")],
        "objects",
    )
    .await;
}

/// The number of files below a folder.
fn walk(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |path: std::path::PathBuf| if path.is_dir() { walk(&path) } else { 1 };
    entries.map(|entry| count(entry.path())).sum()
}
