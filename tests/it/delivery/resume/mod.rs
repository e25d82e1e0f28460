//! Readers that reconnect: exact sequences of events, whatever happens to their connections.

mod torture;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe::inbox;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{
    Agent, Dice, PASSWORD, ProcessNode, Sleeper, Socket, TestNode, connect, db, nodes, nodes_with,
    psql, spawn,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=100000/s,agent_poll=100000/s,ws_connect=100000/s,ws_connect_ip=100000/s,auth_register_ip=100000/s",
);

/// The largest page of a poll, by the interface.
const MAX_POLL_EVENTS: usize = 1_000;

/// An agent that reads by polls alone keeps up with a thousand events a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_reads_a_thousand_events_and_the_access_log_has_them_all() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "reader").await;
    let conversation = alice.talk_to(&agent).await;
    let first = agent.poll("limit=1000").await.expect(200);
    let mut cursor = first.body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    let texts: Vec<String> = (0..MAX_POLL_EVENTS + 50).map(|n| n.to_string()).collect();
    for part in texts.chunks(50) {
        let said = part.iter().map(|text| alice.say(&conversation, text));
        for answer in futures_util::future::join_all(said).await {
            answer.expect(201);
        }
    }
    let reader = agent.on(&b);
    let (mut sizes, mut seqs) = (Vec::new(), Vec::new());
    while sizes.len() < 3 {
        let page = reader
            .poll(&format!("limit=1000&cursor={cursor}"))
            .await
            .expect(200)
            .body;
        let events = page["data"].as_array().expect("events").clone();
        sizes.push(events.len());
        seqs.extend(
            events
                .iter()
                .map(|event| event["data"]["seq"].as_i64().expect("a number")),
        );
        page["next_cursor"]
            .as_str()
            .expect("a cursor")
            .clone_into(&mut cursor);
    }
    assert_eq!(sizes, [MAX_POLL_EVENTS, 50, 0]);
    assert!(
        seqs.is_sorted_by(|one, next| one + 1 == *next),
        "in order, each once"
    );
    let read = "select sum(items)::bigint from access_log where kind = 'poll' and conversation_id is not null";
    let logged: i64 = connect(&a.world.database)
        .await
        .query_one(read, &[])
        .await
        .expect("a sum")
        .get(0);
    assert!(
        logged >= seqs.len() as i64,
        "{logged} of {} logged",
        seqs.len()
    );
    let refused = agent.poll("limit=1001").await.expect(400);
    assert_eq!(refused.body["error"]["code"], "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_polls_wait_without_a_connection_to_the_database() {
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("DATABASE_POOL_SIZE", "8")]).await;
    let alice = a.user("alice").await;
    let bob = a.user("bob").await;
    let (mut agents, mut polls, mut conversations) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..10 {
        let agent = a.agent(&alice, &format!("agent{n}")).await;
        conversations.push(alice.talk_to(&agent).await);
        agents.push(agent);
    }
    for agent in &agents {
        let newest = agent.poll("limit=100").await.expect(200).body["next_cursor"]
            .as_str()
            .expect("a cursor")
            .to_owned();
        for m in 0..20 {
            let (agent, query) = (
                agent.on(if m % 2 == 0 { &a } else { &b }),
                format!("cursor={newest}&wait=25"),
            );
            polls.push(spawn(async move { agent.poll(&query).await.expect(200) }));
        }
    }
    // Real time: until all of them wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    for node in [&a, &b] {
        bob.on(node)
            .post(
                "/conversations",
                json!({ "type": "direct", "user_id": alice.id }),
            )
            .await;
    }
    assert!(
        polls.iter().all(|poll| !poll.is_finished()),
        "a poll did not wait"
    );
    for conversation in &conversations {
        alice.on(&b).say(conversation, "wake up").await.expect(201);
    }
    for poll in polls {
        let answer = poll.await.expect("a poll");
        assert_eq!(answer.body["data"][0]["data"]["payload"]["text"], "wake up");
    }
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

/// Readers are told when numbers start anew: a waiting poll and a socket are both sent to read
/// again.
/// A poll that waits is woken by an event of the new epoch, before the sweep sees that epoch.
#[tokio::test(flavor = "multi_thread")]
async fn no_event_of_a_new_epoch_comes_with_a_cursor_of_the_old_one() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    for _ in 0..5 {
        let head = agent.poll("limit=100").await.expect(200).body["next_cursor"].clone();
        let query = format!("cursor={}&wait=25", head.as_str().expect("a cursor"));
        let restored = async {
            // Real time: the poll waits.
            tokio::time::sleep(Duration::from_millis(200)).await;
            psql(
                &a.world.database,
                "update cluster set restores = restores + 1",
            )
            .await;
            alice.say(&conversation, "new").await.expect(201);
        };
        let (refused, ()) = tokio::join!(agent.poll(&query), restored);
        refused.refused(409, "CURSOR_EXPIRED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_epoch_is_said_to_those_who_wait() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let newest = agent.poll("limit=100").await.expect(200).body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    let socket = agent.on(&b).connect().await;
    let query = format!("cursor={newest}&wait=25");
    let restored = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        psql(
            &a.world.database,
            "update cluster set restores = restores + 1",
        )
        .await;
    };
    let (refused, ()) = tokio::join!(agent.poll(&query), restored);
    let refused = refused.refused(409, "CURSOR_EXPIRED");
    let head = refused.body["error"]["params"]["head"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    assert_ne!(head, newest);
    let before = socket.expect_close(1012).await;
    assert_eq!(before.last().expect("a frame")["type"], "resync_required");
    // The old place is refused on every node, by poll and by socket; the new one works.
    for node in [&a, &b] {
        agent
            .on(node)
            .poll(&format!("cursor={newest}"))
            .await
            .refused(409, "CURSOR_EXPIRED");
        let mut socket = agent.on(node).connect_from(Some(&newest)).await;
        assert_eq!(socket.expect("resync_required").await["head"], head);
        agent
            .on(node)
            .poll(&format!("cursor={head}"))
            .await
            .expect(200);
    }
    alice.say(&conversation, "new").await.expect(201);
    let answer = agent
        .on(&b)
        .poll(&format!("cursor={head}"))
        .await
        .expect(200);
    assert_eq!(answer.body["data"][0]["data"]["payload"]["text"], "new");
}

/// The small form of `loadtest slow`: those who never read cost the others nothing, and lose
/// nothing themselves.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_never_read_do_not_hold_up_fifty_who_do() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    // A process of its own, because tests share the counters of this one.
    let b = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let nodes = [&a.base, &b.base];
    let mut agents = vec![a.agent(&alice, "agent").await];
    let conversation = alice.talk_to(&agents[0]).await;
    let id = uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("an id"));
    for n in 1..50 {
        let agent = a.agent(&alice, &format!("agent{n}")).await;
        let join = format!(
            "insert into member (conversation_id, principal_id, principal_kind, role) values ('{id}', '{}', 'agent', 'agent')",
            agent.id
        );
        psql(&a.world.database, &join).await;
        agents.push(agent);
    }
    psql(&a.world.database, "update conversation set epoch = epoch").await;
    let (mut sleepers, mut readers) = (Vec::new(), Vec::new());
    for (n, agent) in agents.iter().enumerate() {
        sleepers.push(Sleeper::new(&agent.at(nodes[n % 2])).await);
        let mut reader = agent.at(nodes[(n + 1) % 2]).connect().await;
        while reader.next().await.expect("a frame")["type"] != "caught_up" {}
        readers.push(reader);
    }
    // More than a socket's buffers and its mailbox hold together. On a busy machine the sockets are
    // closed for their pace before a mailbox is full.
    let (mut messages, text) = (0, "x".repeat(64 * 1024));
    let let_go = async || {
        let closed = b.metric("sockets_closed_total", "code=\"4410\"").await;
        b.metric("mailbox_dropped_total", "").await + closed
    };
    while messages < 60 || let_go().await < 1.0 {
        messages += 1;
        assert!(messages <= 240, "mailboxes are full and nothing is let go");
        let there = alice.at(nodes[messages % 2]);
        there.say(&conversation, &text).await.expect(201);
        for reader in &mut readers {
            // Nobody waits for a sleeper.
            assert_eq!(
                reader.event("message.created").await["data"]["seq"],
                messages
            );
        }
    }
    for (agent, sleeper) in agents.iter().zip(sleepers) {
        drop(sleeper);
        let mut again = agent.on(&a).connect().await;
        for n in 1..=messages {
            assert_eq!(again.event("message.created").await["data"]["seq"], n);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_older_than_thirty_days_is_gone_and_said_to_be() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    for n in 0..3 {
        alice
            .say(&conversation, &format!("old {n}"))
            .await
            .expect(201);
    }
    let first = agent.poll("limit=1").await.expect(200).body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    // The job that does it comes every ten minutes of real time; here it is called as the job calls
    // it.
    let db = db(&a.world.database);
    let expire = async || inbox::expire(&db, 30).await.expect("an answer");
    a.advance(Duration::from_secs(30 * 86_400 - 60)).await;
    expire().await;
    agent.poll(&format!("cursor={first}")).await.expect(200);
    a.advance(Duration::from_secs(120)).await;
    expire().await;
    for node in [&a, &b] {
        let refused = agent
            .on(node)
            .poll(&format!("cursor={first}"))
            .await
            .refused(409, "CURSOR_EXPIRED");
        let params = &refused.body["error"]["params"];
        assert_eq!(
            params["oldest"], params["head"],
            "nothing is left: {params}"
        );
        let mut socket = agent.on(node).connect_from(Some(&first)).await;
        assert_eq!(
            socket.expect("resync_required").await["head"],
            params["head"]
        );
    }
    // Numbers go on where they were.
    let login = json!({
        "email": alice.email, "account_password": PASSWORD, "turnstile_token": "dev-pass", "device_id": alice.device_id,
    });
    let token = alice.post("/auth/login", login).await.expect(200).data()["access_token"].clone();
    let alice = alice.with_token(token.as_str().expect("a token"));
    let path = format!("/conversations/{conversation}/messages");
    alice
        .post(
            path,
            json!({ "payload": { "type": "text", "text": "new" } }),
        )
        .await
        .expect(201);
    // History is no inbox: it has them all.
    let history = alice
        .get(format!("/conversations/{conversation}/messages"))
        .await
        .expect(200);
    assert_eq!(history.data().as_array().expect("messages").len(), 4);
    let head = first.replace("-1", "-5");
    let answer = agent
        .on(&b)
        .poll(&format!("cursor={head}"))
        .await
        .expect(200);
    assert_eq!(answer.body["data"][0]["data"]["payload"]["text"], "new");
    assert_eq!(answer.body["data"][0]["seq"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_event_said_goes_with_its_last_entry_and_not_before() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice
        .post(
            "/groups",
            json!({ "title": "crew", "member_ids": [bob.id] }),
        )
        .await
        .expect(201);
    let group = group.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    alice.say(&group, "kept").await.expect(201);
    let db = db(&a.world.database);
    let client = connect(&a.world.database).await;
    let counts = async || {
        let sql = "select (select count(*) from event), (select count(*) from inbox_entry), (select count(*) from message),
                   (select count(*) from inbox_entry e where not exists (select from event v where v.event_id = any(e.event_ids))
                                                         and not exists (select from message m where m.conversation_id = e.conversation_id
                                                                                                 and m.seq = e.message_seq))";
        let row = client.query_one(sql, &[]).await.expect("counts");
        let counts: [i64; 4] = std::array::from_fn(|n| row.get(n));
        counts
    };
    let [events, entries, messages, orphans] = counts().await;
    assert!(events > 0 && entries > events && messages == 1 && orphans == 0);
    // More than a batch of old ones, as a cluster has after a month, and their entries.
    client
        .batch_execute(
            "with old as (
                 insert into event (event_id, kind, data, created_at)
                 select gen_random_uuid(), 'member.added', '{}', app_now() - interval '1 day' from generate_series(1, 12000)
                 returning event_id, created_at)
             insert into inbox_entry (principal_id, seq, events, event_ids, created_at)
             select gen_random_uuid(), 1, 1, array[event_id], created_at from old",
        )
        .await
        .expect("filled");
    // The entries of the old ones go a day before the rest; what they said stays for as long as any
    // may be read.
    a.advance(Duration::from_secs(29 * 86_400 + 3600)).await;
    inbox::expire(&db, 30).await.expect("an answer");
    assert_eq!(counts().await, [events + 12_000, entries, 1, 0]);
    a.advance(Duration::from_secs(86_400)).await;
    inbox::expire(&db, 30).await.expect("an answer");
    assert_eq!(counts().await, [events, 0, 1, 0]);
    a.advance(Duration::from_secs(86_400)).await;
    inbox::expire(&db, 30).await.expect("an answer");
    assert_eq!(counts().await, [0, 0, 1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_of_a_closing_socket_counts() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.connect().await;
    for n in 0..10 {
        let text = format!("message {n}");
        alice.say(&conversation, &text).await.expect(201);
        let event = socket.event("message.created").await;
        assert_eq!(event["data"]["payload"]["text"], text);
        socket
            .say(json!({ "type": "ack", "cursor": event["cursor"] }))
            .await;
        socket.say_raw(Message::Close(None)).await;
        socket.until_closed().await;
        // At once, on the other node, and without a cursor: reading starts after the ack.
        socket = agent.on(if n % 2 == 0 { &b } else { &a }).connect().await;
    }
    // A drain writes it as well, before it sends the socket away.
    let mut socket = agent.on(&b).connect().await;
    alice.say(&conversation, "the last").await.expect(201);
    let event = socket.event("message.created").await;
    socket
        .say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    socket.say(json!({ "type": "ping" })).await;
    socket.expect("pong").await;
    tokio::join!(socket.expect_close(1012), b.drain());
    let mut socket = agent.connect().await;
    alice.say(&conversation, "the next").await.expect(201);
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], "the next");
}

/// A restored database gives the same numbers to other events. An ack that was on its way says
/// nothing about them.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_of_an_earlier_epoch_moves_nothing() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.connect().await;
    alice.say(&conversation, "for the agent").await.expect(201);
    let event = socket.event("message.created").await;
    // Committed, and the node hears of it with its next sweep only.
    let restore = "update cluster set restores = restores + 1";
    psql(&a.world.database, restore).await;
    socket
        .say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    socket.expect_close(1012).await;
    // A reader that comes back without a cursor begins behind the ack.
    let mut again = agent.connect().await;
    let told = again.event("message.created").await;
    assert_eq!(told["data"], event["data"]);
}
