//! Stops: their callers, the agents that they reach, and what of the agents' work ends.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Stage, call, tool_calls::ended};
use crate::support::{Agent, Answer, Socket, User, nodes_with, ulid};

async fn stop(user: &User, conversation: &str, body: Value) -> Answer {
    let path = format!("/conversations/{conversation}/stop");
    user.post(path, body).await
}

/// The data of the agent's stops, out of its inbox.
async fn stops(agent: &Agent) -> Vec<Value> {
    let page = agent.poll("limit=100").await.expect(200);
    let events = page.body["data"].as_array().expect("events").clone();
    let stops = events
        .into_iter()
        .filter(|event| event["event"] == "turn.stop");
    stops.map(|event| event["data"].clone()).collect()
}

async fn caught_up(socket: &mut Socket) {
    while socket.next().await.expect("a frame")["type"] != "caught_up" {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_an_agents_streams_on_every_node_and_its_pending_calls() {
    let stage = Stage::new().await;
    let Stage {
        nodes: [a, b],
        alice,
        agent,
        conversation,
    } = &stage;
    stage.grant(&["notification:send"]).await;
    let asked = stage.call("notification:send").await;
    assert_eq!(asked["status"], "pending");
    let other = alice.talk_to(&b.agent(alice, "other").await).await;
    let question = alice.say(conversation, "why?").await.expect(201).data()["message_id"].clone();
    let mut alice_socket = alice.on(a).connect().await;
    let [mut here, mut there] = [agent.on(a).connect().await, agent.on(b).connect().await];
    for socket in [&mut alice_socket, &mut here, &mut there] {
        caught_up(socket).await;
    }
    for (socket, stream) in [(&mut here, "s"), (&mut there, "t")] {
        let begin = json!({ "type": "stream.begin", "stream_id": stream, "conversation_id": conversation,
            "in_reply_to": question });
        socket.say(begin).await;
        alice_socket.expect("stream.begin").await;
    }
    // The answers to another message go on.
    let unrelated = json!({ "in_reply_to": ulid().to_string() });
    let answer = stop(alice, conversation, unrelated).await.expect(200);
    assert_eq!(answer.data(), &json!({ "stopped": 1 }));
    let event = here.event("turn.stop").await;
    assert!(event["data"]["in_reply_to"].is_string());
    let denied = alice_socket.event("artifact_response").await;
    assert_eq!(denied["data"]["reason"], "user_stopped");
    alice_socket
        .expect_silence(Duration::from_millis(200))
        .await;

    stop(alice, conversation, json!({ "in_reply_to": question }))
        .await
        .expect(200);
    for socket in [&mut here, &mut there] {
        let event = loop {
            let event = socket.event("turn.stop").await;
            if event["data"]["in_reply_to"] == question {
                break event;
            }
        };
        assert_eq!(
            event["data"]["by"],
            json!({ "type": "user", "id": alice.id })
        );
        assert_eq!(event["conversation_id"], *conversation);
    }
    let mut cancelled = Vec::new();
    while cancelled.len() < 2 {
        let frame = alice_socket.expect("stream.cancel").await;
        assert_eq!(frame["reason"], "user_stopped");
        cancelled.push(frame["stream_id"].as_str().expect("a name").to_owned());
    }
    cancelled.sort();
    assert_eq!(cancelled, ["s", "t"]);
    here.say(json!({ "type": "stream.delta", "stream_id": "s", "n": 0, "data": "x" }))
        .await;
    assert_eq!(here.expect("error").await["error"]["code"], "NOT_FOUND");
    // A later end is a normal message.
    let end = json!({ "type": "stream.end", "stream_id": "s", "conversation_id": conversation,
        "payload": { "type": "text", "text": "I stop" } });
    here.say(end).await;
    here.expect("message.sent").await;

    let outcome = ended(agent, asked["request_id"].as_str().expect("an id")).await;
    assert_eq!(
        (&outcome["status"], &outcome["reason"]),
        (&json!("denied"), &json!("user_stopped"))
    );
    // An answer comes too late, and calls after the stop are asked as before.
    let path = format!(
        "/artifact-requests/{}/response",
        asked["request_id"].as_str().expect("an id")
    );
    alice
        .post(path, json!({ "status": "executed", "payload": {} }))
        .await
        .refused(409, "TOOL_CALL_EXPIRED");
    let next = call(agent, stage.request("notification:send"))
        .await
        .expect(201);
    assert_eq!(next.data()["status"], "pending");
    // An agent of another conversation goes on.
    stop(alice, &other, json!({ "agent_id": agent.id }))
        .await
        .refused(404, "NOT_FOUND");
    assert_eq!(stops(agent).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_members_stop_and_only_agents_of_the_conversation() {
    let limits = "group_agent_instance=1000/s,default_user=1000/s";
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", limits)]).await;
    let [alice, bob, eve] = [
        a.user("alice").await,
        b.user("bob").await,
        b.user("eve").await,
    ];
    let [one, two, outside] = [
        a.agent(&alice, "one").await,
        b.agent(&alice, "two").await,
        b.agent(&alice, "outside").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    let direct = alice.direct_with(&bob).await;
    for agent in [&one, &two] {
        alice.talk_to(agent).await;
    }
    for (agent, visibility) in [(&one, "all"), (&two, "addressed")] {
        let body = json!({ "agent_id": agent.id, "visibility": visibility });
        let path = format!("/groups/{group}/agent-instances");
        alice.post(path, body).await.expect(201);
    }
    stop(&eve, &group, json!({}))
        .await
        .refused(404, "NOT_FOUND");
    stop(&alice, &ulid().to_string(), json!({}))
        .await
        .refused(404, "NOT_FOUND");
    let named = json!({ "agent_id": outside.id });
    stop(&bob, &group, named).await.refused(404, "NOT_FOUND");
    let answer = stop(&bob, &direct, json!({})).await.expect(200);
    assert_eq!(answer.data()["stopped"], 0);
    // Addressed agents count, and a stop may be repeated.
    for user in [&bob.on(&a), &bob.on(&b)] {
        let answer = stop(user, &group, json!({})).await.expect(200);
        assert_eq!(answer.data()["stopped"], 2);
    }
    let named = json!({ "agent_id": two.id });
    let answer = stop(&bob, &group, named).await.expect(200);
    assert_eq!(answer.data()["stopped"], 1);
    assert_eq!(stops(&one).await.len(), 2);
    assert_eq!(stops(&two).await.len(), 3);
    // A removed member stops nobody, and a removed agent hears of no stop.
    alice
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    stop(&bob, &group, json!({}))
        .await
        .refused(404, "NOT_FOUND");
    alice
        .delete(format!("/groups/{group}/members/{}", one.id))
        .await
        .expect(200);
    let answer = stop(&alice, &group, json!({})).await.expect(200);
    assert_eq!(answer.data()["stopped"], 1);
    assert_eq!(stops(&one).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_stops_as_the_route_does_and_shares_its_limit() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "turn_stop=3/min")]).await;
    let alice = a.user("alice").await;
    let agent = b.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = alice.connect().await;
    caught_up(&mut socket).await;
    let frame = json!({ "type": "turn.stop", "ref": 7, "conversation_id": conversation });
    socket.say(frame.clone()).await;
    let answer = socket.expect("turn.stopped").await;
    assert_eq!(answer["ref"], 7);
    assert_eq!(answer["data"], json!({ "stopped": 1 }));
    let mut foreign = frame.clone();
    foreign["conversation_id"] = json!(ulid().to_string());
    socket.say(foreign).await;
    let refused = socket.expect("error").await;
    assert_eq!(
        (&refused["ref"], &refused["error"]["code"]),
        (&json!(7), &json!("NOT_FOUND"))
    );
    stop(&alice.on(&b), &conversation, json!({}))
        .await
        .expect(200);
    stop(&alice.on(&b), &conversation, json!({}))
        .await
        .refused(429, "RATE_LIMITED");
    socket.say(frame.clone()).await;
    assert_eq!(
        socket.expect("error").await["error"]["code"],
        "RATE_LIMITED"
    );
    let mut its = agent.connect().await;
    caught_up(&mut its).await;
    its.say(frame).await;
    assert_eq!(its.expect("error").await["error"]["code"], "FORBIDDEN");
    assert_eq!(stops(&agent).await.len(), 2);
}
