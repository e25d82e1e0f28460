//! The send path, the inbox, polls.

mod refused;

use std::{collections::HashSet, time::Duration};

use serde_json::{Value, json};

use crate::support::{nodes, nodes_with, psql, spawn, ulid};

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
async fn one_id_sends_one_message_over_both_nodes() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let id = ulid().to_string();
    let body = json!({ "conversation_id": conversation, "payload": { "type": "text", "text": "once" }, "client_message_id": id });
    let path = format!("/agents/{}/messages", agent.id);
    let callers = [agent.on(&a), agent.on(&b)];
    let calls = (0..100).map(|n| callers[n % 2].post(&path, body.clone()));
    let answers = futures_util::future::join_all(calls).await;

    let stored = answers.iter().filter(|answer| answer.status == 201).count();
    let replays: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .collect();
    assert_eq!((stored, replays.len()), (1, 99));
    let ids: HashSet<&str> = answers
        .iter()
        .filter_map(|answer| answer.data()["message_id"].as_str())
        .collect();
    assert_eq!(ids.len(), 1);
    for replay in replays {
        assert_eq!(replay.data()["duplicate"], true);
        assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    }
    let events = inbox_of(&alice.on(&b)).await;
    assert_eq!(
        events
            .iter()
            .filter(|event| event["event"] == "message.created")
            .count(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_one_id_sends_one_message_over_three_nodes() {
    let [a, b, c] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "agent_message_send=1000/s,agent_conversation_message_send=1000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let callers = [agent.on(&a), agent.on(&b), agent.on(&c)];
    let id = ulid().to_string();
    let body = json!({ "conversation_id": conversation, "payload": { "type": "text", "text": "once" }, "client_message_id": id });
    let paths = [
        format!("/agents/{}/messages", agent.id),
        format!("/agents/{}/conversations/{conversation}/messages", agent.id),
    ];
    let calls = (0..99).map(|n| callers[n % 3].post(&paths[n % 2], body.clone()));
    let answers = futures_util::future::join_all(calls).await;
    let count = |status| {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .count()
    };
    assert_eq!((count(201), count(200)), (1, 98));
    let ids: HashSet<&str> = answers
        .iter()
        .filter_map(|answer| answer.data()["message_id"].as_str())
        .collect();
    assert_eq!(ids.len(), 1);
    // Another text or conversation under the same id is refused on every node.
    let mut other = body.clone();
    other["payload"]["text"] = json!("another");
    for caller in &callers {
        let refused = caller.post(&paths[0], other.clone()).await;
        let refused = refused.refused(409, "IDEMPOTENCY_CONFLICT");
        // It tells the sender which message holds the id.
        let earlier = &refused.body["error"]["params"];
        assert_eq!(earlier["payload"], body["payload"]);
        assert_eq!(earlier["conversation_id"], conversation.as_str());
        assert_eq!(
            (earlier["message_id"].as_str(), &earlier["seq"]),
            (ids.iter().next().copied(), &json!(1))
        );
    }
    for node in [&a, &b, &c] {
        let path = format!("/conversations/{conversation}/messages");
        let history = alice.on(node).get(path).await.expect(200);
        assert_eq!(history.data().as_array().expect("a list").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_for_two_conversations_at_once_is_the_first_s() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let paths = [a.agent(&alice, "one").await, a.agent(&alice, "other").await];
    let paths = [
        alice.talk_to(&paths[0]).await,
        alice.talk_to(&paths[1]).await,
    ];
    let paths = paths.map(|conversation| format!("/conversations/{conversation}/messages"));
    let callers = [alice.on(&a), alice.on(&b)];
    for round in 0..20 {
        let body = json!({ "payload": { "type": "text", "text": "once" }, "client_message_id": ulid().to_string() });
        let calls = (0..8).map(|n| callers[n % 2].post(&paths[(n + round) / 2 % 2], body.clone()));
        let answers = futures_util::future::join_all(calls).await;
        let count = |status| {
            answers
                .iter()
                .filter(|answer| answer.status == status)
                .count()
        };
        assert_eq!(
            (count(201), count(200), count(409)),
            (1, 3, 4),
            "round {round}"
        );
    }
}

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
async fn concurrent_sends_on_two_nodes_are_numbered_without_gaps_and_read_alike() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "agent_message_send=10000/s,user_message_send=10000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut agent_socket = agent.on(&b).connect().await;
    let mut alice_socket = alice.on(&a).connect().await;

    let sends = (0..300).map(|n| {
        let (alice, agent) = if n % 2 == 0 {
            (alice.on(&a), agent.on(&a))
        } else {
            (alice.on(&b), agent.on(&b))
        };
        let conversation = &conversation;
        async move {
            let text = format!("m{n}");
            if n % 3 == 0 {
                agent.say(conversation, &text).await
            } else {
                alice.say(conversation, &text).await
            }
        }
    });
    let answers = futures_util::future::join_all(sends).await;
    let mut by_seq: Vec<(i64, String)> = answers
        .into_iter()
        .map(|answer| answer.expect(201))
        .map(|answer| {
            (
                answer.data()["seq"].as_i64().expect("a number"),
                answer.data()["message_id"].to_string(),
            )
        })
        .collect();
    by_seq.sort();
    assert_eq!(
        by_seq.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (1..=300).collect::<Vec<_>>()
    );

    let mut last_inbox = 0;
    for (seq, id) in &by_seq {
        let event = alice_socket.event("message.created").await;
        assert_eq!(
            (
                event["data"]["seq"].as_i64(),
                &event["data"]["message_id"].to_string()
            ),
            (Some(*seq), id)
        );
        let inbox = event["seq"].as_i64().expect("a number");
        assert!(
            last_inbox == 0 || inbox == last_inbox + 1,
            "{inbox} after {last_inbox}"
        );
        last_inbox = inbox;
    }
    // The agent hears what the user said, in the same order, and never itself.
    let mut last = 0;
    for _ in 0..200 {
        let event = agent_socket.event("message.created").await;
        let seq = event["data"]["seq"].as_i64().expect("a number");
        assert_eq!(event["data"]["sender"]["type"], "user");
        assert!(seq > last);
        last = seq;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_bound_to_its_message_for_24_hours() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let [one, two] = [a.agent(&alice, "one").await, a.agent(&alice, "two").await];
    let [here, there] = [alice.talk_to(&one).await, alice.talk_to(&two).await];
    let id = ulid().to_string();
    let send = async |user: &crate::support::User, conversation: &str, text: &str, key: &str| {
        let body = json!({ "payload": { "type": "text", "text": text }, key: id });
        user.post(format!("/conversations/{conversation}/messages"), body)
            .await
    };
    let first = send(&alice, &here, "x", "client_message_id")
        .await
        .expect(201);
    let replay = send(&alice.on(&b), &here, "x", "client_message_id")
        .await
        .expect(200);
    let mut expected = first.data().clone();
    expected["duplicate"] = json!(true);
    assert_eq!(replay.data(), &expected);

    // An equal meaning in other bytes is the same message.
    let spaced =
        format!(r#"{{"client_message_id":"{id}","payload":{{ "text" : "x", "type":"text" }} }}"#);
    alice
        .post_raw(format!("/conversations/{here}/messages"), spaced)
        .await
        .expect(200);
    send(&alice, &here, "y", "client_message_id")
        .await
        .refused(409, "IDEMPOTENCY_CONFLICT");
    send(&alice, &there, "x", "client_message_id")
        .await
        .refused(409, "IDEMPOTENCY_CONFLICT");
    // Another sender has ids of its own.
    let body = json!({ "conversation_id": here, "payload": { "type": "text", "text": "y" }, "client_message_id": id });
    one.post(format!("/agents/{}/messages", one.id), body)
        .await
        .expect(201);

    a.advance(std::time::Duration::from_secs(24 * 3600 - 60))
        .await;
    let alice = alice.refreshed().await;
    send(&alice, &here, "x", "client_message_id")
        .await
        .expect(200);
    a.advance(std::time::Duration::from_secs(120)).await;
    let again = send(&alice, &here, "y", "client_message_id")
        .await
        .expect(201);
    assert_eq!(again.data()["seq"], 3);
    send(&alice, &there, "y", "client_message_id")
        .await
        .refused(409, "IDEMPOTENCY_CONFLICT");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_alias_of_the_id_works_in_body_and_header() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let path = format!("/conversations/{conversation}/messages");
    let key = uuid::Uuid::from(ulid()).to_string();
    let body = json!({ "payload": { "type": "text" }, "idempotency_key": key });
    alice.post(&path, body.clone()).await.expect(201);
    alice.post(&path, body.clone()).await.expect(200);
    let plain = json!({ "payload": { "type": "text" } });
    let with_header = |value: &str| {
        alice
            .request(reqwest::Method::POST, &path)
            .header("idempotency-key", value)
            .json(&plain)
    };
    alice.send(with_header(&key)).await.expect(200);
    alice
        .send(with_header("junk"))
        .await
        .refused(400, "VALIDATION_ERROR");
    let both = alice
        .request(reqwest::Method::POST, &path)
        .header("idempotency-key", uuid::Uuid::nil().to_string())
        .json(&body);
    alice.send(both).await.refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_have_one_megabyte_and_not_a_byte_more() {
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
    const MB: usize = 1024 * 1024;
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

#[tokio::test(flavor = "multi_thread")]
async fn polls_and_sockets_are_the_same_reader() {
    let [a, b] = nodes_with(&[(
        "LIMIT_OVERRIDES",
        "user_message_send=1000/s,agent_poll=1000/s",
    )])
    .await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let seqs = |answer: &crate::support::Answer| -> Vec<i64> {
        answer.body["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|event| event["seq"].as_i64().expect("a number"))
            .collect()
    };
    // 1 and 2 are relation.created and conversation.created.
    for n in 3..=10 {
        alice.say(&conversation, &n.to_string()).await.expect(201);
    }
    let page = agent.poll("limit=4").await.expect(200);
    assert_eq!(seqs(&page), [1, 2, 3, 4]);
    let cursor = page.body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    // Not acked yet, so without a cursor it comes again; with it, it is acked.
    assert_eq!(
        seqs(&agent.on(&b).poll("limit=4").await.expect(200)),
        [1, 2, 3, 4]
    );
    assert_eq!(
        seqs(
            &agent
                .on(&b)
                .poll(&format!("limit=2&cursor={cursor}"))
                .await
                .expect(200)
        ),
        [5, 6]
    );
    let mut socket = agent.on(&b).connect().await;
    assert_eq!(socket.ready["replay"], json!({ "from": 4, "to": 10 }));
    for n in 5..=10 {
        assert_eq!(socket.next().await.expect("an event")["seq"], n);
    }
    socket.expect("caught_up").await;
    socket
        .say(json!({ "type": "ack", "cursor": socket.cursor }))
        .await;
    drop(socket);
    let mut left = vec![0];
    for _ in 0..100 {
        left = seqs(&agent.poll("").await.expect(200));
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(left, [0; 0], "the socket's ack is the agent's");

    // A waiting poll on the other node is woken by a send.
    let started = std::time::Instant::now();
    let waiting = spawn({
        let agent = agent.on(&b);
        async move { agent.poll("wait=25").await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    alice.say(&conversation, "wake").await.expect(201);
    assert_eq!(seqs(&waiting.await.expect("no panic").expect(200)), [11]);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));

    for bad in [
        "cursor=x",
        "cursor=",
        "limit=0",
        "limit=101",
        "limit=x",
        "wait=26",
        "wait=-1",
    ] {
        agent.poll(bad).await.refused(400, "VALIDATION_ERROR");
    }
    let ahead = cursor.replace("-4", "-999");
    agent
        .poll(&format!("cursor={ahead}"))
        .await
        .refused(409, "CURSOR_EXPIRED");
    let refused = agent
        .poll("cursor=999-4")
        .await
        .refused(409, "CURSOR_EXPIRED");
    assert!(
        refused.body["error"]["params"]["head"]
            .as_str()
            .expect("a cursor")
            .ends_with("-11")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_inbox_written_from_many_conversations_on_two_nodes_has_no_gaps() {
    let room = "agent_message_send=10000/s,user_message_send=10000/s,default_user=1000/s";
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", room), ("SEND_WRITERS", "3")]).await;
    let alice = a.user("alice").await;
    let mut pairs = Vec::new();
    for n in 0..5 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        let conversation = alice.talk_to(&agent).await;
        pairs.push((agent, conversation));
    }
    let mut alice_socket = alice
        .on(&b)
        .connect_from(Some(&alice.start_of_inbox().await))
        .await;
    let sends = (0..400).map(|n| {
        let (agent, conversation) = &pairs[n % 5];
        let node = if n % 2 == 0 { &a } else { &b };
        async move { agent.on(node).say(conversation, "x").await }
    });
    let mut sent: Vec<String> = futures_util::future::join_all(sends)
        .await
        .into_iter()
        .map(|answer| answer.expect(201).data()["message_id"].to_string())
        .collect();
    let mut heard = Vec::new();
    let mut last = [0; 5];
    // Ten events were there before: a relation and a conversation with each agent.
    for n in 1..=410 {
        let event = loop {
            let frame = alice_socket.next().await.expect("an event");
            if frame["type"] == "event" {
                break frame;
            }
        };
        assert_eq!(event["seq"], n);
        if event["event"] == "message.created" {
            let place = pairs
                .iter()
                .position(|(_, id)| event["conversation_id"] == **id)
                .expect("one of them");
            assert_eq!(event["data"]["seq"], last[place] + 1);
            last[place] += 1;
            heard.push(event["data"]["message_id"].to_string());
        }
    }
    sent.sort();
    heard.sort();
    assert_eq!(sent, heard);
}

/// A message with far too many recipients takes longer than a statement may; those that share its batch do not fail.
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
    // Real time: what comes while this one is stored is gathered, and the quick ones are there first.
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
