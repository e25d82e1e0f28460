//! Streams while Redis forgets or is away, and what they cost it.

use std::{collections::HashMap, time::Duration};

use fred::interfaces::{
    ClientLike, HashesInterface, KeysInterface, LuaInterface, SortedSetsInterface,
};
use serde_json::json;

use crate::support::{nodes_with, private_redis, redis_client};

use super::{
    begin, begin_again, cast, caught_up, checkpoint, expect_deltas, handled, quiet, say, sync,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_redis_forgets_begins_again_or_is_cancelled_and_its_message_comes() {
    let redis = private_redis("streams-flushed").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let (alice, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    for stream in ["s", "t", "u"] {
        begin(&mut its, stream, &conversation).await;
        say(&mut its, stream, 0).await;
        for socket in [&mut here, &mut there] {
            expect_deltas(socket, stream, 0..1).await;
        }
    }
    let admin = redis_client(&url).await;
    admin.flushall::<()>(false).await.expect("flushed");
    admin.script_flush(false).await.expect("scripts flushed");
    say(&mut its, "s", 1).await;
    let refused = its.expect("error").await;
    assert_eq!(
        (&refused["stream_id"], &refused["error"]["code"]),
        (&json!("s"), &json!("NOT_FOUND"))
    );
    // Its client goes on where it was.
    begin_again(&mut its, "s", &conversation, 1).await;
    checkpoint(&mut its, "s", 1, "parts 0 to 1").await;
    say(&mut its, "s", 2).await;
    assert_eq!(here.expect("stream.begin").await["generation"], 1);
    let mut late = alice.on(&a).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    assert_eq!(late.expect("stream.checkpoint").await["n"], 1);
    expect_deltas(&mut late, "s", 2..3).await;
    // A message needs nothing of it, and its listeners hear of the end.
    let end = json!({ "type": "stream.end", "stream_id": "u", "conversation_id": conversation,
        "payload": { "type": "text", "text": "all" } });
    its.say(end).await;
    let sent = its.expect("message.sent").await;
    let ended = here.expect("stream.end").await;
    assert_eq!(ended["message_id"], sent["data"]["message_id"]);
    for socket in [&mut here, &mut late] {
        socket.event("message.created").await;
    }
    // The stream that nobody begins again ends on each node, once.
    for _ in 0..2 {
        a.advance(Duration::from_secs(40)).await;
        say(&mut its, "s", 3).await;
        handled(&mut its).await;
    }
    for socket in [&mut here, &mut late] {
        let cancelled = socket.expect("stream.cancel").await;
        assert_eq!(
            (&cancelled["stream_id"], &cancelled["reason"]),
            (&json!("t"), &json!("idle"))
        );
        quiet([socket]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_streams_are_refused_and_messages_are_sent() {
    let mut redis = private_redis("streams-away").await;
    let url = redis.url();
    let [a] = nodes_with(&[("REDIS_URL", &url)]).await;
    let (alice, _, conversation, [mut its, mut here, _]) = cast(&a, &a).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    expect_deltas(&mut here, "s", 0..1).await;
    redis.kill();
    say(&mut its, "s", 1).await;
    let refused = its.expect("error").await;
    assert_eq!(
        (&refused["stream_id"], &refused["error"]["code"]),
        (&json!("s"), &json!("SERVICE_UNAVAILABLE"))
    );
    sync(&mut here, "s").await;
    assert_eq!(
        here.expect("error").await["error"]["code"],
        "SERVICE_UNAVAILABLE"
    );
    let path = format!("/conversations/{conversation}/streams");
    alice.get(path).await.expect(503);
    let end = json!({ "type": "stream.end", "stream_id": "s", "conversation_id": conversation,
        "payload": { "type": "text", "text": "all" } });
    its.say(end).await;
    its.expect("message.sent").await;
    here.expect("stream.end").await;
    here.event("message.created").await;
}

/// The calls of each command so far, also by scripts.
async fn calls(admin: &fred::clients::Client) -> HashMap<String, u64> {
    let text: String = admin
        .info(Some(fred::types::InfoKind::CommandStats))
        .await
        .expect("statistics");
    let lines = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    lines.collect()
}

/// A delta costs Redis one script for the state, beside what every ephemeral event costs: a message
/// to each other node, and a look-up of the nodes for each batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_delta_costs_redis_one_script_more_than_its_publication() {
    const STREAMS: u64 = 10;
    const DELTAS: u64 = 20;
    let redis = private_redis("streams-cost").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let (_, _, conversation, [mut its, mut here, mut there]) = cast(&a, &b).await;
    for stream in 0..STREAMS {
        begin(&mut its, &format!("s{stream}"), &conversation).await;
        for socket in [&mut here, &mut there] {
            socket.expect("stream.begin").await;
        }
    }
    let admin = redis_client(&url).await;
    let (before, began) = (calls(&admin).await, std::time::Instant::now());
    for n in 0..DELTAS {
        for stream in 0..STREAMS {
            say(&mut its, &format!("s{stream}"), n).await;
        }
    }
    for socket in [&mut here, &mut there] {
        for _ in 0..STREAMS * DELTAS {
            socket.expect("stream.delta").await;
        }
    }
    let (after, span) = (calls(&admin).await, began.elapsed());
    let count = |command: &str| {
        let of = |calls: &HashMap<String, u64>| calls.get(command).copied().unwrap_or_default();
        of(&after) - of(&before)
    };
    let deltas = STREAMS * DELTAS;
    let (scripts, messages) = (count("evalsha"), count("publish") + count("spublish"));
    // Nodes call Redis by themselves as well: heartbeats, probes, looks.
    let others = 20 * (span.as_secs() + 1);
    assert!(scripts >= deltas, "{scripts} scripts");
    assert!(scripts <= 2 * deltas + others, "{scripts} scripts");
    assert!(messages <= deltas + others, "{messages} messages");
}

/// Every key of streams has a bounded life, and shows no address.
#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_streams_is_kept_for_ever() {
    let redis = private_redis("streams-keys").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let (_, _, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    begin(&mut its, "s", &conversation).await;
    say(&mut its, "s", 0).await;
    checkpoint(&mut its, "s", 0, "part 0").await;
    handled(&mut its).await;
    expect_deltas(&mut here, "s", 0..1).await;
    let admin = redis_client(&url).await;
    let keys: Vec<String> = admin
        .custom(fred::cmd!("KEYS"), vec!["*"])
        .await
        .expect("keys");
    let is_of_streams = |key: &&String| {
        let name = key.split_once(':').map_or("", |(_, name)| name);
        ["st:", "sn:", "sc:", "sd"]
            .iter()
            .any(|kind| name.starts_with(kind))
    };
    let of_streams: Vec<&String> = keys.iter().filter(is_of_streams).collect();
    assert_eq!(of_streams.len(), 4, "{keys:?}");
    for key in of_streams {
        let left: i64 = admin.ttl(key).await.expect("a time");
        assert!((600..=720).contains(&left), "{key} lives {left} s");
    }
}

/// A party that writes to Redis loses text at most: a text counts in its own place only.
#[tokio::test(flavor = "multi_thread")]
async fn attack_73_a_writer_to_redis_puts_no_words_into_a_stream() {
    let redis = private_redis("streams-forged").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let (alice, agent, conversation, [mut its, mut here, _]) = cast(&a, &b).await;
    let bob = a.user("bob").await;
    let other = bob.talk_to(&agent).await;
    let mut his = bob.on(&b).connect().await;
    caught_up(&mut his).await;
    begin(&mut its, "s", &conversation).await;
    begin(&mut its, "t", &other).await;
    for n in 0..3 {
        say(&mut its, "s", n).await;
        say(&mut its, "t", n).await;
    }
    checkpoint(&mut its, "t", 0, "for bob").await;
    handled(&mut its).await;
    expect_deltas(&mut here, "s", 0..3).await;
    let admin = redis_client(&url).await;
    let keys: Vec<String> = admin
        .custom(fred::cmd!("KEYS"), vec!["*st:{*"])
        .await
        .expect("keys");
    let [key] = &keys[..] else {
        panic!("{keys:?}");
    };
    let read = async |field: &str| -> bytes::Bytes {
        admin.hget(key, field.to_owned()).await.expect("a field")
    };
    let write = async |field: &str, value: bytes::Bytes| {
        let change = (field.to_owned(), value);
        admin.hset::<(), _, _>(key, change).await.expect("written");
    };
    // Another stream's text, an earlier one, and one that nobody sealed.
    write("d:0:s", read("d:0:t").await).await;
    write("d:2:s", read("d:1:s").await).await;
    let mut forged = read("d:1:s").await.to_vec();
    let last = forged.len() - 4;
    forged[last] ^= 1;
    let mut late = alice.on(&b).connect().await;
    caught_up(&mut late).await;
    sync(&mut late, "s").await;
    expect_deltas(&mut late, "s", 1..2).await;
    quiet([&mut late]).await;
    write("d:1:s", forged.into()).await;
    sync(&mut late, "s").await;
    quiet([&mut late]).await;
    // The home of her stream for his, and an index that leads her to his.
    write("m:t", read("m:s").await).await;
    let its_id = agent.id.replace('-', "");
    let place = uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"));
    let entry = format!("{its_id}{}", place.simple());
    let index = key.replace(&format!("st:{{{its_id}}}"), "sn:t");
    let entries: u64 = admin.zcard(&index).await.expect("a number");
    assert_eq!(entries, 1, "{index} is not the index");
    let far = 1e15;
    admin
        .zadd::<(), _, _>(&index, None, None, false, false, (far, entry))
        .await
        .expect("written");
    sync(&mut late, "t").await;
    assert_eq!(late.expect("error").await["error"]["code"], "NOT_FOUND");
    say(&mut its, "s", 3).await;
    expect_deltas(&mut here, "s", 3..4).await;
    expect_deltas(&mut his, "t", 0..3).await;
    quiet([&mut his]).await;
}
