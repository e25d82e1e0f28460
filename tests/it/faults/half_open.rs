//! Connections that look open and carry nothing. The server closes them at the heartbeat's deadline
//! and frees their slots. A client that reconnects elsewhere loses nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Agent, Held, Proxy, Socket, TestNode, User, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,ws_connect=100000/s",
);
/// From the last sign of life to the ping, and from there to the end.
const HEARTBEAT: Duration = Duration::from_secs(25);
const PONG: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

async fn connections(owner: &User, agent: &Agent) -> usize {
    let shown = owner.get(format!("/agents/{}", agent.id)).await.expect(200);
    shown.data()["connections"]
        .as_array()
        .expect("a list")
        .len()
}

/// Waits until the agent has so many connections.
async fn until(owner: &User, agent: &Agent, n: usize) {
    let began = Instant::now();
    while connections(owner, agent).await != n {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "not {n} connections"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The texts of the next messages.
async fn texts(socket: &mut Socket, n: usize) -> Vec<Value> {
    let mut texts = Vec::new();
    for _ in 0..n {
        texts.push(socket.event("message.created").await["data"]["payload"]["text"].clone());
    }
    texts
}

/// An agent with all its three connections through a proxy in front of `b`, each caught up; and who
/// talks to it on `a`.
async fn three(a: &TestNode, proxy: &Proxy) -> (User, Agent, String, Vec<Socket>) {
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let through = agent.at(&proxy.base());
    let mut sockets = Vec::new();
    for _ in 0..3 {
        let mut socket = through.connect().await;
        socket.expect("caught_up").await;
        sockets.push(socket);
    }
    alice.say(&conversation, "before").await.expect(201);
    for socket in &mut sockets {
        assert_eq!(texts(socket, 1).await, ["before"]);
    }
    until(&alice, &agent, 3).await;
    (alice, agent, conversation, sockets)
}

/// The fourth is refused while they are held to be alive.
async fn refused(agent: &Agent) {
    let mut socket = Socket::open(&agent.caller).await;
    socket
        .say(json!({ "type": "auth", "agent_id": agent.id, "token": agent.token }))
        .await;
    assert_eq!(
        socket.expect("auth.error").await["reason"],
        "connection_limit"
    );
    socket.expect_close(4409).await;
}

/// Everything that is under way has been sent: how much.
async fn quiet(proxy: &Proxy) -> usize {
    let mut before = 0;
    while before < proxy.sent() {
        before = proxy.sent();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    before
}

/// Waits for three pings, of two bytes each.
async fn three_pings(proxy: &Proxy, before: usize) {
    let began = Instant::now();
    while proxy.sent() < before + 6 {
        assert!(began.elapsed() < Duration::from_secs(10), "no ping");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_moves_in_neither_direction_is_closed_and_goes_on_elsewhere() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let proxy = Proxy::before(b.base.trim_start_matches("http://")).await;
    let (alice, agent, conversation, mut sockets) = three(&a, &proxy).await;
    let cursor = sockets[0].cursor.clone();
    proxy.hold(Held::Both);
    for n in 0..5 {
        alice
            .say(&conversation, &format!("away {n}"))
            .await
            .expect(201);
    }
    refused(&agent).await;
    let before = quiet(&proxy).await;
    a.advance(HEARTBEAT + SECOND).await;
    three_pings(&proxy, before).await;
    a.advance(PONG - SECOND * 2).await;
    refused(&agent).await;
    assert_eq!(connections(&alice, &agent).await, 3, "before the deadline");
    a.advance(SECOND * 3).await;
    until(&alice, &agent, 0).await;

    let mut socket = agent.connect_from(Some(&cursor)).await;
    let expected: Vec<String> = (0..5).map(|n| format!("away {n}")).collect();
    assert_eq!(texts(&mut socket, 5).await, expected);
    alice.say(&conversation, "live").await.expect(201);
    assert_eq!(texts(&mut socket, 1).await, ["live"]);
    // When the link comes back it has the same to tell, and then its end.
    proxy.hold(Held::Nothing);
    let first = sockets.remove(0).until_closed().await;
    let late: Vec<&Value> = first
        .iter()
        .map(|frame| &frame["data"]["payload"]["text"])
        .collect();
    assert_eq!(
        late,
        expected
            .iter()
            .map(|text| json!(text))
            .collect::<Vec<_>>()
            .iter()
            .collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_hears_is_closed_too_and_loses_nothing() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let proxy = Proxy::before(b.base.trim_start_matches("http://")).await;
    let (alice, agent, conversation, mut sockets) = three(&a, &proxy).await;
    proxy.hold(Held::Up);
    // Its frames go nowhere; frames to it arrive.
    let id = ulid().to_string();
    let send = json!({
        "type": "message.send", "ref": 1, "conversation_id": conversation, "client_message_id": id,
        "payload": { "type": "text", "text": "said into the void" },
    });
    sockets[0].say(send).await;
    alice.say(&conversation, "heard").await.expect(201);
    for socket in &mut sockets {
        assert_eq!(texts(socket, 1).await, ["heard"]);
    }
    let before = quiet(&proxy).await;
    a.advance(HEARTBEAT + SECOND).await;
    // Read on, so that pings would be answered if answers arrived.
    let cursor = sockets[0].cursor.clone();
    let gone: Vec<_> = sockets
        .into_iter()
        .map(|socket| crate::support::spawn(socket.until_closed()))
        .collect();
    three_pings(&proxy, before).await;
    assert_eq!(connections(&alice, &agent).await, 3, "before the deadline");
    a.advance(PONG + SECOND).await;
    until(&alice, &agent, 0).await;
    for told in gone {
        assert_eq!(
            told.await.expect("no panic"),
            Vec::<Value>::new(),
            "events after the end"
        );
    }

    alice.say(&conversation, "after").await.expect(201);
    let mut socket = agent.connect_from(Some(&cursor)).await;
    assert_eq!(texts(&mut socket, 1).await, ["after"]);
    // The careful client says it again, and it is there once.
    let body = json!({
        "conversation_id": conversation, "client_message_id": id,
        "payload": { "type": "text", "text": "said into the void" },
    });
    agent
        .post(format!("/agents/{}/messages", agent.id), body.clone())
        .await
        .expect(201);
    proxy.hold(Held::Nothing);
    agent
        .post(format!("/agents/{}/messages", agent.id), body)
        .await
        .expect(200);
    let page = alice
        .get(format!("/conversations/{conversation}/messages"))
        .await
        .expect(200);
    let said: Vec<Value> = page.body["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|message| message["payload"]["text"].clone())
        .collect();
    assert_eq!(said, ["said into the void", "after", "heard", "before"]);
}
