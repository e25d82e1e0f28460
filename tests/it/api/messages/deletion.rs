//! Deleted messages: the payload goes everywhere, the number stays, and the members hear of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::inbox_of;
use crate::{
    files::count,
    support::{Agent, Answer, ProcessNode, User, nodes, nodes_with, ulid},
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=10000/s,default_user=10000/s,agent_tier_1=10000/s",
);

fn id_of(message: &Value) -> String {
    message["message_id"].as_str().expect("an id").to_owned()
}

async fn say(user: &User, conversation: &str, text: &str) -> String {
    id_of(user.say(conversation, text).await.expect(201).data())
}

async fn delete(user: &User, conversation: &str, message: &str) -> Answer {
    let path = format!("/conversations/{conversation}/messages/{message}");
    user.delete(path).await
}

async fn delete_as(agent: &Agent, conversation: &str, message: &str) -> Answer {
    let path = format!(
        "/agents/{}/conversations/{conversation}/messages/{message}",
        agent.id
    );
    agent.delete(path).await
}

async fn history(user: &User, conversation: &str) -> Vec<Value> {
    let path = format!("/conversations/{conversation}/messages?direction=forward");
    let page = user.get(path).await.expect(200);
    page.data().as_array().expect("a list").clone()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|event| event["event"] == kind)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_71_what_is_deleted_can_be_read_nowhere() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob]).await;
    let body = json!({ "agent_id": agent.id, "visibility": "all" });
    alice
        .post(format!("/groups/{group}/agent-instances"), body)
        .await
        .expect(201);
    let path = format!("/conversations/{group}/messages");
    let (key, token) = (ulid().to_string(), "a".repeat(32));
    let send = json!({
        "payload": { "type": "text", "text": "regretted" },
        "client_message_id": key,
        "search_tokens": [token],
    });
    let sent = alice.post(&path, send.clone()).await.expect(201);
    let message = id_of(sent.data());
    let search = format!("/search?tokens={token}");
    let found = bob.get(&search).await.expect(200);
    assert_eq!(found.data().as_array().map(Vec::len), Some(1));

    let mut alice_socket = alice.on(&b).connect().await;
    let deleted = delete(&alice.on(&b), &group, &message).await.expect(200);
    let deletion = deleted.data().clone();
    assert_eq!(deletion["message_id"], json!(message));
    assert_eq!(deletion["conversation_id"], json!(group));
    assert_eq!(deletion["by"], json!(alice.id));
    let again = delete(&alice, &group, &message).await.expect(200);
    assert_eq!(again.data(), &deletion);

    // The author hears of it too, once, and the event is the answer.
    let told = alice_socket.event("message.deleted").await;
    assert_eq!(told["data"], deletion);
    assert_eq!(told["conversation_id"], json!(group));
    let stored = history(&bob, &group).await;
    assert_eq!(
        (&stored[0]["seq"], &stored[0]["payload"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(stored[0]["deleted_at"], deletion["at"]);
    assert_eq!(stored[0]["deleted_by"], json!(alice.id));
    assert!(stored[0].get("purged").is_none());
    // Unread entries of inboxes, and the deletion behind them.
    let unread = inbox_of(&bob).await;
    let polled = agent.poll("").await.expect(200);
    for events in [&unread, polled.data().as_array().expect("a list")] {
        let created = of_kind(events, "message.created");
        assert_eq!(created[0]["data"], stored[0]);
        let deletions = of_kind(events, "message.deleted");
        assert_eq!(deletions.len(), 1);
        assert_eq!(deletions[0]["data"], deletion);
    }
    // The sender's own repeat learns what became of it, and nothing of what it was.
    let repeated = alice.post(&path, send).await;
    let repeated = repeated.refused(409, "IDEMPOTENCY_CONFLICT");
    let params = &repeated.body["error"]["params"];
    assert_eq!(
        (&params["seq"], &params["payload"]),
        (&json!(1), &Value::Null)
    );
    let found = bob.get(&search).await.expect(200);
    assert_eq!(found.data(), &json!([]));
    let database = &a.world.database;
    let texts = "select count(*) from message where payload like '%regretted%'";
    assert_eq!(count(database, texts).await, 0);
    assert_eq!(
        count(database, "select count(*) from message_token").await,
        0
    );

    // It can still be answered and referred to; numbers and cursors go on.
    let answer =
        json!({ "payload": { "type": "text" }, "in_reply_to": message, "refs": [message] });
    let answer = bob.post(&path, answer).await.expect(201);
    assert_eq!(answer.data()["seq"], 2);
    let page = bob
        .get(format!("{path}?cursor={message}&direction=forward"))
        .await;
    assert_eq!(page.expect(200).data().as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn authors_delete_their_own_and_admins_what_is_in_their_group() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let agent = a.agent(&alice, "helper").await;
    let other = a.agent(&alice, "other").await;
    let pair = alice.talk_to(&agent).await;
    let by_agent = id_of(agent.say(&pair, "x").await.expect(201).data());
    let by_alice = say(&alice, &pair, "y").await;
    // A conversation of two has no admin, whoever opened it.
    delete(&alice, &pair, &by_agent)
        .await
        .refused(403, "FORBIDDEN");
    delete_as(&agent, &pair, &by_alice)
        .await
        .refused(403, "FORBIDDEN");
    delete_as(&agent.on(&b), &pair, &by_agent).await.expect(200);
    delete_as(&agent, &pair, &by_agent).await.expect(200);
    delete_as(&other, &pair, &by_agent)
        .await
        .refused(404, "NOT_FOUND");

    let group = alice.group_with(&[&bob, &carol]).await;
    let [first, second, third] = [
        say(&bob, &group, "1").await,
        say(&bob, &group, "2").await,
        say(&alice, &group, "3").await,
    ];
    delete(&carol, &group, &first)
        .await
        .refused(403, "FORBIDDEN");
    delete(&bob, &group, &third).await.refused(403, "FORBIDDEN");
    let removed = delete(&alice, &group, &first).await.expect(200);
    assert_eq!(removed.data()["by"], json!(alice.id));
    // Its author asks later: it is deleted, by her.
    assert_eq!(
        delete(&bob, &group, &first).await.expect(200).data(),
        removed.data()
    );
    let member = format!("/groups/{group}/members/{}", carol.id);
    alice
        .patch(&member, json!({ "role": "admin" }))
        .await
        .expect(200);
    delete(&carol, &group, &third).await.expect(200);

    // Those who cannot see it find nothing: strangers, other conversations, ex-members.
    let stranger = a.user("mallory").await;
    delete(&stranger, &group, &second)
        .await
        .refused(404, "NOT_FOUND");
    delete(&alice, &pair, &second)
        .await
        .refused(404, "NOT_FOUND");
    delete(&bob, &group, &ulid().to_string())
        .await
        .refused(404, "NOT_FOUND");
    let member = format!("/groups/{group}/members/{}", bob.id);
    bob.delete(member).await.expect(200);
    delete(&bob, &group, &second)
        .await
        .refused(404, "NOT_FOUND");
    // An agent whose relation has ended touches nothing there any more.
    let left = id_of(agent.say(&pair, "z").await.expect(201).data());
    let relations = alice.get("/relations").await.expect(200);
    let relation = relations.data()[0]["relation_id"].as_str().expect("an id");
    alice
        .delete(format!("/relations/{relation}"))
        .await
        .expect(200);
    delete_as(&agent, &pair, &left)
        .await
        .refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_told_to_those_who_could_see_the_message() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[]).await;
    let path = format!("/conversations/{group}/messages");
    let early = say(&alice, &group, "before bob").await;
    let body = json!({ "user_ids": [bob.id] });
    alice
        .post(format!("/groups/{group}/members"), body)
        .await
        .expect(201);
    let body = json!({ "agent_id": agent.id, "visibility": "addressed" });
    alice
        .post(format!("/groups/{group}/agent-instances"), body)
        .await
        .expect(201);
    let hidden = say(&alice, &group, "hidden").await;
    let body = json!({ "payload": { "type": "text" }, "recipients": [agent.id] });
    let named = id_of(alice.post(&path, body).await.expect(201).data());
    let own = format!("/agents/{}/conversations/{group}/messages", agent.id);
    let body = json!({ "payload": { "type": "text" } });
    let own = id_of(agent.post(own, body).await.expect(201).data());
    for message in [&early, &hidden, &named, &own] {
        delete(&alice.on(&b), &group, message).await.expect(200);
    }
    let heard = |events: &[Value]| -> Vec<String> {
        let deletions = of_kind(events, "message.deleted");
        deletions
            .iter()
            .map(|event| id_of(&event["data"]))
            .collect()
    };
    assert_eq!(
        heard(&inbox_of(&alice).await),
        [&*early, &hidden, &named, &own]
    );
    assert_eq!(heard(&inbox_of(&bob).await), [&*hidden, &named, &own]);
    let polled = agent.poll("").await.expect(200);
    assert_eq!(
        heard(polled.data().as_array().expect("a list")),
        [&*named, &own]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_race_with_each_other_and_with_answers() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/conversations/{group}/messages");
    let mut deleted = Vec::new();
    for round in 0..10 {
        let message = say(&bob, &group, &format!("round {round}")).await;
        let answer =
            json!({ "payload": { "type": "text" }, "in_reply_to": message, "refs": [message] });
        let [alice_b, bob_b] = [alice.on(&b), bob.on(&b)];
        let outcomes = tokio::join!(
            delete(&alice, &group, &message),
            delete(&bob_b, &group, &message),
            delete(&alice_b, &group, &message),
            bob.post(&path, answer.clone()),
            bob_b.post(&path, answer.clone()),
        );
        let [first, second, third] = [&outcomes.0, &outcomes.1, &outcomes.2];
        assert_eq!([first.status, second.status, third.status], [200; 3]);
        assert!(first.data() == second.data() && second.data() == third.data());
        assert_eq!([outcomes.3.status, outcomes.4.status], [201; 2]);
        deleted.push(message);
    }
    let stored = history(&alice, &group).await;
    let gone = stored.iter().filter(|one| one["payload"].is_null());
    let gone: Vec<String> = gone.map(id_of).collect();
    assert_eq!(gone, deleted);
    let seqs: Vec<i64> = stored
        .iter()
        .map(|one| one["seq"].as_i64().expect("a number"))
        .collect();
    assert!(seqs.iter().copied().eq(1..=30));
    for user in [&alice, &bob] {
        let events = inbox_of(user).await;
        let told = of_kind(&events, "message.deleted");
        let told: Vec<String> = told.iter().map(|event| id_of(&event["data"])).collect();
        assert_eq!(told, deleted, "each once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_outlives_the_node_that_was_asked() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let mut messages = Vec::new();
    for n in 0..30 {
        messages.push(say(&bob, &group, &format!("text {n}")).await);
    }
    let mut mortal = ProcessNode::start(&a).await;
    let bob_there = bob.at(&mortal.base);
    let mut answered = BTreeSet::new();
    for (n, message) in messages.iter().enumerate() {
        if n == 10 {
            mortal.kill();
        }
        let path = format!("/conversations/{group}/messages/{message}");
        let request = bob_there.request(reqwest::Method::DELETE, path);
        if let Ok(answer) = bob_there.try_send(request).await {
            answer.expect(200);
            answered.insert(message.clone());
        }
    }
    assert_eq!(answered.len(), 10);
    let gone = |stored: &[Value]| -> BTreeSet<String> {
        let gone = stored.iter().filter(|one| one["payload"].is_null());
        gone.map(id_of).collect()
    };
    assert!(gone(&history(&alice, &group).await).is_superset(&answered));
    // Asked again elsewhere, each is deleted, and told once.
    for message in &messages {
        delete(&bob, &group, message).await.expect(200);
    }
    assert_eq!(gone(&history(&alice, &group).await).len(), 30);
    let events = inbox_of(&alice).await;
    let told = of_kind(&events, "message.deleted");
    let told: Vec<String> = told.iter().map(|event| id_of(&event["data"])).collect();
    assert_eq!(told, messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_ended_deletes_nothing() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let message = say(&alice, &conversation, "stays").await;
    let path = format!("/users/me/devices/{}", alice.device_id);
    alice.on(&b).delete(path).await.expect(200);
    delete(&alice, &conversation, &message)
        .await
        .refused(401, "UNAUTHORIZED");
    let page = agent
        .get(format!(
            "/agents/{}/conversations/{conversation}/messages",
            agent.id
        ))
        .await
        .expect(200);
    assert_eq!(page.data()[0]["payload"]["text"], "stays");
}
