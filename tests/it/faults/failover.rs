//! A Postgres that fails over to an asynchronous standby and loses its tail. No client keeps a
//! belief in lost data.

use std::time::{Duration, Instant};

use blindpipe::db::{Db, Plans, migrate};
use devcluster::services::SERVING_ROLE;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Agent, Proxy, User, connect, followed_postgres, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,agent_poll=1000/s,ws_connect=1000/s,default_user=1000/s",
);

/// Says it until it is acked, under one id.
async fn insist(user: &User, conversation: &str, text: &str) -> Value {
    let body = json!({ "payload": { "type": "text", "text": text }, "client_message_id": ulid().to_string() });
    let since = Instant::now();
    loop {
        let path = format!("/conversations/{conversation}/messages");
        let answer = user
            .try_send(user.request(Method::POST, path).json(&body))
            .await;
        if let Some(answer) = answer
            .ok()
            .filter(|answer| matches!(answer.status, 200 | 201))
        {
            return answer.data().clone();
        }
        assert!(since.elapsed() < Duration::from_secs(20), "not acked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until(url: &str, sql: &str, expected: i64) {
    let client = connect(url).await;
    let since = Instant::now();
    loop {
        let now: i64 = client.query_one(sql, &[]).await.expect("a number").get(0);
        if now == expected {
            return;
        }
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "{now}, not {expected}: {sql}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn epoch(cursor: &str) -> &str {
    cursor.split('-').next().expect("an epoch")
}

fn texts(list: &Value) -> Vec<Value> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|one| one["payload"]["text"].clone())
        .collect()
}

/// Cuts a standby off from its primary.
async fn stop_following(url: &str) {
    let follower = connect(url).await;
    follower
        .batch_execute("alter system set primary_conninfo = ''")
        .await
        .expect("cut off");
    follower
        .batch_execute("select pg_reload_conf()")
        .await
        .expect("reloaded");
    until(url, "select count(*) from pg_stat_wal_receiver", 0).await;
}

/// The texts of the messages in an agent's inbox, from the beginning of an epoch. Its numbers rise
/// by 1.
async fn said_since(agent: &Agent, epoch: &str) -> Vec<Value> {
    let events = agent
        .poll(&format!("cursor={epoch}-0&limit=100"))
        .await
        .expect(200);
    let events = events.body["data"].as_array().expect("a list").clone();
    let numbers: Vec<Option<i64>> = events.iter().map(|event| event["seq"].as_i64()).collect();
    assert_eq!(
        numbers,
        (1..=events.len() as i64).map(Some).collect::<Vec<_>>()
    );
    events
        .iter()
        .filter(|event| event["event"] == "message.created")
        .map(|event| event["data"]["payload"]["text"].clone())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_saw_what_a_failover_lost_is_told_to_start_anew() {
    let [mut primary, standby] = followed_postgres("failover").await;
    let address = |port: u16| format!("127.0.0.1:{port}");
    let proxy = Proxy::before(&address(primary.port())).await;
    migrate::run_at(&primary.url()).await.expect("migrated");
    migrate::grant_at(&primary.url(), SERVING_ROLE)
        .await
        .expect("granted");
    // A standby answers from the past: a revoked token would still be valid there.
    let wait = Duration::from_secs(5);
    let url = standby.serving_url().into();
    let behind = Db::new(&url, "test", 1, Plans::Free, wait).expect("a pool");
    let Err(refused) = behind.read().await else {
        panic!("it was used");
    };
    assert!(format!("{refused:?}").contains("standby"), "{refused:?}");
    let url = primary
        .serving_url()
        .replace(&address(primary.port()), &proxy.address);
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("DATABASE_URL", &url)]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let quiet = a.agent(&alice, "quiet").await;
    let quiet_conversation = alice.talk_to(&quiet).await;
    let mut quiet_socket = quiet.on(&b).connect().await;
    let mut agent_socket = agent.on(&b).connect().await;
    let alice_socket = alice.connect().await;
    let mut last = Value::Null;
    for n in 0..5 {
        last = insist(&alice, &conversation, &format!("kept {n}")).await;
    }
    until(&standby.url(), "select count(*) from message", 5).await;

    // It follows no more, and nobody notices.
    stop_following(&standby.admin_url()).await;
    let mut lost = Vec::new();
    for n in 0..5 {
        lost.push(insist(&alice, &conversation, &format!("lost {n}")).await);
    }
    let mut seen = 0;
    while seen < 10 {
        agent_socket.event("message.created").await;
        seen += 1;
    }
    for n in 0..5 {
        insist(&alice, &quiet_conversation, &format!("lost {n}")).await;
        quiet_socket.event("message.created").await;
    }
    let old = agent_socket.cursor.clone();
    agent.poll(&format!("cursor={old}")).await.expect(200);

    let [primary, standby] = tokio::task::spawn_blocking(move || {
        primary.kill();
        standby.promote().expect("promoted");
        [primary, standby]
    })
    .await
    .expect("no panic");
    proxy.move_to(&address(standby.port()));
    // As many as were lost, and more: their numbers are given out anew, to others.
    let mut new = Vec::new();
    for n in 0..12 {
        new.push(
            insist(
                &alice.on(if n % 2 == 0 { &a } else { &b }),
                &conversation,
                &format!("new {n}"),
            )
            .await,
        );
    }
    assert_eq!(
        new[0]["seq"].as_i64(),
        last["seq"].as_i64().map(|seq| seq + 1)
    );
    assert_eq!(new[0]["seq"], lost[0]["seq"]);

    // Every socket is told, and closed.
    for socket in [agent_socket, alice_socket] {
        let before = socket.expect_close(1012).await;
        assert_eq!(
            before.last().expect("a frame")["type"],
            "resync_required",
            "{before:?}"
        );
    }
    // The closing frame's cursor is of the new epoch, number and all: nothing after it is skipped.
    let before = quiet_socket.expect_close(1012).await;
    let head = before.last().expect("a frame")["head"].clone();
    for n in 0..7 {
        insist(&alice, &quiet_conversation, &format!("again {n}")).await;
    }
    let mut quiet_socket = quiet.connect_from(head.as_str()).await;
    for n in 0..7 {
        let event = quiet_socket.event("message.created").await;
        assert_eq!(event["data"]["payload"]["text"], format!("again {n}"));
    }
    // An old place is none any more, on any node and by any way; the new ones are of another epoch.
    let expected: Vec<Value> = (0..5)
        .map(|n| json!(format!("kept {n}")))
        .chain((0..12).map(|n| json!(format!("new {n}"))))
        .collect();
    for node in [&a, &b] {
        let agent = agent.on(node);
        let refused = agent
            .poll(&format!("cursor={old}"))
            .await
            .refused(409, "CURSOR_EXPIRED");
        let head = refused.body["error"]["params"]["head"]
            .as_str()
            .expect("a cursor")
            .to_owned();
        assert_ne!(epoch(&head), epoch(&old));
        let mut socket = agent.connect_from(Some(&old)).await;
        assert_eq!(socket.expect("resync_required").await["head"], head);
        // All agree on what there is: over REST, and by the inbox from its beginning.
        let path = format!("/conversations/{conversation}/messages?direction=forward&limit=100");
        let page = alice.on(node).get(path).await.expect(200);
        assert_eq!(texts(&page.body["data"]), expected);
        assert_eq!(said_since(&agent, epoch(&head)).await, expected);
    }
    insist(&alice, &conversation, "after all").await;
    drop((primary, standby));
}
