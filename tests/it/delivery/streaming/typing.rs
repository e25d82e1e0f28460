//! Typing.

use std::time::Duration;

use serde_json::json;

use crate::support::{nodes, psql, ulid};

use super::{cast, caught_up};

#[tokio::test(flavor = "multi_thread")]
async fn typing_reaches_members_on_every_node_and_not_its_own_socket() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;

    let body = json!({ "conversation_id": conversation, "state": "started" });
    let path = format!("/agents/{}/typing", agent.id);
    let answer = agent.on(&b).post(&path, body).await.expect(200);
    for socket in [&mut here, &mut there] {
        let frame = socket.expect("typing").await;
        assert_eq!(frame["conversation_id"], conversation);
        assert_eq!(frame["sender"], json!({ "type": "agent", "id": agent.id }));
        assert_eq!(
            (&frame["state"], &frame["expires_at"]),
            (&json!("started"), &answer.data()["expires_at"])
        );
    }
    here.say(json!({ "type": "typing", "conversation_id": conversation, "state": "stopped" }))
        .await;
    for socket in [&mut its, &mut there] {
        let frame = socket.expect("typing").await;
        assert_eq!(frame["sender"]["id"], alice.id);
        assert_eq!(frame["sender"]["device_id"], alice.device_id);
        assert_eq!(frame["state"], "stopped");
    }
    // An agent that is only addressed hears what names it, which typing does not.
    let id = uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"));
    let addressed = a.agent(&alice, "addressed").await;
    let join = format!(
        "insert into member (conversation_id, principal_id, principal_kind, role, visibility)
         values ('{id}', '{}', 'agent', 'agent', 'addressed')",
        addressed.id
    );
    psql(&a.world.database, &join).await;
    let mut quiet = addressed.on(&b).connect().await;
    caught_up(&mut quiet).await;
    // Real time: for a second the members are remembered.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    // The typing user is told nothing of it, and it is in nobody's inbox.
    its.say(json!({ "type": "typing", "conversation_id": conversation, "state": "started" }))
        .await;
    there.expect("typing").await;
    here.expect("typing").await;
    its.expect_silence(Duration::from_millis(200)).await;
    here.expect_silence(Duration::from_millis(1)).await;
    quiet.expect_silence(Duration::from_millis(1)).await;
    assert_eq!(
        alice.say(&conversation, "x").await.expect(201).data()["seq"],
        1
    );
    assert_eq!(its.expect("event").await["data"]["seq"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn typing_is_for_members_and_within_a_budget() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    let stranger = a.agent(&alice, "stranger").await;
    let path = format!("/agents/{}/typing", stranger.id);
    for id in [conversation.clone(), ulid().to_string()] {
        let body = json!({ "conversation_id": id, "state": "started" });
        stranger.post(&path, body).await.refused(404, "NOT_FOUND");
    }
    let path = format!("/agents/{}/typing", agent.id);
    for body in [
        json!({}),
        json!({ "conversation_id": conversation }),
        json!({ "conversation_id": conversation, "state": "x" }),
        json!({ "conversation_id": "x", "state": "started" }),
    ] {
        agent
            .post(&path, body)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    for frame in [
        json!({ "type": "typing" }),
        json!({ "type": "typing", "conversation_id": conversation, "state": 1 }),
    ] {
        let mut socket = agent.connect().await;
        socket.say(frame).await;
        socket.expect_close(4400).await;
    }
    let mut elsewhere = stranger.connect().await;
    elsewhere
        .say(json!({ "type": "typing", "ref": 7, "conversation_id": conversation, "state": "started" }))
        .await;
    let refused = elsewhere.expect("error").await;
    assert_eq!(
        (&refused["error"]["code"], &refused["ref"]),
        (&json!("NOT_FOUND"), &json!(7))
    );

    // The route and the frame share a budget, on all nodes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let body = json!({ "conversation_id": conversation, "state": "started" });
    let callers = [agent.on(&a), agent.on(&b)];
    let answers =
        futures_util::future::join_all((0..14).map(|n| callers[n % 2].post(&path, body.clone())))
            .await;
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 200).count(),
        10
    );
    its.say(json!({ "type": "typing", "conversation_id": conversation, "state": "started" }))
        .await;
    let refused = its.expect("error").await;
    assert_eq!(
        refused["error"]["params"]["scope"], "agent_typing",
        "{refused}"
    );
    for _ in 0..10 {
        here.expect("typing").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typing_does_not_end_a_poll() {
    let [a] = nodes().await;
    let (alice, agent, conversation, [_, mut hers, _]) = cast(&a, &a).await;
    let newest = agent.poll("limit=100").await.expect(200).body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    let query = format!("cursor={newest}&wait=20");
    let poll = agent.poll(&query);
    let meanwhile = async {
        for _ in 0..5 {
            hers.say(
                json!({ "type": "typing", "conversation_id": conversation, "state": "started" }),
            )
            .await;
        }
        // Real time: the poll must be waiting while they are told.
        tokio::time::sleep(Duration::from_millis(300)).await;
        alice.say(&conversation, "now").await.expect(201);
    };
    let (answer, ()) = tokio::join!(poll, meanwhile);
    assert_eq!(answer.body["data"][0]["data"]["payload"]["text"], "now");
}
