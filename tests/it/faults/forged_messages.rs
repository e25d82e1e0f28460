//! Attack 49 through Redis: whoever can publish there reaches no client, ends no session and hides
//! no message.

use std::{collections::HashSet, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use blindpipe::{
    auth::server_secret::ServerSecret, clock::Clock, delivery::MessageSigner, ids::NodeId,
    random::Random,
};
use blindpipe_protocol::cursor::Cursor;
use fred::clients::Client;
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    ProcessNode, Socket, TestNode, User, Wire, World, channel_to, claims_of, nodes, publish,
    redis_client, sealed, ulid,
};

/// An attacker that can publish in the nodes' Redis.
struct Intruder<'a> {
    redis: Client,
    world: &'a World,
}

impl<'a> Intruder<'a> {
    async fn at(node: &'a TestNode) -> Self {
        Intruder {
            redis: redis_client(node.world.setting("REDIS_URL")).await,
            world: &node.world,
        }
    }

    /// Publishes on a channel that at least one node listens to.
    async fn publish(&self, channel: &str, text: &str) {
        publish(self.world, &self.redis, channel, text).await;
    }

    /// The name of a channel in Redis.
    fn name(&self, channel: &str) -> String {
        format!("{}:{channel}", self.world.setting("REDIS_PREFIX"))
    }
}

/// The principal and a number, as a hint names them.
fn pair_of(id: &str, seq: i64) -> String {
    let id = Uuid::from(id.parse::<ulid::Ulid>().expect("a ULID"));
    let mut pair = id.as_bytes().to_vec();
    pair.extend_from_slice(&seq.to_be_bytes());
    BASE64.encode(pair)
}

fn session_of(user: &User) -> String {
    let claims = claims_of(&user.access_token);
    let id: ulid::Ulid = claims["sid"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .expect("a ULID");
    Uuid::from(id).to_string()
}

fn invalidation(user: &User) -> String {
    let credentials = [session_of(user)];
    json!({ "type": "invalidate", "credentials": credentials, "reason": "device_revoked" })
        .to_string()
}

fn ephemeral_frame(to: &str) -> String {
    let to = Uuid::from(to.parse::<ulid::Ulid>().expect("a ULID"));
    let to = BASE64.encode(to.as_bytes());
    let frame = json!({ "type": "session.invalidated", "reason": "account_deleted", "at": "2026-01-01T00:00:00.000Z" });
    format!("~{} {to} null\n{frame}", ulid())
}

/// Reads everything that was sent to the socket so far.
async fn drained(socket: &mut Socket) {
    socket.say(json!({ "type": "ping" })).await;
    while socket.next().await.expect("the socket is open") != json!({ "type": "pong" }) {}
}

/// Asserts that the socket is alive and was sent nothing but `pong`.
async fn hears_nothing(socket: &mut Socket) {
    socket.say(json!({ "type": "ping" })).await;
    let next = socket.next().await.expect("the socket is open");
    assert_eq!(next, json!({ "type": "pong" }));
}

/// The node that receives the forged messages, with another for the rest. It is a process of its
/// own, because tests share the counters of this one.
async fn receiving_node() -> (TestNode, ProcessNode) {
    let [a] = nodes().await;
    let b = ProcessNode::start(&a).await;
    (a, b)
}

/// The number of messages between nodes that ended so.
async fn count(node: &ProcessNode, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    node.metric("hints_total", &label).await
}

/// Waits until the node has counted so many messages.
async fn counts(node: &ProcessNode, outcome: &str, expected: usize) {
    for _ in 0..200 {
        if count(node, outcome).await >= expected as f64 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let counted = count(node, outcome).await;
    panic!("{counted} messages are {outcome}, not {expected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_what_no_node_sealed_reaches_no_client() {
    let (a, b) = receiving_node().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = alice.at(&b.base).connect().await;
    drained(&mut socket).await;
    let cursor: Cursor = socket.cursor.parse().expect("a cursor");
    let intruder = Intruder::at(&a).await;
    let own = channel_to(&a.world, &alice.id).await;
    let body = "\"event_id\":\"x\",\"event\":\"message.created\",\"data\":{}";
    let hint = format!("!{} {} {body}", ulid(), pair_of(&alice.id, cursor.seq + 1));
    let far = format!("!{} {} ", ulid(), pair_of(&alice.id, i64::MAX));
    let frame = ephemeral_frame(&alice.id);
    let order = invalidation(&alice);
    let random = Random::new(Clock::default());
    let guessed = ServerSecret([b"not the secret of these nodes at".to_vec()].into());
    let guess = MessageSigner::new(NodeId(random.ulid()), &guessed, cursor.epoch);
    let forged = [
        (own.as_str(), &hint),
        (own.as_str(), &far),
        (own.as_str(), &frame),
        ("all", &frame),
        ("all", &order),
    ];
    assert_eq!(count(&b, "unsealed").await, 0.0);
    for (channel, text) in forged {
        intruder.publish(channel, text).await;
        let name = intruder.name(channel);
        let sealed = guess.sign(&name, cursor.epoch, text);
        intruder.publish(channel, &sealed).await;
    }
    // Each text, bare and with the seal of another secret.
    counts(&b, "unsealed", 10).await;
    hears_nothing(&mut socket).await;
    // The true event of the forged number arrives.
    agent.say(&conversation, "true").await.expect(201);
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], "true");
    hears_nothing(&mut socket).await;
    assert_eq!(count(&b, "unsealed").await, 10.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_49_what_nodes_said_changes_nothing_when_it_is_said_again_or_elsewhere() {
    let (a, b) = receiving_node().await;
    let alice = a.user("alice").await;
    let bob = a.user("bob").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let phone = alice.login(&a, Some("phone")).await;
    let phone_socket = phone.at(&b.base).connect().await;
    let mut socket = alice.at(&b.base).connect().await;
    let mut bob_socket = bob.at(&b.base).connect().await;
    let carol = a.user("carol").await;
    let mut carol_socket = carol.on(&a).connect().await;
    drained(&mut carol_socket).await;
    drained(&mut socket).await;
    drained(&mut bob_socket).await;
    let intruder = Intruder::at(&a).await;
    let own = channel_to(&a.world, &alice.id).await;
    let elsewhere = channel_to(&a.world, &carol.id).await;
    let wire = Wire::of(&a.world, &[&own, &elsewhere]).await;
    agent.say(&conversation, "once").await.expect(201);
    socket.event("message.created").await;
    let typing = json!({ "conversation_id": conversation, "state": "started" });
    agent
        .post(format!("/agents/{}/typing", agent.id), typing)
        .await
        .expect(200);
    socket.expect("typing").await;
    let revoked = alice.delete("/users/me/devices/phone").await;
    revoked.expect(200);
    phone_socket.expect_close(4403).await;
    drained(&mut socket).await;
    let recorded = wire.recorded().await;
    let channels: HashSet<&str> = recorded.iter().map(|one| &*one.channel).collect();
    assert!(own != elsewhere && channels.contains(&*own) && channels.contains("all"));
    // Nothing was said to the node that serves nobody concerned.
    assert!(!channels.contains(&*elsewhere));

    assert_eq!(count(&b, "replayed").await, 0.0);
    assert_eq!(count(&b, "unsealed").await, 0.0);
    for one in &recorded {
        intruder.publish(&one.channel, &one.sealed).await;
        if one.channel == own {
            intruder.publish(&elsewhere, &one.sealed).await;
            intruder.publish("all", &one.sealed).await;
        }
    }
    let to = |name: &str| recorded.iter().filter(|one| one.channel == name).count();
    let (replayed, moved) = (to(&own) + to("all"), to(&own));
    assert!(moved >= 2, "{recorded:?}");
    counts(&b, "replayed", replayed).await;
    counts(&b, "unsealed", moved).await;
    hears_nothing(&mut socket).await;
    hears_nothing(&mut bob_socket).await;
    hears_nothing(&mut carol_socket).await;
    assert_eq!(count(&b, "replayed").await, replayed as f64);
    assert_eq!(count(&b, "unsealed").await, moved as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_to_close_is_believed_when_postgres_confirms_it() {
    let (a, b) = receiving_node().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let mut socket = phone.at(&b.base).connect().await;
    drained(&mut socket).await;
    let intruder = Intruder::at(&a).await;
    // Even a sealed order ends no live session.
    let order = sealed(&a.world, &socket.cursor, "all", &invalidation(&phone));
    intruder.publish("all", &order).await;
    counts(&b, "unconfirmed", 1).await;
    hears_nothing(&mut socket).await;
    // A true one does, within a second.
    let started = std::time::Instant::now();
    let revoked = alice.delete("/users/me/devices/phone").await;
    revoked.expect(200);
    let last = socket.expect_close(4403).await;
    assert!(started.elapsed() < Duration::from_secs(1), "{last:?}");
    assert_eq!(last.last().expect("a frame")["reason"], "device_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_sealed_is_heard() {
    let (a, b) = receiving_node().await;
    let alice = a.user("alice").await;
    let mut socket = alice.at(&b.base).connect().await;
    drained(&mut socket).await;
    let intruder = Intruder::at(&a).await;
    let text = ephemeral_frame(&alice.id);
    let own = channel_to(&a.world, &alice.id).await;
    let frame = sealed(&a.world, &socket.cursor, &own, &text);
    intruder.publish(&own, &frame).await;
    let heard = socket.expect("session.invalidated").await;
    assert_eq!(heard["reason"], "account_deleted");
}
