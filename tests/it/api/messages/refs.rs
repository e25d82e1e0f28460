//! Messages that refer to others, and the histories that bring them along.

use serde_json::{Value, json};

use crate::{
    consent::access_log::log,
    support::{Agent, Receiver, Reply, User, nodes, nodes_with, ulid},
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=10000/s,agent_tier_1=10000/s,agent_conversation_message_send=1000/s,group_agent_instance=1000/s",
);

fn with_refs(text: &str, refs: &Value) -> Value {
    json!({ "payload": { "type": "text", "text": text }, "refs": refs })
}

async fn refer(user: &User, conversation: &str, text: &str, refs: &Value) -> String {
    let path = format!("/conversations/{conversation}/messages");
    let sent = user.post(path, with_refs(text, refs)).await.expect(201);
    id_of(sent.data())
}

fn id_of(message: &Value) -> String {
    message["message_id"].as_str().expect("an id").to_owned()
}

async fn say(user: &User, conversation: &str, text: &str) -> String {
    id_of(user.say(conversation, text).await.expect(201).data())
}

fn texts(messages: &Value) -> Vec<&str> {
    let messages = messages.as_array().expect("a list").iter();
    messages
        .map(|one| one["payload"]["text"].as_str().expect("a text"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_send_keeps_refs_and_every_reader_gets_them() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let receiver = Receiver::start().await;
    let first = say(&alice, &conversation, "first").await;
    let second = say(&alice, &conversation, "second").await;
    let refs = json!([second, first]);
    let mut alice_socket = alice.on(&b).connect().await;

    // By REST, the user's route and the agent's two.
    refer(&alice, &conversation, "user", &refs).await;
    let mut body = with_refs("agent", &refs);
    let below = format!("/agents/{}/conversations/{conversation}/messages", agent.id);
    agent.on(&b).post(&below, body.clone()).await.expect(201);
    body["conversation_id"] = json!(conversation);
    let path = format!("/agents/{}/messages", agent.id);
    agent.post(path, body).await.expect(201);
    // By frames, and at the end of a stream.
    let mut socket = agent.on(&b).connect().await;
    let mut frame = with_refs("frame", &refs);
    frame["type"] = json!("message.send");
    frame["ref"] = json!(1);
    frame["conversation_id"] = json!(conversation);
    socket.say(frame).await;
    socket.expect("message.sent").await;
    let stream = ulid().to_string();
    socket
        .say(
            json!({ "type": "stream.begin", "stream_id": stream, "conversation_id": conversation }),
        )
        .await;
    let mut frame = with_refs("stream", &refs);
    frame["type"] = json!("stream.end");
    frame["stream_id"] = json!(stream);
    socket.say(frame).await;
    socket.expect("message.sent").await;
    drop(socket);
    // By the answer of a webhook.
    let reply = json!([with_refs("webhook", &refs)]);
    receiver.behave(move |call| match call.text() {
        "now" => Reply::messages(reply.clone()),
        _ => Reply::status(200),
    });
    let webhook = json!({ "url": receiver.url });
    alice.put(agent.webhook(""), webhook).await.expect(200);
    say(&alice, &conversation, "now").await;

    let mut told = Vec::new();
    while told.len() < 6 {
        let event = alice_socket.event("message.created").await;
        if event["data"]["seq"].as_i64() > Some(2) && event["data"]["payload"]["text"] != "now" {
            assert_eq!(event["data"]["refs"], refs, "{event}");
            told.push(event["data"].clone());
        }
    }
    let history = alice
        .get(format!(
            "/conversations/{conversation}/messages?direction=forward"
        ))
        .await
        .expect(200);
    let stored = history.data().as_array().expect("a list");
    assert!(told.iter().all(|message| stored.contains(message)));
    assert!(stored[0].get("refs").is_none(), "{}", stored[0]);
    // A page without the query is as it was.
    assert!(history.body.get("refs").is_none() && history.body.get("refs_truncated").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn refs_name_at_most_eight_messages_of_the_conversation() {
    let [a, _b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let (here, there) = (alice.group_with(&[&bob]).await, alice.group_with(&[]).await);
    let mut ids = Vec::new();
    for n in 0..9 {
        ids.push(say(&alice, &here, &n.to_string()).await);
    }
    let foreign = say(&alice, &there, "elsewhere").await;
    let path = format!("/conversations/{here}/messages");
    let refused = async |refs: Value| {
        let answer = bob.post(&path, with_refs("x", &refs)).await;
        let answer = answer.refused(400, "VALIDATION_ERROR");
        answer.body["error"]["params"]["fields"][0].clone()
    };
    let fault = refused(json!(ids)).await;
    assert_eq!(
        (&fault["path"], &fault["rule"]),
        (&json!("refs"), &json!("length"))
    );
    for refs in [json!([foreign]), json!([ids[0], ulid().to_string()])] {
        let fault = refused(refs).await;
        assert_eq!(
            (&fault["path"], &fault["rule"]),
            (&json!("refs"), &json!("reference"))
        );
    }
    for refs in [json!(["x"]), json!("x"), json!([1])] {
        refused(refs).await;
    }
    // Eight do, each counted once, and a refused send has left no number behind.
    let eight = json!(ids[..8].iter().chain(&ids[..1]).collect::<Vec<_>>());
    let sent = bob.post(&path, with_refs("x", &eight)).await.expect(201);
    assert_eq!(sent.data()["seq"], 10);
    // In a bare payload the name belongs to the payload.
    let bare = json!({ "type": "text", "refs": "mine" });
    bob.post(&path, bare).await.expect(201);
    let history = bob.get(format!("{path}?limit=1")).await.expect(200);
    assert_eq!(history.data()[0]["payload"]["refs"], "mine");
    assert!(history.data()[0].get("refs").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_brings_along_the_newest_two_hundred_that_refer_to_it() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let popular = say(&alice, &group, "popular").await;
    let other = say(&alice, &group, "other").await;
    for n in 0..201 {
        refer(&alice, &group, &n.to_string(), &json!([popular])).await;
    }
    refer(&bob, &group, "both", &json!([other, popular])).await;
    let page = async |query: &str| {
        let path = format!("/conversations/{group}/messages?include=refs&{query}");
        bob.on(&b).get(path).await.expect(200)
    };
    let first = page("direction=forward&limit=1").await;
    assert_eq!(texts(first.data()), ["popular"]);
    let expected: Vec<String> = (2..201).map(|n| n.to_string()).collect();
    let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    expected.push("both");
    assert_eq!(texts(&first.body["refs"]), expected, "ascending, each once");
    assert_eq!(first.body["refs_truncated"], true);

    let second = page(&format!("direction=forward&limit=1&cursor={popular}")).await;
    assert_eq!(texts(second.data()), ["other"]);
    assert_eq!(texts(&second.body["refs"]), ["both"]);
    assert_eq!(second.body["refs_truncated"], false);
    let newest = page("limit=1").await;
    assert_eq!(newest.body["refs"], json!([]));
    let path = format!("/conversations/{group}/messages?include=all");
    bob.get(path).await.refused(400, "VALIDATION_ERROR");
    // Both lists together stay within four megabytes.
    let large = "x".repeat((1 << 20) - 100);
    for _ in 0..5 {
        refer(&alice, &group, &large, &json!([other])).await;
    }
    let second = page(&format!("direction=forward&limit=1&cursor={popular}")).await;
    assert_eq!(second.body["refs"].as_array().map(Vec::len), Some(4));
    assert_eq!(second.body["refs_truncated"], true);
}

/// The texts of the agent's whole history, and of what refers to it.
async fn history(agent: &Agent, group: &str) -> (Vec<String>, Vec<String>) {
    let path = format!("/agents/{}/conversations/{group}/messages", agent.id);
    let query = "?include=refs&direction=forward";
    let page = agent.get(format!("{path}{query}")).await.expect(200);
    let owned = |list: &Value| texts(list).into_iter().map(str::to_owned).collect();
    (owned(page.data()), owned(&page.body["refs"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_70_refs_show_nobody_what_it_cannot_read() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[]).await;
    let path = format!("/conversations/{group}/messages");
    let before = say(&alice, &group, "before bob").await;
    refer(&alice, &group, "old ref", &json!([before])).await;
    let body = json!({ "user_ids": [bob.id] });
    alice
        .post(format!("/groups/{group}/members"), body)
        .await
        .expect(201);
    let body = json!({ "agent_id": agent.id, "visibility": "addressed" });
    let instances = format!("/groups/{group}/agent-instances");
    alice.post(&instances, body).await.expect(201);
    let named = |text: &str, refs: Value| {
        let mut body = with_refs(text, &refs);
        body["recipients"] = json!([agent.id]);
        body
    };
    let sent = alice
        .post(&path, named("for the agent", json!([])))
        .await
        .expect(201);
    let question = id_of(sent.data());
    refer(&alice, &group, "hidden", &json!([question])).await;
    alice
        .post(&path, named("shown", json!([question])))
        .await
        .expect(201);
    let own = format!("/agents/{}/conversations/{group}/messages", agent.id);
    let mine = with_refs("its own", &json!([question]));
    agent.post(&own, mine).await.expect(201);

    let agent_there = agent.on(&b);
    let (_, refs) = history(&agent_there, &group).await;
    assert_eq!(refs, ["shown", "its own"]);
    // Both lists of that read are in the access log.
    let kinds: Vec<Value> = log(&alice, "limit=2").await;
    assert!(
        kinds.iter().all(|row| row["kind"] == "history"),
        "{kinds:?}"
    );
    // Widened, it still sees nothing of before but what named it.
    let body = json!({ "agent_id": agent.id, "visibility": "all" });
    alice.post(&instances, body).await.expect(200);
    refer(&alice, &group, "after", &json!([question])).await;
    let (_, refs) = history(&agent_there, &group).await;
    assert_eq!(refs, ["shown", "its own", "after"]);
    // Somebody who came later sees neither what was before, nor what refers to it from then.
    refer(&alice, &group, "new ref", &json!([before])).await;
    let page = bob
        .get(format!("{path}?include=refs&direction=forward"))
        .await;
    let page = page.expect(200);
    assert_eq!(
        texts(&page.body["refs"]),
        ["hidden", "shown", "its own", "after"]
    );
    let stranger = a.user("mallory").await;
    stranger
        .get(format!("{path}?include=refs"))
        .await
        .refused(404, "NOT_FOUND");
}
