//! Requests that no well-behaved client sends.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::{
    auth::server_secret::ServerSecret, clock::Clock, delivery::MessageSigner, ids::NodeId,
    random::Random,
};
use blindpipe_protocol::cursor::Cursor;
use fred::{
    clients::Client,
    interfaces::{ClientLike, PubsubInterface, SortedSetsInterface},
};
use uuid::Uuid;

use super::{
    client::{Answer, Caller},
    services::redis_client,
    world::World,
};

/// `text` for `channel` (without the prefix), as a node of this world would seal it in the epoch of
/// `cursor`.
pub fn sealed(world: &World, cursor: &str, channel: &str, text: &str) -> String {
    let secret = BASE64
        .decode(world.setting("SERVER_SECRET"))
        .expect("base64");
    let cursor: Cursor = cursor.parse().expect("a cursor");
    let node = NodeId(Random::new(Clock::default()).ulid());
    let seal = MessageSigner::new(node, &ServerSecret([secret].into()), cursor.epoch);
    let channel = format!("{}:{channel}", world.setting("REDIS_PREFIX"));
    seal.sign(&channel, cursor.epoch, text)
}

/// Publishes on a channel (without the prefix) as nodes do: in a cluster of Redis those of a node
/// are sharded.
pub async fn publish(world: &World, redis: &Client, channel: &str, text: &str) {
    let name = format!("{}:{channel}", world.setting("REDIS_PREFIX"));
    let is_of_all = channel == "all";
    let heard: u32 = if redis.is_clustered() && !is_of_all {
        redis.spublish(&name, text).await.expect("published")
    } else {
        redis.publish(&name, text).await.expect("published")
    };
    // A server of a cluster counts its own listeners, and those of all may be at another.
    let is_counted = !redis.is_clustered() || !is_of_all;
    assert!(heard > 0 || !is_counted, "nobody listens to {name}");
}

/// The channel (without the prefix) of a node that serves a principal, once the directory has it.
pub async fn channel_to(world: &World, principal: &str) -> String {
    let redis = redis_client(world.setting("REDIS_URL")).await;
    let key = format!(
        "{}:{}",
        world.setting("REDIS_PREFIX"),
        directory_entry(principal)
    );
    for _ in 0..200 {
        let nodes: Vec<String> = redis
            .zrange(&key, 0, -1, None, false, None, false)
            .await
            .expect("an answer");
        if let Some(node) = nodes.first() {
            return format!("n:{node}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no node serves {principal}");
}

/// The directory's entry of a principal, without the prefix.
pub fn directory_entry(principal: &str) -> String {
    let id = match principal.parse::<ulid::Ulid>() {
        Ok(id) => Uuid::from(id),
        Err(_) => principal.parse().expect("a ULID or a UUID"),
    };
    format!("at:{{{:02x}}}:{}", id.as_bytes()[14] % 64, id.simple())
}

/// Requests a WebSocket upgrade and then sends nothing. Returns the socket and the answer.
pub async fn knock_and_stay(caller: &Caller) -> (TcpStream, Answer) {
    let address = caller.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!(
        "GET /ws HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         x-forwarded-proto: https\r\nx-forwarded-for: {}\r\n\r\n",
        caller.ip()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = Vec::new();
    let (head, body) = loop {
        assert_ne!(
            stream.read_buf(&mut text).await.expect("an answer"),
            0,
            "cut"
        );
        if let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            break (
                String::from_utf8_lossy(&text[..end]).into_owned(),
                text.split_off(end + 4),
            );
        }
    };
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .expect("a status");
    let mut headers = reqwest::header::HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        let name = reqwest::header::HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.insert(name, value.parse().expect("a value"));
    }
    let mut body = body;
    let length = headers
        .get("content-length")
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    while status != 101 && body.len() < length.unwrap_or_default() {
        assert_ne!(stream.read_buf(&mut body).await.expect("a body"), 0, "cut");
    }
    let body = serde_json::from_slice(&body).unwrap_or(serde_json::Value::Null);
    (
        stream,
        Answer {
            status,
            headers,
            body,
        },
    )
}

/// Requests a WebSocket upgrade and disconnects.
pub async fn knock(caller: &Caller) -> Answer {
    knock_and_stay(caller).await.1
}

/// A well-formed token with these lookup characters and another secret.
pub fn forged(lookup: &str, n: u32) -> String {
    let head = format!("hsk_{lookup}{n:026}");
    format!("{head}{}", checksum(&head))
}

/// The token with another secret.
pub fn wrong_secret(token: &str, n: u32) -> String {
    forged(&token[4..12], n)
}

/// The CRC32 of a token's head in base 62, as the interface of tokens defines it.
fn checksum(head: &str) -> String {
    let digits: Vec<char> = ('0'..='9').chain('A'..='Z').chain('a'..='z').collect();
    let mut rest = crc32fast::hash(head.as_bytes()) as usize;
    let mut all = Vec::new();
    for _ in 0..6 {
        all.push(digits[rest % 62]);
        rest /= 62;
    }
    all.iter().rev().collect()
}
