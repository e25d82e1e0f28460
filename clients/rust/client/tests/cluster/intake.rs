//! What comes in badly: handlers that never end, events of an unknown shape, reads that fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Client, Clock, Context, Hook,
    agent::Transport,
    client::Conversation,
    testing::{PROTECTION_PASSWORD, TestUser},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    attacks::{Told, next_message},
    faults::{Fault, fail},
    log::Log,
    proxy::Proxy,
    support::{Shared, Watch, cluster, direct, echo, scene, until, watch},
};

/// Waits for an answer, and moves a clock until it comes.
async fn answer_by(clock: &Clock, step: Duration, events: &mut Watch, of: &Conversation) -> String {
    let mut answer = Box::pin(events.answer(of));
    loop {
        match timeout(Duration::from_millis(200), &mut answer).await {
            Ok(answer) => return answer.text().to_owned(),
            Err(_) => clock.advance(step),
        }
    }
}

async fn never_ends(transport: Transport) {
    let (log, _guard) = Log::start();
    let (scene, clock) = (scene("stuck").await, Clock::default());
    let end = Arc::new(Semaphore::new(0));
    let runs = Arc::<Mutex<Vec<String>>>::default();
    let (ends, running) = (end.clone(), runs.clone());
    let builder = scene.builder().clock(clock.clone()).transport(transport);
    // An agent remembers no message in clear, so it would handle one again that came twice.
    let builder = builder.allow_plaintext();
    let builder = builder.on_message(move |ctx: Context| {
        let ends = ends.clone();
        running.lock().push(ctx.text().to_owned());
        async move {
            if ctx.text() == "for ever" {
                ends.acquire().await.expect("open").forget();
            }
            ctx.reply(format!("You said: {}", ctx.text())).await
        }
    });
    let mut talk = scene.talk(builder).await;
    talk.conversation.choose_clear().expect("chosen");
    let clear = json!({ "type": "text", "text": "for ever" });
    let sent = scene.ada.client.send_raw(talk.conversation.id(), &clear);
    sent.await.expect("sent");
    until(|| !runs.lock().is_empty()).await;
    assert!(!log.contains("still run"));
    until(|| {
        clock.advance(Duration::from_secs(60));
        log.contains("the handlers of message.created") && log.contains("still run after 300 s")
    })
    .await;
    let bob = scene.cluster.user("bob").await.expect("a person");
    let bobs = bob.client.open_agent(scene.agent.id).await.expect("opened");
    let mut bobs_events = watch(&bob).await;
    for text in ["one", "two"] {
        bobs.send(text).await.expect("sent");
        let settle = Duration::from_secs(10);
        let answer = answer_by(&clock, settle, &mut bobs_events, &bobs).await;
        assert_eq!(answer, format!("You said: {text}"));
    }
    end.add_permits(1);
    let said = talk.answer().await;
    assert_eq!(said.text(), "You said: for ever");
    let said = talk.events.ask(&talk.conversation, "in the end").await;
    assert_eq!(said, "You said: in the end");
    talk.agent.stop().await;
    let wanted = ["for ever", "one", "two", "in the end"];
    assert_eq!(*runs.lock(), wanted, "no event was handled twice");
}

#[tokio::test]
async fn a_handler_that_never_ends_holds_up_its_own_conversation_alone_and_is_logged() {
    for transport in [Transport::Socket, Transport::Poll] {
        never_ends(transport).await;
    }
}

#[tokio::test]
async fn an_event_of_an_unknown_shape_is_logged_and_ends_nothing() {
    let (log, _guard) = Log::start();
    let scene = scene("robust").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let told = Told::default();
    let agent = echo(proxy.agent(&scene.agent).on_hook(told.hook()));
    let mut talk = scene.talk(agent).await;
    let said = talk.events.ask(&talk.conversation, "one").await;
    assert_eq!(said, "You said: one");
    let place = talk.conversation.id().to_string();
    let strange = json!({ "shape": ["unknown", 1, null] });
    for name in ["key.device_added", "key.rotated", "member.removed"] {
        assert!(!log.contains("could not be looked into"), "{name}");
        proxy.inject_event(name, &place, &strange);
        until(|| log.contains("an event could not be looked into")).await;
        log.clear();
    }
    for (name, number) in [("message.created", 1), ("message.created", 2)] {
        proxy.inject_event(name, &place, &strange);
        until(|| told.refused().len() == number).await;
    }
    for name in ["artifact_response", "turn.stop", "a.name.of.later"] {
        proxy.inject_event(name, &place, &strange);
    }
    // Neither a frame that is no event, nor one that is nothing.
    for frame in [
        json!({ "type": "event", "event": 7 }),
        json!({ "type": 7 }),
        json!([]),
    ] {
        proxy.inject(frame);
    }
    until(|| told.refused().len() == 3).await;
    assert_eq!(told.refused(), ["malformed"; 3]);
    talk.conversation.rotate().await.expect("rotated");
    let said = talk.events.ask(&talk.conversation, "two").await;
    assert_eq!(said, "You said: two");
    talk.agent.stop().await;
}

/// Ada's keys change, and nobody can read them behind the proxy. Answers the count of the tries.
async fn frozen_keys(cluster: &Shared, proxy: &Proxy, ada: &TestUser) -> Arc<AtomicU32> {
    let list = format!(
        "GET /keys/users/{}/devices",
        ada.client.user_id().expect("an id")
    );
    let never = Fault::Wait(Arc::new(Semaphore::new(0)));
    let reads = fail(proxy, list, vec![never; 100]);
    let phone = cluster.device(ada, 1, "phone").await.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    reads
}

#[tokio::test]
async fn changed_keys_that_cannot_be_read_hold_up_no_agent_in_other_conversations() {
    let scene = scene("unheld").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let mut talk = scene.talk(echo(proxy.agent(&scene.agent))).await;
    let said = talk.events.ask(&talk.conversation, "one").await;
    assert_eq!(said, "You said: one");
    let reads = frozen_keys(&scene.cluster, &proxy, &scene.ada).await;
    until(|| reads.load(Ordering::Relaxed) > 0).await;
    let bob = scene.cluster.user("bob").await.expect("a person");
    let bobs = bob.client.open_agent(scene.agent.id).await.expect("opened");
    let mut events = watch(&bob).await;
    assert_eq!(events.ask(&bobs, "two").await, "You said: two");
    let said = talk.events.ask(&talk.conversation, "three").await;
    assert_eq!(said, "You said: three");
    talk.agent.stop().await;
}

#[tokio::test]
async fn changed_keys_that_cannot_be_read_hold_up_no_person() {
    let cluster = cluster().await;
    let proxy = Proxy::before(&cluster, 1).await;
    let bob = cluster
        .user_with("bob", Client::builder(proxy.server()))
        .await;
    let bob = bob.expect("a person");
    let ada = cluster.user("ada").await.expect("a person");
    let carol = cluster.user("carol").await.expect("a person");
    let with_ada = direct(&ada, &bob).await;
    let with_carol = direct(&carol, &bob).await;
    let mut events = watch(&bob).await;
    with_ada.send("known").await.expect("sent");
    let shown = next_message(&mut events, with_ada.id()).await;
    assert_eq!(shown.text(), "known");
    let reads = frozen_keys(&cluster, &proxy, &ada).await;
    with_carol.send("not held up").await.expect("sent");
    let shown = next_message(&mut events, with_carol.id()).await;
    assert_eq!(shown.text(), "not held up");
    until(|| reads.load(Ordering::Relaxed) > 0).await;
}

#[tokio::test]
async fn an_own_list_of_keys_that_cannot_be_read_holds_up_no_event() {
    let cluster = cluster().await;
    let proxy = Proxy::before(&cluster, 1).await;
    let builder = Client::builder(proxy.server());
    let bob = cluster.user_with("bob", builder).await.expect("a person");
    let ada = cluster.user("ada").await.expect("a person");
    let conversation = direct(&ada, &bob).await;
    let own = bob.client.user_id().expect("an id");
    let never = Fault::Wait(Arc::new(Semaphore::new(0)));
    let reads = fail(&proxy, format!("GET /keys/users/{own}/devices"), [never]);
    let mut events = watch(&bob).await;
    conversation.send("not held up").await.expect("sent");
    let shown = next_message(&mut events, conversation.id()).await;
    assert_eq!(shown.text(), "not held up");
    until(|| reads.load(Ordering::Relaxed) == 1).await;
}

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
