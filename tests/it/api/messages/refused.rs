//! Sends that the limiter refuses or decides late: they leave nothing behind and delay nobody.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Answer, User, connect, nodes_with, private_redis, spawn, ulid};

/// The numbers and texts of a conversation, oldest first.
async fn history(user: &User, conversation: &str) -> Vec<(i64, String)> {
    let answer = user
        .get(format!("/conversations/{conversation}/messages?limit=100"))
        .await
        .expect(200);
    let message = |one: &Value| {
        (
            one["seq"].as_i64().expect("a number"),
            one["payload"]["text"].as_str().expect("a text").to_owned(),
        )
    };
    let mut messages: Vec<_> = answer
        .data()
        .as_array()
        .expect("a list")
        .iter()
        .map(message)
        .collect();
    messages.sort();
    messages
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_send_leaves_nothing_and_fails_no_other() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=25/min")]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let mut socket = bob.on(&b).connect().await;
    let mut sent: Vec<(i64, String)> = Vec::new();
    for round in 0..5 {
        let many = (0..10).map(|n| (&alice, format!("alice {round} {n}")));
        let few = (0..4).map(|n| (&bob, format!("bob {round} {n}")));
        let calls = many.chain(few).enumerate().map(async |(n, (user, text))| {
            // In every other round both nodes send into the conversation.
            let node = if n % 2 == 0 || round % 2 == 0 { &a } else { &b };
            (user.on(node).say(&group, &text).await, text)
        });
        let answers: Vec<(Answer, String)> = join_all(calls).await;
        let left = 25_usize.saturating_sub(10 * round).min(10);
        let (good, refused): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .partition(|(answer, _)| answer.status == 201);
        assert_eq!(
            (good.len(), refused.len()),
            (left + 4, 10 - left),
            "round {round}"
        );
        for (answer, text) in refused {
            assert!(text.starts_with("alice"), "{text}");
            answer.refused(429, "RATE_LIMITED");
        }
        sent.extend(
            good.into_iter()
                .map(|(answer, text)| (answer.data()["seq"].as_i64().expect("a number"), text)),
        );
    }
    sent.sort();
    assert_eq!(
        sent.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(),
        (1..=45).collect::<Vec<_>>()
    );
    for node in [&a, &b] {
        assert_eq!(history(&bob.on(node), &group).await, sent);
    }
    for (seq, text) in sent {
        let event = socket.event("message.created").await;
        assert_eq!(
            (&event["data"]["seq"], &event["data"]["payload"]["text"]),
            (&json!(seq), &json!(text))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_send_that_is_refused_leaves_its_id_free() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=2/min")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let path = format!("/conversations/{conversation}/messages");
    let body = json!({ "payload": { "type": "text", "text": "third" }, "client_message_id": ulid().to_string() });
    for (node, text) in [(&a, "first"), (&b, "second")] {
        alice.on(node).say(&conversation, text).await.expect(201);
    }
    for node in [&a, &b] {
        alice
            .on(node)
            .post(&path, body.clone())
            .await
            .refused(429, "RATE_LIMITED");
    }
    assert_eq!(history(&alice, &conversation).await.len(), 2);
    a.advance(Duration::from_secs(60)).await;
    let sent = alice.on(&b).post(&path, body.clone()).await.expect(201);
    assert_eq!(
        (&sent.data()["seq"], &sent.data()["duplicate"]),
        (&json!(3), &json!(false))
    );
    let replay = alice.post(&path, body).await.expect(200);
    assert_eq!(replay.data()["seq"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_limiter_holds_no_locks() {
    let mut redis = private_redis("silent").await;
    let url = redis.url();
    let [a] = nodes_with(&[("REDIS_URL", &url)]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "before").await.expect(201);
    let client = connect(&a.world.database).await;
    redis.signal("STOP");
    let started = Instant::now();
    let saying = {
        let (alice, conversation) = (alice.on(&a), conversation.clone());
        spawn(async move { alice.say(&conversation, "meanwhile").await })
    };
    let mut looks = 0;
    while !saying.is_finished() {
        let held = "select count(*) from pg_stat_activity where datname = current_database()
                    and state = 'idle in transaction' and now() - state_change > interval '100 ms'";
        let held: i64 = client.query_one(held, &[]).await.expect("a count").get(0);
        assert_eq!(held, 0, "after {:?}", started.elapsed());
        looks += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    saying.await.expect("no panic").expect(201);
    // It was decided by the node's own share, once Redis had been given up.
    assert!(
        looks > 2 && started.elapsed() > Duration::from_millis(200),
        "{looks} in {:?}",
        started.elapsed()
    );
    redis.signal("CONT");
    let texts = history(&alice, &conversation).await;
    assert_eq!(
        texts,
        [(1, "before".to_owned()), (2, "meanwhile".to_owned())]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_comes_before_the_faults_of_a_body_and_does_not_wait_for_it() {
    let settings = [("LIMIT_OVERRIDES", "user_message_send=3/min")];
    let [a] = nodes_with(&settings).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let path = format!("/conversations/{conversation}/messages");
    // A fault is charged, too.
    for body in [json!({}), json!({ "payload": "x" })] {
        let answer = alice.post(&path, body).await;
        answer.refused(400, "VALIDATION_ERROR");
    }
    alice.say(&conversation, "the third").await.expect(201);
    for body in [json!({}), json!({ "payload": "x" })] {
        alice.post(&path, body).await.refused(429, "RATE_LIMITED");
    }
    let mut socket = alice.connect().await;
    for n in [1, 2] {
        let frame = json!({ "type": "message.send", "ref": n, "conversation_id": conversation, "payload": n });
        socket.say(frame).await;
    }
    for n in [1, 2] {
        let refused = socket.expect("error").await;
        assert_eq!(refused["ref"], n);
        assert_eq!(refused["error"]["code"], "RATE_LIMITED");
    }
    // Of this body nothing is ever sent; the answer comes all the same.
    let address = a.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\nAuthorization: Bearer {}\r\nContent-Length: 1000\r\n\r\n",
        alice.access_token
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut back = vec![0; 1024];
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut back)).await;
    let n = read.expect("soon").expect("an answer");
    let back = String::from_utf8_lossy(&back[..n]);
    assert!(back.starts_with("HTTP/1.1 429"), "{back}");
    assert_eq!(history(&alice, &conversation).await.len(), 1);
}
