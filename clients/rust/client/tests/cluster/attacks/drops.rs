//! Events that never come: later signed events tell of them, or are whole without them.

use std::sync::Arc;

use blindpipe_client::client::{ClientEvent, SendOptions};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::{Attacked, Proxy, Told, attacked, next_message, notices, victim};
use crate::{
    proxy::without,
    support::{cluster, echo, history, is_by_agent, running, scene, watch},
};

#[tokio::test]
async fn a_secret_whose_event_was_dropped_is_read_when_it_is_needed() {
    let scene = scene("deaf").await;
    let (proxy, told) = (Proxy::before(&scene.cluster, 1).await, Told::default());
    proxy.on_frame(without("key.rotated"));
    let builder = proxy.agent(&scene.agent).on_hook(told.hook());
    let mut talk = scene.talk(echo(builder)).await;
    for text in ["in the first", "in the second"] {
        talk.conversation.rotate().await.expect("rotated");
        let answer = talk.events.ask(&talk.conversation, text).await;
        assert_eq!(answer, format!("You said: {text}"));
    }
    talk.agent.stop().await;
    assert!(told.refused().is_empty());
}

#[tokio::test]
async fn a_reply_to_a_message_that_was_dropped_says_that_something_is_missing() {
    let Attacked {
        bob,
        proxy,
        told,
        conversation,
        ..
    } = attacked().await;
    let mut events = watch(&bob).await;
    let mut dropped = without("message.created");
    let mut is_first = true;
    proxy.on_frame(move |frame| {
        let is_dropped = is_first && dropped(frame.clone()).is_empty();
        is_first &= !is_dropped;
        if is_dropped { Vec::new() } else { vec![frame] }
    });
    conversation.send("I take it back").await.expect("sent");
    let in_reply_to = history(&conversation).await.pop();
    let options = SendOptions {
        in_reply_to,
        ..SendOptions::default()
    };
    let sent = conversation.send_with("all of it", options).await;
    sent.expect("sent");
    let received = next_message(&mut events, conversation.id()).await;
    assert_eq!(received.text(), "all of it");
    // Nothing but that reply shows that a message was dropped.
    assert!(told.refused().is_empty());
    assert_eq!(notices(&received), ["no_quote"]);
    // The history has both, and no notice.
    let read = history(&bob.client.conversation(conversation.id())).await;
    let texts: Vec<_> = read.iter().map(|received| received.text()).collect();
    assert_eq!(texts, ["I take it back", "all of it"]);
    assert!(read.iter().all(|received| notices(received).is_empty()));
}

#[tokio::test]
async fn a_stream_whose_pieces_are_dropped_ends_whole() {
    let cluster = cluster().await;
    let (ada, proxy, told) = victim(&cluster, "ada").await;
    let made = cluster.agent("writer", &ada.client, None).await;
    let made = made.expect("an agent");
    let builder = cluster.builder(&made, 0).expect("a node");
    // A service may leave out pieces that would come with their message.
    let shown_all = Arc::new(Semaphore::new(0));
    let gate = shown_all.clone();
    let writer = running(builder.on_message(move |ctx| {
        let gate = gate.clone();
        async move {
            let mut out = ctx.stream()?;
            for word in ["do ", "not ", "sell"] {
                out.write(word).await;
                out.flush().await;
            }
            let _shown = gate.acquire().await;
            out.end().await
        }
    }))
    .await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    let mut events = watch(&ada).await;
    let dropped = Arc::new(Mutex::new(0));
    let count = dropped.clone();
    proxy.on_frame(move |frame| {
        if frame["type"] == "stream.delta" && frame["n"] == 1 {
            *count.lock() += 1;
            return Vec::new();
        }
        vec![frame]
    });
    conversation.send("sell?").await.expect("sent");
    let mut shown = Vec::new();
    let text = loop {
        match events.next().await {
            ClientEvent::Delta { n, append, .. } => {
                shown.push((n, append));
                if n == 2 {
                    shown_all.add_permits(1);
                }
            }
            ClientEvent::Message { received, .. } if is_by_agent(&received) => {
                break received.text().to_owned();
            }
            _ => {}
        }
    };
    // The numbers show that a piece is missing, and the signed message has all of them.
    assert_eq!(shown, [(0, "do ".to_owned()), (2, "sell".to_owned())]);
    assert_eq!((text.as_str(), *dropped.lock()), ("do not sell", 1));
    assert!(told.refused().is_empty());
    writer.stop().await;
}
