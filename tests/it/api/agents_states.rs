//! The transitions of an agent's state, and the events to its owner.

use serde_json::{Value, json};

use crate::support::{Agent, Answer, TestNode, User, nodes, psql};

/// As the worker that calls webhooks will do it after the last retry.
async fn give_up_on(node: &TestNode, agent: &Agent) {
    let sql = format!(
        "update agent set state = 'unreachable', unreachable_since = app_now() where agent_id = '{}'",
        agent.id
    );
    psql(&node.world.database, &sql).await;
}

async fn shown(owner: &User, agent: &Agent) -> Value {
    owner
        .get(format!("/agents/{}", agent.id))
        .await
        .expect(200)
        .data()
        .clone()
}

async fn ack(agent: &Agent, body: Value) -> Value {
    agent
        .post(format!("/agents/{}/ack", agent.id), body)
        .await
        .expect(200)
        .data()
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_moves_the_place_and_says_what_waits() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    for text in ["one", "two", "three"] {
        alice.say(&conversation, text).await.expect(201);
    }
    // relation.created, conversation.created, three messages.
    let state = |from: i64, queued: i64| json!({ "state": "registered", "resumed_from_seq": from, "queued": queued });
    assert_eq!(ack(&agent, json!({})).await, state(0, 5));
    assert_eq!(
        ack(&agent.on(&b), json!({ "up_to_seq": 3 })).await,
        state(3, 2)
    );
    assert_eq!(
        ack(&agent, json!({ "up_to_seq": 1 })).await,
        state(3, 2),
        "an ack is never taken back"
    );
    let path = format!("/agents/{}/ack", agent.id);
    assert_eq!(
        agent.post_raw(&path, "").await.expect(200).data(),
        &state(3, 2)
    );
    let events = agent.on(&b).poll("").await.expect(200);
    assert_eq!(events.body["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        shown(&alice, &agent).await["inbox"],
        json!({ "head_seq": 5, "acked_seq": 3, "lag": 2 })
    );
    assert_eq!(ack(&agent, json!({ "up_to_seq": 5 })).await, state(5, 0));
    for bad in [
        json!({ "up_to_seq": 6 }),
        json!({ "up_to_seq": -1 }),
        json!({ "up_to_seq": "5" }),
        json!([]),
    ] {
        agent
            .post(&path, bad)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}

/// Numbers of an earlier history name other events. Only a cursor tells.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_of_an_earlier_epoch_moves_nothing() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "one").await.expect(201);
    let place = |answer: &Answer| answer.body["next_cursor"].clone();
    let first = place(&agent.poll("limit=1").await.expect(200));
    let answer = ack(&agent.on(&b), json!({ "cursor": first })).await;
    assert_eq!(answer["resumed_from_seq"], 1);
    let last = place(&agent.poll("").await.expect(200));
    // The cursor counts, whatever the number says.
    let answer = ack(&agent, json!({ "cursor": last, "up_to_seq": 1 })).await;
    assert_eq!(
        (&answer["resumed_from_seq"], &answer["queued"]),
        (&json!(3), &json!(0))
    );

    let failover = "update cluster set restores = restores + 1;
        update inbox_reader set acked_seq = 1 where device_id = ''";
    psql(&a.world.database, failover).await;
    let path = format!("/agents/{}/ack", agent.id);
    for node in [&a, &b] {
        let refused = agent.on(node).post(&path, json!({ "cursor": last })).await;
        let refused = refused.refused(409, "CURSOR_EXPIRED");
        let head = refused.body["error"]["params"]["head"]
            .as_str()
            .expect("a cursor");
        assert!(head.ends_with("-3"), "{head}");
    }
    assert_eq!(shown(&alice, &agent).await["inbox"]["acked_seq"], 1);
    for bad in [json!({ "cursor": "x" }), json!({ "cursor": 3 })] {
        agent
            .post(&path, bad)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_agent_comes_back_by_any_ack_and_by_nothing_else() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut alice_socket = alice.on(&b).connect().await;
    let mut came_back = async || {
        let event = alice_socket.event("agent.state_changed").await;
        let data = &event["data"];
        assert_eq!(
            (&data["state"], &data["previous_state"]),
            (&json!("active"), &json!("unreachable"))
        );
        let shown = shown(&alice, &agent).await;
        assert_eq!(
            (&shown["state"], &shown["unreachable_since"]),
            (&json!("active"), &json!(null))
        );
    };

    // Messages sent meanwhile are accepted and wait.
    give_up_on(&a, &agent).await;
    alice.say(&conversation, "are you there?").await.expect(201);
    agent.poll("").await.expect(200);
    agent
        .say(&conversation, "speaking is no ack")
        .await
        .expect(201);
    let away = shown(&alice, &agent).await;
    assert_eq!(away["state"], "unreachable");
    assert!(away["unreachable_since"].is_string());
    assert_eq!(
        ack(&agent.on(&b), json!({})).await,
        json!({ "state": "active", "resumed_from_seq": 0, "queued": 3 })
    );
    came_back().await;

    give_up_on(&a, &agent).await;
    let page = agent.poll("limit=1").await.expect(200);
    assert_eq!(shown(&alice, &agent).await["state"], "unreachable");
    agent
        .on(&b)
        .poll(&format!(
            "cursor={}",
            page.body["next_cursor"].as_str().expect("a cursor")
        ))
        .await
        .expect(200);
    came_back().await;

    give_up_on(&a, &agent).await;
    let mut socket = agent.on(&b).connect().await;
    socket.expect("caught_up").await;
    assert_eq!(shown(&alice, &agent).await["state"], "unreachable");
    let cursor = socket.cursor.clone();
    socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    came_back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emergency_and_a_revocation_reset_an_unreachable_agent_too() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}", agent.id);
    give_up_on(&a, &agent).await;
    // An ordinary regenerate proves nothing about its being there.
    alice
        .post(
            format!("{path}/token/regenerate"),
            json!({ "emergency": false }),
        )
        .await
        .expect(200);
    assert_eq!(shown(&alice, &agent).await["state"], "unreachable");
    alice
        .post(
            format!("{path}/token/regenerate"),
            json!({ "emergency": true }),
        )
        .await
        .expect(200);
    let back = shown(&alice, &agent).await;
    assert_eq!(
        (&back["state"], &back["unreachable_since"]),
        (&json!("registered"), &json!(null))
    );
    give_up_on(&a, &agent).await;
    alice.delete(format!("{path}/token")).await.expect(200);
    assert_eq!(shown(&alice, &agent).await["state"], "token_revoked");
}
