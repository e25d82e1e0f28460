//! Webhooks as the third reader of the inbox: order, retries, reachability, and the change between
//! transports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{Agent, Call, Receiver, Reply, TestNode, User, nodes_with, psql, spawn};

/// All seven retries within about a second.
const FAST: (&str, &str) = ("WEBHOOK_RETRY_SECONDS", "1");
/// More calls than a user may make otherwise.
pub const BUSY: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "default_user=10000/min,user_message_send=1000/s,agent_poll=1000/s,ws_connect=1000/s",
);

pub async fn agent_with(node: &TestNode, url: &str) -> (User, Agent) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let body = json!({ "url": url });
    let shown = alice.put(agent.webhook(""), body).await.expect(200);
    assert_eq!(shown.data()["status"], "active", "{}", shown.body);
    (alice, agent)
}

pub async fn deliveries(by: &User, agent: &Agent, query: &str) -> Vec<Value> {
    let path = format!("/agents/{}/deliveries?{query}", agent.id);
    let answer = by.get(path).await.expect(200);
    answer.data().as_array().expect("a list").clone()
}

async fn shown(by: &User, agent: &Agent) -> Value {
    let answer = by.get(format!("/agents/{}", agent.id)).await.expect(200);
    answer.data().clone()
}

/// Waits until the agent is in a state, or has acked something.
async fn until(by: &User, agent: &Agent, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let now = shown(by, agent).await;
        if holds(&now) {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not {what}: {}", shown(by, agent).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn seven_failed_retries_make_an_agent_unreachable_until_it_acks() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    receiver.answer(500);
    let mut owner = alice.on(&b).connect().await;
    alice.say(&conversation, "one").await.expect(201);
    alice.say(&conversation, "two").await.expect(201);
    let told = owner.event("agent.state_changed").await;
    assert_eq!(told["data"]["state"], "unreachable");

    let calls = receiver.messages();
    let attempts: Vec<i64> = calls.iter().map(Call::attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5, 6, 7, 8]);
    let ids: BTreeSet<&str> = calls.iter().map(Call::delivery).collect();
    assert_eq!(ids.len(), 1, "the id is stable");
    let signatures: BTreeSet<&str> = calls
        .iter()
        .map(|call| call.header("webhook-signature"))
        .collect();
    assert_eq!(
        signatures.len(),
        8,
        "each attempt has a signature of its own"
    );
    let log = deliveries(&alice, &agent, "status=exhausted").await;
    assert_eq!(log.len(), 1);
    assert_eq!(log[0]["attempts"].as_array().expect("a list").len(), 8);
    let now = shown(&alice, &agent).await;
    assert_eq!(now["state"], "unreachable");
    assert!(now["unreachable_since"].is_string());

    // Sends are accepted, and nothing is delivered.
    receiver.answer(200);
    alice.say(&conversation, "three").await.expect(201);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.messages().len(), 8);

    let acked = agent
        .on(&b)
        .post(format!("/agents/{}/ack", agent.id), json!({}))
        .await;
    assert_eq!(acked.expect(200).data()["state"], "active");
    assert_eq!(
        owner.event("agent.state_changed").await["data"]["state"],
        "active"
    );
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
    assert_eq!(receiver.texts()[8..], ["one", "two", "three"]);
    assert_eq!(receiver.messages()[8].attempt(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_in_the_middle_of_an_outage_gets_everything_once() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    receiver.answer(500);
    alice.say(&conversation, "one").await.expect(201);
    until(&alice, &agent, "unreachable", |now| {
        now["state"] == "unreachable"
    })
    .await;
    alice.say(&conversation, "two").await.expect(201);
    receiver.answer(200);

    let mut socket = agent.on(&b).connect().await;
    for text in ["one", "two"] {
        let event = socket.event("message.created").await;
        assert_eq!(event["data"]["payload"]["text"], text);
    }
    let cursor = socket.cursor.clone();
    socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    until(&alice, &agent, "active", |now| now["state"] == "active").await;
    alice.say(&conversation, "three").await.expect(201);
    let event = socket.event("message.created").await;
    assert_eq!(event["data"]["payload"]["text"], "three");
    let cursor = socket.cursor.clone();
    socket.say(json!({ "type": "ack", "cursor": cursor })).await;
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
    assert_eq!(
        receiver.texts().len(),
        8,
        "a socket is online, so nothing is posted"
    );
    drop(socket);
    alice.say(&conversation, "four").await.expect(201);
    receiver
        .until("take-over", |calls| calls.len() == 2 + 8 + 1)
        .await;
    assert_eq!(receiver.texts()[8..], ["four"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_serial_and_three_run_side_by_side() {
    let [a, _b] = nodes_with(&[BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
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
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
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
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
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
    let mut socket = crate::support::Socket::open(&agent.on(&b).caller).await;
    let auth = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
    socket.say(auth).await;
    let refused = socket.next().await.expect("a frame");
    assert_eq!(refused["reason"], "connection_limit");
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
    agent.on(&b).connect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_may_ask_for_a_pause_or_for_the_end() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    receiver.behave(|call| Reply {
        retry_after: Some(1800),
        ..Reply::status(if (call.seq(), call.attempt()) == (3, 1) {
            429
        } else {
            200
        })
    });
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    let mut failed = Vec::new();
    for _ in 0..100 {
        failed = deliveries(&alice, &agent, "status=failed").await;
        if !failed.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(failed[0]["next_attempt_at"].is_string());
    // Other events wait, too: the receiver asked for a pause.
    alice.say(&conversation, "two").await.expect(201);
    a.advance(Duration::from_secs(1700)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.messages().len(), 1);
    b.advance(Duration::from_secs(120)).await;
    let alice = alice.refreshed().await;
    receiver
        .until("three messages", |calls| calls.len() >= 5)
        .await;
    assert_eq!(receiver.texts(), ["one", "one", "two"]);

    receiver.answer(410);
    alice.say(&conversation, "three").await.expect(201);
    until(&alice, &agent, "unreachable", |now| {
        now["state"] == "unreachable"
    })
    .await;
    assert_eq!(receiver.messages().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_take_the_send_path_once() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    let text = |text: &str| json!({ "payload": { "type": "text", "text": text } });
    let good = json!([text("one"), text("two")]);
    let many = json!([text("1"), text("2"), text("3"), text("4")]);
    receiver.behave(
        move |call| match call.body["data"]["payload"]["text"].as_str() {
            Some("hello") => Reply::messages(good.clone()),
            Some("mixed") => {
                Reply::messages(json!([{ "payload": { "no": "type" } }, text("three")]))
            }
            Some("many") => Reply::messages(many.clone()),
            _ => Reply::status(200),
        },
    );
    let mut socket = alice.on(&b).connect().await;
    for said in ["hello", "mixed", "many"] {
        alice.say(&conversation, said).await.expect(201);
    }
    let mut heard = Vec::new();
    while heard.len() < 6 {
        let event = socket.event("message.created").await;
        heard.push(
            event["data"]["payload"]["text"]
                .as_str()
                .expect("a text")
                .to_owned(),
        );
    }
    let replies: Vec<&String> = heard
        .iter()
        .filter(|text| ["one", "two", "three"].contains(&text.as_str()))
        .collect();
    assert_eq!(replies, ["one", "two", "three"]);
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
    let log = deliveries(&alice, &agent, "").await;
    assert_eq!(
        log[0]["attempts"][0]["replies"],
        json!([{ "code": "VALIDATION_ERROR" }])
    );
    assert_eq!(
        log[1]["attempts"][0]["replies"][0],
        json!({ "code": "VALIDATION_ERROR" })
    );
    assert!(log[1]["attempts"][0]["replies"][1]["message_id"].is_string());

    // The same delivery again: the same id, an attempt more, and no message more.
    let id = log[2]["delivery_id"].as_str().expect("an id");
    let path = format!("/agents/{}/deliveries/{id}/redeliver", agent.id);
    agent.on(&b).post(&path, json!({})).await.expect(200);
    let calls = receiver.until("a replay", |calls| calls.len() == 6).await;
    assert_eq!((calls[5].delivery(), calls[5].attempt()), (id, 2));
    for _ in 0..100 {
        let log = deliveries(&alice, &agent, "").await;
        if log[2]["status"] == "success" && log[2]["attempts"].as_array().map(Vec::len) == Some(2) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let log = deliveries(&alice, &agent, "").await;
    let sent = |n: usize| log[2]["attempts"][n]["replies"][0]["message_id"].clone();
    assert_eq!(sent(0), sent(1));
    let history = alice
        .get(format!("/conversations/{conversation}/messages"))
        .await;
    assert_eq!(
        history.expect(200).data().as_array().expect("a list").len(),
        6
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_cuts_and_suspends_the_webhook() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(3)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    let path = format!("/agents/{}/token/regenerate", agent.id);
    let regenerated = alice.on(&b).post(&path, json!({ "emergency": true })).await;
    let token = regenerated.expect(200).data()["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let suspended = alice.get(agent.webhook("")).await.expect(200);
    assert_eq!(suspended.data()["status"], "suspended");
    // The call was cut, so the event counts as undelivered. A second is more than the cut needs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    receiver.answer(200);
    let log = deliveries(&alice, &agent, "status=pending").await;
    assert_eq!(log.len(), 1);
    let agent = Agent {
        caller: agent.with_token(&token),
        ..agent
    };
    for (method, path) in [("PUT", ""), ("POST", "/verify"), ("POST", "/rotate-secret")] {
        let method = method.parse().expect("a method");
        let request = agent.request(method, agent.webhook(path));
        let request = request.json(&json!({ "url": receiver.url }));
        agent.send(request).await.refused(403, "FORBIDDEN");
    }
    alice
        .post(agent.webhook("/test"), json!({}))
        .await
        .refused(403, "FORBIDDEN");

    let resumed = alice
        .post(agent.webhook("/verify"), json!({}))
        .await
        .expect(200);
    assert_eq!(resumed.data()["status"], "active");
    assert!(
        resumed.data()["secret"]
            .as_str()
            .expect("a new one")
            .starts_with("whsec_")
    );
    let calls = receiver.receives(4).await;
    assert_eq!(
        (calls[3].delivery(), calls[3].attempt()),
        (calls[2].delivery(), 2)
    );
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
    let log = deliveries(&alice, &agent, "limit=1").await;
    assert_eq!(log[0]["attempts"][0]["error"], "interrupted");

    // An ordinary regeneration changes nothing.
    alice
        .post(&path, json!({ "emergency": false }))
        .await
        .expect(200);
    alice.say(&conversation, "two").await.expect(201);
    receiver.receives(5).await;

    alice
        .delete(format!("/agents/{}", agent.id))
        .await
        .expect(200);
    for _ in 0..200 {
        let sql = "select 1 from webhook union all select 1 from webhook_delivery";
        let rows = psql(&a.world.database, sql).await;
        if rows
            .iter()
            .all(|row| !matches!(row, tokio_postgres::SimpleQueryMessage::Row(_)))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the log of a deleted agent is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_transports_under_load_loses_nothing() {
    const MESSAGES: i64 = 300;
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let receiver = Receiver::start().await;
    let (alice, agent) = agent_with(&a, &receiver.url).await;
    let conversation = alice.talk_to(&agent).await;
    receiver.receives(2).await;
    let sender = spawn({
        let alice = alice.clone();
        async move {
            for n in 0..MESSAGES {
                alice.say(&conversation, &n.to_string()).await.expect(201);
                tokio::time::sleep(Duration::from_millis(8)).await;
            }
        }
    });
    let mut pulled = Vec::new();
    let seq = |event: &Value| event["seq"].as_i64().expect("a number");
    for turn in 0..6 {
        let agent = agent.on(if turn % 2 == 0 { &a } else { &b });
        // A socket that finds all slots taken by calls tries again.
        let mut socket = loop {
            let mut socket = crate::support::Socket::open(&agent.caller).await;
            let auth = json!({ "type": "auth", "agent_id": agent.id, "token": agent.token });
            socket.say(auth).await;
            if socket.next().await.expect("a frame")["type"] == "auth.ok" {
                break socket;
            }
        };
        for _ in 0..10 {
            let event = socket.event("message.created").await;
            pulled.push(seq(&event));
        }
        let cursor = socket.cursor.clone();
        socket.say(json!({ "type": "ack", "cursor": cursor })).await;
        drop(socket);
        let before = receiver.events().len();
        receiver
            .until("calls", |calls| {
                calls.len() >= before + 5 || sender.is_finished()
            })
            .await;
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
    until(&alice, &agent, "caught up", |now| now["inbox"]["lag"] == 0).await;
    let posted: Vec<i64> = receiver.events().iter().map(Call::seq).collect();
    let all: BTreeSet<i64> = posted.iter().chain(&pulled).copied().collect();
    assert_eq!(all, (1..=MESSAGES + 2).collect(), "one gapless stream");
    assert!(
        posted.is_sorted_by(|a, b| a < b),
        "no call is repeated: {posted:?}"
    );
}
