//! The socket: its handshake, its frames, its ends.

mod credentials;

use std::time::{Duration, Instant};

use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{
    ProcessNode, Sleeper, Socket, blocked, connect, nodes, nodes_with, psql, ulid,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_must_say_who_it_is() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let other = a.agent(&alice, "other").await;
    let nobody = a.anon();

    // The deadline is by the clock; five seconds go by at once.
    let socket = Socket::open(&nobody).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    a.advance(Duration::from_secs(5)).await;
    socket.expect_close(4408).await;

    let open = async || Socket::open(&nobody).await;
    for wrong in [
        json!({ "type": "auth" }),
        json!({ "type": "auth", "agent_id": agent.id }),
        json!({ "type": "auth", "agent_id": agent.id, "token": "hsk_x" }),
        json!({ "type": "auth", "agent_id": other.id, "token": agent.token }),
        json!({ "type": "auth", "agent_id": "x", "token": agent.token }),
        json!({ "type": "auth", "agent_id": agent.id, "token": agent.token, "access_token": "x" }),
        json!({ "type": "auth", "access_token": "x" }),
        json!({ "type": "auth", "access_token": agent.token }),
        json!({ "type": "auth", "agent_id": agent.id, "token": 7 }),
    ] {
        let mut socket = open().await;
        socket.say(wrong.clone()).await;
        let before = socket.expect_close(4401).await;
        assert_eq!(
            before,
            [json!({ "type": "auth.error", "reason": "invalid_token" })],
            "{wrong}"
        );
    }
    for (text, code) in [
        (String::new(), 4400),
        ("{".to_owned(), 4400),
        ("[]".to_owned(), 4400),
        ("null".to_owned(), 4400),
        ("{}".to_owned(), 4400),
        (r#"{"type":7}"#.to_owned(), 4400),
        (r#"{"type":"auth","type":"auth"}"#.to_owned(), 4400),
        (r#"{"type":"ping"}"#.to_owned(), 4401),
        (r#"{"type":"message.send"}"#.to_owned(), 4401),
        (
            format!(
                r#"{{"type":"auth","access_token":"{}"}}"#,
                "x".repeat(17_000)
            ),
            1009,
        ),
        (
            json!({ "type": "auth", "access_token": alice.access_token, "resume": "junk" })
                .to_string(),
            4400,
        ),
        (
            json!({ "type": "auth", "access_token": alice.access_token, "resume": 7 }).to_string(),
            4400,
        ),
        (
            json!({ "type": "auth", "access_token": "wrong", "resume": {} }).to_string(),
            4400,
        ),
    ] {
        let mut socket = open().await;
        socket.say_raw(Message::text(text.clone())).await;
        socket.expect_close(code).await;
    }
    let mut socket = open().await;
    socket.say_raw(Message::binary(vec![1, 2])).await;
    socket.expect_close(1003).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_frame_must_be_a_frame() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    for text in [
        "junk",
        "[]",
        r#"{"type":"nonsense"}"#,
        r#"{"type":"auth","access_token":"x"}"#,
        r#"{"type":"ack"}"#,
        r#"{"type":"ack","cursor":"x"}"#,
        r#"{"type":"ack","cursor":7}"#,
        r#"{"type":"message.send"}"#,
        r#"{"type":"message.send","conversation_id":"x"}"#,
        r#"{"type":"auth.renew"}"#,
        "{\"type\":\"ping\",\"x\":\"\\u0000\"}",
    ] {
        let mut socket = alice.connect().await;
        socket.say_raw(Message::text(text)).await;
        socket.expect_close(4400).await;
    }
    let mut socket = alice.connect().await;
    socket.say_raw(Message::binary(vec![0])).await;
    socket.expect_close(1003).await;
    let mut socket = alice.connect().await;
    socket
        .say_raw(Message::text("x".repeat(1024 * 1024 + 64 * 1024 + 1)))
        .await;
    socket.expect_close(1009).await;
    let mut socket = alice.connect().await;
    for _ in 0..61 {
        socket.say(json!({ "type": "ping" })).await;
    }
    let before = socket.expect_close(4429).await;
    assert_eq!(
        before
            .iter()
            .filter(|frame| frame["type"] == "pong")
            .count(),
        60
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_send_is_answered_with_its_reference() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.connect().await;
    let big = "x".repeat(1024 * 1024);
    for (body, code) in [
        (
            json!({ "conversation_id": ulid().to_string(), "payload": { "type": "t" } }),
            "NOT_CONVERSATION_MEMBER",
        ),
        (
            json!({ "conversation_id": conversation }),
            "VALIDATION_ERROR",
        ),
        (
            json!({ "conversation_id": conversation, "payload": 7 }),
            "VALIDATION_ERROR",
        ),
        (
            json!({ "conversation_id": conversation, "payload": { "type": "t" }, "client_message_id": "x" }),
            "VALIDATION_ERROR",
        ),
        (
            json!({ "conversation_id": conversation, "payload": { "type": "t", "text": big } }),
            "WEBHOOK_PAYLOAD_TOO_LARGE",
        ),
    ] {
        let mut frame = body;
        frame["type"] = json!("message.send");
        frame["ref"] = json!({ "any": ["thing", code] });
        socket.say(frame.clone()).await;
        let answer = socket.expect("error").await;
        assert_eq!(
            (&answer["error"]["code"], &answer["ref"]),
            (&json!(code), &frame["ref"])
        );
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    // 5/s: the frames share one budget with the route that has the conversation in its path.
    // A slow machine answers fewer in a second, so all are on their way at once.
    let mut limited = None;
    for _ in 0..20 {
        socket.say(json!({ "type": "message.send", "ref": 1, "conversation_id": conversation, "payload": { "type": "t" } })).await;
    }
    for _ in 0..20 {
        let answer = socket.next().await.expect("an answer");
        if answer["type"] == "error" {
            limited = Some(answer);
        }
    }
    let error = &limited.expect("one is refused")["error"];
    assert_eq!(
        (&error["code"], &error["params"]["scope"]),
        (
            &json!("RATE_LIMITED"),
            &json!("agent_conversation_message_send")
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_one_socket_keep_their_order() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = alice.on(&b).connect().await;
    for n in 0..50 {
        socket.say(json!({ "type": "message.send", "ref": n, "conversation_id": conversation, "payload": { "type": "t", "n": n } })).await;
    }
    for n in 0..50 {
        let sent = socket.expect("message.sent").await;
        assert_eq!(
            (&sent["ref"], &sent["data"]["seq"]),
            (&json!(n), &json!(n + 1))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_cannot_be_read_from_is_said() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "old").await.expect(201);
    for resume in [
        "999-1".to_owned(),
        alice.start_of_inbox().await.replace("-0", "-77"),
    ] {
        let mut socket = agent.on(&b).connect_from(Some(&resume)).await;
        let resync = socket.expect("resync_required").await;
        assert!(
            resync["head"].as_str().expect("a cursor").ends_with("-3"),
            "{resync}"
        );
        socket.expect("caught_up").await;
        // Live from the head.
        alice.say(&conversation, "new").await.expect(201);
        assert_eq!(
            socket.event("message.created").await["data"]["payload"]["text"],
            "new"
        );
        psql(
            &a.world.database,
            &format!(
                "delete from inbox_entry where principal_id = '{}' and seq = 4",
                agent.id
            ),
        )
        .await;
        psql(
            &a.world.database,
            &format!(
                "update inbox set head_seq = 3 where principal_id = '{}'",
                agent.id
            ),
        )
        .await;
    }
    // Older than what is kept.
    psql(
        &a.world.database,
        &format!(
            "delete from inbox_entry where principal_id = '{}' and seq < 3",
            agent.id
        ),
    )
    .await;
    let start = alice.start_of_inbox().await;
    let mut socket = agent.connect_from(Some(&start)).await;
    assert!(
        socket.expect("resync_required").await["oldest"]
            .as_str()
            .expect("a cursor")
            .ends_with("-2")
    );
    agent
        .poll(&format!("cursor={start}"))
        .await
        .refused(409, "CURSOR_EXPIRED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_makes_every_socket_start_anew() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let mut socket = alice.connect().await;
    socket.expect("caught_up").await;
    psql(
        &a.world.database,
        "update cluster set restores = restores + 1",
    )
    .await;
    let before = socket.expect_close(1012).await;
    assert_eq!(before.last().expect("a frame")["type"], "resync_required");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_never_reads_is_cut_off_and_loses_nothing() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=10000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&a).await;
    let sleeper = Sleeper::new(&agent.at(&node.base)).await;
    let mut reader = agent.connect().await;
    let text = "x".repeat(200_000);
    for _ in 0..100 {
        alice.say(&conversation, &text).await.expect(201);
    }
    for n in 1..=100 {
        assert_eq!(reader.event("message.created").await["data"]["seq"], n);
    }
    // 20 MB do not fit into the sockets' buffers; ten seconds without progress end it. Real time:
    // it is the kernel's.
    let started = Instant::now();
    while node.metric("sockets_closed_total", "code=\"4410\"").await < 1.0 {
        assert!(started.elapsed() < Duration::from_secs(20), "not cut off");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(sleeper);
    let mut again = agent.connect().await;
    for n in 1..=100 {
        assert_eq!(again.event("message.created").await["data"]["seq"], n);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_page_cannot_open_a_socket() {
    let [a] = nodes().await;
    let handshake = |origin: &'static str| {
        let nobody = a.anon();
        async move {
            let request = nobody
                .request(reqwest::Method::GET, "/ws")
                .header("origin", origin);
            let request = request
                .header("connection", "upgrade")
                .header("upgrade", "websocket");
            let request = request
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
            nobody.send(request).await
        }
    };
    handshake("https://evil.example")
        .await
        .refused(403, "ORIGIN_NOT_ALLOWED");
    assert_eq!(handshake("https://localhost").await.status, 101);
    a.anon().get("/ws").await.refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_listener_does_not_get_the_rest_of_its_backlog() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=10000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let text = "x".repeat(300_000);
    for _ in 0..60 {
        alice.say(&conversation, &text).await.expect(201);
    }
    // 18 MB that are not read do not fit into the sockets' buffers: the node is in the middle of
    // the replay.
    let slow = Sleeper::new(&agent.on(&b)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    psql(
        &a.world.database,
        "update agent_token set revoked_at = app_now(), bcrypt_hash = null",
    )
    .await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let got = slow.wake().until_closed().await;
    assert!(
        got.iter()
            .filter(|frame| frame["event"] == "message.created")
            .count()
            < 60
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn acking_a_backlog_event_by_event_is_no_flood() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=10000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    for n in 0..150 {
        alice.say(&conversation, &n.to_string()).await.expect(201);
    }
    let mut socket = agent.connect().await;
    for _ in 0..152 {
        let cursor = socket.next().await.expect("an event")["cursor"].clone();
        socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    }
    socket.expect("caught_up").await;
    socket.say(json!({ "type": "ping" })).await;
    socket.expect("pong").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_the_sends_that_wait_before_it_says_reconnect() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=10000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = alice.on(&b).connect().await;
    socket.expect("caught_up").await;
    let number = |frame: &serde_json::Value| frame["ref"].as_u64();
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    let id: uuid::Uuid = conversation.parse::<ulid::Ulid>().expect("an id").into();
    let lock = "select 1 from conversation where conversation_id = $1 for update";
    tx.execute(lock, &[&id]).await.expect("locked");
    for n in 0..40 {
        socket.say(json!({ "type": "message.send", "ref": n, "conversation_id": conversation, "payload": { "type": "t" } })).await;
    }
    blocked(&tx, 1).await;
    // The sends wait for the row until the drain is on its way.
    let release = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tx.rollback().await.expect("released");
    };
    let (frames, (), ()) = tokio::join!(socket.until_closed(), b.drain(), release);
    let first = frames.iter().find(|frame| frame["type"] == "message.sent");
    assert_eq!(number(first.expect("an answer")), Some(0));
    let kinds: Vec<&str> = frames
        .iter()
        .filter_map(|frame| frame["type"].as_str())
        .collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "reconnect").count(), 1);
    let answered = kinds.iter().filter(|kind| **kind == "message.sent").count();
    let last = kinds.iter().rposition(|kind| *kind == "message.sent");
    assert!(last < kinds.iter().position(|kind| *kind == "reconnect"));
    // Every send that was read and stored was answered, too.
    let path = format!("/conversations/{conversation}/messages?limit=100");
    let stored = alice.get(path).await.expect(200);
    assert_eq!(stored.data().as_array().map(Vec::len), Some(answered));
}

/// The event's body is too large for a hint, so the node reads the inbox, and Postgres does not
/// answer. Nothing else wakes the socket for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_could_not_be_read_is_read_again_within_seconds() {
    let [a, b] = nodes_with(&[("DATABASE_TIMEOUT_MS", "1000")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.on(&b).connect().await;
    while socket.next().await.expect("a frame")["type"] != "caught_up" {}
    let mut client = connect(&a.world.database).await;
    let lock = client.transaction().await.expect("begun");
    lock.batch_execute("lock table event in access exclusive mode")
        .await
        .expect("locked");
    let large = "x".repeat(200_000);
    alice.say(&conversation, &large).await.expect(201);
    // Real time: longer than a statement waits for a lock.
    tokio::time::sleep(Duration::from_millis(1_800)).await;
    lock.rollback().await.expect("released");
    let since = Instant::now();
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["seq"], 1);
    assert!(
        since.elapsed() < Duration::from_secs(12),
        "{:?}",
        since.elapsed()
    );
}
