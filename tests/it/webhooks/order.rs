//! Order, side by side, and the change between transports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{BUSY, FAST, registered, shown, talking, until_caught_up, until_logged};
use crate::support::{Call, Reply, Socket, nodes_with, spawn};

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_serial_and_three_run_side_by_side() {
    let [a, _b] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver) = registered(&a).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_millis(60)));
    let mut owners = vec![alice.clone()];
    for n in 0..4 {
        owners.push(a.user(&format!("user{n}")).await);
    }
    let mut conversations = Vec::new();
    for owner in &owners {
        conversations.push(owner.talk_to(&agent).await);
    }
    receiver.receives(10).await;
    for n in 0..4 {
        for (owner, conversation) in owners.iter().zip(&conversations) {
            owner.say(conversation, &n.to_string()).await.expect(201);
        }
    }
    until_caught_up(&alice, &agent).await;
    let calls = receiver.messages();
    assert_eq!(calls.len(), 20, "each once");
    let mut by_conversation: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &calls {
        by_conversation
            .entry(call.conversation())
            .or_default()
            .push(call);
    }
    for calls in by_conversation.values() {
        for pair in calls.windows(2) {
            assert!(
                pair[0].to.expect("answered") <= pair[1].from,
                "one after another"
            );
            assert!(pair[0].seq() < pair[1].seq(), "in order");
        }
    }
    let side_by_side = calls.iter().map(|call| {
        let under_way =
            |other: &&Call| other.from <= call.from && other.to.is_some_and(|to| to > call.from);
        calls.iter().filter(under_way).count()
    });
    assert_eq!(side_by_side.max(), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_under_way_hold_slots_that_sockets_need() {
    let [a, b] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver) = registered(&a).await;
    let bob = a.user("bob").await;
    let carol = a.user("carol").await;
    let mut conversations = Vec::new();
    for user in [&alice, &bob, &carol] {
        conversations.push(user.talk_to(&agent).await);
    }
    receiver.receives(6).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(2)));
    for (user, conversation) in [&alice, &bob, &carol].into_iter().zip(&conversations) {
        user.say(conversation, "slow").await.expect(201);
    }
    receiver.receives(9).await;
    let kinds: Vec<Value> = shown(&alice.on(&b), &agent).await["connections"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["kind"].clone())
        .collect();
    assert_eq!(kinds, ["webhook", "webhook", "webhook"]);
    let mut socket = Socket::open(&agent.on(&b).caller).await;
    let auth = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
    socket.say(auth).await;
    let refused = socket.next().await.expect("a frame");
    assert_eq!(refused["reason"], "connection_limit");
    until_caught_up(&alice, &agent).await;
    agent.on(&b).connect().await;
}

/// The agent acks by a poll the event that its receiver refuses. No call follows, so the next turn
/// alone can move the cursor over the events that were delivered meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_by_a_poll_moves_the_cursor_over_what_was_delivered() {
    let [a, _b] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver) = registered(&a).await;
    let bob = a.user("bob").await;
    let refused = alice.talk_to(&agent).await;
    let taken = bob.talk_to(&agent).await;
    receiver.receives(4).await;
    until_caught_up(&alice, &agent).await;
    receiver.behave(|call| match call.text() == "refused" {
        true => Reply::status(500),
        false => Reply::status(200),
    });
    alice.say(&refused, "refused").await.expect(201);
    for text in ["one", "two"] {
        bob.say(&taken, text).await.expect(201);
    }
    until_logged(&alice, &agent, "status=success", |log| log.len() == 6).await;
    let page = agent.poll("limit=1").await.expect(200);
    assert_eq!(page.data()[0]["seq"], 5);
    let cursor = page.body["next_cursor"].as_str().expect("a cursor");
    let rest = agent.poll(&format!("cursor={cursor}&limit=1")).await;
    assert_eq!(rest.expect(200).data()[0]["seq"], 6);
    // The wait before the next turn depends on the attempts that were made before the ack.
    for _ in 0..6 {
        a.advance(Duration::from_secs(31)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until_caught_up(&alice, &agent).await;
    for text in ["one", "two"] {
        assert_eq!(
            receiver.texts().iter().filter(|one| *one == text).count(),
            1
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_transports_under_load_loses_nothing() {
    const MESSAGES: i64 = 300;
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    let sender = spawn({
        let alice = alice.clone();
        async move {
            for n in 0..MESSAGES {
                alice.say(&conversation, &n.to_string()).await.expect(201);
                tokio::time::sleep(Duration::from_millis(8)).await;
            }
        }
    });
    let seed: u64 = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let mut pulled = Vec::new();
    let seq = |event: &Value| event["seq"].as_i64().expect("a number");
    let mut turn = 0;
    while !sender.is_finished() {
        turn += 1;
        let agent = agent.on(if turn % 2 == 0 { &a } else { &b });
        // A socket that finds all slots taken by calls tries again.
        let mut socket = loop {
            let mut socket = Socket::open(&agent.caller).await;
            let auth = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
            socket.say(auth).await;
            if socket.next().await.expect("a frame")["type"] == "auth.ok" {
                break socket;
            }
        };
        for _ in 0..random.random_range(1..20) {
            // Messages come every few milliseconds until the last one.
            let next = socket.event("message.created");
            let Ok(event) = tokio::time::timeout(Duration::from_millis(500), next).await else {
                break;
            };
            pulled.push(seq(&event));
        }
        let cursor = socket.cursor.clone();
        socket.say(json!({ "type": "ack", "cursor": cursor })).await;
        drop(socket);
        let before = receiver.events().len();
        let calls = random.random_range(1..8);
        receiver
            .until("calls", |all| {
                all.len() >= before + calls || sender.is_finished()
            })
            .await;
        // A moment in the middle of a call or between two.
        tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
        let page = agent.poll("limit=5").await.expect(200);
        pulled.extend(page.data().as_array().expect("a list").iter().map(seq));
        if let Some(cursor) = page.body["next_cursor"].as_str() {
            agent
                .poll(&format!("cursor={cursor}&limit=1"))
                .await
                .expect(200);
        }
    }
    sender.await.expect("sent");
    until_caught_up(&alice, &agent).await;
    let posted: Vec<i64> = receiver.events().iter().map(Call::seq).collect();
    let all: BTreeSet<i64> = posted.iter().chain(&pulled).copied().collect();
    assert_eq!(
        all,
        (1..=MESSAGES + 2).collect(),
        "one gapless stream, seed {seed}"
    );
    let distinct: BTreeSet<i64> = posted.iter().copied().collect();
    assert_eq!(
        distinct.len(),
        posted.len(),
        "no call is repeated, seed {seed}: {posted:?}"
    );
    // The relation's events have no conversation, so they are in a lane beside it.
    let mut lanes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for call in receiver.events() {
        let lane = lanes.entry(call.conversation().to_owned()).or_default();
        lane.push(call.seq());
    }
    for (lane, posted) in lanes {
        assert!(
            posted.is_sorted_by(|a, b| a < b),
            "{lane:?} is in order, seed {seed}: {posted:?}"
        );
    }
}
