//! Typing and streams while Postgres is slow: they wait beside their socket, and keep their order.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::{Agent, Socket, TestNode, User, World, blocked, connect, nodes, psql};

/// Far below the ten seconds for which a test's node waits for a lock.
const SOON: Duration = Duration::from_secs(3);

async fn caught_up(mut socket: Socket) -> Socket {
    while socket.next().await.expect("a frame")["type"] != "caught_up" {}
    socket
}

/// A user and an agent with a conversation.
async fn pair(node: &TestNode) -> (User, Agent, String) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    (alice, agent, conversation)
}

/// Nobody can ask who is a member until this client's transaction ends.
async fn lock_members(client: &Client) {
    let sql = "begin; lock table member in access exclusive mode";
    client.batch_execute(sql).await.expect("locked");
}

async fn release(client: &Client) {
    client.batch_execute("rollback").await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_postgres_holds_up_no_ack_and_no_heartbeat() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut its = caught_up(agent.on(&a).connect().await).await;
    alice.say(&conversation, "a question").await.expect(201);
    let event = its.event("message.created").await;
    let mut hers = caught_up(alice.on(&b).connect().await).await;

    let postgres = connect(&a.world.database).await;
    let watcher = connect(&a.world.database).await;
    lock_members(&postgres).await;
    let started = Instant::now();
    for stream in ["s", "t"] {
        its.say(
            json!({ "type": "stream.begin", "stream_id": stream, "conversation_id": conversation }),
        )
        .await;
    }
    for n in 0..3 {
        its.say(json!({ "type": "stream.delta", "stream_id": "s", "n": n, "data": "part" }))
            .await;
    }
    let end = json!({ "type": "stream.end", "ref": 1, "stream_id": "t", "payload": { "type": "text", "text": "an answer" } });
    its.say(end).await;
    blocked(&watcher, 1).await;
    its.say(json!({ "type": "ping" })).await;
    its.expect("pong").await;
    its.say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    let acked = "select acked_seq from inbox_reader where principal_id = $1 and device_id = ''";
    let id: uuid::Uuid = agent.id.parse().expect("a UUID");
    let seq: i64 = event["cursor"]
        .as_str()
        .and_then(|cursor| cursor.split_once('-')?.1.parse().ok())
        .expect("a cursor");
    while watcher
        .query_one(acked, &[&id])
        .await
        .expect("a reader")
        .get::<_, i64>(0)
        < seq
    {
        assert!(started.elapsed() < SOON, "the ack waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    hers.expect_silence(Duration::from_millis(50)).await;

    // In their order: the message of `t` follows its begin, and the deltas of `s` each other.
    release(&postgres).await;
    let mut heard = Vec::new();
    while heard.len() < 4 {
        let frame = hers.next().await.expect("a frame");
        if frame["stream_id"] == "s" {
            heard.push((frame["type"].clone(), frame["n"].clone()));
        }
    }
    let delta = |n: u64| (json!("stream.delta"), json!(n));
    assert_eq!(
        heard,
        [
            (json!("stream.begin"), Value::Null),
            delta(0),
            delta(1),
            delta(2)
        ]
    );
    let sent = its.expect("message.sent").await;
    assert_eq!((&sent["ref"], &sent["stream_id"]), (&json!(1), &json!("t")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_has_said_that_it_stopped() {
    let [a, b] = nodes().await;
    let (alice, agent, conversation) = pair(&a).await;
    let mut its = caught_up(agent.on(&a).connect().await).await;
    let mut hers = caught_up(alice.on(&b).connect().await).await;
    let postgres = connect(&a.world.database).await;
    let watcher = connect(&a.world.database).await;
    lock_members(&postgres).await;
    its.say(json!({ "type": "typing", "conversation_id": conversation, "state": "stopped" }))
        .await;
    its.say_raw(tokio_tungstenite::tungstenite::Message::Close(None))
        .await;
    blocked(&watcher, 1).await;
    release(&postgres).await;
    assert_eq!(hers.expect("typing").await["state"], "stopped");
}

/// Fifty agents name their stream alike, and a listener of one asks for it: neither node asks
/// Postgres about each.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_common_name_costs_a_few_look_ups() {
    let world = World::new(&[(
        "LIMIT_OVERRIDES",
        "conversation_open=100000/s,default_user=100000/s,default_ip=100000/s",
    )])
    .await;
    // Each statement that reads members takes a number, whatever connection it has.
    psql(
        &world.database,
        "create sequence look_ups;
         create function counted() returns boolean language plpgsql stable as
             $$ begin perform nextval('look_ups'); return true; end $$;
         alter table member rename to member_stored;
         create view member as select * from member_stored where counted();
         grant select, insert, update, delete on member to blindpipe_serve;
         grant usage on sequence look_ups to blindpipe_serve",
    )
    .await;
    let [a, b] = [world.node().await, world.node().await];
    let (alice, agent, conversation) = pair(&a).await;
    let begin = async |socket: &mut Socket, conversation: &str| {
        socket.say(json!({ "type": "stream.begin", "stream_id": "s", "conversation_id": conversation })).await;
        socket
            .say(json!({ "type": "stream.delta", "stream_id": "s", "n": 0, "data": "part" }))
            .await;
        socket.say(json!({ "type": "ping" })).await;
        socket.expect("pong").await;
    };
    let bob = a.user("bob").await;
    let mut others = Vec::new();
    for n in 0..50 {
        let agent = a.agent(&bob, &format!("helper {n}")).await;
        let other = bob.talk_to(&agent).await;
        others.push((agent.on(&a).connect().await, other));
    }
    let mut hers = caught_up(alice.on(&a).connect().await).await;
    let mut its = agent.on(&a).connect().await;
    begin(&mut its, &conversation).await;
    hers.expect("stream.delta").await;
    for (socket, other) in &mut others {
        begin(socket, other).await;
    }
    // Real time: a node remembers for a second who listens to a conversation.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let postgres = connect(&world.database).await;
    let look_ups = async || -> i64 {
        let row = postgres
            .query_one("select last_value from look_ups", &[])
            .await;
        row.expect("a number").get(0)
    };
    for node in [&a, &b] {
        let mut late = caught_up(alice.on(node).connect().await).await;
        let (mut before, mut answer) = (0, Value::Null);
        // The other node has a second to answer, which a busy machine may not have.
        for _ in 0..5 {
            before = look_ups().await;
            late.say(json!({ "type": "stream.sync", "stream_id": "s", "from_n": 0 }))
                .await;
            answer = late.next().await.expect("a frame");
            if answer["type"] != "error" {
                break;
            }
            // Real time: a node asks the others anew after a second.
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        assert_eq!(answer["type"], "stream.delta", "{answer}");
        assert_eq!(answer["conversation_id"], json!(conversation));
        let cost = look_ups().await - before;
        assert!((1..=8).contains(&cost), "{cost} look-ups");
    }
}
