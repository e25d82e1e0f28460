//! A listener that comes late gets the deltas that are kept.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Socket, TestNode, nodes};

use super::{begin, cast, caught_up, checkpoint, expect_deltas, handled, quiet, say, sync};

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
    // On the stream's own node, on one that has heard it, and on one that has never heard of it;
    // while it goes on.
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
        // Deltas that were live before the question are followed by all of it from there on, once
        // and in order.
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
        // Also after the end, for ten minutes.
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
    a.advance(Duration::from_secs(601)).await;
    let mut late = alice.refreshed().await.connect().await;
    late.say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
        .await;
    assert_eq!(late.expect("error").await["error"]["code"], "NOT_FOUND");
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

/// It asks four times for 2 MB, while the stream goes on, and reads none of it meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_listener_gets_what_it_asked_for_in_order_and_holds_nobody_up() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    checkpoint_after(&a, &mut its, &mut here, 0..80).await;
    let mut slow = alice.on(&b).connect().await;
    caught_up(&mut slow).await;
    for _ in 0..4 {
        sync(&mut slow, "s").await;
    }
    let began = Instant::now();
    for n in 80..100 {
        say(&mut its, "s", n).await;
    }
    expect_deltas(&mut here, "s", 80..100).await;
    let span = began.elapsed();
    assert!(span < Duration::from_secs(5), "others waited for {span:?}");
    let (mut next, mut answers) = (80, 0);
    while answers < 4 || next < 100 {
        let frame = slow.next().await.expect("a frame");
        match frame["type"].as_str().expect("a type") {
            // Each answer begins at the checkpoint, and the stream goes on after it.
            "stream.checkpoint" => {
                answers += 1;
                next = frame["n"].as_u64().expect("a number") + 1;
            }
            "stream.delta" => {
                assert_eq!(frame["n"], json!(next), "{}", frame["n"]);
                next += 1;
            }
            kind => panic!("{kind}"),
        }
    }
    quiet([&mut slow]).await;
}

/// Large deltas, and a checkpoint in their middle.
async fn checkpoint_after(
    node: &TestNode,
    its: &mut Socket,
    listener: &mut Socket,
    numbers: std::ops::Range<u64>,
) {
    let middle = numbers.start.midpoint(numbers.end);
    let data = "x".repeat(16_000);
    for n in numbers {
        its.say(json!({ "type": "stream.delta", "stream_id": "s", "n": n, "data": data }))
            .await;
        assert_eq!(listener.expect("stream.delta").await["n"], json!(n));
        if n % 20 == 19 {
            node.advance(Duration::from_secs(1)).await;
        }
    }
    checkpoint(its, "s", middle, &"y".repeat(256_000)).await;
    handled(its).await;
}
