//! The sweep finds what no hint has said, and costs what changed.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::{
    auth::server_secret::ServerSecret, clock::Clock, delivery::MessageSigner, ids::NodeId,
    random::Random,
};
use blindpipe_protocol::cursor::Cursor;
use fred::interfaces::{KeysInterface, SortedSetsInterface};
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    Agent, Held, ProcessNode, Proxy, Socket, TestNode, User, channel_to, claims_of, connect, crowd,
    directory_entry, nodes, nodes_with, private_redis, publish, redis_client, ulid,
};

/// Enough to send ten messages at once.
const RAISED_LIMITS: (&str, &str) = ("LIMIT_OVERRIDES", "user_message_send=1000/s");
/// The bound of an event whose hint was lost on the way.
const EVENT_BOUND: Duration = Duration::from_secs(5);
/// The bound of an event whose hint nobody missed: a slice of the subscriptions each two seconds.
const SLICE_BOUND: Duration = Duration::from_secs(62);
/// The bound of an event whose node died before it published the hint.
const DEAD_NODE_BOUND: Duration = Duration::from_secs(8);
/// The bound of a revocation that no node was told of.
const REVOCATION_BOUND: Duration = Duration::from_secs(3);

fn session_of(user: &User) -> Uuid {
    let claims = claims_of(&user.access_token);
    let id: ulid::Ulid = claims["sid"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .expect("a ULID");
    Uuid::from(id)
}

async fn expect_revoked(socket: Socket, from: Instant) {
    let last = socket.expect_close(4403).await.pop().expect("a frame");
    assert_eq!(last["type"], "session.invalidated");
    let took = from.elapsed();
    assert!(took < REVOCATION_BOUND, "{took:?}");
}

const REVOKE: &str =
    "update session set revoked_at = app_now(), revoke_reason = 'logout' where session_id = $1";

/// The transaction that revokes first commits last. A reader that only remembers how far it has
/// read would pass it by.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_that_commits_late_is_found() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let tablet = alice.login(&a, Some("tablet")).await;
    let mut sockets = [phone.on(&b).connect().await, tablet.on(&b).connect().await];
    for socket in &mut sockets {
        socket.expect("caught_up").await;
    }
    let [phone_socket, tablet_socket] = sockets;
    let late = connect(&a.world.database).await;
    late.batch_execute("begin").await.expect("a transaction");
    late.execute(REVOKE, &[&session_of(&phone)])
        .await
        .expect("revoked");
    let prompt = connect(&a.world.database).await;
    let started = Instant::now();
    prompt
        .execute(REVOKE, &[&session_of(&tablet)])
        .await
        .expect("revoked");
    expect_revoked(tablet_socket, started).await;
    late.batch_execute("commit").await.expect("committed");
    expect_revoked(phone_socket, Instant::now()).await;
}

/// Redis is away, so no invalidation can cross; nodes hear of it from the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_without_redis_ends_its_sockets_within_the_bound() {
    let mut redis = private_redis("revoking").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let mut socket = phone.on(&b).connect().await;
    socket.expect("caught_up").await;
    redis.kill();
    let started = Instant::now();
    alice.delete("/users/me/devices/phone").await.expect(200);
    expect_revoked(socket, started).await;
}

async fn talk(node: &TestNode) -> (User, Agent, String) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    (alice, agent, conversation)
}

/// Removes a principal from the directory, so that nobody sends its node a hint.
async fn unlist(node: &TestNode, principal: &str) {
    channel_to(&node.world, principal).await;
    let redis = redis_client(node.world.setting("REDIS_URL")).await;
    let prefix = node.world.setting("REDIS_PREFIX");
    let removed: u32 = redis
        .del(format!("{prefix}:{}", directory_entry(principal)))
        .await
        .expect("an answer");
    assert_eq!(removed, 1);
}

/// Puts a principal back into the directory, at the node with this channel.
async fn relist(node: &TestNode, principal: &str, channel: &str) {
    let redis = redis_client(node.world.setting("REDIS_URL")).await;
    let prefix = node.world.setting("REDIS_PREFIX");
    let entry = format!("{prefix}:{}", directory_entry(principal));
    let never = (4_000_000_000_000.0, channel.replace("n:", ""));
    redis
        .zadd::<(), _, _>(&entry, None, None, false, false, never)
        .await
        .expect("added");
}

async fn expect_text(socket: &mut Socket, text: &str, from: Instant, bound: Duration) {
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], text);
    let took = from.elapsed();
    assert!(took < bound, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_did_not_come_is_a_known_loss() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation) = talk(&a).await;
    let mut socket = agent.on(&b).connect().await;
    socket.expect("caught_up").await;
    let channel = channel_to(&a.world, &agent.id).await;
    unlist(&a, &agent.id).await;
    let started = Instant::now();
    alice.say(&conversation, "unsaid").await.expect(201);
    // A node of this cluster sends two messages, and the first is lost.
    let secret = BASE64
        .decode(a.world.setting("SERVER_SECRET"))
        .expect("base64");
    let epoch = socket.cursor.parse::<Cursor>().expect("a cursor").epoch;
    let node = NodeId(Random::new(Clock::default()).ulid());
    let seal = MessageSigner::new(node, &ServerSecret([secret].into()), epoch);
    let name = format!("{}:{channel}", a.world.setting("REDIS_PREFIX"));
    seal.sign(&name, epoch, ".");
    let second = seal.sign(&name, epoch, ".");
    let redis = redis_client(a.world.setting("REDIS_URL")).await;
    publish(&a.world, &redis, &channel, &second).await;
    expect_text(&mut socket, "unsaid", started, EVENT_BOUND).await;
}

/// Whether a message has arrived by now.
async fn has_heard(socket: &mut Socket) -> bool {
    socket.say(json!({ "type": "ping" })).await;
    loop {
        let frame = socket.next().await.expect("an open socket");
        if frame["event"] == "message.created" {
            return true;
        }
        if frame["type"] == "pong" {
            return false;
        }
    }
}

/// Redis forgets where agents are, so no message is sent that could be missed. A socket hears from the
/// slice that looks at it. Of several sockets the first does so within seconds.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_missing_costs_the_time_of_a_slice() {
    const AGENTS: usize = 8;
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let (mut sockets, mut conversations) = (Vec::new(), Vec::new());
    for n in 0..AGENTS {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        conversations.push(alice.talk_to(&agent).await);
        let mut socket = agent.on(&b).connect().await;
        socket.expect("caught_up").await;
        sockets.push((socket, agent));
    }
    for (_, agent) in &sockets {
        unlist(&a, &agent.id).await;
    }
    let started = Instant::now();
    for conversation in &conversations {
        alice.say(conversation, "unheard").await.expect(201);
    }
    while started.elapsed() < SLICE_BOUND {
        for (socket, _) in &mut sockets {
            if has_heard(socket).await {
                return;
            }
        }
        // A slice is looked at each two seconds.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("no slice has found an event");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_too_many_cost_nothing_but_messages() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let (alice, agent, conversation) = talk(&a).await;
    let mut socket = agent.on(&b).connect().await;
    socket.expect("caught_up").await;
    let mut elsewhere = alice.connect().await;
    elsewhere.expect("caught_up").await;
    // A node that is dead, one that does not serve the agent, and a word.
    let other = channel_to(&a.world, &alice.id).await;
    let stale = [ulid().to_string(), other.replace("n:", ""), "junk".into()];
    let redis = redis_client(a.world.setting("REDIS_URL")).await;
    let prefix = a.world.setting("REDIS_PREFIX");
    let entry = format!("{prefix}:{}", directory_entry(&agent.id));
    for node in stale {
        let never = (4_000_000_000_000.0, node);
        redis
            .zadd::<(), _, _>(&entry, None, None, false, false, never)
            .await
            .expect("added");
    }
    let mut fast = 0;
    for n in 0..10 {
        let started = Instant::now();
        let text = n.to_string();
        alice.say(&conversation, &text).await.expect(201);
        expect_text(&mut socket, &text, started, EVENT_BOUND).await;
        fast += usize::from(started.elapsed() < Duration::from_millis(500));
    }
    assert!(fast > 0, "every one came by the sweep");
}

/// Nobody asks the directory where the members of a large group are, so a missing entry costs
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_many_goes_to_every_node_without_a_look_up() {
    const MEMBERS: usize = 40;
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let mut ids = crowd(&a.world.database, MEMBERS - 2).await;
    ids.push(bob.id.clone());
    let made = alice.post("/groups", json!({ "member_ids": ids })).await;
    let group = made.expect(201).data()["conversation_id"].clone();
    let group = group.as_str().expect("an id");
    let mut socket = bob.on(&b).connect().await;
    socket.expect("caught_up").await;
    // The nodes hear of each other at their next heartbeat.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    unlist(&a, &bob.id).await;
    let mut fast = 0;
    for n in 0..10 {
        let started = Instant::now();
        let text = n.to_string();
        alice.say(group, &text).await.expect(201);
        expect_text(&mut socket, &text, started, EVENT_BOUND).await;
        fast += usize::from(started.elapsed() < Duration::from_millis(500));
    }
    assert!(fast > 5, "{fast} of 10 came at once");
}

/// A node looks for what the dead one has left: the one with the lowest id. It serves one of the
/// recipients itself, and tells the other's node.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_node_did_not_say_is_found() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let mut c = ProcessNode::start(&a).await;
    let (alice, agent, conversation) = talk(&a).await;
    let other = a.agent(&alice, "other").await;
    let elsewhere = alice.talk_to(&other).await;
    let mut sockets = [agent.on(&a).connect().await, other.on(&b).connect().await];
    for socket in &mut sockets {
        socket.expect("caught_up").await;
    }
    // The others have met the node.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let listed = [
        (channel_to(&a.world, &agent.id).await, &agent.id),
        (channel_to(&a.world, &other.id).await, &other.id),
    ];
    for (_, id) in &listed {
        unlist(&a, id).await;
    }
    let there = alice.at(&c.base);
    for place in [&conversation, &elsewhere] {
        there.say(place, "last words").await.expect(201);
    }
    // Longer than the node takes to publish in vain.
    tokio::time::sleep(Duration::from_millis(200)).await;
    c.kill();
    for (channel, id) in &listed {
        relist(&a, id, channel).await;
    }
    let killed = Instant::now();
    for socket in &mut sockets {
        expect_text(socket, "last words", killed, DEAD_NODE_BOUND).await;
    }
}

/// A heartbeat that is late costs the other nodes no look at all their inboxes.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_costs_the_others_no_round() {
    const SOCKETS: usize = 20;
    let [a] = nodes().await;
    // Their metrics are their own.
    let others = [ProcessNode::start(&a).await, ProcessNode::start(&a).await];
    let frozen = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let mut sockets = Vec::new();
    for n in 0..SOCKETS {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        let mut socket = agent.at(&others[n % 2].base).connect().await;
        socket.expect("caught_up").await;
        sockets.push(socket);
    }
    // The rounds after the start are over, and all nodes have met.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let lookups = async || {
        let heads = "kind=\"heads\"";
        let [one, two] = &others;
        one.metric("sweep_lookups_total", heads).await
            + two.metric("sweep_lookups_total", heads).await
    };
    let before = lookups().await;
    // Its heartbeat is late after two and a half seconds, and its lease ends after six.
    frozen.freeze(Duration::from_millis(4_500)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = lookups().await - before;
    // Three slices of a thirtieth each, by chance of ids. A round of both would be twenty.
    assert!(asked < SOCKETS as f64 / 2.0, "{asked}");
}

/// The new node has the name of the old one, whose entries are still in the directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_again_under_its_name_hears_at_once() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut c = ProcessNode::start(&a).await;
    let (alice, agent, conversation) = talk(&a).await;
    let mut socket = agent.at(&c.base).connect().await;
    socket.expect("caught_up").await;
    alice.say(&conversation, "before").await.expect(201);
    socket.event("message.created").await;
    let cursor = socket.cursor.clone();
    c.kill();
    let again = ProcessNode::start(&a).await;
    alice.say(&conversation, "meanwhile").await.expect(201);
    let mut socket = agent.at(&again.base).connect_from(Some(&cursor)).await;
    socket.event("message.created").await;
    let mut fast = 0;
    for n in 0..10 {
        let started = Instant::now();
        let text = n.to_string();
        alice.say(&conversation, &text).await.expect(201);
        expect_text(&mut socket, &text, started, EVENT_BOUND).await;
        fast += usize::from(started.elapsed() < Duration::from_millis(500));
    }
    assert!(fast > 0, "every one came by the sweep");
}

/// Only the sender's link to Redis hangs, so the others have no reason to doubt theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_without_redis_says_so_in_the_log() {
    let redis = private_redis("sender").await;
    let url = redis.url();
    let [b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let address = url.trim_start_matches("redis://").trim_end_matches('/');
    let proxy = Proxy::before(address).await;
    let behind_proxy = url.replace(address, &proxy.address);
    let a = b.world.node_with(&[("REDIS_URL", &behind_proxy)]).await;
    let (alice, agent, conversation) = talk(&a).await;
    let mut socket = agent.on(&b).connect().await;
    socket.expect("caught_up").await;
    proxy.hold(Held::Both);
    let started = Instant::now();
    alice.say(&conversation, "by another way").await.expect(201);
    expect_text(&mut socket, "by another way", started, EVENT_BOUND).await;
    let log = connect(&a.world.database).await;
    let recorded = "select count(*) from reconcile_log where principal_id is not null";
    let recorded: i64 = log.query_one(recorded, &[]).await.expect("a count").get(0);
    assert!(recorded > 0);
}

/// A node's look-ups are those of a slice each two seconds, and of a round where a loss is known.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sockets_are_looked_at_once_a_minute() {
    const SOCKETS: usize = 8;
    let [a] = nodes().await;
    // Its metrics are its own.
    let node = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let mut sockets = Vec::new();
    for n in 0..SOCKETS {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        let mut socket = agent.at(&node.base).connect().await;
        socket.expect("caught_up").await;
        sockets.push(socket);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lookups = async || node.metric("sweep_lookups_total", "").await;
    let before = lookups().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let asked = lookups().await - before;
    // A look at everything each two seconds would be three times two look-ups per socket. On a busy
    // machine a late heartbeat may demand a round or two.
    assert!(asked <= 3.0 * SOCKETS as f64, "{asked}");
}
