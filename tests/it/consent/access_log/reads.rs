//! The reads that have rows, and the users who see them.

use std::time::Duration;

use blindpipe::routes::{self, Access};
use serde_json::{Value, json};

use super::{
    super::{
        Stage,
        approvals::{Keys, Person, approvals_of, question},
        call, group_with, respond, text,
    },
    log, newest,
};
use crate::{
    files,
    support::{Agent, Answer, User, ulid},
};

/// A call of a route as an agent, with everything in its place; none for a route that this test
/// does not know.
async fn visit(stage: &Stage, method: &str, path: &str, repeated: &Value) -> Option<Answer> {
    let agent = &stage.agent;
    let (own, conversation) = (format!("/agents/{}", agent.id), &stage.conversation);
    let payload = json!({ "payload": { "type": "text" } });
    Some(match (method, path) {
        ("GET", "/conversations/{conversation_id}") => {
            agent.get(format!("/conversations/{conversation}")).await
        }
        ("GET", "/keys/users/{user_id}/devices") => {
            agent
                .get(format!("/keys/users/{}/devices", stage.alice.id))
                .await
        }
        ("GET", "/keys/groups/{conversation_id}") => {
            agent.get(format!("/keys/groups/{conversation}")).await
        }
        ("GET", "/keys/groups/{conversation_id}/recipients") => {
            agent
                .get(format!("/keys/groups/{conversation}/recipients"))
                .await
        }
        ("GET", "/agents/{agent_id}/conversations") => {
            agent.get(format!("{own}/conversations")).await
        }
        ("GET", "/agents/{agent_id}/conversations/{conversation_id}/messages") => {
            agent
                .get(format!("{own}/conversations/{conversation}/messages"))
                .await
        }
        ("GET", "/agents/{agent_id}/messages/poll") => agent.poll("").await,
        ("POST", "/agents/{agent_id}/ack") => {
            let head = agent.get(&own).await.expect(200).data()["inbox"]["head_seq"].clone();
            agent
                .post(format!("{own}/ack"), json!({ "up_to_seq": head }))
                .await
        }
        ("POST", "/agents/{agent_id}/artifact-requests") => call(agent, repeated.clone()).await,
        ("GET", "/agents/{agent_id}/approvals") => {
            decided(stage, conversation, 1).await;
            // The newest alone: others are of another conversation.
            agent
                .get(format!("{own}/approvals?state=closed&limit=1"))
                .await
        }
        ("GET", "/approvals/{approval_id}") => {
            let (_, item) = decided(stage, conversation, 1).await;
            agent
                .get(format!("/approvals/{}", text(&item, "approval_id")))
                .await
        }
        ("POST", "/agents/{agent_id}/conversations/{conversation_id}/approvals") => {
            let (body, _) = decided(stage, conversation, 1).await;
            agent.post(approvals_of(agent, conversation), body).await
        }
        ("POST", "/approvals/{approval_id}/withdraw") => {
            // With a single user the first decision is the last.
            let bob = stage.nodes[0].user("bob").await;
            let group = group_with(&stage.alice, &[&bob], agent).await;
            let (_, item) = decided(stage, &group, 2).await;
            let path = format!("/approvals/{}/withdraw", text(&item, "approval_id"));
            agent.post(path, json!({})).await
        }
        ("GET", "/objects/{object_key}") => {
            let files = format!("{own}/files");
            let upload = files::request(agent, &files, conversation, 5).await;
            files::bring(agent, &upload, "bytes").await.expect(200);
            let file = files::confirm(agent, &upload, b"bytes").await.expect(200);
            agent
                .get(format!("/objects/{}", text(file.data(), "object_key")))
                .await
        }
        ("GET", "/ws") => {
            let mut socket = agent.connect().await;
            let event = socket.event("message.created").await;
            socket
                .say(json!({ "type": "ack", "cursor": event["cursor"] }))
                .await;
            socket.say(json!({ "type": "ping" })).await;
            socket.expect("pong").await;
            return Some(agent.get("/limits").await);
        }
        // These answer nothing of a user's, whatever they answer.
        ("POST", "/conversations/{conversation_id}/read") => {
            let body = json!({ "message_id": ulid().to_string() });
            agent
                .post(format!("/conversations/{conversation}/read"), body)
                .await
        }
        ("POST", "/agents/{agent_id}/messages") => agent.say(conversation, "x").await,
        ("POST", "/agents/{agent_id}/conversations/{conversation_id}/messages") => {
            agent
                .post(
                    format!("{own}/conversations/{conversation}/messages"),
                    payload,
                )
                .await
        }
        ("GET", "/limits") => agent.get("/limits").await,
        ("GET", "/agents/{agent_id}") => agent.get(own).await,
        ("GET", "/agents/{agent_id}/keys") => agent.get(format!("{own}/keys")).await,
        _ => return None,
    })
}

/// An approval of the agent's that Alice has approved: the request and the item.
async fn decided(stage: &Stage, conversation: &str, quorum: u8) -> (Value, Value) {
    let alice = Person {
        user: stage.alice.clone(),
        keys: Keys::of(&stage.alice).await,
    };
    let body = question(json!({ "quorum": quorum }));
    let path = approvals_of(&stage.agent, conversation);
    let asked = stage.agent.post(path, body.clone()).await.expect(201);
    let item = alice
        .decide(&stage.nodes[1], asked.data(), "approved")
        .await;
    (body, item.expect(200).data().clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_that_agents_call_says_what_it_reads_and_logs_it() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    // A call whose result its repeat answers.
    let repeated = stage.request("notification:send");
    call(&stage.agent, repeated.clone()).await.expect(201);
    let done = json!({ "status": "executed", "payload": { "result": 1 } });
    respond(&stage.alice, &text(&repeated, "request_id"), done)
        .await
        .expect(200);
    for route in routes::table() {
        let (method, path) = (route.method.as_str(), route.path);
        let agents_call = matches!(route.caller, Access::Agent | Access::Either) || path == "/ws";
        let name = format!("{method} {path}");
        let Some(reads) = route.reads else {
            assert!(!agents_call, "{name} does not say what agents read");
            continue;
        };
        stage
            .alice
            .say(&stage.conversation, "to be read")
            .await
            .expect(201);
        // Events of earlier routes that wait for an ack are logged before.
        let head = stage
            .agent
            .get(format!("/agents/{}", stage.agent.id))
            .await
            .expect(200);
        if path != "/agents/{agent_id}/ack"
            && path != "/agents/{agent_id}/messages/poll"
            && path != "/ws"
        {
            let up_to = json!({ "up_to_seq": head.data()["inbox"]["head_seq"] });
            stage
                .agent
                .post(format!("/agents/{}/ack", stage.agent.id), up_to)
                .await
                .expect(200);
        }
        let before = log(&stage.alice, "").await;
        match visit(&stage, method, path, &repeated).await {
            Some(_) if reads.is_empty() => {
                let after = log(&stage.alice, "").await;
                assert_eq!(after, before, "{name} logs what it does not read");
            }
            Some(answer) => {
                assert!(answer.status < 300, "{name}: {answer:?}");
                let conversation = match path {
                    // The keys of a user belong to no conversation.
                    "/keys/users/{user_id}/devices" => Value::Null,
                    // A group of its own.
                    "/approvals/{approval_id}/withdraw" => answer.data()["conversation_id"].clone(),
                    _ => json!(stage.conversation),
                };
                let row = added(&stage.alice, &before, reads[0].as_str(), &conversation).await;
                assert_eq!(row["agent_id"], json!(stage.agent.id));
                let last = before
                    .iter()
                    .filter(|earlier| earlier["subject_id"] == row["subject_id"])
                    .filter_map(|earlier| earlier["seq"].as_i64())
                    .max();
                let next = last.unwrap_or(0) + 1;
                assert_eq!(row["seq"].as_i64(), Some(next), "{name}: {row}");
            }
            None => assert!(reads.is_empty(), "{name} is to be called by this test"),
        }
    }
}

/// Waits for a row of this kind and conversation that the log did not have. A list of two
/// conversations adds two rows, in any order.
async fn added(user: &User, before: &[Value], kind: &str, conversation: &Value) -> Value {
    for _ in 0..200 {
        let rows = log(user, "").await;
        let found = rows.into_iter().find(|row| {
            row["kind"] == *kind
                && row["conversation_id"] == *conversation
                && before.iter().all(|earlier| earlier != row)
        });
        if let Some(row) = found {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("no new row of {kind} of {conversation}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_is_logged_once_whatever_brings_it() {
    let stage = Stage::new().await;
    let [a, b] = &stage.nodes;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let say = async |n: usize| {
        for _ in 0..n {
            alice.say(&stage.conversation, "x").await.expect(201);
        }
    };
    // The events that made the conversation, and three messages, by socket and one ack.
    say(3).await;
    let mut socket = agent.on(a).connect().await;
    for _ in 0..3 {
        socket.event("message.created").await;
    }
    socket
        .say(json!({ "type": "ack", "cursor": socket.cursor }))
        .await;
    let row = newest(alice, "push").await;
    let acked = row["to_seq"].as_i64().expect("a number");
    assert_eq!(
        row["items"].as_i64(),
        Some(acked - row["from_seq"].as_i64().expect("a number") + 1)
    );
    // Two more over the socket without an ack; a poll elsewhere acks them by its cursor.
    say(2).await;
    for _ in 0..2 {
        socket.event("message.created").await;
    }
    let polled = agent
        .on(b)
        .poll(&format!("cursor={}", socket.cursor))
        .await
        .expect(200);
    assert_eq!(polled.body["data"], json!([]));
    let row = newest(alice, "push").await;
    assert_eq!(
        (row["from_seq"].as_i64(), row["to_seq"].as_i64()),
        (Some(acked + 1), Some(acked + 2))
    );
    // By poll; its ack logs nothing again.
    say(2).await;
    let page = agent.on(b).poll("").await.expect(200);
    let row = newest(alice, "poll").await;
    assert_eq!(
        (row["from_seq"].as_i64(), row["to_seq"].as_i64()),
        (Some(acked + 3), Some(acked + 4))
    );
    let cursor = text(&page.body, "next_cursor");
    agent
        .on(a)
        .poll(&format!("cursor={cursor}"))
        .await
        .expect(200);
    assert_eq!(log(alice, "limit=1").await[0]["seq"], row["seq"]);
    // An agent that reads by socket and never acks is logged when it goes.
    say(1).await;
    let mut reader = agent.on(b).connect().await;
    reader.event("message.created").await;
    drop((socket, reader));
    let row = newest(alice, "push").await;
    assert_eq!(
        (row["from_seq"].as_i64(), row["to_seq"].as_i64()),
        (Some(acked + 5), Some(acked + 5))
    );
    // Nobody else sees any of it.
    let bob = a.user("bob").await;
    assert_eq!(log(&bob, "").await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_paged_and_filtered_and_a_group_s_is_its_members() {
    let stage = Stage::new().await;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let bob = stage.nodes[1].user("bob").await;
    let other: Agent = stage.nodes[0].agent(&bob, "other").await;
    let pair = alice.talk_to(&other).await;
    let group = group_with(alice, &[], agent).await;
    for conversation in [&stage.conversation, &group] {
        alice.say(conversation, "x").await.expect(201);
    }
    let read = async |by: &Agent, conversation: &str| {
        by.get(format!("/conversations/{conversation}"))
            .await
            .expect(200);
    };
    read(agent, &group).await;
    // A later member sees the reads from then on.
    stage.advance(1).await;
    let members = json!({ "user_ids": [bob.id] });
    alice
        .post(format!("/groups/{group}/members"), members)
        .await
        .expect(201);
    stage.advance(1).await;
    let middle = stage.nodes[0].world.clock.now();
    for _ in 0..2 {
        read(agent, &group).await;
        read(agent, &stage.conversation).await;
        read(&other, &pair).await;
    }
    assert_eq!(log(&bob, "").await.len(), 2);
    let mut walked = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = alice
            .get(format!("/grants/access-log?limit=3{cursor}"))
            .await
            .expect(200);
        walked.extend(page.body["data"].as_array().expect("a list").clone());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(walked, log(alice, "limit=100").await);
    let ids: Vec<String> = walked.iter().map(|row| text(row, "access_id")).collect();
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "{ids:?}");
    let middle = middle.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    for (query, expected) in [
        (String::new(), 7),
        (format!("agent_id={}", agent.id), 5),
        (format!("agent_id={}", other.id), 2),
        (format!("conversation_id={group}"), 3),
        (format!("conversation_id={}", stage.conversation), 2),
        (format!("conversation_id={group}&agent_id={}", other.id), 0),
        (format!("conversation_id={}", ulid()), 0),
        (format!("from={middle}"), 6),
        (format!("to={middle}"), 1),
        (format!("from={middle}&to={middle}"), 0),
    ] {
        assert_eq!(log(alice, &query).await.len(), expected, "{query}");
    }
    alice
        .get("/grants/access-log?from=yesterday")
        .await
        .refused(400, "VALIDATION_ERROR");
    alice
        .get("/grants/access-log?cursor=x")
        .await
        .refused(400, "VALIDATION_ERROR");
}
