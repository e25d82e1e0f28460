//! Another message under the id that an answer or a reply names.

use std::sync::Arc;

use blindpipe_client::{
    Content, agent::Question, client::SendOptions, protocol::ids::Principal,
    testing::PROTECTION_PASSWORD,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Attacked, Proxy, attacked, next_message, notices};
use crate::support::{history, scene, until, watch};

fn is_question(content: &Content, text: &str) -> bool {
    let field = |name: &str| content.get(name).and_then(Value::as_str);
    field("type") == Some("approval") && field("text") == Some(text)
}

#[tokio::test]
async fn an_answer_counts_for_the_question_that_its_person_saw() {
    let scene = scene("asking").await;
    let answers = Arc::new(Mutex::new(Vec::new()));
    let (answered, proxy) = (answers.clone(), Proxy::before(&scene.cluster, 1).await);
    let builder = proxy
        .agent(&scene.agent)
        .on_message(async |ctx| {
            ctx.ask(Question {
                tag: "pay".to_owned(),
                text: ctx.text().to_owned(),
                choices: vec!["yes".to_owned()],
                ..Question::default()
            })
            .await
        })
        .on_answer("pay", move |ctx| {
            let question = ctx.answer().map(|answer| answer.question.clone());
            answered.lock().push(question.unwrap_or_default());
            async { Ok(()) }
        });
    let mut talk = scene.talk(builder).await;
    talk.conversation.send("pay 1 euro?").await.expect("sent");
    let small = talk.answer().await;
    talk.conversation
        .send("pay 1000 euro?")
        .await
        .expect("sent");
    let large = talk.answer().await;
    // The history shows the large question under the id of the small one.
    let (of_small, of_large) = (small.message.message_id, large.message);
    proxy.on_answer(move |call, answer| {
        let Some(list) = answer["data"]
            .as_array_mut()
            .filter(|_| call.contains("/messages"))
        else {
            return;
        };
        for message in list {
            if message["message_id"] == of_small.to_string() {
                let payload = of_large.payload.as_ref().expect("a payload").as_str();
                message["payload"] = serde_json::from_str(payload).expect("JSON");
                message["client_message_id"] = json!(of_large.client_message_id);
                message["in_reply_to"] = json!(of_large.in_reply_to);
            }
        }
    });
    talk.conversation.answer(small, "yes").await.expect("sent");
    let large = history(&talk.conversation).await;
    let large = large.into_iter().find(|it| {
        it.opened
            .as_ref()
            .is_ok_and(|opened| is_question(&opened.content, "pay 1000 euro?"))
            && matches!(it.message.sender.id, Principal::Agent(_))
    });
    talk.conversation
        .answer(large.expect("the question"), "yes")
        .await
        .expect("sent");
    until(|| !answers.lock().is_empty()).await;
    talk.agent.stop().await;
    assert_eq!(
        *answers.lock(),
        ["pay 1000 euro?"],
        "the first answer proves nothing"
    );
}

/// A reply of Ada to her message with this text.
async fn reply(it: &Attacked, to: &str, text: &str) {
    let mut all = history(&it.conversation).await.into_iter();
    let in_reply_to = all.find(|received| received.text() == to);
    assert!(in_reply_to.is_some());
    let options = SendOptions {
        in_reply_to,
        ..SendOptions::default()
    };
    let sent = it.conversation.send_with(text, options).await;
    sent.expect("sent");
}

/// The first two messages come under each other's ids.
fn swap_ids(proxy: &Proxy) {
    let (mut held, mut swapped) = (None, false);
    proxy.on_frame(move |mut frame| {
        if swapped || frame["event"] != "message.created" {
            return vec![frame];
        }
        let Some(mut first) = held.take() else {
            held = Some(frame);
            return Vec::new();
        };
        let [one, other] = [&mut first, &mut frame].map(|it| &mut it["data"]["message_id"]);
        std::mem::swap(one, other);
        swapped = true;
        vec![first, frame]
    });
}

#[tokio::test]
async fn a_reply_is_quoted_with_what_it_answers_or_not_at_all() {
    let it = attacked().await;
    let mut events = watch(&it.bob).await;
    swap_ids(&it.proxy);
    for text in ["sign the contract?", "dinner?"] {
        it.conversation.send(text).await.expect("sent");
    }
    reply(&it, "dinner?", "yes").await;
    let own = it.bob.client.conversation(it.conversation.id());
    for text in ["sign the contract?", "dinner?", "yes"] {
        let received = next_message(&mut events, own.id()).await;
        assert_eq!(received.text(), text);
        // Bob was shown the contract under the id that the reply names.
        let wanted: &[_] = if text == "yes" { &["no_quote"] } else { &[] };
        assert_eq!(notices(&received), wanted);
    }
    // A quote of a message as Bob knows it has no notice: from Ada, from himself, from before.
    it.conversation.send("lunch?").await.expect("sent");
    own.send("said Bob").await.expect("sent");
    for (to, text) in [("lunch?", "sure"), ("said Bob", "so he did")] {
        reply(&it, to, text).await;
        let received = loop {
            let received = next_message(&mut events, own.id()).await;
            if received.message.in_reply_to.is_some() {
                break received;
            }
        };
        assert_eq!(received.text(), text);
        assert!(notices(&received).is_empty(), "{text}");
    }
    let again = it.cluster.device(&it.ada, 0, "another").await;
    let again = again.expect("signed in");
    let restored = again.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    let read = history(&again.conversation(own.id())).await;
    assert_eq!(read.len(), 7);
    assert!(read.iter().all(|received| notices(received).is_empty()));
}
