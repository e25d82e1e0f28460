//! Ephemeral events: typing and streams.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Agent, ProcessNode, Socket, TestNode, User, nodes, nodes_with, psql, ulid};

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
            json!({ "type": "stream.begin", "stream_id": "s", "conversation_id": conversation, "in_reply_to": question, "sender": sender })
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
    // The end can be said again: on this node, and on another, where the stream is not known.
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
        elsewhere.expect("error").await["error"]["code"],
        "NOT_FOUND"
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
    // 20 a second: by the clock, which stands still between what follows and moves by hand after it.
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
        json!({ "type": "stream.sync", "stream_id": "s" }),
        json!({ "type": "stream.nonsense", "stream_id": "s" }),
    ] {
        let mut socket = alice.connect().await;
        socket.say(text).await;
        socket.expect_close(4400).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_joins_late_hears_it_from_where_it_likes_and_then_live() {
    let [a, b, c] = nodes().await;
    let (alice, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    for n in 0..10 {
        say(&mut its, "s", n).await;
    }
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..10).await;
    }
    // On the stream's own node, on one that has heard it, and on one that has never heard of it; while it goes on.
    let mut late = Vec::new();
    for node in [&a, &b, &c] {
        let mut socket = alice.on(node).connect().await;
        caught_up(&mut socket).await;
        late.push(socket);
    }
    a.advance(Duration::from_secs(1)).await;
    for (n, socket) in late.iter_mut().enumerate() {
        socket
            .say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": n }))
            .await;
    }
    for n in 10..25 {
        say(&mut its, "s", n).await;
    }
    for (n, socket) in late.iter_mut().enumerate() {
        // Deltas that were live before the question are followed by all of it from there on, once and in order.
        let mut frame = socket.expect("stream.delta").await;
        while frame["n"] != json!(n) {
            assert!(frame["n"].as_u64().expect("a number") >= 10, "{frame}");
            frame = socket.expect("stream.delta").await;
        }
        expect_deltas(socket, "s", n as u64 + 1..25).await;
    }
    its.say(json!({ "type": "stream.cancel", "stream_id": "s" }))
        .await;
    for socket in &mut late {
        assert_eq!(socket.expect("stream.cancel").await["stream_id"], "s");
        // Also after the end, for two minutes.
        socket
            .say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 20 }))
            .await;
        expect_deltas(socket, "s", 20..25).await;
        socket.expect("stream.cancel").await;
    }
    // Not for a stranger, and not what nobody has said.
    let bob = a.user("bob").await;
    for (user, id) in [(&bob, "s"), (&alice, "t")] {
        let mut socket = user.on(&b).connect().await;
        socket
            .say(json!({ "type": "stream.sync", "ref": "r", "stream_id": id, "from_n": 0 }))
            .await;
        let refused = socket.expect("error").await;
        assert_eq!(
            (&refused["error"]["code"], &refused["ref"]),
            (&json!("NOT_FOUND"), &json!("r"))
        );
    }
    a.advance(Duration::from_secs(122)).await;
    // Real time: one round of the tidying task.
    tokio::time::sleep(Duration::from_millis(300)).await;
    late[0]
        .say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
        .await;
    assert_eq!(late[0].expect("error").await["error"]["code"], "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_found_among_many_of_its_name() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    // More of this name than conversations are looked up one by one, all of them more recent.
    let bob = a.user("bob").await;
    let mut others = Vec::new();
    for n in 0..10 {
        let agent = a.agent(&bob, &format!("helper {n}")).await;
        let other = bob.talk_to(&agent).await;
        let mut socket = agent.on(&a).connect().await;
        begin(&mut socket, "s", &other).await;
        say(&mut socket, "s", 0).await;
        others.push(socket);
    }
    for node in [&a, &b] {
        let mut late = alice.on(node).connect().await;
        caught_up(&mut late).await;
        late.say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
            .await;
        let frame = late.expect("stream.delta").await;
        assert_eq!(frame["conversation_id"], json!(conversation));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_256_deltas_are_kept() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    for round in 0..15 {
        for n in round * 20..round * 20 + 20 {
            say(&mut its, "s", n).await;
        }
        for socket in [&mut here, &mut there] {
            expect_deltas(socket, "s", round * 20..round * 20 + 20).await;
        }
        a.advance(Duration::from_secs(1)).await;
    }
    for node in [&a, &b] {
        let mut late = alice.on(node).connect().await;
        late.say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
            .await;
        expect_deltas(&mut late, "s", 300 - 256..300).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_cancelled() {
    let [a, b] = nodes().await;
    let (_, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    for (n, seconds) in [(1, 50), (2, 50)] {
        a.advance(Duration::from_secs(seconds)).await;
        quiet([&mut its, &mut here, &mut there]).await;
        say(&mut its, "s", n).await;
        for socket in [&mut here, &mut there] {
            expect_deltas(socket, "s", n..n + 1).await;
        }
    }
    a.advance(Duration::from_secs(50)).await;
    quiet([&mut its, &mut here, &mut there]).await;
    a.advance(Duration::from_secs(10)).await;
    // The agent, too, is told of an end that it has not said.
    for socket in [&mut its, &mut here, &mut there] {
        assert_eq!(socket.expect("stream.cancel").await["reason"], "idle");
    }
    say(&mut its, "s", 2).await;
    assert_eq!(its.expect("error").await["error"]["code"], "NOT_FOUND");
    here.expect_silence(Duration::from_millis(200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_node_dies_is_cancelled_for_those_who_listen_elsewhere() {
    let [a] = nodes().await;
    let mut other = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut alice_socket = alice.connect().await;
    caught_up(&mut alice_socket).await;
    let mut agent_socket = agent.at(&other.base).connect().await;
    begin(&mut agent_socket, "s", &conversation).await;
    say(&mut agent_socket, "s", 0).await;
    expect_deltas(&mut alice_socket, "s", 0..1).await;
    other.kill();
    a.advance(Duration::from_secs(60)).await;
    quiet([&mut alice_socket]).await;
    a.advance(Duration::from_secs(5)).await;
    assert_eq!(alice_socket.expect("stream.cancel").await["reason"], "idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_begins_anew_elsewhere_is_gone_where_it_was() {
    let [a, b] = nodes().await;
    let (_, agent, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    let mut moved = agent.on(&b).connect().await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    begin(&mut moved, "s", &conversation).await;
    say(&mut moved, "s", 0).await;
    for socket in [&mut here, &mut there] {
        socket.expect("stream.begin").await;
        expect_deltas(socket, "s", 0..1).await;
    }
    say(&mut its, "s", 1).await;
    assert_eq!(its.expect("error").await["error"]["code"], "NOT_FOUND");
    say(&mut moved, "s", 1).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 1..2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ex_member_hears_no_more() {
    let [a, b] = nodes().await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let group = alice.group_with(&[&bob]).await;
    let mut hers = [alice.on(&a).connect().await, alice.on(&b).connect().await];
    let mut his = [bob.on(&a).connect().await, bob.on(&b).connect().await];
    for socket in hers.iter_mut().chain(&mut his) {
        caught_up(socket).await;
    }
    let typing = json!({ "type": "typing", "conversation_id": group, "state": "started" });
    // Both nodes have just looked who the members are.
    for n in [0, 1] {
        hers[n].say(typing.clone()).await;
        for socket in &mut his {
            socket.expect("typing").await;
        }
    }
    alice
        .delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    hers[0].say(typing.clone()).await;
    // The other node knows once the event is there.
    hers[1].event("member.removed").await;
    hers[1].say(typing.clone()).await;
    // Her own other socket heard it, so it was told.
    hers[0].event("member.removed").await;
    hers[0].expect("typing").await;
    for socket in &mut his {
        socket.event("member.removed").await;
        socket.expect_silence(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_hint_an_ex_member_hears_no_more_after_a_second() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "agent_conversation_message_send=1000/s")]).await;
    let (_, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    let user = format!(
        "delete from member where conversation_id = '{}' and principal_kind = 'user'",
        uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"))
    );
    psql(&a.world.database, &user).await;
    // Real time: for a second the members are remembered.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    say(&mut its, "s", 1).await;
    here.say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
        .await;
    assert_eq!(here.expect("error").await["error"]["code"], "NOT_FOUND");
    there.expect_silence(Duration::from_millis(300)).await;
    // An agent that is none any more ends its stream by trying.
    let agent = user.replace("'user'", "'agent'");
    psql(&a.world.database, &agent).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    say(&mut its, "s", 2).await;
    assert_eq!(
        its.expect("error").await["error"]["code"],
        "NOT_CONVERSATION_MEMBER"
    );
    say(&mut its, "s", 2).await;
    assert_eq!(its.expect("error").await["error"]["code"], "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_elsewhere_is_over_where_it_began() {
    let [a, b, c] =
        nodes_with(&[("LIMIT_OVERRIDES", "agent_conversation_message_send=1000/s")]).await;
    let (_, agent, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    // On a node that has heard the streams, and on one that has not.
    let mut elsewhere = [agent.on(&b).connect().await, agent.on(&c).connect().await];
    for n in 0..16 {
        let name = format!("s{n}");
        begin(&mut its, &name, &conversation).await;
        for socket in [&mut here, &mut there] {
            assert_eq!(socket.expect("stream.begin").await["stream_id"], name);
        }
        let end = json!({ "type": "stream.end", "stream_id": name, "conversation_id": conversation, "payload": { "type": "text", "text": name } });
        elsewhere[n % 2].say(end).await;
        let sent = elsewhere[n % 2].expect("message.sent").await;
        for socket in [&mut here, &mut there] {
            let ended = socket.expect("stream.end").await;
            assert_eq!(
                (&ended["stream_id"], &ended["message_id"]),
                (&json!(name), &sent["data"]["message_id"])
            );
        }
        say(&mut its, &name, 0).await;
        assert_eq!(its.expect("error").await["error"]["code"], "NOT_FOUND");
    }
    // None of them counts, and none is cancelled.
    for n in 0..16 {
        begin(&mut its, &format!("t{n}"), &conversation).await;
    }
    for n in 0..16 {
        let begun = here.next().await.expect("a frame");
        let begun = if begun["type"] == "event" {
            here.expect("stream.begin").await
        } else {
            begun
        };
        assert_eq!(
            (&begun["type"], &begun["stream_id"]),
            (&json!("stream.begin"), &json!(format!("t{n}")))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_nodes_stream_is_told_to_members_only_and_from_where_they_like() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut agent_socket = agent.connect().await;
    begin(&mut agent_socket, "s", &conversation).await;
    for n in 0..10 {
        say(&mut agent_socket, "s", n).await;
    }
    say(&mut agent_socket, "s", 99).await;
    agent_socket.expect("error").await;
    let mallory = a.user("mallory").await;
    let mut stranger = mallory.on(&b).connect().await;
    for n in 0..40 {
        let stream = if n % 2 == 0 {
            "s".to_owned()
        } else {
            format!("no-{n}")
        };
        stranger
            .say(json!({ "type": "stream.sync", "ref": n, "stream_id": stream, "from_n": 0 }))
            .await;
    }
    let mut alice_socket = alice.on(&b).connect().await;
    caught_up(&mut alice_socket).await;
    alice_socket
        .say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 8 }))
        .await;
    expect_deltas(&mut alice_socket, "s", 8..10).await;
    // Earlier deltas were not asked for, so they are asked for now.
    alice_socket
        .say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 3 }))
        .await;
    expect_deltas(&mut alice_socket, "s", 3..10).await;
    for n in 0..2 {
        let refused = stranger.expect("error").await;
        assert_eq!(
            (&refused["ref"], &refused["error"]["code"]),
            (&json!(n), &json!("NOT_FOUND"))
        );
    }
}

/// Twelve are more than are told one by one: one message goes to every node.
#[tokio::test(flavor = "multi_thread")]
async fn many_members_hear_events_and_streams_alike() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, here, there]) = cast(&a, &b).await;
    let id = uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"));
    let mut sockets = Vec::new();
    for n in 0..10 {
        let user = a.user(&format!("user{n}")).await;
        let member = uuid::Uuid::from(user.id.parse::<ulid::Ulid>().expect("an id"));
        let add = format!(
            "insert into member (conversation_id, principal_id, principal_kind, role) values ('{id}', '{member}', 'user', 'member');
             update conversation set epoch = epoch where conversation_id = '{id}'"
        );
        psql(&a.world.database, &add).await;
        let mut socket = user.on(if n % 2 == 0 { &a } else { &b }).connect().await;
        caught_up(&mut socket).await;
        sockets.push(socket);
    }
    alice.say(&conversation, "hello all").await.expect(201);
    begin(&mut its, "s", &conversation).await;
    for n in 0..5 {
        say(&mut its, "s", n).await;
    }
    sockets.extend([here, there]);
    for socket in &mut sockets {
        expect_deltas(socket, "s", 0..5).await;
        assert_eq!(
            socket.event("message.created").await["data"]["payload"]["text"],
            "hello all"
        );
    }
}
