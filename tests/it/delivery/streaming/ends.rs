//! Streams end with silence, with their node, and elsewhere.

use std::time::Duration;

use serde_json::json;

use crate::support::{ProcessNode, nodes, nodes_with};

use super::{begin, cast, caught_up, expect_deltas, quiet, say};

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
