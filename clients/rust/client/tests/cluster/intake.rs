//! What comes in badly: reads that fail.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use blindpipe_client::{Client, Hook};

use crate::{
    attacks::next_message,
    faults::{Fault, fail},
    proxy::Proxy,
    support::{cluster, direct, watch},
};

#[tokio::test]
async fn an_event_whose_keys_cannot_be_read_for_now_is_waited_for() {
    let cluster = cluster().await;
    let proxy = Proxy::before(&cluster, 1).await;
    let waits = Arc::<AtomicU32>::default();
    let waiting = waits.clone();
    let builder = Client::builder(proxy.server()).on_hook(move |hook| {
        if matches!(hook, Hook::Retry { what, .. } if what == "reading of an event") {
            waiting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let bob = cluster.user_with("bob", builder).await.expect("a person");
    let ada = cluster.user("ada").await.expect("a person");
    let conversation = direct(&ada, &bob).await;
    let mut events = watch(&bob).await;
    let read = format!("GET /conversations/{}", conversation.id());
    // Each reading asks five times.
    let reads = fail(&proxy, read, vec![Fault::Cut; 10]);
    for text in ["first", "second"] {
        conversation.send(text).await.expect("sent");
    }
    for text in ["first", "second"] {
        let shown = next_message(&mut events, conversation.id()).await;
        assert_eq!(shown.text(), text);
    }
    assert_eq!(waits.load(Ordering::Relaxed), 2);
    assert_eq!(reads.load(Ordering::Relaxed), 11);
}
