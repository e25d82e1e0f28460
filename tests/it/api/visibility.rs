//! An agent's visibility in a group, when it changes.

use std::time::Duration;

use serde_json::{Value, json};

use super::agents_keys::{Keys, register};
use crate::support::{Agent, Answer, TestNode, User, nodes_with, psql};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "group_agent_instance=1000/s,default_user=1000/s,agent_tier_1=1000/s,user_message_send=1000/s",
);

async fn place(admin: &User, group: &str, agent: &Agent, visibility: &str) -> Answer {
    let body = json!({ "agent_id": agent.id, "visibility": visibility });
    admin
        .post(format!("/groups/{group}/agent-instances"), body)
        .await
}

/// Sends a message that names the agent, or none.
async fn say(user: &User, group: &str, text: &str, named: Option<&Agent>) -> String {
    let mut body = json!({ "payload": { "type": "text", "text": text } });
    if let Some(agent) = named {
        body["recipients"] = json!([agent.id]);
    }
    let sent = user
        .post(format!("/conversations/{group}/messages"), body)
        .await
        .expect(201);
    sent.data()["message_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

/// The texts of the whole history, page by page.
async fn history(agent: &Agent, group: &str, direction: &str) -> Vec<String> {
    let path = format!("/agents/{}/conversations/{group}/messages", agent.id);
    let (mut texts, mut cursor) = (Vec::new(), String::new());
    loop {
        let query = format!("?limit=2&direction={direction}{cursor}");
        let page = agent.get(format!("{path}{query}")).await.expect(200);
        let messages = page.data().as_array().expect("a list").iter();
        texts.extend(messages.map(|one| one["payload"]["text"].as_str().expect("text").to_owned()));
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return texts,
        }
    }
}

async fn conversation(user: &User, group: &str) -> Value {
    let answer = user
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    answer.data().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn widening_shows_nothing_of_before_but_what_named_the_agent() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob]).await;
    say(&bob, &group, "before it came", None).await;
    place(&alice, &group, &agent, "addressed").await.expect(201);
    let hidden = say(&bob, &group, "hidden", None).await;
    say(&bob, &group, "named 1", Some(&agent)).await;
    say(&bob, &group, "hidden too", None).await;
    say(&bob, &group, "named 2", Some(&agent)).await;

    let mut bob_socket = bob.on(&b).connect().await;
    place(&alice, &group, &agent, "all").await.expect(200);
    // Those who wrote under the earlier visibility hear of it, and see it.
    let told = bob_socket.event("conversation.updated").await;
    assert_eq!(told["conversation_id"], json!(group));
    let members = conversation(&bob, &group).await["members"].take();
    for member in members.as_array().expect("members") {
        let is_agent = member["principal_type"] == "agent";
        let shown = if is_agent { json!("all") } else { json!(null) };
        assert_eq!(member["visibility"], shown, "{member}");
    }
    say(&bob, &group, "open 1", None).await;
    say(&bob, &group, "open 2", None).await;
    let seen = ["named 1", "named 2", "open 1", "open 2"];
    let agent = agent.on(&b);
    assert_eq!(history(&agent, &group, "forward").await, seen);
    let mut backward = history(&agent, &group, "backward").await;
    backward.reverse();
    assert_eq!(backward, seen);
    // Counted and marked alike.
    let listed = agent
        .get(format!("/agents/{}/conversations", agent.id))
        .await
        .expect(200);
    let listed = listed.data().as_array().expect("a list");
    let listed = listed
        .iter()
        .find(|one| one["conversation_id"] == json!(group));
    assert_eq!(listed.expect("the group")["unread_count"], 4);
    agent
        .post(
            format!("/conversations/{group}/read"),
            json!({ "message_id": hidden }),
        )
        .await
        .refused(404, "NOT_FOUND");

    // Asking again for what is there tells nobody; narrowing and widening hides what was between.
    place(&alice, &group, &agent, "all").await.expect(200);
    place(&alice, &group, &agent, "addressed").await.expect(200);
    say(&bob, &group, "between", None).await;
    place(&alice, &group, &agent, "all").await.expect(200);
    say(&bob, &group, "open 3", None).await;
    let seen = ["named 1", "named 2", "open 3"];
    assert_eq!(history(&agent, &group, "forward").await, seen);
    let mut updates = 0;
    while let Ok(frame) = bob_socket.next().await {
        updates += u32::from(frame["event"] == "conversation.updated");
        if frame["data"]["payload"]["text"] == "open 3" {
            break;
        }
    }
    assert_eq!(updates, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_addressed_agent_reads_what_names_it_and_what_it_wrote() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    for agent in [&agent, &other] {
        alice.talk_to(agent).await;
        place(&alice, &group, agent, "addressed").await.expect(201);
    }
    say(&bob, &group, "named 1", Some(&agent)).await;
    let own = agent.say(&group, "own 1").await.expect(201);
    let own = own.data()["message_id"].clone();
    say(&bob, &group, "hidden", None).await;
    other.say(&group, "of the other").await.expect(201);
    say(&bob, &group, "named 2", Some(&agent)).await;
    // A message that names its own sender comes once.
    let path = format!("/agents/{}/conversations/{group}/messages", agent.id);
    let naming = json!({
        "payload": { "type": "text", "text": "own 2" },
        "recipients": [agent.id],
    });
    agent.post(path, naming).await.expect(201);
    agent.say(&group, "own 3").await.expect(201);

    let seen = ["named 1", "own 1", "named 2", "own 2", "own 3"];
    let (agent, other) = (agent.on(&b), other.on(&b));
    assert_eq!(history(&agent, &group, "forward").await, seen);
    let mut backward = history(&agent, &group, "backward").await;
    backward.reverse();
    assert_eq!(backward, seen);
    assert_eq!(history(&other, &group, "forward").await, ["of the other"]);
    let path = format!("/conversations/{group}/read");
    let mark = json!({ "message_id": own });
    agent.post(&path, &mark).await.expect(200);
    other.post(&path, &mark).await.refused(404, "NOT_FOUND");
    // Its messages stay its own when it sees all and when it is addressed again.
    for visibility in ["all", "addressed"] {
        place(&alice, &group, &agent, visibility).await.expect(200);
    }
    assert_eq!(history(&agent, &group, "forward").await, seen);
}

/// Gives the conversation a first key that needs no replacement.
async fn with_key(node: &TestNode) {
    psql(
        &node.world.database,
        "update conversation set epoch = 1, rotation_required = false",
    )
    .await;
}

/// Waits until another key is required; how often members were told.
async fn required(user: &User, group: &str) {
    for _ in 0..200 {
        if conversation(user, group).await["rotation_required"] == true {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("no other key is required");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_what_an_agent_reads_requires_another_key() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let pair = alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob]).await;
    place(&alice, &group, &agent, "addressed").await.expect(201);
    with_key(&a).await;
    place(&alice, &group, &agent, "addressed").await.expect(200);
    assert_eq!(conversation(&bob, &group).await["rotation_required"], false);
    for visibility in ["all", "addressed"] {
        place(&alice, &group, &agent, visibility).await.expect(200);
        assert_eq!(conversation(&bob, &group).await["rotation_required"], true);
        with_key(&a).await;
    }
    // Its new key, in every conversation that has one.
    let mut bob_socket = bob.on(&b).connect().await;
    register(&a, &agent, &agent, &Keys::new(1))
        .await
        .expect(201);
    for conversation in [&group, &pair] {
        required(&alice, conversation).await;
    }
    let told = bob_socket.event("conversation.updated").await;
    assert_eq!(told["data"]["rotation_required"], true);
    // Its return after a revoked relation.
    let relation = conversation(&alice, &pair).await["relation"]["relation_id"].take();
    let relation = relation.as_str().expect("an id");
    alice
        .delete(format!("/relations/{relation}"))
        .await
        .expect(200);
    with_key(&a).await;
    let body = json!({ "type": "agent", "agent_id": agent.id });
    let again = alice.post("/conversations", body).await.expect(200);
    assert_eq!(again.data()["conversation_id"], json!(pair));
    assert_eq!(conversation(&alice, &pair).await["rotation_required"], true);
    assert_eq!(conversation(&bob, &group).await["rotation_required"], false);
    place(&alice, &group, &agent, "addressed").await.expect(200);
    assert_eq!(conversation(&bob, &group).await["rotation_required"], true);
}
