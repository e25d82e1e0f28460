//! Events whose body would exceed 1 MB go out as a reference to an object.

use std::{collections::HashMap, time::Duration};

use serde_json::{Value, json};

use super::{deliveries, put, until_caught_up};
use crate::{
    egress::stock_verifies,
    files::{Stage, StoreKind, faults::behind_a_proxy, fetch, hash, path_of},
    support::{Call, Receiver, Reply, User},
};

const DAY: Duration = Duration::from_secs(86_400);

/// A text with which the message itself is at most 1 MB, and the body of its call is above.
fn large() -> String {
    let line = "nobody needs a message of this size, and yet it arrives. ";
    line.repeat(20_000)[..(1 << 20) - 100].to_owned()
}

/// Registers a webhook for the stage's agent. Returns its secret.
async fn register(stage: &Stage, receiver: &Receiver) -> String {
    let webhook = put(&stage.alice, &stage.agent, &receiver.url).await;
    receiver.receives(2).await;
    webhook["secret"].as_str().expect("a secret").to_owned()
}

/// The reference of a call, which must be all of its data.
fn reference(call: &Call) -> &Value {
    assert!(call.raw.len() < 2000, "{} bytes", call.raw.len());
    let data = call.body["data"].as_object().expect("an object");
    assert_eq!(data.keys().collect::<Vec<_>>(), ["object_ref"]);
    &data["object_ref"]
}

fn url(reference: &Value) -> &str {
    path_of(reference["url"].as_str().expect("a URL"))
}

fn is_genuine(call: &Call, secret: &str) -> bool {
    let headers = call.headers.iter().map(|(name, value)| {
        let value = value.to_str().expect("text").to_owned();
        (name.to_string(), value)
    });
    let headers: HashMap<String, String> = headers.collect();
    stock_verifies(secret, &headers, call.raw.as_bytes())
}

/// Alice, signed in again: an access token does not live for days.
async fn back(stage: &Stage) -> User {
    let device = Some(stage.alice.device_id.as_str());
    stage.alice.login(&stage.nodes[0], device).await
}

async fn a_large_event_is_referenced(kind: StoreKind) {
    let stage = Stage::new(kind).await;
    let [a, b] = &stage.nodes;
    let receiver = Receiver::start().await;
    let secret = register(&stage, &receiver).await;
    receiver.behave(|call| {
        let fails = (call.seq(), call.attempt()) == (3, 1);
        Reply::status(if fails { 500 } else { 200 })
    });
    let say = async |text: &str| stage.alice.say(&stage.conversation, text).await;
    say(&large()).await.expect(201);
    say("small").await.expect(201);
    let calls = receiver.receives(3).await;
    assert!(is_genuine(&calls[2], &secret));
    // The wait before the retry is 5 s, and a fifth more at most. An address counts seconds.
    a.advance(Duration::from_secs(7)).await;
    let calls = receiver.receives(5).await;
    let (first, second) = (reference(&calls[2]), reference(&calls[3]));
    assert_eq!(calls[4].text(), "small", "after the large one, and inline");
    assert_eq!(
        (calls[2].delivery(), calls[3].attempt()),
        (calls[3].delivery(), 2)
    );
    assert_eq!(calls[3].conversation(), stage.conversation);

    for name in ["object_key", "size", "sha256"] {
        assert_eq!(first[name], second[name], "{name}");
    }
    assert_ne!(first["url"], second["url"]);
    assert_eq!(stage.stored().len(), 1, "stored once");
    let history = format!("/conversations/{}/messages", stage.conversation);
    let history = stage.alice.get(history).await.expect(200);
    let messages = history.data().as_array().expect("a list");
    let message = messages.iter().find(|one| one["seq"] == 1);
    let nobody = b.anon();
    for reference in [first, second] {
        let (answer, bytes) = fetch(&nobody, url(reference), &[]).await;
        assert_eq!(answer.status, 200);
        assert_eq!(reference["size"], bytes.len());
        assert_eq!(reference["sha256"], hash(&bytes).as_str());
        let data: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(Some(&data), message);
    }
    let forged = url(first).replace("expires=", "expires=9");
    nobody.get(forged).await.refused(404, "NOT_FOUND");

    // An address ends after a day. The object lives on: another attempt has a new address.
    a.advance(DAY).await;
    nobody.get(url(second)).await.refused(404, "NOT_FOUND");
    let alice = back(&stage).await;
    let delivery = calls[3].delivery();
    let path = format!("/agents/{}/deliveries/{delivery}/redeliver", stage.agent.id);
    alice.post(path, json!({})).await.expect(200);
    let calls = receiver.receives(6).await;
    let third = reference(&calls[5]);
    assert_eq!(third["object_key"], first["object_key"]);
    nobody.get(url(third)).await.expect(200);

    if kind == StoreKind::Folder {
        // The event's data go with the relation.
        let relations = alice.get("/relations").await.expect(200);
        let relation = relations.data()[0]["relation_id"].as_str().expect("an id");
        let path = format!("/relations/{relation}");
        alice.delete(path).await.expect(200);
        a.advance(7 * DAY + Duration::from_secs(1)).await;
        stage.ask_for("purge_relations").await;
    } else {
        a.advance(29 * DAY).await;
    }
    stage.until_stored(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_is_referenced_in_a_folder() {
    Box::pin(a_large_event_is_referenced(StoreKind::Folder)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_is_referenced_in_a_bucket() {
    Box::pin(a_large_event_is_referenced(StoreKind::Bucket)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_an_event_ends_with_the_agent_s_token() {
    let stage = Stage::new(StoreKind::Folder).await;
    let receiver = Receiver::start().await;
    register(&stage, &receiver).await;
    let said = stage.alice.say(&stage.conversation, &large()).await;
    said.expect(201);
    let calls = receiver.receives(3).await;
    let address = url(reference(&calls[2]));
    let nobody = stage.nodes[1].anon();
    nobody.get(address).await.expect(200);
    let path = format!("/agents/{}/token", stage.agent.id);
    stage.alice.delete(&path).await.expect(200);
    nobody.get(address).await.refused(404, "NOT_FOUND");
    // A later token does not bring an earlier address back.
    stage.nodes[0].advance(Duration::from_secs(2)).await;
    let again = json!({ "emergency": false });
    let path = format!("{path}/regenerate");
    stage.alice.post(path, again).await.expect(200);
    nobody.get(address).await.refused(404, "NOT_FOUND");
}

/// The address of a large message that Alice says in a conversation.
async fn address_of(stage: &Stage, receiver: &Receiver, conversation: &str) -> String {
    stage.alice.say(conversation, &large()).await.expect(201);
    let is_large = |call: &Call| {
        call.conversation() == conversation && call.body["data"]["object_ref"].is_object()
    };
    let calls = receiver.until("a large event", |calls| calls.iter().any(is_large));
    let calls = calls.await;
    let call = calls.iter().find(|call| is_large(call)).expect("it");
    url(reference(call)).to_owned()
}

/// Time that lies between an address and a later right. Addresses end on whole seconds, and a group
/// takes an agent a minute.
const LATER: Duration = Duration::from_secs(61);

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_an_event_ends_with_the_relation() {
    let stage = Stage::new(StoreKind::Folder).await;
    let receiver = Receiver::start().await;
    register(&stage, &receiver).await;
    let address = address_of(&stage, &receiver, &stage.conversation).await;
    let nobody = stage.nodes[1].anon();
    nobody.get(&address).await.expect(200);
    let relations = stage.alice.get("/relations").await.expect(200);
    let relation = relations.data()[0]["relation_id"].as_str().expect("an id");
    let path = format!("/relations/{relation}");
    stage.alice.delete(path).await.expect(200);
    nobody.get(&address).await.refused(404, "NOT_FOUND");
    // Another relation does not bring an earlier address back.
    stage.nodes[0].advance(LATER).await;
    let again = json!({ "type": "agent", "agent_id": stage.agent.id });
    stage.alice.post("/conversations", again).await.expect(200);
    nobody.get(&address).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_an_event_ends_with_the_membership() {
    let stage = Stage::new(StoreKind::Folder).await;
    let receiver = Receiver::start().await;
    register(&stage, &receiver).await;
    let group = stage.alice.group_with(&[]).await;
    let instances = format!("/groups/{group}/agent-instances");
    let place = json!({ "agent_id": stage.agent.id, "visibility": "all" });
    let added = stage
        .alice
        .post(&instances, place.clone())
        .await
        .expect(201);
    let address = address_of(&stage, &receiver, &group).await;
    let nobody = stage.nodes[1].anon();
    nobody.get(&address).await.expect(200);
    let instance = added.data()["instance_id"].as_str().expect("an id");
    let path = format!("{instances}/{instance}");
    stage.alice.delete(path).await.expect(200);
    nobody.get(&address).await.refused(404, "NOT_FOUND");
    // Another membership does not bring an earlier address back.
    stage.nodes[0].advance(LATER).await;
    stage.alice.post(&instances, place).await.expect(201);
    nobody.get(&address).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_stored_waits_and_holds_up_no_other_conversation() {
    let (stage, proxy) = behind_a_proxy(StoreKind::Bucket).await;
    let s3 = stage.s3.as_ref().expect("a server").address.to_string();
    let a = &stage.nodes[0];
    let receiver = Receiver::start().await;
    register(&stage, &receiver).await;
    let bob = a.user("bob").await;
    let other = bob.talk_to(&stage.agent).await;
    receiver.receives(4).await;
    proxy.move_to("127.0.0.1:1");
    let sent = stage.alice.say(&stage.conversation, &large()).await;
    sent.expect(201);
    for n in 0..3 {
        bob.say(&other, &n.to_string()).await.expect(201);
    }
    receiver.receives(7).await;
    assert_eq!(receiver.texts(), ["0", "1", "2"]);
    proxy.move_to(&s3);
    a.advance(Duration::from_secs(11)).await;
    let calls = receiver.receives(8).await;
    reference(&calls[7]);
    // The store's absence was no attempt.
    assert_eq!(calls[7].attempt(), 1);
    until_caught_up(&stage.alice, &stage.agent).await;
    let log = deliveries(&stage.alice, &stage.agent, "").await;
    let attempts = log
        .iter()
        .map(|one| one["attempts"].as_array().map(Vec::len));
    assert!(attempts.into_iter().all(|n| n == Some(1)), "{log:?}");
}
