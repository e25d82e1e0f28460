//! `GET /conversations/{conversation_id}/streams`.

use serde_json::{Value, json};

use crate::support::{User, nodes, ulid};

use super::{begin, begin_again, caught_up, expect_deltas, handled, say};

async fn streams(user: &User, conversation: &str) -> Value {
    let path = format!("/conversations/{conversation}/streams");
    user.get(path).await.expect(200).data().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_that_go_on_are_listed_for_members_only() {
    let [a, b] = nodes().await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let agent = a.agent(&alice, "helper").await;
    let direct = alice.talk_to(&agent).await;
    let mut hers = alice.on(&b).connect().await;
    let mut its = agent.on(&a).connect().await;
    for socket in [&mut hers, &mut its] {
        caught_up(socket).await;
    }
    assert_eq!(streams(&alice, &direct).await, json!([]));
    let question = alice.say(&direct, "why?").await.expect(201).data()["message_id"].clone();
    its.say(json!({ "type": "stream.begin", "stream_id": "s", "conversation_id": direct, "in_reply_to": question }))
        .await;
    for n in 0..3 {
        say(&mut its, "s", n).await;
    }
    begin(&mut its, "t", &direct).await;
    begin_again(&mut its, "t", &direct, 1).await;
    expect_deltas(&mut hers, "s", 0..3).await;
    handled(&mut its).await;
    for user in [&alice.on(&a), &alice.on(&b)] {
        let listed = streams(user, &direct).await;
        let started_at = listed[0]["started_at"].clone();
        assert!(started_at.is_string(), "{listed}");
        assert_eq!(
            listed[0],
            json!({ "stream_id": "s", "agent_id": agent.id, "in_reply_to": question, "generation": 0, "n": 3, "started_at": started_at })
        );
        assert_eq!(
            (
                &listed[1]["stream_id"],
                &listed[1]["generation"],
                &listed[1]["n"]
            ),
            (&json!("t"), &json!(1), &json!(0))
        );
        assert_eq!(listed.as_array().map(Vec::len), Some(2));
    }
    // Those that are over are not listed.
    its.say(json!({ "type": "stream.cancel", "stream_id": "t" }))
        .await;
    its.say(json!({ "type": "stream.end", "stream_id": "s", "payload": { "type": "text", "text": "x" } }))
        .await;
    its.expect("message.sent").await;
    assert_eq!(streams(&alice, &direct).await, json!([]));
    for id in [direct, ulid().to_string()] {
        let path = format!("/conversations/{id}/streams");
        let refused = bob.get(path).await.expect(404);
        assert_eq!(refused.body["error"]["code"], "NOT_FOUND");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ex_member_neither_lists_nor_syncs_a_stream() {
    let [a, b] = nodes().await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let group = alice.group_with(&[&bob]).await;
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let place = format!("/groups/{group}/agent-instances");
    let place = alice.post(place, json!({ "agent_id": agent.id, "visibility": "all" }));
    place.await.expect(201);
    let mut his = bob.on(&b).connect().await;
    let mut its = agent.on(&a).connect().await;
    for socket in [&mut his, &mut its] {
        caught_up(socket).await;
    }
    begin(&mut its, "s", &group).await;
    say(&mut its, "s", 0).await;
    expect_deltas(&mut his, "s", 0..1).await;
    assert_eq!(streams(&bob, &group).await[0]["stream_id"], "s");
    alice
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    let path = format!("/conversations/{group}/streams");
    bob.get(path).await.expect(404);
    his.event("member.removed").await;
    say(&mut its, "s", 1).await;
    his.say(json!({ "type": "stream.sync", "stream_id": "s" }))
        .await;
    let mut refused = his.next().await.expect("a frame");
    while refused["type"] == "event" {
        refused = his.next().await.expect("a frame");
    }
    assert_eq!(
        (&refused["stream_id"], &refused["error"]["code"]),
        (&json!("s"), &json!("NOT_FOUND")),
        "{refused}"
    );
    assert_eq!(streams(&alice, &group).await[0]["n"], 2);
}
