//! PgBouncer in transaction mode between the nodes and Postgres. It drops the options of
//! connections, shares few of them among all, and ends in mid-load.

use std::time::{Duration, Instant};

use blindpipe::db::{Db, Plans};
use devcluster::{
    DevError,
    services::{Durability, SERVING_ROLE},
};
use serde_json::json;

use super::load::{LOAD_LIMITS, Load, Revoked};
use crate::support::{
    Agent, Call, Receiver, TestNode, User, World, connect, empty_database, give_role_timeouts,
    has_pgbouncer, pgbouncer, psql, services, serving, through, ulid,
};

/// The wait of a pool, as in production.
const WAIT: Duration = Duration::from_secs(1);
/// The time without a pooler. Sends are tried again meanwhile.
const OUTAGE: Duration = Duration::from_millis(500);

async fn setting(db: &Db, name: &str) -> String {
    let conn = db.read().await.expect("a connection");
    let sql = "select current_setting($1) as setting";
    conn.query_one(sql, &[&name])
        .await
        .expect("a row")
        .get("setting")
}

async fn setting_in_transaction(db: &Db, name: &'static str) -> String {
    let sql = "select current_setting($1) as setting";
    let run = db.run("test.setting", async |tx| {
        Ok(tx.query_one(sql, &[&name]).await?.get("setting"))
    });
    run.await.expect("a transaction")
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_reach_postgres_through_a_pooler_that_drops_them() {
    let Some(pooler) = pgbouncer("settings").await else {
        return;
    };
    let database = empty_database().await;
    let url = through(Some(pooler.port()), &serving(&database));
    let pool = |plans| Db::new(&url.as_str().into(), "test", 2, plans, WAIT).expect("a pool");
    // A statement of its own would run for ever.
    let Err(refused) = pool(Plans::Free).read().await else {
        panic!("it was used");
    };
    assert!(
        format!("{refused:?}").contains("options were dropped"),
        "{refused:?}"
    );

    give_role_timeouts(&database, WAIT).await;
    // The pooler's connection to Postgres is older than the role's settings.
    let sql = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and usename = 'blindpipe_serve'";
    psql(&database, sql).await;
    let pinned = [
        ("plan_cache_mode", "force_generic_plan"),
        ("lock_timeout", "100ms"),
    ];
    let deferred = [("synchronous_commit", "off"), ("enable_seqscan", "off")];
    let free = [
        ("plan_cache_mode", "auto"),
        ("lock_timeout", "1s"),
        ("enable_seqscan", "on"),
        ("statement_timeout", "2s"),
        ("idle_in_transaction_session_timeout", "2s"),
    ];
    for _ in 0..2 {
        for (plans, settings) in [
            (Plans::Pinned, &pinned[..]),
            (Plans::PinnedDeferred, &deferred),
            // They share Postgres's connection with the pools before them, and nothing of these
            // stays there.
            (Plans::Free, &free),
        ] {
            let db = pool(plans);
            for (name, value) in settings {
                assert_eq!(setting(&db, name).await, *value, "{name}");
                assert_eq!(setting_in_transaction(&db, name).await, *value, "{name}");
            }
        }
    }
    // A statement that fails leaves no transaction behind.
    let db = pool(Plans::Pinned);
    let conn = db.read().await.expect("a connection");
    conn.execute("select 1 / $1::int4", &[&0])
        .await
        .expect_err("a division by zero");
    assert_eq!(
        conn.execute("select 1 / $1::int4", &[&1])
            .await
            .expect("a row"),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_behind_a_pooler_is_refused_on_old_connections_too() {
    if !has_pgbouncer().await {
        return;
    }
    let start = || {
        let postgres = services().another_postgres("demoted", Durability::Replicated)?;
        let pooler = services().pgbouncer("demoted", &postgres)?;
        Ok::<_, DevError>((postgres, pooler))
    };
    let started = tokio::task::spawn_blocking(start).await.expect("no panic");
    let (mut postgres, pooler) = started.expect("a Postgres and a PgBouncer");
    let timeout = format!("alter role {SERVING_ROLE} set statement_timeout = 2000");
    psql(&postgres.admin_url(), &timeout).await;
    let url = through(Some(pooler.port()), &postgres.serving_url());
    let db = Db::new(&url.as_str().into(), "test", 2, Plans::Free, WAIT).expect("a pool");
    for conn in [db.read().await, db.read().await] {
        let conn = conn.expect("a connection");
        conn.execute("select 1", &[]).await.expect("a row");
    }

    postgres = tokio::task::spawn_blocking(move || {
        postgres.demote().expect("demoted");
        postgres
    })
    .await
    .expect("no panic");
    let since = Instant::now();
    loop {
        let outcome = db.read().await.map(drop);
        if format!("{outcome:?}").contains("standby") {
            break;
        }
        // The pooler itself may fail meanwhile.
        assert!(since.elapsed() < 5 * WAIT, "{outcome:?}");
        tokio::time::sleep(WAIT / 10).await;
    }
    for _ in 0..3 {
        assert!(db.read().await.is_err(), "it was used");
    }

    postgres = tokio::task::spawn_blocking(move || {
        postgres.promote().expect("promoted");
        postgres
    })
    .await
    .expect("no panic");
    let since = Instant::now();
    while db.read().await.is_err() {
        assert!(since.elapsed() < 5 * WAIT, "it is refused as a primary");
        tokio::time::sleep(WAIT / 10).await;
    }
    drop(postgres);
}

/// A call of a tool with the user's consent, to its end.
async fn call_a_tool(alice: &User, agent: &Agent, conversation: &str) {
    let scopes = json!([{ "scope": "notification:send", "sensitivity": "low" }]);
    let manifest = json!({ "manifest": { "tools": [], "permission_scopes": scopes } });
    let path = format!("/agents/{}", agent.id);
    agent.patch(path, manifest).await.expect(200);
    let body = json!({ "conversation_id": conversation, "scopes": ["notification:send"] });
    let path = format!("/agents/{}/grants/request", agent.id);
    let grant = agent.post(path, body).await.expect(201);
    let grant = grant.data()["grant_id"].as_str().expect("an id").to_owned();
    let path = format!("/grants/{grant}/decision");
    alice
        .post(path, json!({ "decision": "approve" }))
        .await
        .expect(200);
    let request = ulid().to_string();
    let body = json!({
        "request_id": request, "conversation_id": conversation, "tool": "look",
        "scope": "notification:send", "payload": { "arguments": {} },
    });
    let path = format!("/agents/{}/artifact-requests", agent.id);
    let made = agent.post(path, body).await.expect(201);
    assert_eq!(made.data()["status"], "pending");
    let answer = json!({ "status": "executed", "payload": { "result": "ok" } });
    let path = format!("/artifact-requests/{request}/response");
    alice.post(path, answer).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_behind_pgbouncer_survive_its_restart() {
    let Some(mut pooler) = pgbouncer("restart").await else {
        return;
    };
    let settings = [
        ("LIMIT_OVERRIDES", LOAD_LIMITS),
        ("WEBHOOK_RETRY_SECONDS", "1"),
    ];
    let world = World::behind(Some(pooler.port()), &settings).await;
    let nodes: [TestNode; 2] = [world.node().await, world.node().await];
    let [a, b] = &nodes;
    let alice = a.user("alice").await;
    let thieves = [alice.login(b, None).await, alice.login(b, None).await];
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut agent_socket = agent.on(b).connect().await;
    alice.say(&conversation, "hello").await.expect(201);
    let event = agent_socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], "hello");
    call_a_tool(&alice, &agent.on(b), &conversation).await;
    agent_socket.event("artifact_response").await;

    let hooked = b.agent(&alice, "hooked").await;
    let receiver = Receiver::start().await;
    let hook = json!({ "url": receiver.url });
    let shown = alice.put(hooked.webhook(""), hook).await.expect(200);
    assert_eq!(shown.data()["status"], "active");
    let hooked_conversation = alice.talk_to(&hooked).await;
    let called_with = async |expected: &[&str]| {
        let holds = |calls: &[Call]| {
            let messages = calls
                .iter()
                .filter(|call| call.event() == "message.created");
            let mut texts: Vec<&str> = messages.map(Call::text).collect();
            // A call whose outcome was not recorded is made again.
            texts.dedup();
            texts == expected
        };
        receiver.until("call with each message", holds).await;
    };
    alice.say(&hooked_conversation, "before").await.expect(201);
    called_with(&["before"]).await;

    let load = Load::start(&nodes).await;
    load.until_acked(50).await;
    let revoked = Revoked::watch(&nodes, &alice, &thieves[0]).await;
    // Some fifty connections of the nodes share at most twenty.
    let shared = "select count(*) from pg_stat_activity
                  where datname = current_database() and usename = 'blindpipe_serve'";
    let shared = count(&world.database, shared).await;
    assert!((1..=20).contains(&shared), "{shared} connections");
    pooler.kill();
    tokio::time::sleep(OUTAGE).await;
    let pooler = tokio::task::spawn_blocking(move || {
        pooler.restart().expect("restarted");
        pooler
    })
    .await
    .expect("no panic");
    load.until_acked(100).await;
    let revoked_after = Revoked::watch(&nodes, &alice, &thieves[1]).await;
    alice.say(&hooked_conversation, "after").await.expect(201);
    called_with(&["before", "after"]).await;
    load.until_acked(50).await;
    revoked.was_refused().await;
    revoked_after.was_refused().await;
    let outcome = load.judge().await;
    assert_eq!(outcome.max_resyncs, 0);
    drop(pooler);
}

async fn count(database: &str, sql: &str) -> i64 {
    let client = connect(database).await;
    client.query_one(sql, &[]).await.expect("a count").get(0)
}
