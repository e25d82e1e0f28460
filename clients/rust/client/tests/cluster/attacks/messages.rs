//! Messages that are altered, moved, repeated, held back, put in clear; files.

use std::sync::Arc;

use blindpipe_client::{NewFile, agent::AgentBuilder};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Attacked, Told, attacked, flip, group, id, next_message, notices, victim};
use crate::{
    proxy::{Proxy, in_event},
    support::{Shared, direct, run, scene, until, watch},
};

type Alteration = Box<dyn Fn(&mut Value) + Send>;

/// Each way to alter a message, and the reason of the refusal. `elsewhere` is another conversation.
fn alterations(elsewhere: String, stranger: String) -> Vec<(&'static str, Alteration)> {
    let other_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    vec![
        (
            "bad_ciphertext",
            Box::new(|m: &mut Value| flip(&mut m["payload"], |len| len - 1)),
        ),
        (
            "wrong_key",
            Box::new(|m: &mut Value| flip(&mut m["payload"], |_| 60)),
        ),
        (
            "no_epoch_key",
            Box::new(|m: &mut Value| flip(&mut m["payload"], |_| 10)),
        ),
        (
            "unknown_version",
            Box::new(|m: &mut Value| flip(&mut m["payload"], |_| 0)),
        ),
        (
            "unknown_kind",
            Box::new(|m: &mut Value| flip(&mut m["payload"], |_| 1)),
        ),
        (
            "bad_ciphertext",
            Box::new(move |m: &mut Value| m["client_message_id"] = other_id.into()),
        ),
        (
            "bad_ciphertext",
            Box::new(move |m: &mut Value| m["in_reply_to"] = other_id.into()),
        ),
        (
            "bad_ciphertext",
            Box::new(move |m: &mut Value| m["sender"]["id"] = stranger.as_str().into()),
        ),
        (
            "malformed",
            Box::new(move |m: &mut Value| m["conversation_id"] = elsewhere.as_str().into()),
        ),
        (
            "malformed",
            Box::new(|m: &mut Value| m["payload"]["ciphertext"] = "not base64".into()),
        ),
        ("malformed", Box::new(|m: &mut Value| *m = json!([]))),
        (
            "clear",
            Box::new(|m: &mut Value| m["payload"] = json!({ "type": "text", "text": "forged" })),
        ),
    ]
}

/// Alters the message number n in the way number n.
fn alter_in_turn(proxy: &Proxy, ways: Vec<Alteration>) {
    let mut ways = ways.into_iter();
    proxy.on_frame(in_event("message.created", move |message| {
        if let Some(alter) = ways.next() {
            alter(message);
        }
    }));
}

#[tokio::test]
async fn an_altered_message_is_said_by_nobody() {
    let Attacked {
        ada,
        bob,
        proxy,
        told,
        conversation,
        ..
    } = attacked().await;
    let elsewhere = group(&ada, &[&bob]).await;
    let mut events = watch(&bob).await;
    let ways = alterations(elsewhere.id().to_string(), id(&bob));
    let (reasons, ways): (Vec<_>, Vec<_>) = ways.into_iter().unzip();
    alter_in_turn(&proxy, ways);
    for n in 0..reasons.len() {
        conversation
            .send(format!("altered {n}"))
            .await
            .expect("sent");
    }
    conversation.send("honest").await.expect("sent");
    let honest = next_honest(&mut events, conversation.id()).await;
    assert_eq!(honest, "honest");
    assert_eq!(told.refused(), reasons);
}

/// The text of the first message that opens.
async fn next_honest(
    events: &mut crate::support::Watch,
    of: blindpipe_client::protocol::ids::ConversationId,
) -> String {
    loop {
        let received = next_message(events, of).await;
        if received.opened.is_ok() {
            return received.text().to_owned();
        }
        assert_eq!(received.text(), "", "it is shown as said by nobody");
    }
}

/// An agent behind a proxy before node 1 that notes what it is told.
async fn noting(
    cluster: &Shared,
    agent: &blindpipe_client::testing::TestAgent,
) -> (AgentBuilder, Proxy, Told, Arc<Mutex<Vec<String>>>) {
    let (proxy, told) = (Proxy::before(cluster, 1).await, Told::default());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let builder = proxy.agent(agent).on_hook(told.hook());
    let builder = builder.on_message(move |ctx| {
        hearing.lock().push(ctx.text().to_owned());
        async move { ctx.reply(format!("heard {}", ctx.text())).await }
    });
    (builder, proxy, told, heard)
}

#[tokio::test]
async fn an_agent_handles_no_altered_message() {
    let scene = scene("careful").await;
    let (builder, proxy, told, heard) = noting(&scene.cluster, &scene.agent).await;
    let agent = run(builder.build()).await;
    let conversation = scene.conversation().await;
    let bob = scene.cluster.user("bob").await.expect("a person");
    let elsewhere = direct(&scene.ada, &bob).await;
    let ways = alterations(elsewhere.id().to_string(), id(&bob));
    let (reasons, ways): (Vec<_>, Vec<_>) = ways.into_iter().unzip();
    alter_in_turn(&proxy, ways);
    for n in 0..reasons.len() {
        conversation
            .send(format!("altered {n}"))
            .await
            .expect("sent");
    }
    conversation.send("honest").await.expect("sent");
    until(|| !heard.lock().is_empty()).await;
    agent.stop().await;
    assert_eq!(*heard.lock(), ["honest"]);
    assert_eq!(told.refused(), reasons);
}

/// Every message comes twice, the second time under another event.
fn repeat_messages(proxy: &Proxy) {
    proxy.on_frame(|frame| {
        if frame["event"] != "message.created" {
            return vec![frame];
        }
        let mut again = frame.clone();
        again["event_id"] = "01ARZ3NDEKTSV4RRFFQ69G5FAV".into();
        vec![frame, again]
    });
}

#[tokio::test]
async fn a_message_that_comes_twice_is_shown_once_and_handled_once() {
    let scene = scene("once").await;
    let (builder, proxy, _, heard) = noting(&scene.cluster, &scene.agent).await;
    repeat_messages(&proxy);
    let agent = run(builder.build()).await;
    let conversation = scene.conversation().await;
    for text in ["one", "two"] {
        conversation.send(text).await.expect("sent");
    }
    until(|| heard.lock().len() >= 2).await;
    agent.stop().await;
    assert_eq!(*heard.lock(), ["one", "two"]);

    let (bob, proxy, _) = victim(&scene.cluster, "bob").await;
    repeat_messages(&proxy);
    let with_bob = direct(&scene.ada, &bob).await;
    let mut events = watch(&bob).await;
    for text in ["one", "two", "three"] {
        with_bob.send(text).await.expect("sent");
    }
    for text in ["one", "two", "three"] {
        let received = next_message(&mut events, with_bob.id()).await;
        assert_eq!(received.text(), text);
    }
}

#[tokio::test]
async fn a_message_that_was_handled_before_a_restart_is_not_handled_again() {
    let scene = scene("lasting").await;
    let store = std::sync::Arc::new(blindpipe_client::MemoryStore::default());
    let before = std::sync::Arc::new(parking_lot::Mutex::new(None));
    let mut heard_by = Vec::new();
    let conversation = scene.conversation().await;
    for text in ["before", "after"] {
        let (builder, proxy, _, heard) = noting(&scene.cluster, &scene.agent).await;
        let first = before.clone();
        proxy.on_frame(move |frame| {
            if frame["event"] != "message.created" {
                return vec![frame];
            }
            let mut first = first.lock();
            let Some(mut again) = first.clone() else {
                *first = Some(frame.clone());
                return vec![frame];
            };
            again["event_id"] = "01ARZ3NDEKTSV4RRFFQ69G5FAV".into();
            vec![again, frame]
        });
        let agent = run(builder.store(store.clone()).build()).await;
        conversation.send(text).await.expect("sent");
        until(|| heard.lock().iter().any(|it| it == text)).await;
        agent.stop().await;
        heard_by.push(heard.lock().clone());
    }
    assert_eq!(heard_by, [["before"], ["after"]]);
}

#[tokio::test]
async fn held_back_and_reordered_messages_show_their_signed_times() {
    let Attacked {
        bob,
        proxy,
        conversation,
        ..
    } = attacked().await;
    let mut events = watch(&bob).await;
    let mut held = None;
    proxy.on_frame(move |mut frame| {
        if frame["event"] != "message.created" {
            return vec![frame];
        }
        // The server says that the message is of another day.
        frame["data"]["created_at"] = "2020-01-01T00:00:00.000Z".into();
        match held.take() {
            None => {
                held = Some(frame);
                Vec::new()
            }
            Some(first) => vec![frame, first],
        }
    });
    conversation.send("first").await.expect("sent");
    conversation.send("second").await.expect("sent");
    let second = next_message(&mut events, conversation.id()).await;
    let first = next_message(&mut events, conversation.id()).await;
    assert_eq!((first.text(), second.text()), ("first", "second"));
    assert_eq!(notices(&first), ["other_time"]);
    let [first, second] = [first, second].map(|received| received.opened.expect("it opens"));
    assert!(first.sent_at < second.sent_at);
}

#[tokio::test]
async fn an_altered_file_is_given_to_nobody() {
    let Attacked {
        bob,
        proxy,
        conversation,
        ..
    } = attacked().await;
    let mut events = watch(&bob).await;
    let file = NewFile {
        name: "contract.pdf".to_owned(),
        content_type: "application/pdf".to_owned(),
        bytes: vec![7; 70_000],
    };
    conversation.send_file(file).await.expect("sent");
    let received = next_message(&mut events, conversation.id()).await;
    let content = received.opened.expect("it opens").content;
    let bobs = bob.client.conversation(conversation.id());
    let lies: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes[40_000] ^= 1,
        // All but the last chunk.
        |bytes| bytes.truncate(20 + 65_552),
        Vec::clear,
    ];
    for lie in lies {
        proxy.on_bytes(move |_, bytes| lie(bytes));
        assert!(bobs.download(&content).await.is_err());
    }
    proxy.on_bytes(|_, _| {});
    assert_eq!(
        bobs.download(&content).await.expect("the bytes"),
        [7; 70_000]
    );
}
