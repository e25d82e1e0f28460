//! An agent and a person on two nodes.

use std::sync::Arc;

use blindpipe_client::{
    Client, MemoryStore, client::ClientEvent, protocol::ids::Principal,
    testing::PROTECTION_PASSWORD,
};
use tokio::sync::{Mutex, mpsc};

use crate::support::{
    QUIET, Talk, cluster, direct, echo, history, is_by_agent, pair, running, scene, texts,
    the_cluster, watch,
};

#[tokio::test]
async fn an_echo_is_encrypted_both_ways() {
    let scene = scene("echo").await;
    let mut talk = scene.talk(echo(scene.builder())).await;
    talk.conversation.send("Grüße").await.expect("sent");
    let answer = talk.answer().await;
    let opened = answer.opened.as_ref().expect("it opens");
    assert_eq!(opened.text(), "You said: Grüße");
    assert!(opened.encrypted && opened.sender.authentic);
    let payload = answer.message.payload.as_ref().expect("a payload");
    assert!(payload.as_str().contains("\"encrypted\"") && !payload.as_str().contains("Grüße"));
    let re = opened.content.get("re").and_then(|re| re.as_str());
    assert!(
        re.is_some_and(|re| re.len() == 44),
        "it names what it answers"
    );
    talk.agent.stop().await;
}

/// The deltas that come before the answer: number and text of each. `shown` is told of each.
async fn deltas(
    talk: &mut Talk,
    shown: &mpsc::UnboundedSender<()>,
) -> (Vec<(u64, String)>, String) {
    let (mut deltas, mut streams) = (Vec::new(), Vec::new());
    loop {
        match talk.events.next().await {
            ClientEvent::Delta {
                stream_id,
                n,
                append,
                ..
            } => {
                deltas.push((n, append));
                streams.push(stream_id);
                shown.send(()).expect("the writer waits");
            }
            ClientEvent::Message { received, .. } if is_by_agent(&received) => {
                let id = received.message.client_message_id.expect("an id");
                assert!(streams.iter().all(|stream| *stream == id.to_string()));
                return (deltas, received.text().to_owned());
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_stream_is_shown_piece_by_piece_and_ends_as_one_message() {
    let scene = scene("writer").await;
    let (shown, next) = mpsc::unbounded_channel();
    let next = Arc::new(Mutex::new(next));
    let writer = scene.builder().on_message(move |ctx| {
        let next = next.clone();
        async move {
            let mut out = ctx.stream()?;
            for word in ["one ", "two ", "three"] {
                out.write(word).await;
                out.flush().await;
                // The message at the end replaces what is queued, so nothing is left in a queue.
                next.lock().await.recv().await;
            }
            out.end().await
        }
    });
    let mut talk = scene.talk(writer).await;
    talk.conversation.send("write").await.expect("sent");
    let (deltas, answer) = deltas(&mut talk, &shown).await;
    assert_eq!(answer, "one two three");
    let wanted = [(0, "one "), (1, "two "), (2, "three")];
    assert_eq!(deltas, wanted.map(|(n, text)| (n, text.to_owned())));
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_piece_may_be_missing_and_is_never_joined_or_out_of_order() {
    let scene = scene("hasty").await;
    let hasty = scene.builder().on_message(async |ctx| {
        let mut out = ctx.stream()?;
        for n in 0..8 {
            out.write(&format!("{n} ")).await;
            out.flush().await;
        }
        out.end().await
    });
    let mut talk = scene.talk(hasty).await;
    talk.conversation.send("write").await.expect("sent");
    let (shown, _told) = mpsc::unbounded_channel();
    let (deltas, answer) = deltas(&mut talk, &shown).await;
    assert_eq!(answer, "0 1 2 3 4 5 6 7 ");
    assert!(!deltas.is_empty());
    assert!(deltas.is_sorted_by(|(a, _), (b, _)| a < b), "{deltas:?}");
    assert!(deltas.iter().all(|(n, text)| *text == format!("{n} ")));
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_restarted_client_goes_on_with_its_keys() {
    let cluster = cluster().await;
    let store = Arc::new(MemoryStore::default());
    let node = cluster.node(0).expect("a node");
    let builder = Client::builder(node.clone()).store(store.clone());
    let ada = cluster.user_with("ada", builder).await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&ada, &bob).await;
    conversation.send("before").await.expect("sent");
    let key = ada.client.key_id().expect("a key");
    let id = conversation.id();
    drop((ada, conversation));
    let resumed = Client::builder(node)
        .store(store)
        .resume()
        .await
        .expect("a session");
    let ada = resumed.expect("it is live");
    assert_eq!(ada.key_id().expect("a key"), key);
    let conversation = ada.conversation(id);
    conversation.send("after").await.expect("sent");
    let epoch = conversation.info().await.expect("a conversation").epoch;
    assert_eq!(epoch, 1, "the secret of before serves on");
    assert_eq!(texts(&conversation).await, ["before", "after"]);
    assert_eq!(
        texts(&bob.client.conversation(id)).await,
        ["before", "after"]
    );
}

#[tokio::test]
async fn another_device_restores_the_keys_and_reads_everything() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let conversation = direct(&ada, &bob).await;
    conversation.send("for the history").await.expect("sent");
    let phone = cluster
        .device(&ada, 1, "phone")
        .await
        .expect("another device");
    let wrong = phone.devices().restore("another password").await;
    assert!(wrong.is_err() && !phone.has_keys());
    phone
        .devices()
        .restore(PROTECTION_PASSWORD)
        .await
        .expect("restored");
    let on_phone = phone.conversation(conversation.id());
    assert_eq!(texts(&on_phone).await, ["for the history"]);
    on_phone.send("from the phone").await.expect("sent");
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(texts(&bobs).await, ["for the history", "from the phone"]);
    let devices = phone.devices().list().await.expect("devices");
    assert_eq!(devices.iter().filter(|device| device.has_keys).count(), 2);
    // The digits are of all keys of both: the same on every device.
    let of_ada = Principal::User(ada.client.user_id().expect("an id"));
    let of_bob = Principal::User(bob.client.user_id().expect("an id"));
    let bob_number = bob.client.safety_number(of_ada).await.expect("a number");
    assert_eq!(bob_number.len(), 71, "twelve groups of five digits");
    for client in [&ada.client, &phone] {
        let number = client.safety_number(of_bob).await.expect("a number");
        assert_eq!(number, bob_number);
    }
    assert!(bob.client.verify(of_ada, &bob_number).expect("stored"));
    let newest = history(&bobs).await.pop().expect("one");
    assert!(newest.opened.expect("opens").sender.verified);
}

#[tokio::test]
async fn a_node_dies_and_nothing_is_lost_or_doubled() {
    let _alone = QUIET.write().await;
    let cluster = the_cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("survivor", &ada.client, None)
        .await
        .expect("an agent");
    let echo = running(echo(cluster.builder(&agent, 1).expect("a node"))).await;
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    let mut events = watch(&ada).await;
    assert_eq!(
        events.ask(&conversation, "before").await,
        "You said: before"
    );
    cluster.kill(1).expect("killed");
    for n in 0..10 {
        conversation.send(format!("after {n}")).await.expect("sent");
    }
    for n in 0..10 {
        let answer = events.answer(&conversation).await;
        assert_eq!(answer.text(), format!("You said: after {n}"));
    }
    echo.stop().await;
    assert_eq!(texts(&conversation).await.len(), 22);
}
