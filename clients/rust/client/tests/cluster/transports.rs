//! An agent by socket, poll and webhook; clear text; standby; failing handlers.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Context, Error, FileStore, Hook, Result,
    agent::{Transport, generate_key},
    protocol::errors::Code,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    attacks::Told,
    proxy::Proxy,
    support::{cluster, echo, running, scene, texts, until, watch},
};

#[tokio::test]
async fn by_poll_the_acknowledgement_is_the_cursor() {
    let scene = scene("poller").await;
    let builder = || scene.builder();
    let poller = running(echo(builder().transport(Transport::Poll))).await;
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    assert_eq!(events.ask(&conversation, "one").await, "You said: one");
    assert_eq!(events.ask(&conversation, "two").await, "You said: two");
    poller.stop().await;
    // Another run begins after what the first one has handled.
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let builder = builder().transport(Transport::Poll);
    let again = builder.on_message(move |ctx: Context| {
        let heard = (ctx.text().to_owned(), ctx.replayed());
        hearing.lock().push(heard);
        async { Ok(()) }
    });
    conversation.send("three").await.expect("sent");
    let again = running(again).await;
    until(|| heard.lock().len() == 1).await;
    conversation.send("four").await.expect("sent");
    until(|| heard.lock().len() == 2).await;
    again.stop().await;
    let wanted = [("three".to_owned(), true), ("four".to_owned(), false)];
    assert_eq!(*heard.lock(), wanted);
}

#[tokio::test]
async fn by_webhook_a_failed_handler_runs_again_and_answers_once() {
    let scene = scene("hooked").await;
    let failed = Arc::new(AtomicBool::new(false));
    let fails = failed.clone();
    let replayed = Arc::new(Mutex::new(Vec::new()));
    let seen = replayed.clone();
    let builder = scene.builder();
    let hooked = builder.on_message(move |ctx: Context| {
        let fails = fails.clone();
        seen.lock().push(ctx.replayed());
        async move {
            ctx.reply(format!("You said: {}", ctx.text())).await?;
            if !fails.swap(true, Ordering::Relaxed) {
                return Err(Error::other("once"));
            }
            Ok(())
        }
    });
    let hooked = hooked.build();
    hooked.check().await.expect("a key");
    let secret = "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    // While the secret is rotated, the receiver holds the next one as well.
    let next = "whsec_CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=";
    let router = hooked
        .webhook([next, secret])
        .expect("secrets")
        .into_router();
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    let webhook = hooked.set_webhook(&url, secret).await.expect("registered");
    assert_eq!(
        webhook.status.as_str(),
        "active",
        "{:?}",
        webhook.last_error
    );
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    assert_eq!(events.ask(&conversation, "first").await, "You said: first");
    assert_eq!(
        events.ask(&conversation, "second").await,
        "You said: second"
    );
    let wanted = ["first", "You said: first", "second", "You said: second"];
    assert_eq!(texts(&conversation).await, wanted);
    assert!(failed.load(Ordering::Relaxed));
    assert_eq!(*replayed.lock(), [false, true, false]);
    let forged = hooked
        .webhook(secret)
        .expect("a secret")
        .receive(&reqwest::header::HeaderMap::new(), b"{}")
        .await;
    assert_eq!(forged.status, 401);
    for short in ["", "whsec_", "whsec_c2hvcnQ="] {
        let refused = hooked.webhook([secret, short]).err();
        assert!(matches!(refused, Some(Error::Usage(_))), "{short}");
    }
}

/// While a first call is held back, messages of two people wait. The next call brings them together.
#[tokio::test]
async fn a_batch_of_a_webhook_runs_conversations_side_by_side_and_names_what_failed() {
    let scene = scene("batched").await;
    let bob = scene.cluster.user("bob").await.expect("a person");
    let failed = Arc::new(AtomicBool::new(false));
    let (fails, calls) = (failed.clone(), Arc::new(AtomicU32::new(0)));
    let hooked = scene.builder().on_message(move |ctx: Context| {
        let fails = fails.clone();
        async move {
            match ctx.text() {
                "slow" => tokio::time::sleep(Duration::from_secs(2)).await,
                "bad" if !fails.swap(true, Ordering::Relaxed) => return Err(Error::other("once")),
                _ => {}
            }
            ctx.reply(format!("You said: {}", ctx.text())).await
        }
    });
    let hooked = hooked.build();
    hooked.check().await.expect("a key");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let secret = "whsec_CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=";
    let counted = calls.clone();
    let router = hooked.webhook(secret).expect("a secret").into_router();
    let router = router.layer(axum::middleware::map_request(
        move |request: axum::extract::Request| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(request)
        },
    ));
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    let conversation = scene.conversation().await;
    let other = bob.client.open_agent(scene.agent.id).await.expect("opened");
    let mut events = watch(&scene.ada).await;
    let webhook = hooked.set_batched_webhook(&url, secret, 50).await;
    assert_eq!(webhook.expect("registered").max_events, 50);
    assert_eq!(events.ask(&conversation, "first").await, "You said: first");
    let before = calls.load(Ordering::Relaxed);
    conversation.send("slow").await.expect("sent");
    until(|| calls.load(Ordering::Relaxed) > before).await;
    let mut wanted = vec!["first".to_owned(), "slow".to_owned()];
    for said in ["one", "bad", "two"] {
        conversation.send(said).await.expect("sent");
        wanted.push(said.to_owned());
    }
    other.send("elsewhere").await.expect("sent");
    for said in ["slow", "one", "bad", "two"] {
        let answer = events.answer(&conversation).await;
        assert_eq!(answer.text(), format!("You said: {said}"), "in order, once");
    }
    until(|| failed.load(Ordering::Relaxed)).await;
    let expected = ["elsewhere", "You said: elsewhere"];
    for _ in 0..200 {
        if texts(&other).await.len() == expected.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(texts(&other).await, expected);
}

#[tokio::test]
async fn clear_text_is_refused_unless_the_developer_allows_it() {
    let scene = scene("strict").await;
    let builder = || scene.builder();
    let told = Told::default();
    let strict = running(echo(builder().on_hook(told.hook()))).await;
    let conversation = scene.conversation().await;
    let clear = json!({ "type": "text", "text": "in clear" });
    scene
        .ada
        .client
        .send_raw(conversation.id(), &clear)
        .await
        .expect("sent");
    until(|| !told.refused().is_empty()).await;
    strict.stop().await;
    assert_eq!(told.refused(), ["clear"]);
    let lax = builder().allow_plaintext().on_hook(told.hook());
    let lax = running(echo(lax)).await;
    let mut events = watch(&scene.ada).await;
    scene
        .ada
        .client
        .send_raw(conversation.id(), &clear)
        .await
        .expect("sent");
    let answer = events.answer(&conversation).await;
    let payload = answer.message.payload.expect("a payload");
    assert!(payload.as_str().contains("You said: in clear"));
    // The person never chose clear text here, so it is not shown as said by anybody.
    let reason = answer.opened.expect_err("it is clear").reason();
    assert_eq!(reason, "clear");
    // Once anything was encrypted here, nothing in clear counts.
    let answer = events.ask(&conversation, "sealed").await;
    assert_eq!(answer, "You said: sealed");
    let sent = scene.ada.client.send_raw(conversation.id(), &clear).await;
    sent.expect("sent");
    until(|| told.refused().len() == 2).await;
    lax.stop().await;
    assert_eq!(told.refused(), ["clear", "clear"]);
}

#[tokio::test]
async fn a_standby_handles_nothing_until_it_is_activated() {
    let scene = scene("pair").await;
    let builder = |node| {
        let builder = scene.cluster.builder(&scene.agent, node);
        builder.expect("a node")
    };
    let handled = Arc::new(AtomicU32::new(0));
    let counting = handled.clone();
    let standby = running(builder(0).standby().on_message(move |ctx: Context| {
        counting.fetch_add(1, Ordering::Relaxed);
        async move { ctx.reply(format!("standby: {}", ctx.text())).await }
    }))
    .await;
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    let first = running(echo(builder(1))).await;
    assert_eq!(events.ask(&conversation, "one").await, "You said: one");
    first.stop().await;
    conversation.send("two").await.expect("sent");
    // A moment in which a mistaken standby would answer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(handled.load(Ordering::Relaxed), 0);
    standby.agent.activate();
    assert_eq!(events.answer(&conversation).await.text(), "standby: two");
    standby.stop().await;
}

#[tokio::test]
async fn a_standby_that_is_activated_while_it_connects_handles_what_it_had_learned() {
    let scene = scene("late").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    let handled = Arc::<Mutex<Vec<String>>>::default();
    let hearing = handled.clone();
    let standby = proxy.agent(&scene.agent).standby();
    let standby = running(standby.on_message(move |ctx: Context| {
        hearing.lock().push(ctx.text().to_owned());
        async { Ok(()) }
    }))
    .await;
    let conversation = scene.conversation().await;
    let has_come = Arc::<AtomicBool>::default();
    let coming = has_come.clone();
    proxy.on_frame(move |frame| {
        coming.fetch_or(frame["event"] == "message.created", Ordering::Relaxed);
        vec![frame]
    });
    conversation.send("learned").await.expect("sent");
    until(|| has_come.load(Ordering::Relaxed)).await;
    assert!(handled.lock().is_empty());
    let agent = standby.agent.clone();
    proxy.on_sent_frame(move |frame| {
        if frame["type"] == "auth" {
            agent.activate();
        }
        vec![frame]
    });
    proxy.cut();
    until(|| !handled.lock().is_empty()).await;
    conversation.send("new").await.expect("sent");
    until(|| handled.lock().len() == 2).await;
    standby.stop().await;
    assert_eq!(*handled.lock(), ["learned", "new"]);
}

#[tokio::test]
async fn another_key_than_the_registered_one_stops_the_agent() {
    let scene = scene("keyed").await;
    let builder = || scene.builder();
    builder().build().check().await.expect("a first key");
    let other = builder().key(&generate_key()).expect("a key");
    let refused = other
        .build()
        .run_until_stopped()
        .await
        .expect_err("another key");
    assert_eq!(refused.code(), Some(Code::AgentKeysMismatch));
}

#[tokio::test]
async fn a_store_makes_a_sender_known_at_the_next_start() {
    let scene = scene("rememberer").await;
    let path = std::env::temp_dir().join(format!("{}.pins", scene.agent.id));
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    for known in [false, true] {
        let builder = scene.builder();
        let builder = builder.store(FileStore::new(&path));
        let running = running(builder.on_message(async |ctx| {
            let sender = ctx.sender().expect("a sender");
            assert!(sender.authentic && sender.member);
            ctx.reply(format!("pinned: {}", sender.pinned)).await
        }))
        .await;
        let answer = events.ask(&conversation, "known?").await;
        assert_eq!(answer, format!("pinned: {known}"));
        running.stop().await;
    }
    let mode = fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::remove_file(path).expect("removed");
}

#[tokio::test]
async fn a_handler_that_fails_runs_again_and_its_event_ends_as_a_dead_letter() {
    let scene = scene("failing").await;
    let (tries, dead) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (trying, told) = (tries.clone(), dead.clone());
    let builder = scene.builder();
    let builder = builder
        .retry_delays([Duration::from_millis(1); 2])
        .on_hook(move |hook| {
            if matches!(hook, Hook::DeadLetter { .. }) {
                told.fetch_add(1, Ordering::Relaxed);
            }
        })
        .on_message(move |ctx: Context| {
            let is_bad = ctx.text() == "bad";
            if is_bad {
                trying.fetch_add(1, Ordering::Relaxed);
            }
            async move {
                if is_bad {
                    return Err(Error::other("always"));
                }
                ctx.reply(format!("You said: {}", ctx.text())).await
            }
        });
    let failing = running(builder).await;
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    conversation.send("bad").await.expect("sent");
    assert_eq!(events.ask(&conversation, "good").await, "You said: good");
    failing.stop().await;
    assert_eq!(
        (tries.load(Ordering::Relaxed), dead.load(Ordering::Relaxed)),
        (3, 1)
    );
}

#[tokio::test]
async fn sends_of_a_conversation_keep_their_order_beyond_the_budget() -> Result<()> {
    let cluster = cluster().await;
    let limited = Arc::new(AtomicU32::new(0));
    let told = limited.clone();
    let builder = blindpipe_client::Client::builder(cluster.node(0)?);
    let builder = builder.on_hook(move |hook| {
        if matches!(hook, Hook::RateLimited { .. }) {
            told.fetch_add(1, Ordering::Relaxed);
        }
    });
    let ada = cluster.user_with("ada", builder).await?;
    let bob = cluster.user("bob").await?;
    let conversation = ada.client.open_direct(bob.client.user_id()?).await?;
    let sends = (0..30).map(|n| conversation.send(n.to_string()));
    let sent = futures_util::future::join_all(sends).await;
    assert!(sent.iter().all(std::result::Result::is_ok));
    let wanted: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    assert_eq!(texts(&conversation).await, wanted);
    Ok(())
}
