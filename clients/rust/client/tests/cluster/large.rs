//! Contents that do not fit an envelope, and events that do not fit a delivery.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use blindpipe_client::{Agent, Content, ContentKind, ContentView, Context};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    proxy::Proxy,
    support::{receiving, scene, until},
};

/// A megabyte.
fn long() -> String {
    "é".repeat(500_000)
}

#[tokio::test]
async fn a_large_content_goes_as_a_file_both_ways() {
    let scene = scene("echo").await;
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let hearing = heard.clone();
    let echo = scene.builder().on_message(move |ctx: Context| {
        hearing.lock().push(ctx.text().to_owned());
        async move { ctx.reply(format!("{}!", ctx.text())).await }
    });
    let mut talk = scene.talk(echo).await;
    talk.conversation.send(long()).await.expect("sent");
    let answer = talk.answer().await;
    assert!(*heard.lock() == [long()], "the agent reads it whole");
    assert!(answer.text() == format!("{}!", long()), "the person does");
    let opened = answer.opened.as_ref().expect("it opens");
    // The answer still names the envelope that it answers.
    assert!(opened.content["re"].is_string());
    let payload = answer.message.payload.as_ref().expect("a payload");
    assert!(payload.as_str().len() < 5_000);
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_file_that_was_altered_is_taken_for_no_content() {
    let scene = scene("careful").await;
    let (proxy, lies) = (
        Proxy::before(&scene.cluster, 1).await,
        Arc::new(AtomicBool::new(true)),
    );
    let lying = lies.clone();
    proxy.on_bytes(move |call, bytes| {
        if call.starts_with("GET /objects/") && lying.load(Ordering::Relaxed) {
            bytes[100] ^= 1;
        }
    });
    let heard = Arc::<Mutex<Vec<Content>>>::default();
    let hearing = heard.clone();
    let agent = proxy.agent(&scene.agent).on_message(move |ctx: Context| {
        hearing.lock().push(ctx.content().clone());
        async move { ctx.reply("heard").await }
    });
    let mut talk = scene.talk(agent).await;
    for is_altered in [true, false] {
        lies.store(is_altered, Ordering::Relaxed);
        let heard_before = heard.lock().len();
        assert_eq!(talk.events.ask(&talk.conversation, &long()).await, "heard");
        let content = heard.lock()[heard_before].clone();
        let view = ContentView::of(&content);
        let kind = if is_altered {
            ContentKind::Unknown
        } else {
            ContentKind::Text
        };
        assert_eq!(view.kind, kind);
    }
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_delivery_that_is_too_large_for_its_body_is_read_by_its_address() {
    let scene = scene("large").await;
    let heard = Arc::<Mutex<Vec<(String, bool)>>>::default();
    let hearing = heard.clone();
    let node = scene.cluster.node(1).expect("a node");
    let agent = Agent::builder(node, scene.agent.id, scene.agent.token.as_str());
    let agent = agent.allow_plaintext().on_message(move |ctx: Context| {
        let data: Value = serde_json::from_str(ctx.event().data.as_str()).expect("JSON");
        let is_reference = !data["object_ref"].is_null();
        hearing.lock().push((ctx.text().to_owned(), is_reference));
        async { Ok(()) }
    });
    let agent = agent.build();
    let _receiving = receiving(&agent).await;
    let conversation = scene.conversation().await;
    conversation.choose_clear().expect("chosen");
    let long = "x".repeat(1_048_400);
    conversation.send(long.as_str()).await.expect("sent");
    until(|| !heard.lock().is_empty()).await;
    assert!(*heard.lock() == [(long, false)], "it reads it whole");
}
