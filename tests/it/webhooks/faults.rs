//! Webhooks beside faults: workers that are killed or drained, a Redis that is away, lost wake-ups,
//! hanging receivers.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    BUSY, FAST, blocked_wake_up, deliveries, put, registered, talking, until_caught_up,
    until_logged, until_unreachable,
};
use crate::support::{
    Agent, Call, ProcessNode, Receiver, Reply, TestNode, User, blocked, connect, crowd, nodes,
    nodes_with, private_redis, psql, services, spawn,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_delivery_is_made_again_with_its_id() {
    let [a] = nodes_with(&[BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let mut worker = ProcessNode::start_worker(&a, &[]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(9)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    worker.kill();
    receiver.answer(200);
    let _other = a.world.node_with(&[("WEBHOOK_WORKER", "true")]).await;
    a.advance(Duration::from_secs(31)).await;
    let calls = receiver.receives(4).await;
    assert_eq!(
        (calls[3].delivery(), calls[3].attempt()),
        (calls[2].delivery(), 2)
    );
    let log = until_logged(&alice, &agent, "limit=1", |log| {
        log[0]["status"] == "success"
    });
    assert_eq!(log.await[0]["attempts"][0]["error"], "interrupted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_wake_up_is_found_by_the_sweep() {
    let [a, _b] = nodes().await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    // A closed turn ignores the wake-up.
    let set = |open: bool| format!("update webhook_turn set is_open = {open}, due_at = null");
    tokio::time::sleep(Duration::from_millis(200)).await;
    psql(&a.world.database, &set(false)).await;
    alice.say(&conversation, "one").await.expect(201);
    tokio::time::sleep(Duration::from_millis(200)).await;
    psql(&a.world.database, &set(true)).await;
    // The sweep runs every five seconds.
    receiver.receives(3).await;
    assert_eq!(deliveries(&alice, &agent, "").await.len(), 3);
}

/// The node that stored an event dies before its wake-up, while a turn is under way elsewhere. No
/// sweep helps here.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_that_is_lost_during_a_turn_is_made_up_for() {
    let [worker] = nodes_with(&[BUSY]).await;
    let mut sender = ProcessNode::start_with(&worker, &[("WEBHOOK_WORKER", "false")]).await;
    let (alice, agent, receiver, conversation) = talking(&worker).await;
    until_caught_up(&alice, &agent).await;
    let database = &worker.world.database;
    psql(
        database,
        "update webhook_sweep set swept_until = now() + interval '1 hour'",
    )
    .await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(4)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    // The wake-up of the second message waits for a lock, and its node dies.
    let mut client = connect(database).await;
    let lock = client.transaction().await.expect("begun");
    let held = "select 1 from webhook_turn for update";
    lock.batch_execute(held).await.expect("locked");
    alice
        .at(&sender.base)
        .say(&conversation, "two")
        .await
        .expect(201);
    let admin = connect(&services().postgres.admin_url()).await;
    let pid = loop {
        if let Some(pid) = blocked_wake_up(&admin, database).await {
            break pid;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    sender.kill();
    admin
        .execute("select pg_terminate_backend($1)", &[&pid])
        .await
        .expect("ended");
    lock.rollback().await.expect("released");
    let calls = receiver.receives(4).await;
    assert_eq!(calls[3].text(), "two");
}

/// A failover loses the tail of an agent's inbox while its webhook's turn is under way. The numbers
/// that were delivered name other events then.
#[tokio::test(flavor = "multi_thread")]
async fn events_after_a_lost_tail_are_delivered_whatever_was_delivered_before() {
    let [a, b] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    let bob = b.user("bob").await;
    let other = bob.talk_to(&agent).await;
    receiver.receives(4).await;
    until_caught_up(&alice, &agent).await;
    receiver.behave(|call| match call.text() == "fails" {
        true => Reply::status(500),
        false => Reply::status(200),
    });
    alice.say(&conversation, "fails").await.expect(201);
    bob.say(&other, "before").await.expect(201);
    receiver.receives(6).await;
    until_logged(&alice, &agent, "status=success", |log| log.len() == 5).await;
    let lost = format!(
        "update cluster set restores = restores + 1;
         delete from inbox_entry where principal_id = '{0}' and seq > 5;
         update inbox set head_seq = 5 where principal_id = '{0}'",
        agent.id
    );
    psql(&a.world.database, &lost).await;
    receiver.answer(200);
    bob.on(&a).say(&other, "after").await.expect(201);
    let mut calls = 6;
    loop {
        calls += 1;
        let heard = receiver.receives(calls).await;
        if heard[calls - 1].text() == "after" {
            return;
        }
    }
}

/// A wait for a lock fails a step of a turn. Its calls go on, and each event comes once.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_outlives_a_failure_of_postgres() {
    let [a] = nodes_with(&[BUSY, ("DATABASE_TIMEOUT_MS", "1000")]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    until_caught_up(&alice, &agent).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(7)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    let mut client = connect(&a.world.database).await;
    let lock = client.transaction().await.expect("begun");
    let held = "lock table webhook_delivery in access exclusive mode";
    lock.batch_execute(held).await.expect("locked");
    // As a replay does that is asked for by hand; the worker looks every two seconds.
    let replay = "update webhook_turn set is_woken = true, has_replays = true";
    psql(&a.world.database, replay).await;
    // Real time: until the worker has looked and has waited for the lock.
    tokio::time::sleep(Duration::from_secs(4)).await;
    lock.rollback().await.expect("released");
    receiver.behave(|_| Reply::status(200));
    let since = Instant::now();
    alice.say(&conversation, "two").await.expect(201);
    receiver.receives(4).await;
    until_caught_up(&alice, &agent).await;
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "it waited for the lease"
    );
    let calls = receiver.messages();
    let texts: Vec<&str> = calls.iter().map(Call::text).collect();
    assert_eq!(texts, ["one", "two"]);
}

/// Large events of many agents whose receivers hold their answers. A node keeps a few megabytes of
/// each, and all of them within its budget.
#[tokio::test(flavor = "multi_thread")]
async fn turns_hold_a_bounded_part_of_a_backlog() {
    let [a] = nodes_with(&[BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let (alice, agent, receiver, conversation) = talking_without_a_worker(&a).await;
    let text = "x".repeat(900_000);
    for _ in 0..30 {
        alice.say(&conversation, &text).await.expect(201);
    }
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(2)));
    let worker = ProcessNode::start_worker(&a, &[]).await;
    receiver.receives(1).await;
    let since = Instant::now();
    let mut most = 0.0_f64;
    while since.elapsed() < Duration::from_secs(5) {
        most = most.max(worker.metric("buffer_bytes", "").await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(most > 500_000.0, "nothing was counted: {most}");
    assert!(most <= 5_000_000.0, "{most} bytes");
    receiver.answer(200);
    until_caught_up(&alice, &agent).await;
    assert_eq!(receiver.messages().len(), 30);
}

/// An agent with a webhook that nobody calls yet, its owner and their conversation.
async fn talking_without_a_worker(node: &TestNode) -> (User, Agent, Receiver, String) {
    let (alice, agent, receiver) = registered(node).await;
    let conversation = alice.talk_to(&agent).await;
    (alice, agent, receiver, conversation)
}

/// An outage leaves more entries than a piece of the sweep reads. It goes through all of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_of_lost_wake_ups_goes_on_piece_by_piece() {
    let [a] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    until_caught_up(&alice, &agent).await;
    let database = &a.world.database;
    let crowd = crowd(database, 1).await;
    let set = |open: bool| format!("update webhook_turn set is_open = {open}, due_at = null");
    psql(database, &set(false)).await;
    let owner = uuid::Uuid::from(crowd[0].parse::<ulid::Ulid>().expect("an id"));
    // Half of them at one moment, as a statement to many inboxes leaves them.
    let backlog = format!(
        "update webhook_sweep set swept_until = now() - interval '2 minutes';
         insert into inbox_entry (principal_id, seq, events, conversation_id, message_seq, created_at)
         select '{owner}', n, 1, '{owner}', n, now() - interval '1 minute' + greatest(0, n - 15000) * interval '1 ms'
         from generate_series(1, 30000) n"
    );
    psql(database, &backlog).await;
    alice.say(&conversation, "one").await.expect(201);
    tokio::time::sleep(Duration::from_millis(200)).await;
    psql(database, &set(true)).await;
    receiver.receives(3).await;
    assert_eq!(deliveries(&alice, &agent, "").await.len(), 3);
}

/// A node that ends while Postgres is slow: it has a wake-up to write, and noted another meanwhile.
/// Without these, the events would wait for the sweep.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_writes_the_wake_ups_that_it_has_noted() {
    let [worker] = nodes_with(&[BUSY]).await;
    let (alice, first, _, to_first) = talking(&worker).await;
    let (bob, _, _, to_second) = talking(&worker).await;
    let world = worker.world.clone();
    let sender = world.node_with(&[("WEBHOOK_WORKER", "false")]).await;
    let [alice, bob] = [alice.on(&sender), bob.on(&sender)];
    worker.drain().await;
    let mut client = connect(&world.database).await;
    let lock = client.transaction().await.expect("begun");
    let agent = first.id.parse::<uuid::Uuid>().expect("an id");
    let held = "select 1 from webhook_turn where agent_id = $1 for update";
    lock.execute(held, &[&agent]).await.expect("locked");
    alice.say(&to_first, "one").await.expect(201);
    blocked(&lock, 1).await;
    bob.say(&to_second, "one").await.expect(201);
    let drained = spawn(sender.drain());
    // A drain with no call under way comes to its tasks at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    lock.rollback().await.expect("released");
    drained.await.expect("no panic");
    let due = "select count(*) from webhook_turn where due_at is not null";
    let due = client.query_one(due, &[]).await.expect("a count");
    assert_eq!(due.get::<_, i64>(0), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_receiver_delays_nobody_else() {
    let [a] = nodes_with(&[BUSY, ("EGRESS_MAX_IN_FLIGHT", "8")]).await;
    let hanging = Receiver::start().await;
    let (alice, agent, receiver) = registered(&a).await;
    let other = a.agent(&alice, "other").await;
    put(&alice, &other, &hanging.url).await;
    hanging.behave(|_| Reply::status(200).after(Duration::from_secs(60)));
    let busy = alice.talk_to(&other).await;
    hanging.receives(1).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    for n in 0..20 {
        alice.say(&busy, "x").await.expect(201);
        let started = Instant::now();
        alice.say(&conversation, "y").await.expect(201);
        receiver.receives(3 + n).await;
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
    }
    let calls = hanging.events().len();
    assert!(calls <= 3, "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_in_the_eighth_attempt_leaves_no_ninth() {
    let [a] = nodes_with(&[FAST, BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let mut worker = ProcessNode::start_worker(&a, &[]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|call| match call.attempt() {
        8 => Reply::status(200).after(Duration::from_secs(9)),
        _ => Reply::status(500),
    });
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(2 + 8).await;
    worker.kill();
    receiver.answer(200);
    let _other = a.world.node_with(&[("WEBHOOK_WORKER", "true")]).await;
    a.advance(Duration::from_secs(31)).await;
    until_unreachable(&alice, &agent).await;
    let log = deliveries(&alice, &agent, "status=exhausted").await;
    let attempts = log[0]["attempts"].as_array().expect("a list");
    assert_eq!(attempts.len(), 8);
    assert_eq!(attempts[7]["error"], "interrupted");
    assert_eq!(receiver.messages().len(), 8);
    // The event is not lost: after an ack it is a new delivery.
    let ack = format!("/agents/{}/ack", agent.id);
    agent.post(ack, serde_json::json!({})).await.expect(200);
    let calls = receiver.receives(2 + 8 + 1).await;
    assert_eq!(calls[10].attempt(), 1);
    assert_ne!(calls[10].delivery(), calls[9].delivery());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_the_calls_under_way_and_begins_no_other() {
    let [a] = nodes_with(&[BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let mut worker = ProcessNode::start_worker(&a, &[]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(2)));
    alice.say(&conversation, "one").await.expect(201);
    alice.say(&conversation, "two").await.expect(201);
    receiver.receives(3).await;
    let pid = Pid::from_raw(worker.pid().cast_signed()).expect("a process");
    kill_process(pid, Signal::TERM).expect("told");
    let began = Instant::now();
    assert_eq!(worker.ended(Duration::from_secs(30)).await, Some(0));
    assert!(
        began.elapsed() > Duration::from_secs(1),
        "it waited for the answer"
    );
    let log = deliveries(&alice, &agent, "limit=1").await;
    assert_eq!(log[0]["status"], "success", "{log:?}");
    assert_eq!(log[0]["attempts"].as_array().map(Vec::len), Some(1));
    receiver.answer(200);
    // Nobody has to wait for a lease of the drained worker.
    let _other = a.world.node_with(&[("WEBHOOK_WORKER", "true")]).await;
    until_caught_up(&alice, &agent).await;
    assert_eq!(receiver.texts(), ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_go_on_while_redis_is_away() {
    let mut redis = private_redis("webhooks-away").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[FAST, BUSY, ("REDIS_URL", &url)]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|call| {
        let fails = call.seq() % 4 == 0 && call.attempt() == 1;
        Reply::status(if fails { 500 } else { 200 })
    });
    redis.kill();
    for n in 0..20 {
        let alice = alice.on(if n % 2 == 0 { &a } else { &b });
        alice.say(&conversation, &n.to_string()).await.expect(201);
    }
    until_caught_up(&alice, &agent).await;
    let restarted = tokio::task::spawn_blocking(move || redis.restart().map(|()| redis));
    let _redis = restarted.await.expect("no panic").expect("restarted");
    for n in 20..30 {
        alice.say(&conversation, &n.to_string()).await.expect(201);
    }
    until_caught_up(&alice, &agent).await;
    let calls = receiver.messages();
    let answered = |call: &&Call| call.seq() % 4 != 0 || call.attempt() > 1;
    let texts: Vec<&str> = calls.iter().filter(answered).map(Call::text).collect();
    let expected: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    assert_eq!(texts, expected, "each once and in order");
}
