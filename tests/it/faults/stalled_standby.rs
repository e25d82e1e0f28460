//! Commits wait for a synchronous standby that is away. Nothing that waits is acknowledged, to
//! nobody and by no repeat, until the standby is back or taken back.

use std::time::{Duration, Instant};

use axum::http::Method;
use blindpipe::db::migrate;
use blindpipe_protocol::accounts::Refreshed;
use devcluster::services::{Durability, PostgresServer, SERVING_ROLE};
use serde_json::json;
use tokio_postgres::Client;

use super::load::LOAD_LIMITS;
use crate::{
    files::{bring, confirm, noise, request},
    support::{
        Answer, TestNode, User, connect, has_pgbouncer, nodes_with, services, through, ulid,
    },
};

/// Longer than the deadline of a statement (three times `DATABASE_TIMEOUT_MS`), and than the grace
/// of a refresh token (10 s).
const OUTAGE: Duration = Duration::from_secs(13);

/// A Postgres with the schema whose commits can be made to wait.
struct Primary {
    server: PostgresServer,
    admin: Client,
}

impl Primary {
    async fn start(name: &'static str) -> Self {
        let start = move || services().another_postgres(name, Durability::Synchronous);
        let server = tokio::task::spawn_blocking(start)
            .await
            .expect("no panic")
            .expect("a Postgres");
        migrate::run_at(&server.url()).await.expect("migrated");
        migrate::grant_at(&server.url(), SERVING_ROLE)
            .await
            .expect("granted");
        let admin = connect(&server.admin_url()).await;
        Primary { server, admin }
    }

    /// Names the standbys that commits wait for, until Postgres has heard it.
    async fn wait_for(&self, standbys: &str) {
        let set = format!("alter system set synchronous_standby_names = '{standbys}'");
        for sql in [set.as_str(), "select pg_reload_conf()"] {
            self.admin.batch_execute(sql).await.expect("set");
        }
        let sql = "select current_setting('synchronous_standby_names') as names";
        loop {
            let row = self.admin.query_one(sql, &[]).await.expect("a row");
            if row.get::<_, &str>("names") == standbys {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The backends whose commits wait for a standby.
    async fn waiting_commits(&self) -> i64 {
        let sql = "select count(*) as commits from pg_stat_activity where wait_event = 'SyncRep'";
        let row = self.admin.query_one(sql, &[]).await.expect("a row");
        row.get("commits")
    }
}

/// Repeats a call on both nodes, one after the other, until `over`. Each answer is 503.
async fn is_refused(over: Instant, call: impl AsyncFn(usize) -> Answer) {
    let mut calls = 0;
    while Instant::now() < over {
        let answer = call(calls).await;
        answer.refused(503, "SERVICE_UNAVAILABLE");
        calls += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(calls >= 2, "no call was repeated");
}

/// The first answer that is no 503, of calls that are repeated.
async fn answered(call: impl AsyncFn(usize) -> Answer) -> Answer {
    let since = Instant::now();
    for n in 0.. {
        let answer = call(n).await;
        if answer.status != 503 {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "still refused");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("it ends with an answer or with the time");
}

/// Sends, a refresh, an ack and a confirmation wait for a standby that nobody has.
async fn nothing_is_acknowledged(primary: &Primary, nodes: &[TestNode; 2]) {
    let [a, b] = nodes;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "before").await.expect(201);
    let other = alice.login(b, Some("phone")).await;
    let bytes = noise(3_000);
    let upload = request(&alice, "/files", &conversation, bytes.len() as u64).await;
    bring(&alice, &upload, &bytes).await.expect(200);
    let page = agent.poll("limit=10").await.expect(200);
    let head = page
        .data()
        .as_array()
        .and_then(|events| events.last())
        .expect("an event")["seq"]
        .clone();

    let alices = [alice.clone(), alice.on(b)];
    let key = ulid().to_string();
    let send = async |n: usize| {
        let body =
            json!({ "payload": { "type": "text", "text": "once" }, "client_message_id": key });
        let path = format!("/conversations/{conversation}/messages");
        alices[n % 2].post(path, body).await
    };
    let refresh = async |_: usize| refresh_of(&other).await;
    let ack = async |n: usize| {
        let caller = agent.on(&nodes[n % 2]);
        let path = format!("/agents/{}/ack", agent.id);
        caller.post(path, json!({ "up_to_seq": head })).await
    };
    let confirmation = async |n: usize| confirm(&alices[n % 2], &upload, &bytes).await;

    primary.wait_for("ghost").await;
    let over = Instant::now() + OUTAGE;
    tokio::join!(
        is_refused(over, send),
        is_refused(over, refresh),
        is_refused(over, ack),
        is_refused(over, confirmation),
    );
    assert!(primary.waiting_commits().await > 0, "nothing waited");
    // Nobody reads what is not acknowledged.
    let path = format!("/conversations/{conversation}/messages");
    let seen = alice.get(&path).await.expect(200);
    assert_eq!(seen.data().as_array().expect("messages").len(), 1);

    primary.wait_for("").await;
    let sent = answered(send).await;
    assert!(matches!(sent.status, 200 | 201), "{}", sent.status);
    let again = answered(send).await.expect(200);
    assert_eq!(again.data()["message_id"], sent.data()["message_id"]);
    let messages = alice.get(&path).await.expect(200);
    assert_eq!(messages.data().as_array().expect("messages").len(), 2);

    // Its holder repeats the token long after the grace of the lost answer.
    let refreshed = answered(refresh).await.expect(200);
    let _: Refreshed = refreshed.read();
    answered(ack).await.expect(200);
    answered(confirmation).await.expect(200);
    assert_eq!(primary.waiting_commits().await, 0);
}

async fn refresh_of(user: &User) -> Answer {
    let request = user
        .request(Method::POST, "/auth/refresh")
        .header("cookie", &user.cookie);
    user.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_repeat_acknowledges_what_no_standby_has() {
    let primary = Primary::start("ghost").await;
    let url = primary.server.serving_url();
    let nodes = nodes_with(&[("LIMIT_OVERRIDES", LOAD_LIMITS), ("DATABASE_URL", &url)]).await;
    Box::pin(nothing_is_acknowledged(&primary, &nodes)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_repeat_acknowledges_what_no_standby_has_behind_a_pooler() {
    if !has_pgbouncer().await {
        return;
    }
    let primary = Primary::start("ghost-pooled").await;
    for (setting, ms) in [
        ("statement_timeout", 2_000),
        ("lock_timeout", 1_000),
        ("idle_in_transaction_session_timeout", 2_000),
    ] {
        let sql = format!("alter role {SERVING_ROLE} set {setting} = {ms}");
        primary.admin.batch_execute(&sql).await.expect("set");
    }
    let pooler = services()
        .pgbouncer("ghost", &primary.server)
        .expect("a PgBouncer");
    let url = through(Some(pooler.port()), &primary.server.serving_url());
    let nodes = nodes_with(&[("LIMIT_OVERRIDES", LOAD_LIMITS), ("DATABASE_URL", &url)]).await;
    Box::pin(nothing_is_acknowledged(&primary, &nodes)).await;
}

/// A restart of Postgres shows the commits that waited. Their repeats wait for the standby too.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_postgres_acknowledges_nothing_either() {
    let mut primary = Primary::start("ghost-restarted").await;
    let url = primary.server.serving_url();
    let nodes: [TestNode; 2] =
        nodes_with(&[("LIMIT_OVERRIDES", LOAD_LIMITS), ("DATABASE_URL", &url)]).await;
    let alice = nodes[0].user("alice").await;
    let agent = nodes[0].agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let alices = [alice.clone(), alice.on(&nodes[1])];
    let key = ulid().to_string();
    let send = async |n: usize| {
        let body =
            json!({ "payload": { "type": "text", "text": "once" }, "client_message_id": key });
        let path = format!("/conversations/{conversation}/messages");
        alices[n % 2].post(path, body).await
    };
    primary.wait_for("ghost").await;
    send(0).await.refused(503, "SERVICE_UNAVAILABLE");
    let primary = tokio::task::spawn_blocking(move || {
        primary.server.stop();
        primary.server.restart().expect("restarted");
        primary.server
    })
    .await
    .expect("no panic");
    let admin = connect(&primary.admin_url()).await;
    let primary = Primary {
        server: primary,
        admin,
    };
    // The message is there, and no standby has it.
    let count = "select count(*) as messages from message";
    let client = connect(&primary.server.url()).await;
    let row = client.query_one(count, &[]).await.expect("a row");
    assert_eq!(row.get::<_, i64>("messages"), 1);
    is_refused(Instant::now() + Duration::from_secs(6), send).await;
    primary.wait_for("").await;
    let sent = answered(send).await.expect(200);
    assert_eq!(sent.data()["duplicate"], true);
}
