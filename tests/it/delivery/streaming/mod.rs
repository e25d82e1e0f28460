//! Ephemeral events: typing and streams.

mod checkpoints;
mod ends;
mod late_listeners;
mod lists;
mod members;
mod outages;
mod typing;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Agent, Socket, TestNode, User, nodes, ulid};

/// A delta.
async fn say(socket: &mut Socket, stream: &str, n: u64) {
    let data = format!("part {n}");
    socket
        .say(json!({ "type": "stream.delta", "stream_id": stream, "n": n, "data": data }))
        .await;
}

async fn begin(socket: &mut Socket, stream: &str, conversation: &str) {
    let frame =
        json!({ "type": "stream.begin", "stream_id": stream, "conversation_id": conversation });
    socket.say(frame).await;
}

/// A begin of a later generation.
async fn begin_again(socket: &mut Socket, stream: &str, conversation: &str, generation: u32) {
    let frame = json!({ "type": "stream.begin", "stream_id": stream, "conversation_id": conversation,
        "generation": generation });
    socket.say(frame).await;
}

/// The text so far, up to delta `n`.
async fn checkpoint(socket: &mut Socket, stream: &str, n: u64, text: &str) {
    socket
        .say(json!({ "type": "stream.checkpoint", "stream_id": stream, "n": n, "data": text }))
        .await;
}

async fn keep_alive(socket: &mut Socket, stream: &str) {
    socket
        .say(json!({ "type": "stream.keepalive", "stream_id": stream }))
        .await;
}

/// Asks for a stream so far.
async fn sync(socket: &mut Socket, stream: &str) {
    socket
        .say(json!({ "type": "stream.sync", "stream_id": stream }))
        .await;
}

/// The answer of the node to everything that the socket has said before.
async fn handled(socket: &mut Socket) {
    // The refusal of a stream that does not exist comes in its turn.
    say(socket, "no-such-stream", 0).await;
    while socket.expect("error").await["stream_id"] != "no-such-stream" {}
}

/// Takes what a new socket is told first.
async fn caught_up(socket: &mut Socket) {
    while socket.next().await.expect("a frame")["type"] != "caught_up" {}
}

/// Nothing comes but the pings that are due after a move of the clock, and they are answered.
async fn quiet<const N: usize>(sockets: [&mut Socket; N]) {
    for socket in sockets {
        socket.expect_silence(Duration::from_millis(100)).await;
    }
}

/// The next deltas must be these.
async fn expect_deltas(socket: &mut Socket, stream: &str, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        let frame = socket.expect("stream.delta").await;
        assert_eq!(
            (&frame["stream_id"], &frame["n"]),
            (&json!(stream), &json!(n)),
            "{frame}"
        );
        assert_eq!(frame["data"], format!("part {n}"));
    }
}

/// A user with a device on each node, an agent on the first, and their conversation.
async fn cast(a: &TestNode, b: &TestNode) -> (User, Agent, String, [Socket; 3]) {
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut sockets = [
        agent.on(a).connect().await,
        alice.on(a).connect().await,
        alice.on(b).connect().await,
    ];
    for socket in &mut sockets {
        caught_up(socket).await;
    }
    (alice, agent, conversation, sockets)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_heard_on_every_node_and_ends_in_a_message() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    let question = alice.say(&conversation, "why?").await.expect(201).data()["message_id"].clone();
    its.say(json!({ "type": "stream.begin", "stream_id": "s", "conversation_id": conversation, "in_reply_to": question })).await;
    for n in 0..15 {
        say(&mut its, "s", n).await;
    }
    let sender = json!({ "type": "agent", "id": agent.id });
    for socket in [&mut here, &mut there] {
        let begun = socket.expect("stream.begin").await;
        assert_eq!(
            begun,
            json!({ "type": "stream.begin", "stream_id": "s", "conversation_id": conversation, "in_reply_to": question, "generation": 0, "sender": sender })
        );
        // Before its end is said: what comes together with the end is left out.
        expect_deltas(socket, "s", 0..15).await;
    }
    let id = ulid().to_string();
    let end = json!({ "type": "stream.end", "ref": 1, "stream_id": "s", "client_message_id": id, "payload": { "type": "text", "text": "because" } });
    its.say(end.clone()).await;
    let sent = its.expect("message.sent").await;
    assert_eq!(
        (&sent["ref"], &sent["stream_id"], &sent["data"]["duplicate"]),
        (&json!(1), &json!("s"), &json!(false))
    );

    for socket in [&mut here, &mut there] {
        let ended = socket.expect("stream.end").await;
        assert_eq!(
            ended,
            json!({ "type": "stream.end", "stream_id": "s", "conversation_id": conversation, "message_id": sent["data"]["message_id"], "sender": sender })
        );
        socket.event("message.created").await;
        let message = socket.event("message.created").await;
        assert_eq!(message["data"]["message_id"], sent["data"]["message_id"]);
        assert_eq!(message["data"]["in_reply_to"], question);
    }
    // The end can be said again: on this node and on another, with its conversation and without.
    its.say(end.clone()).await;
    assert_eq!(its.expect("message.sent").await["data"]["duplicate"], true);
    let mut elsewhere = agent.on(&b).connect().await;
    let mut named = end.clone();
    named["conversation_id"] = json!(conversation);
    elsewhere.say(named).await;
    let again = elsewhere.expect("message.sent").await;
    assert_eq!(
        (&again["data"]["message_id"], &again["data"]["duplicate"]),
        (&sent["data"]["message_id"], &json!(true))
    );
    elsewhere.say(end).await;
    assert_eq!(
        elsewhere.expect("message.sent").await["data"]["duplicate"],
        true
    );
    // Over is over, and the agent was told nothing of its own stream.
    say(&mut its, "s", 15).await;
    let refused = its.next().await.expect("a frame");
    assert_eq!(
        (&refused["type"], &refused["stream_id"]),
        (&json!("event"), &Value::Null),
        "{refused}"
    );
    let refused = its.next().await.expect("a frame");
    assert_eq!(
        (&refused["error"]["code"], &refused["stream_id"]),
        (&json!("NOT_FOUND"), &json!("s")),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_its_rules() {
    let [a] = nodes().await;
    let (alice, _, conversation, [mut its, mut hers, _]) = cast(&a, &a).await;
    let delta = |n: u64, data: Value| json!({ "type": "stream.delta", "stream_id": "s", "n": n, "data": data });
    let error = async |socket: &mut Socket, frame: Value| {
        socket.say(frame).await;
        socket.expect("error").await["error"].clone()
    };
    // The sender, the conversation, the state.
    let frame = |id: &str, conversation: &str| json!({ "type": "stream.begin", "stream_id": id, "conversation_id": conversation });
    assert_eq!(
        error(&mut hers, frame("s", &conversation)).await["code"],
        "FORBIDDEN"
    );
    assert_eq!(
        error(&mut its, frame("s", &ulid().to_string())).await["code"],
        "NOT_CONVERSATION_MEMBER"
    );
    assert_eq!(
        error(&mut its, delta(0, json!("x"))).await["code"],
        "NOT_FOUND"
    );
    begin(&mut its, "s", &conversation).await;
    assert_eq!(
        error(&mut its, delta(1, json!("x"))).await["params"]["fields"][0]["path"],
        "n"
    );
    its.say(delta(0, json!("x".repeat(16 * 1024)))).await;
    assert_eq!(
        error(&mut its, delta(1, json!("x".repeat(16 * 1024 + 1)))).await["code"],
        "PAYLOAD_TOO_LARGE"
    );
    its.say(delta(1, json!({ "any": ["thing"] }))).await;
    hers.expect("stream.begin").await;
    hers.expect("stream.delta").await;
    assert_eq!(
        hers.expect("stream.delta").await["data"],
        json!({ "any": ["thing"] })
    );
    // 20 a second: by the clock, which stands still between what follows and moves by hand after
    // it.
    a.advance(Duration::from_secs(2)).await;
    let mut refused = None;
    for n in 2..60 {
        its.say(delta(n, json!("x"))).await;
    }
    while refused.is_none() {
        let frame = its.next().await.expect("a frame");
        refused = (frame["error"]["code"] == "RATE_LIMITED").then_some(frame);
    }
    let params = &refused.expect("a refusal")["error"]["params"];
    assert_eq!(
        (&params["limit"], &params["scope"]),
        (&json!("20/s"), &json!("agent_stream_delta"))
    );
    assert!(params["retry_after_ms"].as_u64().expect("ms") <= 1000);
    let mut heard = 0;
    while hers.expect("stream.delta").await["n"] != json!(21) {
        heard += 1;
    }
    assert_eq!(heard, 19);
    // An end that is refused does not end it.
    assert_eq!(
        error(
            &mut its,
            json!({ "type": "stream.end", "stream_id": "s", "payload": 7 })
        )
        .await["code"],
        "VALIDATION_ERROR"
    );
    its.say(json!({ "type": "stream.cancel", "stream_id": "s", "reason": "changed my mind" }))
        .await;
    assert_eq!(
        hers.expect("stream.cancel").await["reason"],
        "changed my mind"
    );
    // Sixteen may be open.
    for n in 0..16 {
        begin(&mut its, &format!("s{n}"), &conversation).await;
    }
    let mut last = error(&mut its, frame("s16", &conversation)).await;
    while last["params"]["limit"] != "16 open" {
        // Refusals of the deltas above.
        last = its.expect("error").await["error"].clone();
    }
    for text in [
        json!({ "type": "stream.begin", "conversation_id": conversation }),
        json!({ "type": "stream.begin", "stream_id": "a b", "conversation_id": conversation }),
        json!({ "type": "stream.begin", "stream_id": "x".repeat(65), "conversation_id": conversation }),
        json!({ "type": "stream.begin", "stream_id": "s" }),
        json!({ "type": "stream.delta", "stream_id": "s", "n": -1, "data": "x" }),
        json!({ "type": "stream.delta", "stream_id": "s", "n": 0 }),
        json!({ "type": "stream.cancel", "stream_id": "s", "reason": "x".repeat(201) }),
        json!({ "type": "stream.begin", "stream_id": "s", "conversation_id": conversation, "generation": -1 }),
        json!({ "type": "stream.delta", "stream_id": "s", "n": 1_u64 << 53, "data": "x" }),
        json!({ "type": "stream.checkpoint", "stream_id": "s", "n": 0 }),
        json!({ "type": "stream.checkpoint", "stream_id": "s", "data": "x" }),
        json!({ "type": "stream.status", "stream_id": "s" }),
        json!({ "type": "stream.keepalive" }),
        json!({ "type": "stream.sync" }),
        json!({ "type": "stream.nonsense", "stream_id": "s" }),
    ] {
        let mut socket = alice.connect().await;
        socket.say(text).await;
        socket.expect_close(4400).await;
    }
}
