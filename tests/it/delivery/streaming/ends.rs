//! Streams end with silence, wherever their agent is. Neither a socket nor a node ends one.

use std::time::Duration;

use serde_json::json;

use crate::support::{ProcessNode, nodes, nodes_with};

use super::{begin, cast, caught_up, expect_deltas, quiet, say, sync};

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
async fn a_stream_whose_node_dies_is_cancelled_once_unless_it_goes_on() {
    let [a, b] = nodes().await;
    let mut other = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut sockets = [alice.on(&a).connect().await, alice.on(&b).connect().await];
    for socket in &mut sockets {
        caught_up(socket).await;
    }
    let mut agent_socket = agent.at(&other.base).connect().await;
    for stream in ["s", "t"] {
        begin(&mut agent_socket, stream, &conversation).await;
        say(&mut agent_socket, stream, 0).await;
        for socket in &mut sockets {
            expect_deltas(socket, stream, 0..1).await;
        }
    }
    other.kill();
    // Another node goes on with it as if nothing had happened.
    let mut moved = agent.on(&b).connect().await;
    a.advance(Duration::from_secs(50)).await;
    say(&mut moved, "t", 1).await;
    for socket in &mut sockets {
        expect_deltas(socket, "t", 1..2).await;
    }
    a.advance(Duration::from_secs(10)).await;
    for socket in &mut sockets {
        let cancelled = socket.expect("stream.cancel").await;
        assert_eq!(
            (&cancelled["stream_id"], &cancelled["reason"]),
            (&json!("s"), &json!("idle"))
        );
    }
    quiet(sockets.each_mut()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_socket_of_its_agent_goes_on_with_a_stream() {
    let [a, b] = nodes().await;
    let (_, agent, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    let mut moved = agent.on(&b).connect().await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    drop(its);
    say(&mut moved, "s", 1).await;
    let mut back = agent.on(&a).connect().await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 1..2).await;
    }
    say(&mut back, "s", 2).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 2..3).await;
    }
    // It begins anew on one node, and the other follows.
    begin(&mut moved, "s", &conversation).await;
    for socket in [&mut here, &mut there] {
        assert_eq!(socket.expect("stream.begin").await["generation"], 0);
    }
    say(&mut back, "s", 0).await;
    for socket in [&mut here, &mut there] {
        expect_deltas(socket, "s", 0..1).await;
    }
    // In another conversation it has other listeners, whatever the first node remembers.
    let bob = a.user("bob").await;
    let other = bob.talk_to(&agent).await;
    let mut his = bob.on(&a).connect().await;
    caught_up(&mut his).await;
    begin(&mut moved, "s", &other).await;
    his.expect("stream.begin").await;
    say(&mut back, "s", 0).await;
    say(&mut back, "s", 1).await;
    quiet([&mut here, &mut there]).await;
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

/// The stream of an agent whose node has died, stopped by another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_stream_that_no_node_serves_and_its_agent_is_told() {
    let [a, b] = nodes().await;
    let mut other = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut listener = alice.on(&b).connect().await;
    let mut elsewhere = agent.on(&b).connect().await;
    for socket in [&mut listener, &mut elsewhere] {
        caught_up(socket).await;
    }
    let mut its = agent.at(&other.base).connect().await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    expect_deltas(&mut listener, "s", 0..1).await;
    other.kill();
    let stopped = alice
        .on(&a)
        .post(format!("/conversations/{conversation}/stop"), json!({}))
        .await
        .expect(200);
    assert_eq!(stopped.data(), &json!({ "stopped": 1 }));
    for socket in [&mut listener, &mut elsewhere] {
        let cancelled = socket.expect("stream.cancel").await;
        assert_eq!(
            (&cancelled["stream_id"], &cancelled["reason"]),
            (&json!("s"), &json!("user_stopped"))
        );
    }
    elsewhere.event("turn.stop").await;
    say(&mut elsewhere, "s", 1).await;
    assert_eq!(
        elsewhere.expect("error").await["error"]["code"],
        "NOT_FOUND"
    );
    let mut late = alice.on(&a).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    expect_deltas(&mut late, "s", 0..1).await;
    assert_eq!(late.expect("stream.cancel").await["reason"], "user_stopped");
}
