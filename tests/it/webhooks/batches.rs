//! Calls that bring several events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{BUSY, FAST, deliveries, stops::stop, until_caught_up, until_logged};
use crate::support::{Agent, Call, Receiver, Reply, TestNode, User, nodes_with};

/// An agent of Alice with a webhook for so many events a call.
async fn batched(node: &TestNode, max_events: u32) -> (User, Agent, Receiver) {
    let alice = node.user("alice").await;
    let agent = node.agent(&alice, "helper").await;
    let receiver = Receiver::start().await;
    let body = json!({ "url": receiver.url, "max_events": max_events });
    let shown = alice.put(agent.webhook(""), body).await.expect(200);
    assert_eq!(shown.data()["status"], "active", "{}", shown.body);
    assert_eq!(shown.data()["max_events"], max_events);
    (alice, agent, receiver)
}

/// Users with a conversation each.
async fn users(node: &TestNode, alice: &User, agent: &Agent) -> Vec<(User, String)> {
    let mut users = Vec::new();
    for n in 0..4 {
        let user = node.user(&format!("user{n}")).await;
        let conversation = user.talk_to(agent).await;
        users.push((user, conversation));
    }
    until_caught_up(alice, agent).await;
    users
}

/// The answer to the call that is held back, so that what is said meanwhile waits for the next one.
fn held(call: &Call, gate: &Arc<Notify>) -> Option<Reply> {
    let mut events = events(call).into_iter();
    events.find(|one| text(one) == "slow")?;
    Some(Reply::status(200).once(gate))
}

/// The events of a call.
fn events(call: &Call) -> Vec<Value> {
    call.body["events"].as_array().cloned().unwrap_or_default()
}

fn text(event: &Value) -> &str {
    event["data"]["payload"]["text"]
        .as_str()
        .unwrap_or_default()
}

/// The texts of a call's messages.
fn texts(call: &Call) -> Vec<String> {
    let said = events(call);
    let said = said.iter().filter(|one| one["event"] == "message.created");
    said.map(|one| text(one).to_owned()).collect()
}

/// The calls with messages.
fn calls(receiver: &Receiver) -> Vec<Call> {
    let mut all = receiver.all();
    all.retain(|call| !texts(call).is_empty());
    all
}

/// Says texts while a call is held back.
async fn say_during_a_call(users: &[(User, String)], receiver: &Receiver, said: &[(usize, &str)]) {
    let (first, conversation) = &users[0];
    let before = calls(receiver).len();
    first.say(conversation, "slow").await.expect(201);
    while calls(receiver).len() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (n, words) in said {
        let (user, conversation) = &users[*n];
        user.say(conversation, words).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_brings_the_events_of_several_conversations_in_their_order() {
    let [a, _b] = nodes_with(&[BUSY, ("WEBHOOK_CONVERSATIONS", "1")]).await;
    let (alice, agent, receiver) = batched(&a, 50).await;
    let users = users(&a, &alice, &agent).await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    receiver.behave(move |call| held(call, &opened).unwrap_or(Reply::status(200)));
    let said: Vec<(usize, String)> = (0..80).map(|n| (n % 4, n.to_string())).collect();
    let said: Vec<(usize, &str)> = said.iter().map(|(n, words)| (*n, words.as_str())).collect();
    say_during_a_call(&users, &receiver, &said).await;
    gate.notify_one();
    until_caught_up(&alice, &agent).await;

    let calls = calls(&receiver);
    assert!(calls.len() <= 5, "{} calls for 81 events", calls.len());
    let most = calls.iter().map(|call| events(call).len()).max();
    assert_eq!(most, Some(50));
    let mut heard: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut ids, mut deliveries) = (BTreeSet::new(), BTreeSet::new());
    for call in &calls {
        assert_eq!(call.body["agent_id"], json!(agent.id));
        assert!(
            ids.insert(call.header("webhook-id").to_owned()),
            "an id of its own"
        );
        for event in events(call) {
            assert_eq!(event["attempt"], 1);
            assert!(
                event["cursor"].is_string() && event["seq"].is_i64(),
                "{event}"
            );
            let delivery = event["delivery_id"].as_str().expect("a delivery");
            assert!(deliveries.insert(delivery.to_owned()), "each once");
            let conversation = event["conversation_id"].as_str().expect("a conversation");
            let own = heard.entry(conversation.to_owned()).or_default();
            own.push(text(&event).to_owned());
        }
    }
    for (n, (_, conversation)) in users.iter().enumerate() {
        let own = said.iter().filter(|(whose, _)| *whose == n);
        let own = own.map(|(_, words)| (*words).to_owned());
        let slow = (n == 0).then(|| "slow".to_owned());
        assert_eq!(
            heard[conversation],
            Vec::from_iter(slow.into_iter().chain(own))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_call_its_events_come_one_by_one() {
    let [a, _b] = nodes_with(&[FAST, BUSY, ("WEBHOOK_CONVERSATIONS", "1")]).await;
    let (alice, agent, receiver) = batched(&a, 50).await;
    let users = users(&a, &alice, &agent).await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    receiver.behave(move |call| {
        let events = events(call);
        let poison = events.iter().find(|one| text(one) == "poison");
        match poison {
            Some(poison) if poison["attempt"].as_i64() < Some(3) => Reply::status(500),
            _ => held(call, &opened).unwrap_or(Reply::status(200)),
        }
    });
    let said = [(1, "before"), (1, "poison"), (1, "after"), (2, "elsewhere")];
    say_during_a_call(&users, &receiver, &said).await;
    gate.notify_one();
    until_caught_up(&alice, &agent).await;

    let calls = calls(&receiver);
    assert_eq!(texts(&calls[1]), ["before", "poison", "after", "elsewhere"]);
    let later: Vec<Vec<String>> = calls[2..].iter().map(texts).collect();
    assert!(
        later.iter().all(|texts| texts.len() == 1),
        "alone: {later:?}"
    );
    let of_one: Vec<String> = later
        .concat()
        .into_iter()
        .filter(|text| text != "elsewhere")
        .collect();
    assert_eq!(of_one, ["before", "poison", "poison", "after"], "{later:?}");
    let log = deliveries(&alice, &agent, "limit=100").await;
    let seq = events(&calls[1])[1]["seq"].clone();
    let poison = log.iter().find(|one| one["seq"] == seq).expect("logged");
    assert_eq!(poison["status"], "success");
    assert_eq!(poison["attempts"].as_array().map(Vec::len), Some(3));
    assert_eq!(poison["attempts"][0]["error"], "unexpected_status");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_the_events_that_have_failed() {
    let [a, _b] = nodes_with(&[FAST, BUSY, ("WEBHOOK_CONVERSATIONS", "1")]).await;
    let (alice, agent, receiver) = batched(&a, 50).await;
    let users = users(&a, &alice, &agent).await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    receiver.behave(move |call| {
        let events = events(call);
        if let Some(held) = held(call, &opened) {
            return held;
        }
        let failed = events
            .iter()
            .filter(|one| text(one) == "bad" && one["attempt"] == 1)
            .map(|one| one["delivery_id"].clone());
        let body = match events
            .iter()
            .any(|one| text(one) == "riddle" && one["attempt"] == 1)
        {
            true => json!({ "failed": ["no id"] }),
            false => json!({ "failed": Vec::from_iter(failed) }),
        };
        Reply {
            body,
            ..Reply::status(200)
        }
    });
    let said = [(1, "good"), (1, "bad"), (1, "behind"), (2, "elsewhere")];
    say_during_a_call(&users, &receiver, &said).await;
    gate.notify_one();
    until_caught_up(&alice, &agent).await;
    let came = |receiver: &Receiver| calls(receiver).iter().flat_map(texts).collect::<Vec<_>>();
    let expected = [
        "slow",
        "good",
        "bad",
        "behind",
        "elsewhere",
        "bad",
        "behind",
    ];
    assert_eq!(came(&receiver), expected);
    let attempts = |log: &[Value], seq: &Value| {
        let one = log.iter().find(|one| one["seq"] == *seq).expect("logged");
        one["attempts"].as_array().expect("a list").clone()
    };
    let log = deliveries(&alice, &agent, "limit=100").await;
    let batch = events(&calls(&receiver)[1]);
    for (event, n) in batch.iter().zip([1, 2, 2, 1]) {
        let attempts = attempts(&log, &event["seq"]);
        assert_eq!(attempts.len(), n, "{}", text(event));
        let error = if n == 2 {
            json!("reported")
        } else {
            Value::Null
        };
        assert_eq!(attempts[0]["error"], error, "{}", text(event));
        assert_eq!(attempts[0]["response_status"], 200);
    }
    // A list that cannot be read may name any of them.
    say_during_a_call(&users, &receiver, &[(3, "riddle"), (2, "beside")]).await;
    gate.notify_one();
    until_caught_up(&alice, &agent).await;
    let mut again = came(&receiver).split_off(expected.len());
    again.sort();
    assert_eq!(again, ["beside", "beside", "riddle", "riddle", "slow"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_go_to_the_conversations_of_their_events() {
    let [a, b] = nodes_with(&[FAST, BUSY, ("WEBHOOK_CONVERSATIONS", "1")]).await;
    let (alice, agent, receiver) = batched(&a, 10).await;
    let users = users(&a, &alice, &agent).await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    receiver.behave(move |call| {
        let replies = events(call).into_iter().filter_map(|one| {
            let said = format!("re: {}", text(&one));
            let message = json!({ "payload": { "type": "text", "text": said } });
            let of_user = one["data"]["sender"]["kind"] != "agent" && text(&one).len() == 1;
            let reply = json!({ "delivery_id": one["delivery_id"], "messages": [message] });
            of_user.then_some(reply)
        });
        let body = json!({ "replies": Vec::from_iter(replies) });
        held(call, &opened).unwrap_or(Reply {
            body,
            ..Reply::status(200)
        })
    });
    say_during_a_call(&users, &receiver, &[(1, "1"), (2, "2"), (1, "3")]).await;
    gate.notify_one();
    until_logged(&alice, &agent, "status=success&limit=100", |log| {
        log.len() >= 12
    })
    .await;
    until_caught_up(&alice, &agent).await;
    for (n, expected) in [
        (1, vec!["1", "3", "re: 1", "re: 3"]),
        (2, vec!["2", "re: 2"]),
        (3, vec![]),
    ] {
        let (user, conversation) = &users[n];
        let path = format!("/conversations/{conversation}/messages");
        let page = user.on(&b).get(path).await.expect(200);
        let mut said: Vec<&str> = page
            .data()
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["payload"]["text"].as_str().expect("a text"))
            .collect();
        said.sort_unstable();
        assert_eq!(said, expected, "user {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_stays_below_a_megabyte() {
    let [a, _b] = nodes_with(&[BUSY, ("WEBHOOK_CONVERSATIONS", "1")]).await;
    let (alice, agent, receiver) = batched(&a, 50).await;
    let users = users(&a, &alice, &agent).await;
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    receiver.behave(move |call| held(call, &opened).unwrap_or(Reply::status(200)));
    let large = "x".repeat(300_000);
    let said: Vec<String> = (0..7).map(|n| format!("{n}{large}")).collect();
    let said: Vec<(usize, &str)> = said.iter().map(|words| (1, words.as_str())).collect();
    say_during_a_call(&users, &receiver, &said).await;
    gate.notify_one();
    until_caught_up(&alice, &agent).await;
    let calls = calls(&receiver);
    for call in &calls {
        assert!(call.raw.len() <= 1 << 20, "{} bytes", call.raw.len());
    }
    let numbers: String = calls
        .iter()
        .flat_map(texts)
        .filter_map(|text| text.chars().next())
        .collect();
    assert_eq!(numbers, "s0123456");
    assert!(calls.iter().any(|call| texts(call).len() == 3), "three fit");
}

/// The deliveries of its conversation wait for the call of a stop, and those of others do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_is_answered_is_in_no_batch_and_holds_up_its_conversation_alone() {
    let [a, _b] = nodes_with(&[BUSY, ("WEBHOOK_CONVERSATIONS", "1")]).await;
    let (alice, agent, receiver) = batched(&a, 50).await;
    let users = users(&a, &alice, &agent).await;
    let [gate, stop_gate] = [(); 2].map(|()| Arc::new(Notify::new()));
    let (opened, stopped) = (gate.clone(), stop_gate.clone());
    receiver.behave(move |call| match call.event() {
        "turn.stop" => Reply::status(200).once(&stopped),
        _ => held(call, &opened).unwrap_or(Reply::status(200)),
    });
    say_during_a_call(&users, &receiver, &[(1, "before")]).await;
    let (user, conversation) = &users[1];
    stop(user, conversation).await;
    let stops = || {
        let mut all = receiver.all();
        all.retain(|call| call.event() == "turn.stop");
        all
    };
    while stops().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    user.say(conversation, "after").await.expect(201);
    let (other, elsewhere) = &users[2];
    other.say(elsewhere, "elsewhere").await.expect(201);
    gate.notify_one();
    let came = || calls(&receiver).iter().flat_map(texts).collect::<Vec<_>>();
    while came().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        came(),
        ["slow", "before", "elsewhere"],
        "the stop is under way"
    );
    stop_gate.notify_one();
    until_caught_up(&alice, &agent).await;
    assert_eq!(came(), ["slow", "before", "elsewhere", "after"]);
    assert_eq!(
        stops().len(),
        1,
        "a call of its own, in the form of one event"
    );
    let all: Vec<Value> = receiver.all().iter().flat_map(events).collect();
    assert!(all.iter().all(|one| one["event"] != "turn.stop"));
    let attempts = all.iter().map(|one| one["attempt"].clone());
    assert!(
        attempts.into_iter().all(|attempt| attempt == 1),
        "waiting is no attempt"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_events_of_a_call_are_chosen_with_the_address() {
    let [a, b] = nodes_with(&[BUSY]).await;
    let (alice, agent, receiver) = batched(&a, 2).await;
    let put = async |max_events: Value| {
        let body = json!({ "url": receiver.url, "max_events": max_events });
        alice.put(agent.webhook(""), body).await
    };
    for bad in [json!(0), json!(51), json!(-1), json!("2")] {
        put(bad).await.refused(400, "VALIDATION_ERROR");
    }
    let shown = alice.on(&b).get(agent.webhook("")).await.expect(200);
    assert_eq!(shown.data()["max_events"], 2);
    let conversation = alice.talk_to(&agent).await;
    until_caught_up(&alice, &agent).await;
    assert!(
        receiver.events().is_empty(),
        "one event comes in the form of a batch, too"
    );
    // Without it there is one event a call again.
    let shown = alice
        .put(agent.webhook(""), json!({ "url": receiver.url }))
        .await;
    assert_eq!(shown.expect(200).data()["max_events"], 1);
    alice.say(&conversation, "single").await.expect(201);
    let calls = receiver.receives(1).await;
    assert_eq!(calls[0].text(), "single");
}
