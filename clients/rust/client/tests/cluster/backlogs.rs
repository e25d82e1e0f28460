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
    agent::AgentBuilder,
    client::ClientEvent,
    protocol::{groups::Visibility, ids::ConversationId, messages::Message},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::{
    faults::{Fault, fail},
    proxy::Proxy,
    support::{cluster, direct, running, scene, until, watch},
};

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

/// Notes the numbers of the messages that an agent handles, each with a permit.
fn noting(builder: AgentBuilder, gate: &Arc<Semaphore>) -> (AgentBuilder, Arc<Mutex<Vec<u64>>>) {
    let (opened, handled) = (gate.clone(), Arc::<Mutex<Vec<u64>>>::default());
    let heard = handled.clone();
    let builder = builder.allow_plaintext().on_message(move |ctx: Context| {
        let (opened, heard) = (opened.clone(), heard.clone());
        async move {
            let _open = opened.acquire().await;
            let message = serde_json::from_str::<Message>(ctx.event().data.as_str());
            heard.lock().push(number_of(&message.expect("a message")));
            Ok(())
        }
    });
    (builder, handled)
}

#[tokio::test]
async fn an_agent_that_handles_slowly_gets_everything_in_order() {
    let scene = scene("slow").await;
    let connections = Connections::default();
    let gate = Arc::new(Semaphore::new(0));
    let builder = scene.builder().on_hook(connections.hook());
    let (builder, handled) = noting(builder, &gate);
    let agent = running(builder).await;
    let conversation = scene.conversation().await;
    flood(&scene.ada.client, conversation.id()).await;
    connections.left().await;
    gate.add_permits(1);
    until(|| handled.lock().len() == MESSAGES as usize).await;
    agent.stop().await;
    assert_eq!(*handled.lock(), Vec::from_iter(0..MESSAGES));
    assert_eq!(connections.counts()[0], 2);
}

#[tokio::test]
async fn a_conversation_whose_reading_lasts_holds_up_no_other_one() {
    let scene = scene("patient").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let hearing = heard.clone();
    let builder = proxy.agent(&scene.agent).on_message(move |ctx: Context| {
        hearing.lock().push(ctx.text().to_owned());
        async { Ok(()) }
    });
    let agent = running(builder).await;
    let other = scene.conversation().await;
    let bob = scene.cluster.user("bob").await.expect("a person");
    let bob = bob.client.user_id().expect("an id");
    let slow = scene.ada.client.open_group("slow", vec![bob]).await;
    let slow = slow.expect("a group");
    let added = slow.add_agent(scene.agent.id, Visibility::All).await;
    added.expect("added");
    let gate = Arc::new(Semaphore::new(0));
    let read = format!("GET /conversations/{}", slow.id());
    let reads = fail(&proxy, read, [Fault::Wait(gate.clone())]);
    slow.send("first").await.expect("sent");
    until(|| reads.load(Ordering::Relaxed) == 1).await;
    // An event that changes the keys of what is being read.
    slow.rotate().await.expect("a rotation");
    slow.send("second").await.expect("sent");
    for number in 0..20 {
        other.send(format!("other {number}")).await.expect("sent");
    }
    until(|| heard.lock().len() == 20).await;
    assert!(heard.lock().iter().all(|text| text.starts_with("other")));
    gate.add_permits(1);
    until(|| heard.lock().len() == 22).await;
    assert_eq!(heard.lock()[20..], ["first", "second"]);
    assert_eq!(
        reads.load(Ordering::Relaxed),
        1,
        "the rotation was not read"
    );
    agent.stop().await;
}

#[tokio::test]
async fn a_standby_whose_keys_cannot_be_read_hands_on_everything() {
    let scene = scene("learning").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let (reading, handling) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(1)));
    let (builder, handled) = noting(proxy.agent(&scene.agent).standby(), &handling);
    let standby = running(builder).await;
    let conversation = scene.conversation().await;
    // An event of a key of its own has it read its keys, which lasts.
    let read = format!("GET /agents/{}/keys", scene.agent.id);
    let reads = fail(&proxy, read, [Fault::Wait(reading.clone())]);
    let mut key = Some(json!({ "agent_id": scene.agent.id, "key_id": "00" }));
    proxy.on_frame(move |frame| {
        if frame["event"] != "message.created" {
            return vec![frame];
        }
        let mut told = frame.clone();
        told["event"] = "agent.key_registered".into();
        told["data"] = key.take().unwrap_or_default();
        let told = Some(told).filter(|told| !told["data"].is_null());
        told.into_iter().chain([frame]).collect()
    });
    flood(&scene.ada.client, conversation.id()).await;
    assert!(handled.lock().is_empty());
    standby.agent.activate();
    until(|| handled.lock().len() == MESSAGES as usize).await;
    reading.add_permits(1);
    standby.stop().await;
    assert_eq!(*handled.lock(), Vec::from_iter(0..MESSAGES));
    assert!(reads.load(Ordering::Relaxed) <= 1);
}
