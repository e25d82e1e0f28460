//! Messages that are deleted while their deliveries are pending or under way.

use std::time::Duration;

use serde_json::Value;

use super::{put, until_caught_up};
use crate::{
    files::{Stage, StoreKind, fetch, path_of},
    support::{Receiver, Reply},
};

async fn send(stage: &Stage, text: &str) -> String {
    let sent = stage.alice.say(&stage.conversation, text).await.expect(201);
    sent.data()["message_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

async fn delete(stage: &Stage, node: usize, message: &str) {
    let alice = stage.alice.on(&stage.nodes[node]);
    let path = format!("/conversations/{}/messages/{message}", stage.conversation);
    alice.delete(path).await.expect(200);
}

fn large() -> String {
    "x".repeat((1 << 20) - 100)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_delivery_loses_the_payload_of_a_deleted_message() {
    let stage = Stage::new(StoreKind::Folder).await;
    let receiver = Receiver::start().await;
    put(&stage.alice, &stage.agent, &receiver.url).await;
    receiver.receives(2).await;
    // The first attempts fail, so the turn holds what it has read.
    receiver.behave(|call| Reply::status(if call.attempt() == 1 { 500 } else { 200 }));
    let small = send(&stage, "regretted").await;
    let calls = receiver.receives(3).await;
    assert_eq!(calls[2].text(), "regretted");
    delete(&stage, 1, &small).await;
    stage.nodes[0].advance(Duration::from_secs(7)).await;
    let calls = receiver.receives(4).await;
    assert_eq!(
        (calls[3].attempt(), calls[3].delivery()),
        (2, calls[2].delivery())
    );
    assert_eq!(calls[3].body["data"]["payload"], Value::Null);
    assert_eq!(calls[3].body["data"]["deleted_by"], stage.alice.id.as_str());
    receiver
        .until("a deletion", |calls| {
            calls.iter().any(|call| call.event() == "message.deleted")
        })
        .await;
    stage.nodes[0].advance(Duration::from_secs(7)).await;
    until_caught_up(&stage.alice, &stage.agent).await;

    // A large one was an object, which goes with it.
    let before = receiver.events().len();
    let message = send(&stage, &large()).await;
    let calls = receiver.receives(before + 1).await;
    let url = calls[before].body["data"]["object_ref"]["url"].clone();
    let url = path_of(url.as_str().expect("a URL")).to_owned();
    let nobody = stage.nodes[1].anon();
    assert_eq!(fetch(&nobody, &url, &[]).await.0.status, 200);
    delete(&stage, 1, &message).await;
    nobody.get(&url).await.refused(404, "NOT_FOUND");
    stage.nodes[0].advance(Duration::from_secs(7)).await;
    let calls = receiver.receives(before + 2).await;
    assert_eq!(calls[before + 1].body["data"]["payload"], Value::Null);
    stage.until_stored(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_while_it_is_stored_for_a_webhook_leaves_no_object() {
    let stage = Stage::new(StoreKind::Folder).await;
    let receiver = Receiver::start().await;
    put(&stage.alice, &stage.agent, &receiver.url).await;
    receiver.receives(2).await;
    // Later each time, so that some deletions meet the worker as it stores the event.
    for round in 0..24_u64 {
        let message = send(&stage, &large()).await;
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        delete(&stage, (round % 2) as usize, &message).await;
    }
    until_caught_up(&stage.alice, &stage.agent).await;
    let deletions = receiver.events();
    let deletions = deletions
        .iter()
        .filter(|call| call.event() == "message.deleted");
    assert_eq!(deletions.count(), 24);
    stage.until_stored(0).await;
}
