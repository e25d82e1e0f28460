//! A Postgres and a Redis for the whole test process, and a template database to copy from.

use std::{
    io::Write,
    path::Path,
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

use blindpipe::{
    db::{Db, Plans, migrate},
    redis::Redis,
};
use devcluster::{
    DevError, open_files,
    pgbouncer::{PgBouncer, missing_pooler_notice},
    services::{
        Durability, ERASING_ROLE, PostgresServer, RedisCluster, RedisSentinels, RedisServer,
        SERVING_ROLE, Services,
    },
};
use tokio::sync::OnceCell;
use tokio_postgres::{GenericClient, NoTls};

static SERVICES: OnceLock<Services> = OnceLock::new();
static TEMPLATE: OnceCell<()> = OnceCell::const_new();

/// Adds this table's offset to the real time in a test's database.
const MOVABLE_TIME: &str = "
    create table test_clock (ahead interval not null);
    insert into test_clock values ('0');
    grant select on test_clock to blindpipe_serve;
    create or replace function app_now() returns timestamptz language sql stable parallel safe
        as 'select statement_timestamp() + (select ahead from test_clock)';";

pub fn services() -> &'static Services {
    SERVICES.get_or_init(|| {
        rustls::crypto::aws_lc_rs::default_provider()
            .install_default()
            .ok();
        // Sockets are files, and the usual soft limit is 1,024.
        open_files::raise_limit();
        let dev = Path::new(env!("CARGO_MANIFEST_DIR")).join(".dev");
        Services::start(&dev, Durability::Test).expect("Postgres and Redis for the tests")
    })
}

/// Runs a future beside the test, which ends with it.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no node to track its tasks"
)]
pub fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
}

/// A Redis for one test, which may disturb it.
pub async fn private_redis(name: &'static str) -> RedisServer {
    tokio::task::spawn_blocking(move || services().another_redis(name))
        .await
        .expect("no panic")
        .expect("a second Redis")
}

/// A Postgres that a test may lose, and its standby.
pub async fn followed_postgres(name: &'static str) -> [PostgresServer; 2] {
    tokio::task::spawn_blocking(move || {
        let first = services().another_postgres(name, Durability::Replicated)?;
        let second = first.standby()?;
        Ok::<_, DevError>([first, second])
    })
    .await
    .expect("no panic")
    .expect("two more Postgres")
}

/// A Postgres with the schema whose every commit waits for its standby.
pub async fn synchronous_postgres(name: &'static str) -> [PostgresServer; 2] {
    let [first, second] = tokio::task::spawn_blocking(move || {
        let first = services().another_postgres(name, Durability::Synchronous)?;
        let second = first.standby()?;
        Ok::<_, DevError>([first, second])
    })
    .await
    .expect("no panic")
    .expect("two more Postgres");
    migrate::run_at(&first.url()).await.expect("migrated");
    migrate::grant_at(&first.url(), SERVING_ROLE)
        .await
        .expect("granted");
    let admin = connect(&first.admin_url()).await;
    for sql in [
        "alter system set synchronous_standby_names = '*'",
        "select pg_reload_conf()",
    ] {
        admin.batch_execute(sql).await.expect("set");
    }
    let sql = "select count(*) from pg_stat_replication where sync_state = 'sync'";
    let since = Instant::now();
    while admin
        .query_one(sql, &[])
        .await
        .expect("a count")
        .get::<_, i64>(0)
        == 0
    {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "no synchronous standby"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    [first, second]
}

/// The port of the pooler before all nodes: `TEST_POOLER=pgbouncer` puts one there.
pub async fn chosen_pooler() -> Option<u16> {
    static POOLER: OnceCell<PgBouncer> = OnceCell::const_new();
    match std::env::var("TEST_POOLER").as_deref() {
        Ok("pgbouncer") => {
            let start = async || pgbouncer("all").await.expect("a PgBouncer");
            Some(POOLER.get_or_init(start).await.port())
        }
        Ok(other) => panic!("TEST_POOLER is pgbouncer or unset, and not {other:?}"),
        Err(_) => None,
    }
}

/// The URL of the Redis of all nodes: `TEST_REDIS=cluster` makes it a cluster of three.
pub async fn chosen_redis() -> String {
    static CLUSTER: OnceCell<RedisCluster> = OnceCell::const_new();
    match std::env::var("TEST_REDIS").as_deref() {
        Ok("cluster") => CLUSTER.get_or_init(|| redis_cluster("all")).await.url(),
        Ok(other) => panic!("TEST_REDIS is cluster or unset, and not {other:?}"),
        Err(_) => services().redis.url(),
    }
}

/// The URL of the same database through the pooler on a port.
pub fn through(pooler: Option<u16>, url: &str) -> String {
    let Some(port) = pooler else {
        return url.to_owned();
    };
    let (role, place) = url.split_once('@').expect("a role in the URL");
    let (_, database) = place.split_once('/').expect("a database in the URL");
    format!("{role}@127.0.0.1:{port}/{database}")
}

/// Gives the role of nodes the time-outs that a pooler drops from its connections, in one database,
/// as `helm/blindpipe/README.md` says.
pub async fn give_role_timeouts(database: &str, wait: Duration) {
    let (_, name) = database.rsplit_once('/').expect("a database in the URL");
    let admin = connect(&services().postgres.admin_url()).await;
    for (setting, timeout) in [
        ("statement_timeout", 2 * wait),
        ("lock_timeout", wait),
        ("idle_in_transaction_session_timeout", 2 * wait),
    ] {
        let ms = timeout.as_millis();
        let sql = format!("alter role {SERVING_ROLE} in database {name} set {setting} = {ms}");
        admin.batch_execute(&sql).await.expect("set");
    }
}

/// Whether there is a PgBouncer. Without one this says so, past the harness, which hides what a test
/// that passes has to say.
pub async fn has_pgbouncer() -> bool {
    let look = || {
        let Err(trouble) = PgBouncer::obtain(&services().directories) else {
            return true;
        };
        let notice = missing_pooler_notice(&trouble.to_string());
        std::io::stderr().write_all(notice.as_bytes()).ok();
        false
    };
    tokio::task::spawn_blocking(look).await.expect("no panic")
}

/// A PgBouncer before the Postgres of the tests, if there is one.
pub async fn pgbouncer(name: &'static str) -> Option<PgBouncer> {
    if !has_pgbouncer().await {
        return None;
    }
    let start = move || services().pgbouncer(name, &services().postgres);
    let started = tokio::task::spawn_blocking(start).await.expect("no panic");
    Some(started.expect("a PgBouncer"))
}

/// A Redis with a replica and three sentinels.
pub async fn redis_sentinels(name: &'static str) -> RedisSentinels {
    tokio::task::spawn_blocking(move || services().redis_sentinels(name))
        .await
        .expect("no panic")
        .expect("a Redis with sentinels")
}

/// A Redis Cluster of three masters.
pub async fn redis_cluster(name: &'static str) -> RedisCluster {
    tokio::task::spawn_blocking(move || services().redis_cluster(name))
        .await
        .expect("no panic")
        .expect("a Redis Cluster")
}

/// A client of the Redis at `url`.
pub async fn redis_client(url: &str) -> fred::clients::Client {
    use fred::interfaces::ClientLike;
    let config = fred::types::config::Config::from_url(url).expect("a URL");
    let client = fred::types::Builder::from_config(config)
        .build()
        .expect("a client");
    client.init().await.expect("connected");
    client
}

pub async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, link) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("Postgres answers");
    spawn(link);
    client
}

/// The number of statements in this database that wait for a lock.
pub async fn waiting(client: &impl GenericClient) -> usize {
    // A transaction sees an old snapshot of `pg_stat_activity`.
    let sql = "select count(distinct pid) from pg_locks where not granted and pid in (
                   select l.pid from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database()
               )";
    let now: i64 = client.query_one(sql, &[]).await.expect("a count").get(0);
    usize::try_from(now).expect("a small number")
}

/// Requests a kind of upkeep, which any node of the database does.
pub async fn request_upkeep(database: &str, upkeep: &str) {
    let sql = format!(
        "insert into job (kind, payload, unique_key) values ('upkeep', '{{\"upkeep\":\"{upkeep}\"}}', '{upkeep}')
         on conflict do nothing"
    );
    psql(database, &sql).await;
}

/// Waits until `wanted` statements wait for a lock.
pub async fn blocked(client: &impl GenericClient, wanted: usize) {
    let since = Instant::now();
    loop {
        let now = waiting(client).await;
        if now >= wanted {
            return;
        }
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "{now} of {wanted} wait for a lock"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The service's URL with another database.
fn url_of(database: &str) -> String {
    let url = services().postgres.url();
    let (server, _) = url.rsplit_once('/').expect("a database in the URL");
    format!("{server}/{database}")
}

/// The URL of the same database as the serving role, for the owner's URL of it.
pub fn serving(url: &str) -> String {
    let role = services().postgres.serving_url();
    let (role, _) = role.split_once('@').expect("a role in the URL");
    let (_, place) = url.split_once('@').expect("a role in the URL");
    format!("{role}@{place}")
}

/// The URL of the same database as the role that erases, for the owner's URL of it.
pub fn erasing(url: &str) -> String {
    let role = services().postgres.erasing_url();
    let (role, _) = role.split_once('@').expect("a role in the URL");
    let (_, place) = url.split_once('@').expect("a role in the URL");
    format!("{role}@{place}")
}

/// A fresh database without any schema; returns its URL, as the owner.
pub async fn empty_database() -> String {
    tokio::task::spawn_blocking(services)
        .await
        .expect("no panic");
    let name = format!("t{}", uuid::Uuid::from(super::ulid()).simple());
    let admin = connect(&services().postgres.url()).await;
    admin
        .batch_execute(&format!("create database {name}"))
        .await
        .expect("created");
    url_of(&name)
}

/// A fresh database with the schema; returns its URL, as the owner.
pub async fn database() -> String {
    tokio::task::spawn_blocking(services)
        .await
        .expect("no panic");
    TEMPLATE
        .get_or_init(|| async {
            let admin = connect(&services().postgres.url()).await;
            admin
                .batch_execute("drop database if exists template_blindpipe with (force)")
                .await
                .expect("dropped");
            admin
                .batch_execute("create database template_blindpipe")
                .await
                .expect("created");
            let url = url_of("template_blindpipe");
            migrate::run_at(&url).await.expect("migrated");
            migrate::grant_at(&url, SERVING_ROLE)
                .await
                .expect("granted");
            migrate::grant_erasure_at(&url, ERASING_ROLE)
                .await
                .expect("granted");
            let client = connect(&url).await;
            client
                .batch_execute(MOVABLE_TIME)
                .await
                .expect("a movable clock");
        })
        .await;
    let name = format!("t{}", uuid::Uuid::from(super::ulid()).simple());
    let admin = connect(&services().postgres.url()).await;
    // Files are copied three times as fast as pages are logged, and nothing here survives a crash.
    let sql = format!("create database {name} template template_blindpipe strategy file_copy");
    // The template must have no other connection; the one that made it may still be closing.
    for _ in 0..100 {
        match admin.batch_execute(&sql).await {
            Ok(()) => return url_of(&name),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
    panic!("no copy of the template");
}

/// Drops the database of a test that has ended, beside the tests that run. Hundreds of them are half
/// a million files, which the next run would have to remove.
pub fn drop_database(url: &str) {
    static NAMES: OnceLock<mpsc::Sender<String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let (sender, names) = mpsc::channel();
        std::thread::spawn(move || drop_databases(&names));
        sender
    });
    let (_, name) = url.rsplit_once('/').expect("a database in the URL");
    names.send(name.to_owned()).ok();
}

fn drop_databases(names: &mpsc::Receiver<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let admin = connect(&services().postgres.admin_url()).await;
        while let Ok(name) = names.recv() {
            // A node that has just ended may still be connected.
            let sql = format!("drop database if exists {name} with (force)");
            // The next run removes what stays.
            admin.batch_execute(&sql).await.ok();
        }
    });
}

/// Runs SQL as the role of the URL, which is the owner for a world's database.
pub async fn psql(url: &str, sql: &str) -> Vec<tokio_postgres::SimpleQueryMessage> {
    connect(url).await.simple_query(sql).await.expect(sql)
}

/// The database access of a node's job, for a test that runs the job itself.
pub fn db(url: &str) -> Db {
    Db::new(
        &serving(url).into(),
        "test",
        4,
        Plans::Free,
        Duration::from_secs(10),
    )
    .expect("a pool")
}

/// A link to Redis with a node's default settings.
pub fn redis_link(url: &str, prefix: &str) -> Redis {
    Redis::start(&url.into(), prefix, Duration::from_millis(250))
        .expect("a client")
        .0
}

/// Users that are only members. They are created in the database, because five hundred
/// registrations would take minutes.
pub async fn crowd(url: &str, n: usize) -> Vec<String> {
    let client = connect(url).await;
    let ids: Vec<uuid::Uuid> = (0..n).map(|_| super::ulid().into()).collect();
    let sql = "with made as (
            insert into user_account (user_id, email, display_name, device_locale, password_hash)
            select id, id || '@example.org', 'one of many', 'en-GB', 'none' from unnest($1::uuid[]) as id returning user_id
        ) insert into inbox (principal_id) select user_id from made";
    client.execute(sql, &[&ids]).await.expect("users");
    ids.into_iter()
        .map(|id| ulid::Ulid::from(id).to_string())
        .collect()
}
