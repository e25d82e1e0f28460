//! Conversations, messages, streams, tool calls and files: everything that carries ciphertext.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::clock::iso;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Cast,
    marks::{seal, sealed},
    people::{field, ok, payload},
};
use crate::{
    files::{self, path_of},
    support::{Agent, User, ulid},
};

/// Sends on every route and frame, reads on every route, and searches by tokens.
pub async fn messages(cast: &Cast) {
    let Cast {
        alice,
        bob,
        agent,
        marks,
        ..
    } = cast;
    let (alice, bob) = (&alice.user, &bob.user);
    let key = marks.key("a shared key");
    let plain = || payload(&key, &marks.text("a message"));
    let direct = json!({ "type": "direct", "user_id": bob.id });
    let direct = field(
        &ok(alice.post("/conversations", direct).await),
        "conversation_id",
    );
    let path = |id: &str| format!("/conversations/{id}/messages");

    // The words of a message are hashed under a key of the clients.
    let word = marks.text("a searched word");
    let token = aws_lc_rs::hmac::sign(
        &aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key),
        word.as_bytes(),
    );
    let token = base16ct::lower::encode_string(&token.as_ref()[..16]);
    let body = json!({ "payload": plain(), "client_message_id": ulid().to_string(), "search_tokens": [token] });
    let sent = ok(alice.post(path(&direct), body.clone()).await);
    ok(alice.post(path(&direct), body).await);
    let found = ok(bob.get(format!("/search?tokens={token}")).await);
    assert_eq!(found.body["data"][0]["id"], sent.data()["message_id"]);
    ok(bob.get("/search?q=ali").await);
    let read = json!({ "message_id": sent.data()["message_id"] });
    ok(bob
        .post(format!("/conversations/{direct}/read"), read)
        .await);
    ok(bob.get(path(&direct)).await);
    ok(bob.get("/conversations").await);
    ok(bob.get(format!("/conversations/{direct}")).await);
    let rotation = json!({ "conversation_id": direct, "reason": "a new phone" });
    ok(alice.post("/keys/rotation/request", rotation).await);

    let mut alice_socket = alice.connect().await;
    let mut agent_socket = agent.connect().await;
    let pair = &cast.conversation;
    let frame =
        json!({ "type": "message.send", "ref": 1, "conversation_id": pair, "payload": plain() });
    alice_socket.say(frame).await;
    alice_socket.expect("message.sent").await;
    let event = agent_socket.event("message.created").await;
    agent_socket
        .say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    let own = format!("/agents/{}", agent.id);
    ok(agent
        .post(
            format!("{own}/messages"),
            json!({ "conversation_id": pair, "payload": plain() }),
        )
        .await);
    let body = json!({ "payload": plain() });
    ok(agent
        .post(format!("{own}/conversations/{pair}/messages"), body)
        .await);
    ok(agent.get(format!("{own}/conversations")).await);
    ok(agent
        .get(format!("{own}/conversations/{pair}/messages"))
        .await);
    ok(agent.poll("limit=100").await);
    ok(agent.post(format!("{own}/ack"), json!({})).await);
    let typing = json!({ "conversation_id": pair, "state": "started" });
    ok(agent.post(format!("{own}/typing"), typing.clone()).await);
    let mut frame = typing;
    frame["type"] = json!("typing");
    alice_socket.say(frame).await;
    let stop = format!("/conversations/{pair}/stop");
    ok(alice.post(stop, json!({})).await);
    let mut frame = json!({ "type": "turn.stop" });
    frame["conversation_id"] = json!(pair);
    alice_socket.say(frame).await;
    alice_socket.expect("turn.stopped").await;

    // A stream: its pieces are ciphertext as well.
    let stream = ulid().to_string();
    let begin = json!({ "type": "stream.begin", "stream_id": stream, "conversation_id": pair });
    agent_socket.say(begin).await;
    for n in 0..3 {
        let data = sealed(&key, marks.text("a piece of a stream").as_bytes());
        let delta = json!({ "type": "stream.delta", "stream_id": stream, "n": n, "data": data });
        agent_socket.say(delta).await;
    }
    for (kind, n) in [("checkpoint", json!(2)), ("status", Value::Null)] {
        let data = sealed(&key, marks.text("the text of a stream").as_bytes());
        let kind = format!("stream.{kind}");
        let frame = json!({ "type": kind, "stream_id": stream, "n": n, "data": data });
        agent_socket.say(frame).await;
    }
    alice_socket.expect("stream.status").await;
    let sync = json!({ "type": "stream.sync", "stream_id": stream });
    alice_socket.say(sync).await;
    alice_socket.expect("stream.checkpoint").await;
    let streams = format!("/conversations/{pair}/streams");
    ok(alice.get(streams).await);
    let end = json!({ "type": "stream.end", "ref": 2, "stream_id": stream, "payload": plain() });
    agent_socket.say(end).await;
    agent_socket.expect("message.sent").await;
    let encrypted = json!({ "encryption": "required" });
    ok(alice
        .patch(format!("/conversations/{pair}"), encrypted)
        .await);
    ok(alice.post(path(pair), json!({ "payload": plain() })).await);
}

/// A group: its members, its roles and its wrapped keys.
pub async fn groups(cast: &Cast) {
    let Cast {
        alice,
        bob,
        agent,
        marks,
        ..
    } = cast;
    let (alice, bob) = (&alice.user, &bob.user);
    let group = alice.group_with(&[]).await;
    let below = |rest: &str| format!("/groups/{group}/{rest}");
    ok(alice
        .post(below("members"), json!({ "user_ids": [bob.id] }))
        .await);
    ok(alice
        .patch(
            below(&format!("members/{}", bob.id)),
            json!({ "role": "admin" }),
        )
        .await);
    let place = json!({ "agent_id": agent.id, "visibility": "all" });
    let instance = field(
        &ok(alice.post(below("agent-instances"), place).await),
        "instance_id",
    );
    // Each recipient gets the group's key under a key that only it knows.
    let key = marks.key("a group's key");
    let recipient = |principal: &str, device: Option<&str>| {
        json!({ "principal_id": principal, "device_id": device,
                "wrapped_key": sealed(&marks.key("a recipient's key"), &key) })
    };
    let mut keys = vec![
        recipient(&alice.id, Some(&alice.device_id)),
        recipient(&bob.id, Some(&bob.device_id)),
        recipient(&agent.id, None),
    ];
    keys.iter_mut().for_each(|key| {
        if key["device_id"].is_null() {
            key.as_object_mut().expect("an object").remove("device_id");
        }
    });
    let body = json!({ "base_epoch": 0, "reason": "the first", "wrapped_keys": keys });
    ok(alice
        .post(format!("/keys/groups/{group}/rotate"), body)
        .await);
    ok(bob.get(format!("/keys/groups/{group}")).await);
    ok(bob.get(format!("/keys/groups/{group}/recipients")).await);
    let text = payload(&key, &marks.text("a message to a group"));
    let path = format!("/conversations/{group}/messages");
    ok(bob.post(path, json!({ "payload": text })).await);
    ok(alice
        .delete(below(&format!("agent-instances/{instance}")))
        .await);
    ok(alice.delete(below(&format!("members/{}", bob.id))).await);
}

/// Files of a user and of the agent, and a share of one.
pub async fn files(cast: &Cast) {
    let Cast {
        alice,
        agent,
        marks,
        conversation,
        ..
    } = cast;
    let agents = format!("/agents/{}/files", agent.id);
    let key = marks.key("a file's content key");
    for (caller, at) in [
        (&alice.user.caller, "/files"),
        (&agent.caller, agents.as_str()),
    ] {
        let bytes = seal(&key, marks.text("a file").repeat(50).as_bytes());
        let upload = files::request(caller, at, conversation, bytes.len() as u64).await;
        ok(files::bring_by_token(caller, at, &upload, bytes.clone()).await);
        let file = ok(files::confirm(caller, &upload, &bytes).await);
        let object = format!("/objects/{}", field(&file, "object_key"));
        let (answer, read) = files::fetch(&agent.caller, &object, &[]).await;
        assert_eq!((answer.status, read), (200, bytes));
        if at != "/files" {
            ok(caller.delete(&object).await);
            continue;
        }
        let share = json!({ "file_id": field(&file, "file_id"), "expires_at": cast.in_an_hour() });
        let shared = ok(alice.user.post("/shares", share).await);
        // The key is in the part of the URL that a browser does not send.
        let url = field(&shared, "url");
        let opened = alice.user.stranger();
        ok(opened
            .send(opened.request(Method::GET, path_of(&url)))
            .await);
        let path = format!("/shares/{}", field(&shared, "share_id"));
        ok(alice.user.delete(path).await);
    }
}

/// A grant, a call of a tool by route and by frame, and the log of what the agent read.
pub async fn tools(cast: &Cast) {
    let Cast {
        alice,
        agent,
        marks,
        conversation,
        ..
    } = cast;
    let alice = &alice.user;
    let own = format!("/agents/{}", agent.id);
    let scopes = json!([{ "scope": "notification:send", "sensitivity": "low" }]);
    let manifest = json!({ "manifest": { "tools": [], "permission_scopes": scopes } });
    ok(agent.patch(&own, manifest).await);
    let ask = json!({ "conversation_id": conversation, "scopes": ["notification:send"], "reason": "to tell you" });
    let grant = field(
        &ok(agent.post(format!("{own}/grants/request"), ask).await),
        "grant_id",
    );
    let decision = json!({ "decision": "approve" });
    ok(alice
        .post(format!("/grants/{grant}/decision"), decision)
        .await);
    ok(alice.get("/grants").await);
    let key = marks.key("the key of a tool call");
    let request = || {
        json!({
            "request_id": ulid().to_string(), "conversation_id": conversation, "tool": "notify", "scope": "notification:send",
            "payload": payload(&key, &marks.text("the arguments of a tool")),
        })
    };
    let result = || json!({ "status": "executed", "payload": payload(&key, &marks.text("the result of a tool")) });
    let first = request();
    let calls = format!("{own}/artifact-requests");
    ok(agent.post(&calls, first.clone()).await);
    let call = format!(
        "/artifact-requests/{}",
        first["request_id"].as_str().expect("an id")
    );
    ok(alice.post(format!("{call}/claim"), json!({})).await);
    ok(alice.post(format!("{call}/response"), result()).await);
    ok(agent.post(&calls, first).await);
    let (mut asks, mut answers) = (agent.connect().await, alice.connect().await);
    let mut frame = request();
    frame["type"] = json!("artifact_request");
    asks.say(frame.clone()).await;
    asks.expect("artifact.requested").await;
    let mut answer: Value = result();
    answer["type"] = json!("artifact_response");
    answer["request_id"] = frame["request_id"].clone();
    answers.say(answer).await;
    answers.expect("artifact.responded").await;
    ok(alice.get("/grants/access-log").await);
    ok(alice.delete(format!("/grants/{grant}")).await);
}

/// A question with a signed answer, and one that is withdrawn.
pub async fn approvals(cast: &Cast) {
    let Cast {
        alice,
        agent,
        marks,
        conversation,
        ..
    } = cast;
    let key = marks.key("the key of an approval");
    let request = || {
        let question = payload(&key, &marks.text("a question"));
        json!({ "payload": question, "kind": "ask", "digest": BASE64.encode([7; 32]) })
    };
    let asks = format!(
        "/agents/{}/conversations/{conversation}/approvals",
        agent.id
    );
    let asked = ok(agent.post(&asks, request()).await);
    let (signing, key_id) = alice.signing.as_ref().expect("keys");
    let at = cast.world.clock.now();
    let mut bytes = b"blindpipe approval v1\0".to_vec();
    for name in ["approval_id", "agent_id", "conversation_id"] {
        prefixed(&mut bytes, &field(&asked, name));
    }
    for text in [alice.user.id.as_str(), key_id.as_str(), "answered"] {
        prefixed(&mut bytes, text);
    }
    bytes.extend([[7; 32], [3; 32]].concat());
    bytes.extend(at.timestamp_millis().to_be_bytes());
    let decision = json!({
        "decision": "answered", "payload": payload(&key, &marks.text("an answer to a question")),
        "answer_digest": BASE64.encode([3; 32]), "decided_at": iso(at), "key_id": key_id,
        "signature": BASE64.encode(signing.sign(&bytes)),
    });
    let approval = format!("/approvals/{}", field(&asked, "approval_id"));
    ok(alice
        .user
        .post(format!("{approval}/decision"), decision)
        .await);
    ok(agent.get(&approval).await);
    let asked = ok(agent.post(&asks, request()).await);
    let taken_back = format!("/approvals/{}/withdraw", field(&asked, "approval_id"));
    ok(agent.post(taken_back, json!({})).await);
    ok(alice.user.get("/approvals?state=closed").await);
    ok(agent
        .get(format!("/agents/{}/approvals?state=closed", agent.id))
        .await);
}

/// Messages that their authors delete.
pub async fn deletions(cast: &Cast) {
    let Cast {
        alice,
        agent,
        marks,
        conversation,
        ..
    } = cast;
    let key = marks.key("the key of a deleted message");
    let body = |text: &str| json!({ "payload": payload(&key, &marks.text(text)) });
    let path = format!("/conversations/{conversation}/messages");
    let sent = ok(alice.user.post(&path, body("what a person deletes")).await);
    ok(alice
        .user
        .delete(format!("{path}/{}", field(&sent, "message_id")))
        .await);
    let path = format!("/agents/{}{path}", agent.id);
    let sent = ok(agent.post(&path, body("what an agent deletes")).await);
    ok(agent
        .delete(format!("{path}/{}", field(&sent, "message_id")))
        .await);
}

fn prefixed(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u16::try_from(text.len()).expect("short").to_be_bytes());
    bytes.extend(text.as_bytes());
}

/// A webhook that gets encrypted messages and answers with one.
pub async fn webhooks(cast: &Cast, owner: &User, agent: &Agent) {
    let key = cast.marks.key("a key that is shared with a webhook");
    let reply = payload(&key, &cast.marks.text("a reply of a webhook"));
    cast.receiver.behave(move |call| {
        let is_message = call.event() == "message.created";
        let replies = json!([{ "payload": reply, "client_message_id": ulid().to_string() }]);
        match is_message {
            true => crate::support::Reply::messages(replies),
            false => crate::support::Reply::status(200),
        }
    });
    let hook = agent.webhook("");
    ok(owner.put(&hook, json!({ "url": cast.receiver.url })).await);
    ok(owner.get(&hook).await);
    for step in ["verify", "rotate-secret", "test"] {
        ok(owner
            .post(agent.webhook(&format!("/{step}")), json!({}))
            .await);
    }
    let conversation = owner.talk_to(agent).await;
    let text = payload(&key, &cast.marks.text("a message to a webhook"));
    ok(owner
        .post(
            format!("/conversations/{conversation}/messages"),
            json!({ "payload": text }),
        )
        .await);
    cast.receiver
        .until("message", |calls| {
            calls.iter().any(|call| call.event() == "message.created")
        })
        .await;
    let log = format!("/agents/{}/deliveries", agent.id);
    let delivery = loop {
        let answer = ok(owner.get(format!("{log}?status=success")).await);
        let done = answer.body["data"].as_array().expect("a list").clone();
        if let Some(one) = done.iter().find(|one| one["event"] == "message.created") {
            break one["delivery_id"].as_str().expect("an id").to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    };
    ok(owner
        .post(format!("{log}/{delivery}/redeliver"), json!({}))
        .await);
    ok(owner.delete(hook).await);
}
