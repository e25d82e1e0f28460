//! An agent and a person on two nodes.

use blindpipe_client::client::ClientEvent;
use blindpipe_client::testing::PROTECTION_PASSWORD;

use crate::support::{QUIET, cluster, echo, running, texts, the_cluster, watch};

#[tokio::test]
async fn an_echo_is_encrypted_both_ways() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("echo", &ada.client, None)
        .await
        .expect("an agent");
    let echo = running(echo(cluster.builder(&agent, 1).expect("a node"))).await;
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    let mut events = watch(&ada).await;
    conversation.send("Grüße").await.expect("sent");
    let answer = events.answer(&conversation).await;
    let opened = answer.opened.as_ref().expect("it opens");
    assert_eq!(opened.text(), "You said: Grüße");
    assert!(opened.encrypted && opened.sender.authentic);
    let payload = answer.message.payload.as_ref().expect("a payload");
    assert!(payload.as_str().contains("\"encrypted\"") && !payload.as_str().contains("Gr"));
    let re = opened.content.get("re").and_then(|re| re.as_str());
    assert!(
        re.is_some_and(|re| re.len() == 44),
        "it names what it answers"
    );
    echo.stop().await;
}

#[tokio::test]
async fn a_stream_is_shown_in_pieces_and_ends_as_one_message() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("writer", &ada.client, None)
        .await
        .expect("an agent");
    let builder = cluster.builder(&agent, 1).expect("a node");
    let writer = running(builder.on_message(async |ctx| {
        let mut out = ctx.stream()?;
        for word in ["one ", "two ", "three"] {
            out.write(word).await;
            out.flush().await;
        }
        out.end().await
    }))
    .await;
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    let mut events = watch(&ada).await;
    conversation.send("write").await.expect("sent");
    let (answer, before) = events.answer_after(conversation.id()).await;
    assert_eq!(answer.text(), "one two three");
    let id = answer.message.client_message_id.expect("an id").to_string();
    let pieces: Vec<_> = before
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Delta {
                stream_id, append, ..
            } => {
                assert_eq!(*stream_id, id);
                Some(append.as_str())
            }
            _ => None,
        })
        .collect();
    // A busy node may join pieces that wait together.
    assert_eq!(pieces.concat(), "one two three");
    assert!(pieces.len() > 1, "{pieces:?}");
    writer.stop().await;
}

#[tokio::test]
async fn a_restarted_client_goes_on_with_its_keys() {
    use blindpipe_client::{Client, MemoryStore};
    use std::sync::Arc;
    let cluster = cluster().await;
    let store = Arc::new(MemoryStore::default());
    let node = cluster.node(0).expect("a node");
    let builder = Client::builder(node.clone()).store(store.clone());
    let ada = cluster.user_with("ada", builder).await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    let bob_id = bob.client.user_id().expect("an id");
    let conversation = ada
        .client
        .open_direct(bob_id)
        .await
        .expect("a conversation");
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
    let ada = cluster.user("ada").await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    let bob_id = bob.client.user_id().expect("an id");
    let conversation = ada
        .client
        .open_direct(bob_id)
        .await
        .expect("a conversation");
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
    let mine = phone.key_id().expect("a key");
    let of_ada =
        blindpipe_client::protocol::ids::Principal::User(ada.client.user_id().expect("an id"));
    let bob_number = bob.client.safety_number(of_ada, mine).expect("a number");
    assert_eq!(bob_number.len(), 71, "twelve groups of five digits");
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
