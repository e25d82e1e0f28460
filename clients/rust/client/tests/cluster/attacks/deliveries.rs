//! Events that say something else than the message in them, and a message that comes twice at once.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use blindpipe_client::{
    Context,
    protocol::{ids::AgentId, time::Timestamp},
};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::Semaphore;

use super::{Attacked, Proxy, Told, attacked, next_message};
use crate::{
    proxy::Upstream,
    support::{Scene, echo, scene, texts, until, watch},
};

const SECRET: [u8; 32] = [7; 32];
/// A conversation and an event that nobody knows.
const ELSEWHERE: &str = "01BX5ZZKBKACTAV9WEVGEMMVS0";
const ANOTHER_EVENT: &str = "01BX5ZZKBKACTAV9WEVGEMMVRZ";

/// Says that two messages came elsewhere: of the second one, its data says so too.
fn moved() -> impl FnMut(Value) -> Vec<Value> + Send {
    let mut count = 0;
    move |mut frame| {
        if frame["event"] == "message.created" && count < 2 {
            frame["conversation_id"] = ELSEWHERE.into();
            if count == 1 {
                frame["data"]["conversation_id"] = ELSEWHERE.into();
            }
            count += 1;
        }
        vec![frame]
    }
}

#[tokio::test]
async fn a_message_in_an_event_of_another_conversation_is_shown_to_no_person() {
    let Attacked {
        bob,
        proxy,
        told,
        conversation,
        ..
    } = attacked().await;
    let mut events = watch(&bob).await;
    proxy.on_frame(moved());
    conversation.send("moved").await.expect("sent");
    conversation.send("moved whole").await.expect("sent");
    conversation.send("in its place").await.expect("sent");
    let received = next_message(&mut events, conversation.id()).await;
    assert_eq!(received.text(), "in its place");
    assert_eq!(told.refused(), ["malformed", "no_epoch_key"]);
}

#[tokio::test]
async fn a_message_in_an_event_of_another_conversation_is_handled_by_no_agent() {
    let scene = scene("placed").await;
    let (proxy, told) = (Proxy::before(&scene.cluster, 1).await, Told::default());
    let builder = proxy.agent(&scene.agent).on_hook(told.hook());
    let mut talk = scene.talk(echo(builder)).await;
    proxy.on_frame(moved());
    talk.conversation.send("moved").await.expect("sent");
    talk.conversation.send("moved whole").await.expect("sent");
    let answer = talk.events.ask(&talk.conversation, "in its place").await;
    assert_eq!(answer, "You said: in its place");
    // Two conversations are handled at once.
    until(|| told.refused().len() == 2).await;
    talk.agent.stop().await;
    let read = texts(&talk.conversation).await;
    assert_eq!(read[2..], ["in its place", "You said: in its place"]);
    assert_eq!(told.refused(), ["malformed", "no_epoch_key"]);
}

/// The event of the last message in an agent's inbox.
async fn last_event(scene: &Scene) -> Value {
    let Upstream { url, http, .. } = Upstream::new(&scene.cluster, 1);
    let agent_id: AgentId = scene.agent.id;
    let page = http
        .get(format!("{url}/agents/{agent_id}/messages/poll?wait=0"))
        .bearer_auth(scene.agent.token.as_str());
    let page = page.send().await.expect("an answer");
    let page: Value = page.json().await.expect("JSON");
    let mut events = page["data"].as_array().expect("a page").iter().rev();
    let event = events.find(|event| event["event"] == "message.created");
    event.expect("a message").clone()
}

/// A delivery, as a node signs it.
fn delivery(event: &Value) -> (HeaderMap, Vec<u8>) {
    let mut call = event.clone();
    call["attempt"] = 1.into();
    let body = call.to_string().into_bytes();
    let at: Timestamp = serde_json::from_value(event["created_at"].clone()).expect("a time");
    let at = at.0.timestamp();
    let mut mac = Hmac::<Sha256>::new_from_slice(&SECRET).expect("any length");
    mac.update(format!("id.{at}.").as_bytes());
    mac.update(&body);
    let signature = STANDARD.encode(mac.finalize().into_bytes());
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", "id".parse().expect("a value"));
    headers.insert("webhook-timestamp", at.into());
    let signature = format!("v1,{signature}").parse();
    headers.insert("webhook-signature", signature.expect("a value"));
    (headers, body)
}

#[tokio::test]
async fn a_message_that_is_delivered_twice_at_once_is_handled_once() {
    let scene = scene("busy").await;
    let (told, begun) = (Told::default(), Arc::<AtomicU32>::default());
    let gate = Arc::new(Semaphore::new(0));
    let (count, opened) = (begun.clone(), gate.clone());
    let builder = scene.builder().on_hook(told.hook());
    let busy = builder.on_message(move |_: Context| {
        count.fetch_add(1, Ordering::Relaxed);
        let opened = opened.clone();
        async move {
            let _open = opened.acquire().await;
            Ok(())
        }
    });
    let busy = busy.build();
    busy.check().await.expect("a key");
    let conversation = scene.conversation().await;
    conversation.send("once").await.expect("sent");
    let event = last_event(&scene).await;
    let mut again = event.clone();
    again["event_id"] = ANOTHER_EVENT.into();
    let webhook = busy.webhook(format!("whsec_{}", STANDARD.encode(SECRET)));
    let webhook = webhook.expect("a secret");
    let receive = async |event: &Value| {
        let (headers, body) = delivery(event);
        webhook.receive(&headers, &body).await
    };

    let meanwhile = async {
        until(|| begun.load(Ordering::Relaxed) == 1).await;
        let answers = [receive(&event).await, receive(&again).await];
        gate.add_permits(1);
        answers
    };
    let (first, refused) = tokio::join!(receive(&event), meanwhile);
    assert_eq!(first.status, 200);
    for answer in refused {
        assert!(
            answer.status == 503 && answer.retry_after.is_some(),
            "{answer:?}"
        );
    }
    assert_eq!(receive(&event).await.status, 200);
    assert_eq!(receive(&again).await.status, 200);
    assert_eq!(begun.load(Ordering::Relaxed), 1);

    let mut elsewhere = event.clone();
    elsewhere["conversation_id"] = json!(ELSEWHERE);
    assert_eq!(receive(&elsewhere).await.status, 200);
    assert_eq!(begun.load(Ordering::Relaxed), 1);
    assert_eq!(told.refused(), ["malformed"]);
}
