//! The person's side: groups, addressed agents, removed members, files, clear text.

use std::sync::Arc;

use blindpipe_client::{
    Agent, Error, NewFile,
    client::SendOptions,
    protocol::{groups::Visibility, ids::Principal},
};
use parking_lot::Mutex;

use crate::support::{cluster, echo, pair, running, scene, texts, watch};

#[tokio::test]
async fn an_addressed_agent_reads_what_names_it_and_nothing_else() {
    let scene = scene("addressed").await;
    let (cluster, ada, agent) = (&scene.cluster, &scene.ada, &scene.agent);
    let bob = cluster.user("bob").await.expect("a person");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let running = running(scene.builder().on_message(move |ctx| {
        hearing.lock().push(ctx.text().to_owned());
        async move { ctx.reply(format!("heard: {}", ctx.text())).await }
    }))
    .await;
    ada.client.open_agent(agent.id).await.expect("a relation");
    let bob_id = bob.client.user_id().expect("an id");
    let group = ada
        .client
        .open_group("all", vec![bob_id])
        .await
        .expect("a group");
    group
        .add_agent(agent.id, Visibility::Addressed)
        .await
        .expect("added");
    let mut events = watch(ada).await;
    group.send("not for machines").await.expect("sent");
    let options = SendOptions {
        to: vec![Principal::Agent(agent.id)],
        ..SendOptions::default()
    };
    group
        .send_with("for the agent", options)
        .await
        .expect("sent");
    let answer = events.answer(&group).await;
    assert_eq!(answer.text(), "heard: for the agent");
    let wanted = ["not for machines", "for the agent", "heard: for the agent"];
    assert_eq!(texts(&bob.client.conversation(group.id())).await, wanted);
    assert_eq!(*heard.lock(), ["for the agent"]);
    running.stop().await;
}

#[tokio::test]
async fn a_removed_member_gets_no_secret_of_what_follows() {
    let cluster = cluster().await;
    let (ada, eve) = pair(&cluster).await;
    let eve_id = eve.client.user_id().expect("an id");
    let group = ada
        .client
        .open_group("few", vec![eve_id])
        .await
        .expect("a group");
    group.send("with Eve").await.expect("sent");
    let eves = eve.client.conversation(group.id());
    assert_eq!(texts(&eves).await, ["with Eve"]);
    let before = group.info().await.expect("a group").epoch;
    group
        .remove(Principal::User(eve_id))
        .await
        .expect("removed");
    group.send("without Eve").await.expect("sent");
    let after = group.info().await.expect("a group");
    assert_eq!(after.epoch, before + 1);
    assert_eq!(after.members.expect("members").len(), 1);
    assert!(eves.history(None).await.is_err(), "she is out");
    assert_eq!(texts(&group).await, ["with Eve", "without Eve"]);
}

#[tokio::test]
async fn files_are_sealed_before_they_leave() {
    let scene = scene("files").await;
    let files = scene.builder().on_message(async |ctx| {
        let bytes = ctx.file().await?;
        let file = NewFile {
            name: "back.bin".to_owned(),
            content_type: "application/octet-stream".to_owned(),
            bytes: bytes.into_iter().rev().collect(),
        };
        ctx.send_file(file).await
    });
    let mut talk = scene.talk(files).await;
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    let file = NewFile {
        name: "there.bin".to_owned(),
        content_type: "application/octet-stream".to_owned(),
        bytes: bytes.clone(),
    };
    talk.conversation.send_file(file).await.expect("sent");
    let answer = talk.answer().await;
    let content = &answer.opened.as_ref().expect("it opens").content;
    assert_eq!(content["name"], "back.bin");
    let back = talk.conversation.download(content).await;
    assert!(back.expect("the bytes").iter().rev().eq(bytes.iter()));
    talk.agent.stop().await;
}

#[tokio::test]
async fn clear_text_goes_out_only_by_choice_and_comes_marked() {
    let scene = scene("plain").await;
    let node = scene.cluster.node(1).expect("a node");
    let plain = Agent::builder(node, scene.agent.id, scene.agent.token.as_str());
    let plain = running(echo(plain)).await;
    let conversation = scene.conversation().await;
    let refused = conversation.send("hello").await;
    assert!(
        matches!(refused, Err(Error::KeyUnavailable(_))),
        "{refused:?}"
    );
    conversation.choose_clear().expect("chosen");
    let mut events = watch(&scene.ada).await;
    conversation.send("hello").await.expect("sent");
    let answer = events.answer(&conversation).await;
    let opened = answer.opened.expect("it may be shown");
    assert_eq!(opened.text(), "You said: hello");
    assert!(!opened.encrypted && !opened.sender.authentic);
    let notices: Vec<_> = opened
        .notices
        .iter()
        .map(|notice| notice.kind.name())
        .collect();
    assert_eq!(notices, ["not_encrypted"]);
    plain.stop().await;
}
