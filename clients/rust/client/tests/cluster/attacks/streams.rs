//! Pieces of streams that are altered, renumbered, moved, late.

use std::{sync::Arc, time::Duration};

use blindpipe_client::{Clock, client::ClientEvent};
use parking_lot::Mutex;
use serde_json::Value;

use super::victim_with;
use crate::support::{cluster, is_by_agent, running, until, watch};

#[tokio::test]
async fn a_piece_is_shown_as_it_was_written_or_not_at_all() {
    let cluster = cluster().await;
    let clock = Clock::default();
    let (ada, proxy, told) = victim_with(&cluster, "ada", |it| it.clock(clock.clone())).await;
    let made = cluster.agent("writer", &ada.client, None).await;
    let made = made.expect("an agent");
    let (shown, next) = tokio::sync::mpsc::unbounded_channel();
    let next = Arc::new(tokio::sync::Mutex::new(next));
    let builder = cluster.builder(&made, 0).expect("a node");
    let writer = running(builder.on_message(move |ctx| {
        let next = next.clone();
        async move {
            let mut out = ctx.stream()?;
            for word in ["pay ", "nobody"] {
                out.write(word).await;
                out.flush().await;
                next.lock().await.recv().await;
            }
            out.end().await
        }
    }))
    .await;
    let conversation = ada.client.open_agent(made.id).await.expect("opened");
    let mut events = watch(&ada).await;
    let pieces = Arc::new(Mutex::new(Vec::new()));
    let seen = pieces.clone();
    proxy.on_frame(move |frame| {
        if frame["type"] != "stream.delta" {
            return vec![frame];
        }
        seen.lock().push(frame.clone());
        let altered = |name: &str, value: Value| {
            let mut frame = frame.clone();
            frame[name] = value;
            frame
        };
        let n = frame["n"].as_u64().expect("a number");
        let data = frame["data"].as_str().expect("an envelope").to_owned();
        let cut = data[..data.len() - 4].to_owned();
        vec![
            altered("n", (n + 1).into()),
            altered("stream_id", "01ARZ3NDEKTSV4RRFFQ69G5FAV".into()),
            altered("data", cut.into()),
            altered("data", serde_json::json!({ "append": "everybody " })),
            frame.clone(),
            frame,
        ]
    });
    conversation.send("write").await.expect("sent");
    let mut read = Vec::new();
    loop {
        match events.next().await {
            ClientEvent::Delta { append, .. } => {
                read.push(append);
                shown.send(()).expect("the writer waits");
            }
            ClientEvent::Message { received, .. } if is_by_agent(&received) => {
                assert_eq!(received.text(), "pay nobody");
                break;
            }
            _ => {}
        }
    }
    assert_eq!(read, ["pay ", "nobody"], "each piece once");
    let reasons = [
        "bad_ciphertext",
        "bad_ciphertext",
        "bad_ciphertext",
        "clear",
    ];
    assert_eq!(
        told.refused(),
        reasons.repeat(2),
        "the hook is told of each"
    );
    // A piece of a message that is there, and one that is over five minutes old.
    let first = pieces.lock()[0].clone();
    proxy.inject(first);
    clock.advance(Duration::from_secs(6 * 60));
    conversation.send("again").await.expect("sent");
    let shows_nothing = async {
        loop {
            if let ClientEvent::Delta { append, .. } = events.next().await {
                panic!("{append}");
            }
        }
    };
    tokio::select! {
        () = shows_nothing => {}
        () = until(|| told.refused().contains(&"stale")) => {}
    }
    writer.agent.stop();
}
