//! Agents in groups.

use serde_json::{Value, json};

use crate::support::{Agent, nodes, nodes_with, ulid};

use super::{RAISED_LIMITS, add};

/// The texts of an agent's history.
async fn texts_of(agent: &Agent, group: &str, query: &str) -> Vec<String> {
    let path = format!(
        "/agents/{}/conversations/{group}/messages?{query}",
        agent.id
    );
    let page = agent.get(path).await.expect(200);
    let messages = page.body["data"].as_array().expect("a list").clone();
    messages
        .iter()
        .map(|one| one["payload"]["text"].as_str().expect("text").to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_placed_by_an_admin_who_is_related_with_it() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let quiet = a.agent(&alice, "quiet").await;
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/agent-instances");
    alice
        .post(&path, json!({ "agent_id": ulid().to_string() }))
        .await
        .refused(400, "VALIDATION_ERROR");
    alice
        .post(&path, json!({ "agent_id": uuid::Uuid::nil() }))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    alice
        .post(&path, json!({ "agent_id": quiet.id }))
        .await
        .refused(403, "RELATION_REQUIRED");
    alice.talk_to(&quiet).await;
    bob.post(&path, json!({ "agent_id": quiet.id }))
        .await
        .refused(403, "FORBIDDEN");
    alice
        .post(&path, json!({ "agent_id": quiet.id, "visibility": "some" }))
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_addressed_hears_what_names_it() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [quiet, loud] = [
        a.agent(&alice, "quiet").await,
        a.agent(&alice, "loud").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/agent-instances");
    alice.talk_to(&quiet).await;
    alice.talk_to(&loud).await;
    let place = alice
        .post(&path, json!({ "agent_id": quiet.id }))
        .await
        .expect(201);
    assert_eq!(
        (&place.data()["visibility"], &place.data()["agent_id"]),
        (&json!("addressed"), &json!(quiet.id))
    );
    alice
        .post(&path, json!({ "agent_id": loud.id, "visibility": "all" }))
        .await
        .expect(201);

    let mut quiet_socket = quiet.on(&b).connect().await;
    let mut others = loud.on(&b).connect().await;
    let mut bob_socket = bob.on(&b).connect().await;
    let say = async |text: &str, named: Value| {
        let body = json!({ "payload": { "type": "text", "text": text }, "recipients": named });
        alice
            .post(format!("/conversations/{group}/messages"), body)
            .await
    };
    alice.say(&group, "to all").await.expect(201);
    say("to loud", json!([loud.id])).await.expect(201);
    say("to quiet", json!([quiet.id, bob.id])).await.expect(201);
    let frame = json!({
        "type": "message.send", "ref": 1, "conversation_id": group, "recipients": [quiet.id],
        "payload": { "type": "text", "text": "by frame" },
    });
    bob_socket.say(frame).await;
    bob_socket.expect("message.sent").await;
    for text in ["to quiet", "by frame"] {
        assert_eq!(
            quiet_socket.event("message.created").await["data"]["payload"]["text"],
            text
        );
    }
    for text in ["to all", "to loud", "to quiet", "by frame"] {
        for socket in [&mut others, &mut bob_socket] {
            assert_eq!(
                socket.event("message.created").await["data"]["payload"]["text"],
                text
            );
        }
    }
    let texts = async |agent: &Agent, query: &str| texts_of(agent, &group, query).await;
    assert_eq!(
        texts(&quiet, "direction=forward").await,
        ["to quiet", "by frame"]
    );
    assert_eq!(texts(&quiet, "").await, ["by frame", "to quiet"]);
    assert_eq!(texts(&quiet, "limit=1").await, ["by frame"]);
    assert_eq!(
        texts(&loud, "direction=forward").await,
        ["to all", "to loud", "to quiet", "by frame"]
    );
    let seen = quiet
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    assert_eq!(
        (&seen.data()["unread_count"], &seen.data()["my_role"]),
        (&json!(2), &json!("agent"))
    );
    let history = bob
        .get(format!("/conversations/{group}/messages"))
        .await
        .expect(200);
    assert_eq!(
        history.body["data"][1]["recipients"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );

    for bad in [
        json!([]),
        json!(["x"]),
        json!([ulid().to_string()]),
        json!([uuid::Uuid::nil()]),
        json!("all"),
    ] {
        say("x", bad).await.refused(400, "VALIDATION_ERROR");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_s_place_is_widened_and_ended() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [quiet, loud] = [
        a.agent(&alice, "quiet").await,
        a.agent(&alice, "loud").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/agent-instances");
    for agent in [&quiet, &loud] {
        alice.talk_to(agent).await;
    }
    let place = alice
        .post(&path, json!({ "agent_id": quiet.id }))
        .await
        .expect(201);
    alice
        .post(&path, json!({ "agent_id": loud.id, "visibility": "all" }))
        .await
        .expect(201);
    let mut quiet_socket = quiet.on(&b).connect().await;
    // Asked again with another visibility, it is the same place.
    let again = alice
        .post(&path, json!({ "agent_id": quiet.id, "visibility": "all" }))
        .await
        .expect(200);
    assert_eq!(again.data()["instance_id"], place.data()["instance_id"]);
    alice.say(&group, "now it hears").await.expect(201);
    assert_eq!(
        quiet_socket.event("message.created").await["data"]["payload"]["text"],
        "now it hears"
    );
    let instance = place.data()["instance_id"].as_str().expect("an id");
    bob.delete(format!("{path}/{instance}"))
        .await
        .refused(403, "FORBIDDEN");
    alice.delete(format!("{path}/{instance}")).await.expect(200);
    assert_eq!(
        quiet_socket.event("member.removed").await["data"]["member"]["principal_id"],
        quiet.id
    );
    quiet
        .say(&group, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    alice
        .delete(format!("{path}/{instance}"))
        .await
        .refused(404, "NOT_FOUND");
    // An agent may leave by itself.
    loud.delete(format!("/groups/{group}/members/{}", loud.id))
        .await
        .expect(200);
    loud.say(&group, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budgets_of_a_group_are_its_members_alone() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/agent-instances");
    // Strangers, members without the right, wrong shapes and missing relations use up nothing.
    let stranger = a.user("stranger").await;
    for _ in 0..7 {
        add(&stranger, &group, &[&bob.id])
            .await
            .refused(404, "NOT_FOUND");
        add(&bob, &group, &[&bob.id])
            .await
            .refused(403, "FORBIDDEN");
        add(&alice, &group, &[])
            .await
            .refused(400, "VALIDATION_ERROR");
        alice
            .post(&path, json!({ "agent_id": agent.id }))
            .await
            .refused(403, "RELATION_REQUIRED");
    }
    for n in 0..5 {
        add(
            &alice.on(if n % 2 == 0 { &a } else { &b }),
            &group,
            &[&bob.id],
        )
        .await
        .expect(201);
    }
    let refused = add(&alice.on(&b), &group, &[&bob.id])
        .await
        .refused(429, "RATE_LIMITED");
    assert_eq!(refused.body["error"]["params"]["scope"], "group_member_add");
    assert_eq!(refused.body["error"]["params"]["limit"], "5/min");
    alice.talk_to(&agent).await;
    alice
        .post(&path, json!({ "agent_id": agent.id }))
        .await
        .expect(201);
    let refused = alice
        .on(&b)
        .post(&path, json!({ "agent_id": agent.id }))
        .await
        .refused(429, "RATE_LIMITED");
    assert_eq!(refused.body["error"]["params"]["limit"], "1/60s");
    // Another group has its own.
    let other = alice.group_with(&[&bob]).await;
    add(&alice, &other, &[&bob.id]).await.expect(201);
}
