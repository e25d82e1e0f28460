//! A backlog stays on the server. The events that wait in a client have a bound, however many come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Client, Context, Hook,
    client::ClientEvent,
    protocol::{ids::ConversationId, messages::Message},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{cluster, direct, running, scene, until, watch};

/// 45 MB, of which a client takes 32.
const MESSAGES: u64 = 50;
const MESSAGE_BYTES: usize = 900_000;

/// The connections that a client has begun and ended.
#[derive(Clone, Default)]
struct Connections(Arc<[AtomicU32; 2]>);

impl Connections {
    fn hook(&self) -> impl Fn(&Hook) + Send + Sync + use<> {
        let Self(counts) = self.clone();
        move |hook| match hook {
            Hook::Connected => _ = counts[0].fetch_add(1, Ordering::Relaxed),
            Hook::Disconnected { .. } => _ = counts[1].fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }

    fn counts(&self) -> [u32; 2] {
        [0, 1].map(|n| self.0[n].load(Ordering::Relaxed))
    }

    /// The client has left, and does not come back before it has room.
    async fn left(&self) {
        until(|| self.counts()[1] == 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(self.counts(), [1, 1]);
    }
}

async fn flood(client: &Client, to: ConversationId) {
    for number in 0..MESSAGES {
        let payload =
            json!({ "type": "text", "number": number, "text": "x".repeat(MESSAGE_BYTES) });
        client.send_raw(to, &payload).await.expect("sent");
    }
}

fn number_of(message: &Message) -> u64 {
    let payload = message.payload.as_ref().expect("a payload");
    let payload: Value = serde_json::from_str(payload.as_str()).expect("JSON");
    payload["number"].as_u64().expect("a number")
}

#[tokio::test]
async fn a_person_that_reads_slowly_gets_everything_in_order() {
    let cluster = cluster().await;
    let connections = Connections::default();
    let server = cluster.node(1).expect("a node");
    let builder = Client::builder(server).on_hook(connections.hook());
    let ada = cluster.user("ada").await.expect("a person");
    let bob = cluster.user_with("bob", builder).await.expect("a person");
    let mut events = watch(&bob).await;
    let conversation = direct(&ada, &bob).await;
    flood(&ada.client, conversation.id()).await;
    connections.left().await;
    let mut shown = Vec::new();
    while shown.len() < MESSAGES as usize {
        if let ClientEvent::Message { received, .. } = events.next().await {
            shown.push(number_of(&received.message));
        }
    }
    assert_eq!(shown, Vec::from_iter(0..MESSAGES));
    assert_eq!(connections.counts(), [2, 1]);
}

#[tokio::test]
async fn an_agent_that_handles_slowly_gets_everything_in_order() {
    let scene = scene("slow").await;
    let connections = Connections::default();
    let (gate, handled) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (opened, heard) = (gate.clone(), handled.clone());
    let builder = scene
        .builder()
        .allow_plaintext()
        .on_hook(connections.hook());
    let agent = running(builder.on_message(move |ctx: Context| {
        let (opened, heard) = (opened.clone(), heard.clone());
        async move {
            let _open = opened.acquire().await;
            let message = serde_json::from_str::<Message>(ctx.event().data.as_str());
            heard.lock().push(number_of(&message.expect("a message")));
            Ok(())
        }
    }))
    .await;
    let conversation = scene.conversation().await;
    flood(&scene.ada.client, conversation.id()).await;
    connections.left().await;
    gate.add_permits(1);
    until(|| handled.lock().len() == MESSAGES as usize).await;
    agent.stop().await;
    assert_eq!(*handled.lock(), Vec::from_iter(0..MESSAGES));
    assert_eq!(connections.counts()[0], 2);
}
