//! The person's side: groups, addressed agents, removed members, files, clear text.

use std::sync::Arc;

use blindpipe_client::{
    Agent, Error, NewFile,
    client::SendOptions,
    protocol::{groups::Visibility, ids::Principal},
};
use parking_lot::Mutex;

use crate::support::{cluster, echo, running, texts, watch};

#[tokio::test]
async fn an_addressed_agent_reads_what_names_it_and_nothing_else() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    let agent = cluster
        .agent("addressed", &ada.client, None)
        .await
        .expect("an agent");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let builder = cluster.builder(&agent, 1).expect("a node");
    let running = running(builder.on_message(move |ctx| {
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
    let mut events = watch(&ada).await;
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
    let ada = cluster.user("ada").await.expect("a person");
    let eve = cluster.user("eve").await.expect("a person");
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
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("files", &ada.client, None)
        .await
        .expect("an agent");
    let builder = cluster.builder(&agent, 1).expect("a node");
    let running = running(builder.on_message(async |ctx| {
        let bytes = ctx.file().await?;
        let file = NewFile {
            name: "back.bin".to_owned(),
            content_type: "application/octet-stream".to_owned(),
            bytes: bytes.into_iter().rev().collect(),
        };
        ctx.send_file(file).await
    }))
    .await;
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    let mut events = watch(&ada).await;
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    let file = NewFile {
        name: "there.bin".to_owned(),
        content_type: "application/octet-stream".to_owned(),
        bytes: bytes.clone(),
    };
    conversation.send_file(file).await.expect("sent");
    let answer = events.answer(&conversation).await;
    let content = &answer.opened.as_ref().expect("it opens").content;
    assert_eq!(content["name"], "back.bin");
    let back = conversation.download(content).await.expect("the bytes");
    assert!(back.iter().rev().eq(bytes.iter()));
    running.stop().await;
}

#[tokio::test]
async fn clear_text_goes_out_only_by_choice_and_comes_marked() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster
        .agent("plain", &ada.client, None)
        .await
        .expect("an agent");
    let node = cluster.node(1).expect("a node");
    let plain = Agent::builder(node, agent.id, agent.token.as_str());
    let plain = running(echo(plain)).await;
    let conversation = ada
        .client
        .open_agent(agent.id)
        .await
        .expect("a conversation");
    let refused = conversation.send("hello").await;
    assert!(
        matches!(refused, Err(Error::KeyUnavailable(_))),
        "{refused:?}"
    );
    conversation.choose_clear().expect("chosen");
    let mut events = watch(&ada).await;
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
