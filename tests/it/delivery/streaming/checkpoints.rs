//! Checkpoints, generations, statuses: a listener that comes in the middle sees all of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ProcessNode, Socket, nodes};

use super::{
    begin, begin_again, cast, caught_up, checkpoint, expect_deltas, handled, keep_alive, quiet,
    say, sync,
};

/// The next frame is this checkpoint.
async fn expect_checkpoint(socket: &mut Socket, n: u64, text: &str) {
    let frame = socket.expect("stream.checkpoint").await;
    assert_eq!(
        (&frame["n"], &frame["data"]),
        (&json!(n), &json!(text)),
        "{frame}"
    );
}

async fn refusal(socket: &mut Socket) -> Value {
    let frame = socket.expect("error").await;
    assert_eq!(frame["stream_id"], "s", "{frame}");
    frame["error"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_opens_a_conversation_in_the_middle_sees_all_of_it_within_a_second() {
    let [a, b, c] = nodes().await;
    let (alice, agent, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    // More deltas than are kept.
    for round in 0..15 {
        for n in round * 20..round * 20 + 20 {
            say(&mut its, "s", n).await;
        }
        expect_deltas(&mut here, "s", round * 20..round * 20 + 20).await;
        a.advance(Duration::from_secs(1)).await;
    }
    checkpoint(&mut its, "s", 296, "parts 0 to 296").await;
    its.say(json!({ "type": "stream.status", "stream_id": "s", "data": "searching" }))
        .await;
    let status = here.expect("stream.status").await;
    let sender = json!({ "type": "agent", "id": agent.id });
    assert_eq!(
        status,
        json!({ "type": "stream.status", "stream_id": "s", "conversation_id": conversation, "data": "searching", "sender": sender })
    );
    for node in [&a, &b, &c] {
        let mut late = alice.on(node).connect().await;
        caught_up(&mut late).await;
        let asked = Instant::now();
        sync(&mut late, "s").await;
        let first = late.next().await.expect("a frame");
        assert_eq!(
            first,
            json!({ "type": "stream.checkpoint", "stream_id": "s", "conversation_id": conversation, "n": 296, "data": "parts 0 to 296", "sender": sender })
        );
        expect_deltas(&mut late, "s", 297..300).await;
        assert_eq!(late.expect("stream.status").await["data"], "searching");
        let span = asked.elapsed();
        assert!(span < Duration::from_secs(1), "after {span:?}");
    }
    // A delta ends the status. Live frames follow the replay, once.
    let mut late = alice.on(&c).connect().await;
    caught_up(&mut late).await;
    say(&mut its, "s", 300).await;
    late.expect("stream.delta").await;
    sync(&mut late, "s").await;
    for n in 301..310 {
        say(&mut its, "s", n).await;
    }
    let frame = late.next().await.expect("a frame");
    assert_eq!(frame["type"], "stream.checkpoint", "{frame}");
    expect_deltas(&mut late, "s", 297..310).await;
    // Checkpoints go to those that ask, and to no others.
    checkpoint(&mut its, "s", 309, "parts 0 to 309").await;
    handled(&mut its).await;
    expect_deltas(&mut here, "s", 300..310).await;
    quiet([&mut here, &mut late]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_node_is_killed_begins_again_and_its_listeners_see_all() {
    let [a, b] = nodes().await;
    let mut other = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut listener = alice.on(&a).connect().await;
    caught_up(&mut listener).await;
    let mut its = agent.at(&other.base).connect().await;
    begin(&mut its, "s", &conversation).await;
    for n in 0..5 {
        say(&mut its, "s", n).await;
    }
    checkpoint(&mut its, "s", 2, "parts 0 to 2").await;
    expect_deltas(&mut listener, "s", 0..5).await;
    its.say(json!({ "type": "stream.status", "stream_id": "s", "data": "searching" }))
        .await;
    listener.expect("stream.status").await;
    other.kill();

    // Three more deltas were lost on the way.
    let mut its = agent.on(&b).connect().await;
    begin_again(&mut its, "s", &conversation, 1).await;
    let begun = listener.expect("stream.begin").await;
    assert_eq!(begun["generation"], 1);
    // The listener asks before the agent has said where its text stands.
    sync(&mut listener, "s").await;
    checkpoint(&mut its, "s", 7, "parts 0 to 7").await;
    say(&mut its, "s", 8).await;
    expect_checkpoint(&mut listener, 7, "parts 0 to 7").await;
    expect_deltas(&mut listener, "s", 8..9).await;
    let mut late = alice.on(&b).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    expect_checkpoint(&mut late, 7, "parts 0 to 7").await;
    expect_deltas(&mut late, "s", 8..9).await;
    // The status of before is over.
    quiet([&mut listener, &mut late]).await;

    // Earlier generations are over, and the numbers go on.
    begin(&mut its, "s", &conversation).await;
    assert_eq!(
        refusal(&mut its).await["params"]["fields"][0]["path"],
        "generation"
    );
    say(&mut its, "s", 5).await;
    assert_eq!(refusal(&mut its).await["params"]["fields"][0]["path"], "n");
    let end = json!({ "type": "stream.end", "stream_id": "s", "payload": { "type": "text", "text": "all" } });
    its.say(end).await;
    its.expect("message.sent").await;
    for socket in [&mut listener, &mut late] {
        socket.expect("stream.end").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_again_after_it_was_idle_for_ten_minutes_at_most() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    for stream in ["s", "t"] {
        begin(&mut its, stream, &conversation).await;
        say(&mut its, stream, 0).await;
        checkpoint(&mut its, stream, 0, "part 0").await;
        expect_deltas(&mut here, stream, 0..1).await;
    }
    handled(&mut its).await;
    a.advance(Duration::from_secs(60)).await;
    for _ in 0..2 {
        assert_eq!(here.expect("stream.cancel").await["reason"], "idle");
    }
    begin_again(&mut its, "s", &conversation, 1).await;
    here.expect("stream.begin").await;
    // Nobody says where the text stands: after a second the listener gets what there is.
    sync(&mut here, "s").await;
    expect_checkpoint(&mut here, 0, "part 0").await;
    say(&mut its, "s", 1).await;
    expect_deltas(&mut here, "s", 1..2).await;
    // Signs of nine minutes: the stream is the same. The other one is forgotten.
    let mut alice = alice;
    for _ in 0..11 {
        a.advance(Duration::from_secs(50)).await;
        keep_alive(&mut its, "s").await;
        handled(&mut its).await;
        alice = alice.refreshed().await;
    }
    let mut late = alice.on(&b).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    expect_checkpoint(&mut late, 0, "part 0").await;
    expect_deltas(&mut late, "s", 1..2).await;
    sync(&mut late, "t").await;
    assert_eq!(late.expect("error").await["error"]["code"], "NOT_FOUND");
    begin_again(&mut its, "t", &conversation, 1).await;
    assert_eq!(late.expect("stream.begin").await["generation"], 1);
    say(&mut its, "t", 0).await;
    expect_deltas(&mut late, "t", 0..1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_has_its_bounds_and_the_stream_lives() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    for n in 0..2 {
        say(&mut its, "s", n).await;
    }
    let largest = "x".repeat(256 * 1024);
    checkpoint(&mut its, "s", 1, &format!("{largest}x")).await;
    assert_eq!(refusal(&mut its).await["code"], "PAYLOAD_TOO_LARGE");
    checkpoint(&mut its, "s", 1, &largest).await;
    // A checkpoint in two seconds, on any node.
    checkpoint(&mut its, "s", 1, "too soon").await;
    let mut other = agent.on(&b).connect().await;
    checkpoint(&mut other, "s", 1, "too soon").await;
    for socket in [&mut its, &mut other] {
        let params = refusal(socket).await["params"].clone();
        assert_eq!(
            (&params["limit"], &params["scope"]),
            (&json!("1/2 s"), &json!("agent_stream_checkpoint"))
        );
        assert!(params["retry_after_ms"].as_u64().expect("ms") <= 2000);
    }
    a.advance(Duration::from_secs(2)).await;
    checkpoint(&mut other, "s", 2, "nobody has said 2").await;
    assert_eq!(
        refusal(&mut other).await["params"]["fields"][0]["path"],
        "n"
    );
    let status = "x".repeat(2 * 1024 + 1);
    its.say(json!({ "type": "stream.status", "stream_id": "s", "data": status }))
        .await;
    assert_eq!(refusal(&mut its).await["code"], "PAYLOAD_TOO_LARGE");
    // The stream lives, and the largest one arrives whole.
    say(&mut its, "s", 2).await;
    expect_deltas(&mut here, "s", 0..3).await;
    let mut late = alice.on(&b).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    expect_checkpoint(&mut late, 1, &largest).await;
    expect_deltas(&mut late, "s", 2..3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_streams_share_a_budget_of_bytes() {
    let [a, b] = nodes().await;
    let (alice, _, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    let largest = "x".repeat(256 * 1024);
    // The content of a stream that is over makes room.
    begin(&mut its, "over", &conversation).await;
    say(&mut its, "over", 0).await;
    checkpoint(&mut its, "over", 0, &largest).await;
    its.say(json!({ "type": "stream.cancel", "stream_id": "over" }))
        .await;
    for n in 0..7 {
        let name = format!("s{n}");
        begin(&mut its, &name, &conversation).await;
        say(&mut its, &name, 0).await;
        checkpoint(&mut its, &name, 0, &largest).await;
    }
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    checkpoint(&mut its, "s", 0, &largest).await;
    let refused = its.expect("error").await;
    assert_eq!(
        (&refused["stream_id"], &refused["error"]["params"]["scope"]),
        (&json!("s"), &json!("agent_stream_bytes"))
    );
    // It is heard live, and a smaller text has room.
    say(&mut its, "s", 1).await;
    while here.expect("stream.delta").await["n"] != json!(1) {}
    checkpoint(&mut its, "s", 1, "small").await;
    handled(&mut its).await;
    let mut late = alice.on(&b).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    expect_checkpoint(&mut late, 1, "small").await;
    sync(&mut late, "s3").await;
    expect_checkpoint(&mut late, 0, &largest).await;
    sync(&mut late, "over").await;
    assert_eq!(late.next().await.expect("a frame")["type"], "stream.cancel");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keepalive_and_a_status_are_signs_of_life() {
    let [a, b] = nodes().await;
    let (_, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    for socket in [&mut here, &mut there] {
        socket.expect("stream.begin").await;
    }
    for n in 0..3 {
        a.advance(Duration::from_secs(50)).await;
        if n == 1 {
            its.say(json!({ "type": "stream.status", "stream_id": "s", "data": { "n": n } }))
                .await;
            for socket in [&mut here, &mut there] {
                assert_eq!(socket.expect("stream.status").await["data"]["n"], n);
            }
        } else {
            keep_alive(&mut its, "s").await;
            handled(&mut its).await;
            quiet([&mut here, &mut there]).await;
        }
    }
    // Nobody has heard of it for longer than a silent stream lasts.
    a.advance(Duration::from_secs(30)).await;
    quiet([&mut here, &mut there]).await;
    a.advance(Duration::from_secs(30)).await;
    for socket in [&mut here, &mut there] {
        assert_eq!(socket.expect("stream.cancel").await["reason"], "idle");
    }
    keep_alive(&mut its, "s").await;
    assert_eq!(refusal(&mut its).await["code"], "NOT_FOUND");
}
