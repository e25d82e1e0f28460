//! Messages that reach no handler and no tool, clear content that is refused, faults of a start.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Agent, Client, Clock, Error, Hook, MemoryStore, Server,
    agent::{SendOptions, Transport},
    client::ClientEvent,
    e2ee::consent::Sensitivity,
    protocol::ids::Principal,
    testing::PROTECTION_PASSWORD,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    approvals::{SCOPE, TOOL, agent_of, asking, grant},
    attacks::Told,
    log::Log,
    proxy::Proxy,
    support::{cluster, echo, history, running, scene, until, watch},
};

#[tokio::test]
async fn an_agent_without_a_key_does_not_start_unless_that_is_meant() {
    let (log, _guard) = Log::start();
    let scene = scene("forgotten").await;
    log.clear();
    let node = scene.cluster.node(1).expect("a node");
    let builder = || Agent::builder(node.clone(), scene.agent.id, scene.agent.token.as_str());
    for transport in [Transport::Socket, Transport::Poll] {
        let agent = echo(builder().transport(transport)).build();
        for way in ["checked", "run"] {
            let started = if way == "checked" {
                agent.check().await
            } else {
                agent.run_until_stopped().await
            };
            let Err(Error::Usage(why)) = started else {
                panic!("it is {way}: {started:?}");
            };
            assert!(why.contains("the agent has no key"), "{why}");
        }
    }
    builder()
        .allow_plaintext()
        .build()
        .check()
        .await
        .expect("meant");
    assert!(!log.contains("first contact"), "it has no first contacts");
}

#[tokio::test]
async fn a_start_without_a_store_warns_of_first_contacts() {
    let (log, _guard) = Log::start();
    let warning = "no store: this start is a first contact with everybody";
    let scene = scene("stateless").await;
    assert!(log.contains(warning), "a person is warned");
    log.clear();
    let builder = Client::builder(scene.cluster.node(0).expect("a node"));
    let stored = builder.store(MemoryStore::default());
    let stored = stored.login(&scene.ada.email, &scene.ada.password, "dev-pass");
    stored.await.expect("signed in");
    let agent = || scene.builder();
    let kept = agent().store(MemoryStore::default()).build();
    kept.check().await.expect("a key");
    assert!(!log.contains(warning), "these have stores");
    agent().build().check().await.expect("a key");
    assert!(log.contains(warning), "an agent is warned");
}

#[tokio::test]
async fn an_agent_without_a_key_handles_and_says_nothing_where_an_envelope_was_seen() {
    let scene = scene("keyless").await;
    scene.builder().build().check().await.expect("a key");
    let conversation = scene.conversation().await;
    conversation.send("sealed").await.expect("sent");
    let told = Told::default();
    let node = scene.cluster.node(1).expect("a node");
    let plain = Agent::builder(node, scene.agent.id, scene.agent.token.as_str());
    let handled = Arc::<Mutex<Vec<_>>>::default();
    let (handling, sealed) = (handled.clone(), conversation.id());
    let plain = plain.allow_plaintext().on_hook(told.hook()).on_message(
        move |ctx: blindpipe_client::Context| {
            let handling = handling.clone();
            async move {
                let sent = ctx.send(sealed, "in clear", SendOptions::default()).await;
                let text = ctx.text().to_owned();
                handling
                    .lock()
                    .push((text, sent.err().map(|it| it.to_string())));
                ctx.reply("heard").await
            }
        },
    );
    let plain = running(plain).await;
    until(|| told.refused().len() == 1).await;
    let clear = json!({ "type": "text", "text": "in clear" });
    let sent = scene.ada.client.send_raw(conversation.id(), &clear).await;
    sent.expect("sent");
    until(|| told.refused().len() == 2).await;
    assert_eq!(told.refused(), ["no_epoch_key", "clear"]);
    // Where nothing was ever sealed, it may speak.
    let bob = scene.cluster.user("bob").await.expect("a person");
    let open = bob.client.open_agent(scene.agent.id).await.expect("opened");
    let sent = bob.client.send_raw(open.id(), &clear).await;
    sent.expect("sent");
    until(|| handled.lock().len() == 1).await;
    plain.stop().await;
    let why = "no key to seal with: an envelope was seen here, and this agent has no key";
    let wanted = ("in clear".to_owned(), Some(why.to_owned()));
    assert_eq!(*handled.lock(), [wanted]);
    let by_agent = |id| matches!(id, Principal::Agent(_));
    let all = history(&conversation).await;
    assert!(!all.iter().any(|it| by_agent(it.message.sender.id)));
    assert_eq!(history(&open).await.len(), 2);
}

/// Answers of conversations without a principal among the members.
fn without_member(proxy: &Proxy, of: String) {
    proxy.on_answer(move |call, answer| {
        if call.starts_with("GET /conversations/")
            && let Some(members) = answer["data"]["members"].as_array_mut()
        {
            members.retain(|member| member["principal_id"] != of);
        }
    });
}

#[tokio::test]
async fn who_is_no_member_reaches_no_handler() {
    let scene = scene("selective").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let ada = scene.ada.client.user_id().expect("an id");
    without_member(&proxy, ada.to_string());
    let (told, runs) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicU32>::default());
    let (telling, count) = (told.clone(), runs.clone());
    let agent = proxy.agent(&scene.agent).on_hook(move |hook| {
        if let Hook::Notice {
            notice,
            conversation_id,
        } = hook
        {
            telling.lock().push((notice.kind.name(), *conversation_id));
        }
    });
    let agent = agent.on_message(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let agent = running(agent).await;
    let conversation = scene.conversation().await;
    conversation.send("from nowhere").await.expect("sent");
    let id = conversation.id();
    until(|| told.lock().contains(&("not_member", Some(id)))).await;
    agent.stop().await;
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_agent_that_is_no_member_runs_no_tool() {
    let cluster = cluster().await;
    let (proxy, told) = (
        Proxy::before(&cluster, 1).await,
        Arc::<Mutex<Vec<_>>>::default(),
    );
    let telling = told.clone();
    let device = Client::builder(proxy.server()).tool(TOOL, SCOPE, Sensitivity::Low);
    let device = device.on_hook(move |hook| {
        if let Hook::Notice { notice, .. } = hook {
            telling.lock().push(notice.kind.name());
        }
    });
    let ada = cluster.user_with("ada", device).await.expect("a person");
    let made = agent_of(&cluster, &ada).await;
    let agent = running(asking(cluster.builder(&made, 0).expect("a node"))).await;
    // To this device alone the server does not show the agent.
    without_member(&proxy, made.id.to_string());
    let phone = cluster.device(&ada, 0, "phone").await.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    let conversation = phone.open_agent(made.id).await.expect("opened");
    grant(&ada, &agent.agent, &conversation).await;
    let mut events = watch(&ada).await;
    conversation.send("hello").await.expect("sent");
    let requests = async { while !matches!(events.next().await, ClientEvent::ToolRequest(_)) {} };
    tokio::select! {
        () = requests => panic!("the request is shown"),
        () = until(|| told.lock().contains(&"not_member")) => {}
    }
    agent.agent.stop();
}

/// A server that gives an agent's key an end, with or without another key in its place. The number
/// of registrations that pass.
fn end_key(proxy: &Proxy, is_replaced: bool) -> Arc<AtomicU32> {
    proxy.on_answer(move |call, answer| {
        if call.ends_with("/keys/check") {
            answer["data"]["current"] = false.into();
            answer["data"]["valid_until"] = "2100-01-01T00:00:00.000Z".into();
        }
        let list = answer["data"]["keys"].as_array_mut();
        if call.starts_with("GET /agents/") && call.ends_with("/keys") {
            for key in list.into_iter().flatten() {
                key["current"] = is_replaced.into();
            }
        }
    });
    let registered = Arc::<AtomicU32>::default();
    let count = registered.clone();
    proxy.on_request(move |call, _: &mut Value| {
        if call.ends_with("/keys/register") {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    registered
}

#[tokio::test]
async fn a_start_registers_a_key_that_is_about_to_end() {
    let scene = scene("renewed").await;
    scene.builder().build().check().await.expect("registered");
    for (is_replaced, registrations) in [(false, 1), (true, 0)] {
        let proxy = Proxy::before(&scene.cluster, 1).await;
        let registered = end_key(&proxy, is_replaced);
        let agent = echo(proxy.agent(&scene.agent)).build();
        agent.check().await.expect("checked");
        assert_eq!(registered.load(Ordering::Relaxed), registrations);
    }
}

#[tokio::test]
async fn an_agent_that_runs_looks_every_day_whether_its_key_ends() {
    let scene = scene("lasting").await;
    scene.builder().build().check().await.expect("registered");
    let (proxy, clock) = (Proxy::before(&scene.cluster, 1).await, Clock::default());
    let mut talk = scene
        .talk(echo(proxy.agent(&scene.agent).clock(clock.clone())))
        .await;
    let registered = end_key(&proxy, false);
    let (day, hour) = (Duration::from_secs(24 * 3600), Duration::from_secs(3600));
    let minute = Duration::from_secs(60);
    clock.advance(minute);
    talk.conversation.send("early").await.expect("sent");
    talk.answer().await;
    assert_eq!(registered.load(Ordering::Relaxed), 0);
    for looks in [1, 2] {
        clock.advance(day);
        // The agent may begin its wait after the clock has moved.
        until(|| {
            let has_looked = registered.load(Ordering::Relaxed) >= looks;
            if !has_looked {
                clock.advance(hour);
            }
            has_looked
        })
        .await;
    }
    talk.agent.stop().await;
}

#[tokio::test]
async fn an_untrusted_certificate_is_named() {
    let scene = scene("untrusting").await;
    let node = scene.cluster.node(0).expect("a node");
    let server = Server::new(node.url());
    let login = Client::builder(server.clone()).login("a@example.com", "b", "dev-pass");
    let by_person = login.await.expect_err("nobody trusts it");
    let agent = Agent::builder(server, scene.agent.id, scene.agent.token.as_str());
    let agent = agent.key(&scene.agent.key).expect("a key").build();
    let by_agent = agent.check().await.expect_err("nobody trusts it");
    for error in [by_person, by_agent] {
        assert!(error.is_retryable());
        let text = error.to_string();
        assert!(text.contains("certificate is not trusted"), "{text}");
        let cause = std::error::Error::source(&error);
        assert!(cause.is_some(), "the cause is kept");
    }
}
