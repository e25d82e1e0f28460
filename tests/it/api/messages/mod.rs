//! Messages, from a send to their readers.

mod deletion;
mod idempotency;
mod order;
mod refs;
mod refused;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{nodes, nodes_with, psql, ulid};

/// Everything in a user's inbox, read by a socket from the start.
async fn inbox_of(user: &crate::support::User) -> Vec<Value> {
    let mut socket = user.connect_from(Some(&user.start_of_inbox().await)).await;
    let mut events = Vec::new();
    loop {
        let frame = socket.next().await.expect("a frame");
        if frame["type"] == "caught_up" {
            return events;
        }
        events.push(frame);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_and_an_agent_talk_across_two_nodes() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut alice_socket = alice.on(&b).connect().await;
    let mut agent_socket = agent.on(&b).connect().await;

    let sent = alice.say(&conversation, "hello").await.expect(201);
    assert_eq!(sent.data()["seq"], 1);
    assert_eq!(sent.data()["duplicate"], false);
    let event = agent_socket.event("message.created").await;
    assert_eq!(
        event["data"]["payload"],
        json!({ "type": "text", "text": "hello" })
    );
    assert_eq!(
        event["data"]["sender"],
        json!({ "type": "user", "id": alice.id, "device_id": alice.device_id })
    );
    assert_eq!(event["data"]["hop"], 0);
    assert_eq!(event["conversation_id"], conversation);

    agent.on(&a).say(&conversation, "by REST").await.expect(201);
    agent_socket.say(json!({ "type": "message.send", "ref": 7, "conversation_id": conversation, "payload": { "type": "text", "text": "by frame" } }))
        .await;
    let reply = agent_socket.expect("message.sent").await;
    assert_eq!(
        (&reply["ref"], &reply["data"]["seq"]),
        (&json!(7), &json!(3))
    );

    let texts = [
        alice_socket.event("message.created").await,
        alice_socket.event("message.created").await,
        alice_socket.event("message.created").await,
    ];
    let texts = texts.map(|event| {
        (
            event["data"]["seq"].clone(),
            event["data"]["payload"]["text"].clone(),
        )
    });
    assert_eq!(
        texts,
        [
            (json!(1), json!("hello")),
            (json!(2), json!("by REST")),
            (json!(3), json!("by frame"))
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_have_one_megabyte_and_not_a_byte_more() {
    const MB: usize = 1024 * 1024;
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let payload = |bytes: usize| {
        let empty = r#"{"type":"text","text":""}"#.len();
        format!(
            r#"{{"type":"text","text":"{}"}}"#,
            "x".repeat(bytes - empty)
        )
    };
    let wrapped = |bytes| format!(r#"{{"payload":{}}}"#, payload(bytes));
    let path = format!("/conversations/{conversation}/messages");
    alice.post_raw(&path, wrapped(MB)).await.expect(201);
    alice.post_raw(&path, payload(MB)).await.expect(201);
    alice
        .post_raw(&path, wrapped(MB + 1))
        .await
        .refused(413, "MESSAGE_TOO_LARGE");
    alice
        .post_raw(&path, payload(MB + 1))
        .await
        .refused(413, "MESSAGE_TOO_LARGE");
    alice
        .post_raw(&path, wrapped(2 * MB))
        .await
        .refused(413, "MESSAGE_TOO_LARGE");
    let path = format!("/agents/{}/conversations/{conversation}/messages", agent.id);
    agent.post_raw(&path, wrapped(MB)).await.expect(201);
    agent
        .post_raw(&path, wrapped(MB + 1))
        .await
        .refused(413, "WEBHOOK_PAYLOAD_TOO_LARGE");

    // Large events come over every transport, though they travel in no hint.
    let mut socket = alice
        .connect_from(Some(&alice.start_of_inbox().await))
        .await;
    for seq in 1..=3 {
        assert_eq!(socket.event("message.created").await["data"]["seq"], seq);
    }
    let mut polled = agent.poll("limit=100").await.expect(200).body["data"]
        .as_array()
        .expect("a list")
        .clone();
    polled.retain(|event| event["event"] == "message.created");
    assert_eq!(polled.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_send_is_told_why() {
    let [a] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [hers, his] = [a.agent(&alice, "hers").await, a.agent(&bob, "his").await];
    let conversation = alice.talk_to(&hers).await;
    bob.say(&conversation, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    his.say(&conversation, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    his.say(&ulid().to_string(), "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    crate::support::psql(
        &a.world.database,
        "update relation set state = 'revoked', revoked_at = app_now()",
    )
    .await;
    hers.say(&conversation, "x")
        .await
        .refused(403, "RELATION_REVOKED");
    alice.say(&conversation, "still hers").await.expect(201);
    // Opening it again gives the agent its place back.
    let again = alice
        .post(
            "/conversations",
            json!({ "type": "agent", "agent_id": hers.id }),
        )
        .await
        .expect(200);
    assert_eq!(again.data()["relation"]["state"], "active");
    hers.say(&conversation, "back").await.expect(201);
    crate::support::psql(
        &a.world.database,
        "update conversation set encryption = 'required'",
    )
    .await;
    hers.say(&conversation, "plain")
        .await
        .refused(400, "VALIDATION_ERROR");
    let sealed = json!({ "payload": { "type": "encrypted", "ciphertext": "AAAA" } });
    hers.post(
        format!("/agents/{}/conversations/{conversation}/messages", hers.id),
        sealed,
    )
    .await
    .expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_answer_each_other_are_stopped() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let [one, two] = [a.agent(&alice, "one").await, a.agent(&alice, "two").await];
    let conversation = alice.talk_to(&one).await;
    // No route adds a second agent to a conversation yet.
    let sql = format!(
        "insert into member (conversation_id, principal_id, principal_kind, role)
         select conversation_id, '{}', 'agent', 'agent' from conversation",
        two.id
    );
    crate::support::psql(&a.world.database, &sql).await;
    let hop = async |answer: crate::support::Answer, socket: &mut crate::support::Socket| {
        let id = answer.expect(201).data()["message_id"].clone();
        let event = socket.event("message.created").await;
        assert_eq!(event["data"]["message_id"], id);
        (id, event["data"]["hop"].as_i64().expect("a number"))
    };
    let mut alice_socket = alice.on(&b).connect().await;
    let (first, zero) = hop(alice.say(&conversation, "go").await, &mut alice_socket).await;
    assert_eq!(zero, 0);
    assert_eq!(
        hop(one.say(&conversation, "1").await, &mut alice_socket)
            .await
            .1,
        1
    );
    assert_eq!(
        hop(one.say(&conversation, "1 again").await, &mut alice_socket)
            .await
            .1,
        1
    );
    for expected in 2..=8 {
        let agent = if expected % 2 == 0 { &two } else { &one };
        assert_eq!(
            hop(
                agent.on(&b).say(&conversation, "and").await,
                &mut alice_socket
            )
            .await
            .1,
            expected
        );
    }
    one.say(&conversation, "9")
        .await
        .refused(403, "AGENT_LOOP_DETECTED");
    assert_eq!(
        hop(
            two.say(&conversation, "still mine").await,
            &mut alice_socket
        )
        .await
        .1,
        8
    );
    // An answer to the human's message counts from there.
    let body = json!({ "conversation_id": conversation, "payload": { "type": "text" }, "in_reply_to": first });
    let path = format!("/agents/{}/messages", one.id);
    assert_eq!(
        hop(one.post(&path, body).await, &mut alice_socket).await.1,
        1
    );
    let body = json!({ "conversation_id": conversation, "payload": { "type": "text" }, "in_reply_to": ulid().to_string() });
    one.post(&path, body).await.refused(400, "VALIDATION_ERROR");
    assert_eq!(
        hop(alice.say(&conversation, "human").await, &mut alice_socket)
            .await
            .1,
        0
    );
    assert_eq!(
        hop(two.say(&conversation, "1").await, &mut alice_socket)
            .await
            .1,
        1
    );
}

/// A message with far too many recipients takes longer than a statement may; those that share its
/// batch do not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_takes_too_long_fails_alone() {
    let settings = [
        ("LIMIT_OVERRIDES", "user_message_send=1000/s"),
        ("DATABASE_TIMEOUT_MS", "1000"),
    ];
    let [a] = nodes_with(&settings).await;
    let alice = a.user("alice").await;
    let agents = [
        a.agent(&alice, "slow").await,
        a.agent(&alice, "quick").await,
    ];
    let [slow, quick] = [
        alice.talk_to(&agents[0]).await,
        alice.talk_to(&agents[1]).await,
    ];
    let id = uuid::Uuid::from(slow.parse::<ulid::Ulid>().expect("an id"));
    let make_slow = format!(
        "create function nap() returns trigger language plpgsql as
             'begin perform pg_sleep(tg_argv[0]::float8); return new; end';
         create trigger slow before insert on message for each row
             when (new.conversation_id = '{id}') execute function nap('10');
         create trigger plug before insert on message for each row
             when (new.payload like '%plug%') execute function nap('0.6')"
    );
    psql(&a.world.database, &make_slow).await;
    // Real time: what comes while this one is stored is gathered, and the quick ones are there
    // first.
    let plug = alice.say(&quick, "plug");
    let quicks = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        futures_util::future::join_all((0..20).map(|_| alice.say(&quick, "x"))).await
    };
    let slows = async {
        tokio::time::sleep(Duration::from_millis(350)).await;
        futures_util::future::join_all((0..5).map(|_| alice.say(&slow, "x"))).await
    };
    let (plug, quicks, slows) = tokio::join!(plug, quicks, slows);
    plug.expect(201);
    assert!(
        quicks.iter().all(|answer| answer.status == 201),
        "{quicks:?}"
    );
    for answer in slows {
        answer.refused(503, "SERVICE_UNAVAILABLE");
    }
}
