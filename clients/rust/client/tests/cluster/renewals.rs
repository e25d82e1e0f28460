//! Access tokens that are not renewed at once: only a refusal ends a session.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use blindpipe_client::{
    Client, Error, MemoryStore,
    client::{ClientEvent, Events},
    testing::TestUser,
};
use tokio::time::timeout;

use crate::{
    attacks::next_message,
    faults::Fault,
    proxy::Proxy,
    support::{PATIENCE, Shared, cluster, direct, watch},
};

const RENEWAL: &str = "POST /auth/refresh";

/// Ada behind a proxy; each of her tokens is to be renewed at once.
async fn short_lived(cluster: &Shared, store: Arc<MemoryStore>) -> (TestUser, Proxy) {
    let proxy = Proxy::before(cluster, 1).await;
    proxy.on_answer(|call, answer| {
        if call.contains("/auth/") && answer["data"]["expires_in_seconds"].is_u64() {
            answer["data"]["expires_in_seconds"] = 0.into();
        }
    });
    let builder = Client::builder(proxy.server()).store(store);
    let ada = cluster.user_with("ada", builder).await;
    (ada.expect("a person"), proxy)
}

/// Has the renewals that are asked for while `left` says so end in a refusal.
fn refuse(proxy: &Proxy, left: &Arc<AtomicU32>, status: u16) {
    let left = left.clone();
    proxy.on_call(move |call| {
        let is_refused = call == RENEWAL
            && left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok();
        is_refused.then_some(Fault::Refusal(status))
    });
}

async fn end(events: &mut Events) -> Error {
    let end = async {
        loop {
            if let Err(error) = events.next().await {
                return error;
            }
        }
    };
    timeout(PATIENCE, end).await.expect("it ends")
}

#[tokio::test]
async fn a_renewal_that_fails_for_a_while_ends_no_client() {
    let cluster = cluster().await;
    let (ada, proxy) = short_lived(&cluster, Arc::default()).await;
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&bob, &ada).await;
    let mut events = watch(&ada).await;
    // Five tries are those of a single renewal.
    let left = Arc::new(AtomicU32::new(7));
    refuse(&proxy, &left, 503);
    proxy.close(4401);
    conversation.send("after the outage").await.expect("sent");
    let received = next_message(&mut events, conversation.id()).await;
    assert_eq!(received.text(), "after the outage");
    assert_eq!(left.load(Ordering::Relaxed), 0, "renewals were refused");
}

#[tokio::test]
async fn a_renewal_that_is_refused_ends_the_client() {
    let cluster = cluster().await;
    let (ada, proxy) = short_lived(&cluster, Arc::default()).await;
    let mut events = ada.client.events().expect("a socket");
    while !matches!(events.next().await, Ok(ClientEvent::CaughtUp)) {}
    refuse(&proxy, &Arc::new(AtomicU32::new(u32::MAX)), 401);
    proxy.close(4401);
    let ended = end(&mut events).await;
    assert!(matches!(ended, Error::Closed { .. }), "{ended:?}");
}

#[tokio::test]
async fn a_person_who_comes_back_in_an_outage_waits_for_its_end() {
    let cluster = cluster().await;
    let store = Arc::<MemoryStore>::default();
    let (ada, proxy) = short_lived(&cluster, store.clone()).await;
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&bob, &ada).await;
    let left = Arc::new(AtomicU32::new(7));
    refuse(&proxy, &left, 503);
    let resumed = Client::builder(proxy.server()).store(store).resume().await;
    let client = resumed.expect("no refusal").expect("a session");
    let mut events = client.events().expect("a socket");
    conversation.send("hello again").await.expect("sent");
    let read = async {
        loop {
            if let Ok(ClientEvent::Message { received, .. }) = events.next().await {
                return received.text().to_owned();
            }
        }
    };
    let text = timeout(PATIENCE, read).await.expect("in time");
    assert_eq!(text, "hello again");
    assert_eq!(left.load(Ordering::Relaxed), 0);
}
