//! Messages in the answers of receivers.

use serde_json::{Value, json};

use super::{BUSY, FAST, deliveries, talking, until_caught_up, until_logged};
use crate::support::{Reply, nodes_with};

#[tokio::test(flavor = "multi_thread")]
async fn replies_take_the_send_path_once() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
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
    until_caught_up(&alice, &agent).await;
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

    // It is delivered again: the same id, an attempt more, and no message more.
    let id = log[2]["delivery_id"].as_str().expect("an id");
    let path = format!("/agents/{}/deliveries/{id}/redeliver", agent.id);
    agent.on(&b).post(&path, json!({})).await.expect(200);
    let calls = receiver.until("a replay", |calls| calls.len() == 6).await;
    assert_eq!((calls[5].delivery(), calls[5].attempt()), (id, 2));
    let is_repeated = |log: &[Value]| {
        let attempts = log[2]["attempts"].as_array().map(Vec::len);
        log[2]["status"] == "success" && attempts == Some(2)
    };
    let log = until_logged(&alice, &agent, "", is_repeated).await;
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
