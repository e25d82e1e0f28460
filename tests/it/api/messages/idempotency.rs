//! An id sends one message within a day.

use std::collections::HashSet;

use serde_json::json;

use crate::support::{nodes_with, ulid};

use super::inbox_of;

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
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let path = format!("/conversations/{conversation}/messages");
    // Version 4 alone: a client that counts its messages would meet another's number.
    for key in [
        uuid::Uuid::nil().to_string(),
        "0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e".to_owned(),
        "c232ab00-9414-11ec-b3c8-9f6bdeced846".to_owned(),
        ulid().to_string(),
    ] {
        let body = json!({ "payload": { "type": "text" }, "idempotency_key": key });
        alice
            .post(&path, body)
            .await
            .refused(400, "VALIDATION_ERROR");
        let request = alice.request(reqwest::Method::POST, &path);
        let request = request.header("idempotency-key", &key);
        alice
            .send(request.json(&json!({ "payload": { "type": "text" } })))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let key = "5f0c954e-21d1-4d23-8c5a-8d61c7a3c9f1".to_owned();
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
        .header("idempotency-key", "5f0c954e-21d1-4d23-8c5a-8d61c7a3c9f2")
        .json(&body);
    alice.send(both).await.refused(400, "VALIDATION_ERROR");
}
