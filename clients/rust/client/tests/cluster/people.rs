//! The person's side: groups, addressed agents, removed members, files, clear text.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Agent, Clock, Error, NewFile,
    agent::{self, Question},
    client::{ClientEvent, SendOptions},
    protocol::{
        groups::Visibility,
        ids::Principal,
        push::{PushKind, PutPush},
    },
    testing::PROTECTION_PASSWORD,
};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{
    crashes::Mortal,
    support::{
        PATIENCE, cluster, direct, echo, history, pair, running, scene, texts, until, watch,
    },
};

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
async fn an_addressed_agent_finds_its_question_and_its_earlier_reply() {
    let scene = scene("forgetful").await;
    let clock = Clock::default();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let (answered, runs) = (answers.clone(), Arc::new(AtomicU32::default()));
    let builder = scene.builder().clock(clock.clone());
    let forgetful = builder
        .retry_delays([Duration::from_millis(1)])
        .on_message(move |ctx| {
            let (runs, clock) = (runs.clone(), clock.clone());
            async move {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                let sent = ctx.reply(format!("reply of run {run}")).await?;
                assert_eq!(sent.duplicate, run > 0);
                let question = Question {
                    tag: "sure".to_owned(),
                    text: "Sure?".to_owned(),
                    choices: vec!["Yes".to_owned()],
                    ..Question::default()
                };
                ctx.ask(question).await?;
                if run == 0 {
                    // Two days later the service has forgotten the ids: the history must say.
                    clock.advance(Duration::from_secs(2 * 24 * 3600));
                    return Err(Error::other("once"));
                }
                Ok(())
            }
        })
        .on_answer("sure", move |ctx| {
            let choice = ctx.answer().and_then(|answer| answer.choice.clone());
            answered.lock().extend(choice);
            async { Ok(()) }
        });
    let running = running(forgetful).await;
    scene.conversation().await;
    let group = scene.ada.client.open_group("some", Vec::new()).await;
    let group = group.expect("a group");
    let agent = scene.agent.id;
    let added = group.add_agent(agent, Visibility::Addressed).await;
    added.expect("added");
    let mut events = watch(&scene.ada).await;
    let options = || SendOptions {
        to: vec![Principal::Agent(agent)],
        ..SendOptions::default()
    };
    group.send_with("hello", options()).await.expect("sent");
    assert_eq!(events.answer(&group).await.text(), "reply of run 0");
    let question = events.answer(&group).await;
    group.answer(question, "Yes").await.expect("answered");
    until(|| !answers.lock().is_empty()).await;
    running.stop().await;
    assert_eq!(*answers.lock(), ["Yes"]);
    assert_eq!(history(&group).await.len(), 4, "nothing was sent twice");
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
async fn an_agent_is_removed_from_a_group() {
    let scene = scene("removed").await;
    let running = running(echo(scene.builder())).await;
    scene.conversation().await;
    let group = scene.ada.client.open_group("some", Vec::new()).await;
    let group = group.expect("a group");
    let agent = scene.agent.id;
    group
        .add_agent(agent, Visibility::All)
        .await
        .expect("added");
    group.send("with the agent").await.expect("sent");
    let before = group.info().await.expect("a group").epoch;
    let removal = group.remove(Principal::Agent(agent)).await;
    let removal = removal.expect("removed");
    assert_eq!(removal.principal_id, Principal::Agent(agent));
    let after = group.info().await.expect("a group");
    assert_eq!(after.members.expect("members").len(), 1);
    assert_eq!(after.epoch, before + 1);
    running.stop().await;
}

#[tokio::test]
async fn a_revoked_device_gets_no_secret_of_what_follows() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let conversation = direct(&ada, &bob).await;
    let phone = cluster.device(&ada, 1, "phone").await;
    let phone = phone.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    conversation.send("on the phone too").await.expect("sent");
    let on_phone = phone.conversation(conversation.id());
    assert_eq!(texts(&on_phone).await, ["on the phone too"]);
    let before = conversation.info().await.expect("read").epoch;
    let revoked = ada.client.devices().revoke("phone").await;
    revoked.expect("revoked");
    // Bob has sent nothing, and nobody else did: the revocation itself made the secret.
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(bobs.info().await.expect("read").epoch, before + 1);
    bobs.send("without the phone").await.expect("sent");
    let wanted = ["on the phone too", "without the phone"];
    assert_eq!(texts(&conversation).await, wanted);
}

#[tokio::test]
async fn a_cancelled_wait_for_an_event_loses_none() {
    let cluster = cluster().await;
    let (ada, bob) = pair(&cluster).await;
    let conversation = direct(&ada, &bob).await;
    let mut events = bob.client.events().expect("a socket");
    let wanted: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    for text in &wanted {
        conversation.send(text.as_str()).await.expect("sent");
    }
    let mut read = Vec::new();
    let mut polls = (1..12).cycle();
    let all = async {
        while read.len() < wanted.len() {
            let mut event = None;
            let life = Box::pin(async { event = Some(events.next().await) });
            let polls_left = polls.next().expect("for ever");
            Mortal { life, polls_left }.await;
            if let Some(Ok(ClientEvent::Message { received, .. })) = event {
                read.push(received.text().to_owned());
            }
        }
    };
    timeout(PATIENCE, all).await.expect("every message");
    assert_eq!(read, wanted, "each one once, and in order");
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
    let refused = plain.build().check().await;
    assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    let node = scene.cluster.node(1).expect("a node");
    let plain = Agent::builder(node, scene.agent.id, scene.agent.token.as_str());
    let plain = running(echo(plain.allow_plaintext())).await;
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

#[tokio::test]
async fn the_password_that_the_server_sees_protects_no_backup() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let phone = cluster.device(&ada, 1, "phone").await.expect("a device");
    let made = phone.devices().create(&ada.password).await;
    let malformed = blindpipe_client::e2ee::Error::Malformed;
    assert!(
        matches!(made, Err(blindpipe_client::Error::Decrypt(it)) if it == malformed),
        "{made:?}"
    );
    let made = phone.devices().create("another password than that").await;
    made.expect("made");
}

#[tokio::test]
async fn a_lost_device_is_revoked_with_those_that_it_introduced() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let mut others = Vec::new();
    for name in ["phone", "thief"] {
        // The newest backup is that of the device before, whose key introduces the next one.
        let device = cluster.device(&ada, 1, name).await.expect("a device");
        let restored = device.devices().restore(PROTECTION_PASSWORD).await;
        restored.expect("restored");
        others.push(device);
    }
    let devices = ada.client.devices();
    let introduced = devices.introduced_by("phone").await.expect("a list");
    assert_eq!(introduced, ["thief"]);
    let by_itself = others[1].devices().introduced_by("phone").await;
    assert!(by_itself.expect("a list").is_empty());
    let revoked = devices.revoke_with_introduced("phone").await;
    revoked.expect("revoked");
    assert_eq!(devices.list().await.expect("devices").len(), 1);
}

#[tokio::test]
async fn an_earlier_reply_is_found_behind_thousands_of_messages() {
    let scene = scene("talkative").await;
    let found = Arc::new(Mutex::new(None));
    let finding = found.clone();
    let builder = scene.builder().on_message(move |ctx| {
        let found = finding.clone();
        async move {
            // More than 20 pages of the history.
            for part in 0..21 {
                let sends = (0..100).map(|n| {
                    let options = agent::SendOptions {
                        key: Some(format!("{part}-{n}")),
                        ..agent::SendOptions::default()
                    };
                    ctx.reply_with("more", options)
                });
                for sent in futures_util::future::join_all(sends).await {
                    sent?;
                }
            }
            assert!(!ctx.is_answered().await?);
            ctx.reply("the last word").await?;
            *found.lock() = Some(ctx.is_answered().await?);
            Ok(())
        }
    });
    let talk = scene.talk(builder).await;
    talk.conversation.send("go on").await.expect("sent");
    let searched = async {
        while found.lock().is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(3 * PATIENCE, searched).await.expect("a search");
    assert_eq!(*found.lock(), Some(true));
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_device_subscribes_to_pushes_and_ends_them() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let devices = ada.client.devices();
    assert!(devices.subscription(None).await.is_err());
    // Any point of the curve will do, and nothing is sent to the address here.
    let endpoint = "http://127.0.0.1:9/push";
    let mut target = PutPush {
        kind: PushKind::Webpush,
        endpoint: endpoint.into(),
        p256dh: devices.push_key().await.expect("a key"),
        auth: "A".repeat(22).as_str().into(),
    };
    let made = devices.subscribe(&target).await.expect("subscribed");
    assert_eq!((made.kind, made.last_error), (PushKind::Webpush, None));
    target.kind = PushKind::Unifiedpush;
    let replaced = devices.subscribe(&target).await.expect("subscribed");
    let shown = devices.subscription(None).await.expect("shown");
    assert_eq!(shown, replaced);
    "no point".clone_into(&mut target.p256dh);
    assert!(devices.subscribe(&target).await.is_err());
    devices.unsubscribe(None).await.expect("ended");
    assert!(devices.subscription(None).await.is_err());
}
