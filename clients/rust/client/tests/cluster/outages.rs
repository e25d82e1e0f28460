//! Handlers that meet an outage, a store that fails, or their own panic; junk at a webhook.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe_client::{
    Client, Context, Hook, MemoryStore, Store,
    client::{ClientEvent, Events},
};
use parking_lot::Mutex;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::{
    faults::Fault,
    proxy::Proxy,
    support::{PATIENCE, cluster, direct, echo, receiving, running, scene, texts, until, watch},
};

/// The faults after which a handler is tried again, and the events that were given up.
#[derive(Clone, Default)]
struct Failures {
    retries: Arc<AtomicU32>,
    dead: Arc<AtomicU32>,
}

impl Failures {
    fn hook(&self) -> impl Fn(&Hook) + Send + Sync + 'static {
        let failures = self.clone();
        move |hook| match hook {
            Hook::Retry { what, .. } if what.starts_with("handler") => {
                failures.retries.fetch_add(1, Ordering::Relaxed);
            }
            Hook::DeadLetter { .. } => {
                failures.dead.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn an_outage_uses_up_no_try_of_a_handler() {
    let scene = scene("waiting").await;
    let proxy = Proxy::before(&scene.cluster, 1).await;
    // Each run of the handler sends five times.
    let mut faults = vec![Fault::Refusal(503); 12].into_iter();
    proxy.on_call(move |call| {
        let is_send = call.starts_with("POST /agents/") && call.ends_with("/messages");
        is_send.then(|| faults.next()).flatten()
    });
    let failures = Failures::default();
    let agent = proxy.agent(&scene.agent).on_hook(failures.hook());
    let agent = echo(agent.retry_delays([Duration::from_millis(1)]));
    let mut talk = scene.talk(agent).await;
    talk.conversation.send("hello").await.expect("sent");
    assert_eq!(talk.answer().await.text(), "You said: hello");
    assert_eq!(failures.retries.load(Ordering::Relaxed), 2);
    assert_eq!(failures.dead.load(Ordering::Relaxed), 0);
    talk.agent.stop().await;
}

#[tokio::test]
async fn a_handler_that_panics_fails_alone() {
    let scene = scene("clumsy").await;
    let failures = Failures::default();
    let builder = scene.builder().on_hook(failures.hook());
    let builder = builder.retry_delays([Duration::from_millis(1)]);
    let agent = builder.on_message(async |ctx: Context| {
        assert_ne!(ctx.text(), "panic");
        ctx.reply("calm").await
    });
    let mut talk = scene.talk(agent).await;
    talk.conversation.send("panic").await.expect("sent");
    talk.conversation.send("hello").await.expect("sent");
    assert_eq!(talk.answer().await.text(), "calm");
    assert_eq!(failures.dead.load(Ordering::Relaxed), 1);
    talk.agent.stop().await;
}

/// A store that fails, or waits, while it is told to.
#[derive(Default)]
struct Moody {
    fails: AtomicBool,
    waits: AtomicBool,
    is_waiting: AtomicBool,
    kept: MemoryStore,
}

impl Store for Moody {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        self.kept.load()
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("full"));
        }
        let began = Instant::now();
        while self.waits.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(10) {
            self.is_waiting.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.is_waiting.store(false, Ordering::Relaxed);
        self.kept.save(document)
    }
}

#[tokio::test]
async fn an_event_whose_lessons_are_not_kept_is_not_acknowledged() {
    let scene = scene("forgetful").await;
    let (store, heard) = (Arc::new(Moody::default()), Arc::new(Mutex::new(0)));
    let agent = |fails| {
        let (hearing, moody) = (heard.clone(), store.clone());
        let builder = scene.builder().store(store.clone());
        builder.on_message(move |_| {
            moody.fails.store(fails, Ordering::Relaxed);
            *hearing.lock() += 1;
            async { Ok(()) }
        })
    };
    let first = running(agent(true)).await;
    let conversation = scene.conversation().await;
    conversation.send("hello").await.expect("sent");
    until(|| *heard.lock() == 1).await;
    first.stop().await;
    // It comes again, because nothing of it was kept.
    let second = running(agent(false)).await;
    until(|| *heard.lock() == 2).await;
    second.stop().await;
    assert!(store.load().expect("a store").is_some());
}

#[tokio::test]
async fn a_slow_store_holds_up_no_other_task_of_its_thread() {
    let scene = scene("slow-store").await;
    let store = Arc::new(Moody::default());
    let heard = Arc::<AtomicU32>::default();
    let (hearing, slow) = (heard.clone(), store.clone());
    let agent = scene.builder().store(store.clone()).on_message(move |_| {
        slow.waits.store(true, Ordering::Relaxed);
        hearing.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let agent = running(agent).await;
    let conversation = scene.conversation().await;
    conversation.send("hello").await.expect("sent");
    until(|| store.is_waiting.load(Ordering::Relaxed)).await;
    conversation.send("meanwhile").await.expect("sent");
    assert!(store.is_waiting.load(Ordering::Relaxed), "it still waits");
    store.waits.store(false, Ordering::Relaxed);
    until(|| heard.load(Ordering::Relaxed) == 2).await;
    store.waits.store(false, Ordering::Relaxed);
    agent.stop().await;
}

/// The texts of the messages that come before the person has caught up, or up to `last`.
async fn heard(events: &mut Events, last: &str) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let next = timeout(PATIENCE, events.next()).await;
        match next.expect("an event in time").expect("an event") {
            ClientEvent::Message { received, .. } => {
                texts.push(received.text().to_owned());
                if received.text() == last {
                    return texts;
                }
            }
            ClientEvent::CaughtUp if last.is_empty() => return texts,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_acknowledges_no_event_whose_lessons_are_not_stored() {
    let cluster = cluster().await;
    let (store, failed) = (Arc::new(Moody::default()), Arc::<AtomicU32>::default());
    let builder = || {
        let (node, failed) = (cluster.node(0).expect("a node"), failed.clone());
        let builder = Client::builder(node).store(store.clone());
        builder.on_hook(move |hook| {
            if matches!(hook, Hook::StoreFailed) {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let restarted = async || {
        let client = builder().resume().await.expect("a store");
        client.expect("a session").events().expect("a socket")
    };
    let ada = cluster.user_with("ada", builder()).await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&bob, &ada).await;
    let mut events = ada.client.events().expect("a socket");
    heard(&mut events, "").await;
    store.fails.store(true, Ordering::Relaxed);
    conversation.send("hello").await.expect("sent");
    heard(&mut events, "hello").await;
    conversation.send("more").await.expect("sent");
    // Messages are shown, and the failure is told.
    heard(&mut events, "more").await;
    assert!(failed.load(Ordering::Relaxed) > 0);
    events.close().await;
    store.fails.store(false, Ordering::Relaxed);
    // Both come again, because nothing of them was kept.
    let mut events = restarted().await;
    assert_eq!(heard(&mut events, "").await, ["hello", "more"]);
    // The mended store has kept them.
    events.close().await;
    let mut events = restarted().await;
    assert_eq!(heard(&mut events, "").await, [""; 0]);
    events.close().await;
}

#[tokio::test]
async fn a_webhook_whose_store_fails_answers_no_success() {
    let scene = scene("hooked-forgetful").await;
    let (store, heard) = (Arc::new(Moody::default()), Arc::<AtomicU32>::default());
    let (told, hearing, moody) = (Arc::<AtomicU32>::default(), heard.clone(), store.clone());
    let failed = told.clone();
    let builder = scene.builder().store(store.clone()).on_hook(move |hook| {
        if matches!(hook, Hook::StoreFailed) {
            failed.fetch_add(1, Ordering::Relaxed);
        }
    });
    let hooked = builder.on_message(move |ctx: Context| {
        hearing.fetch_add(1, Ordering::Relaxed);
        moody.fails.store(true, Ordering::Relaxed);
        async move { ctx.reply("heard").await }
    });
    let hooked = hooked.build();
    hooked.check().await.expect("a key");
    let _receiving = receiving(&hooked).await;
    let conversation = scene.conversation().await;
    conversation.send("hello").await.expect("sent");
    // The delivery is not acknowledged: it comes again until the store has kept what it taught.
    until(|| heard.load(Ordering::Relaxed) == 1 && told.load(Ordering::Relaxed) > 1).await;
    let before = store.load().expect("a store");
    store.fails.store(false, Ordering::Relaxed);
    until(|| store.load().expect("a store") != before).await;
    assert_eq!(heard.load(Ordering::Relaxed), 1, "handled once");
    assert_eq!(texts(&conversation).await, ["hello", "heard"]);
}

/// A request that is nearly one: a part of it is altered, cut or repeated.
fn nearly(rng: &mut StdRng) -> Vec<u8> {
    let methods = ["POST", "GET", "TRACE", "OPTIONS", "PUT", "CONNECT"];
    let targets = ["/", "*", "//", "/a?b", "http://[::1]:0/", "/%ff"];
    let method = methods[rng.random_range(0..methods.len())];
    let target = targets[rng.random_range(0..targets.len())];
    let body = "x".repeat(rng.random_range(0..300));
    let length = [
        body.len().to_string(),
        "99999999999".to_owned(),
        "-1".to_owned(),
    ];
    let length = &length[rng.random_range(0..3)];
    let mut bytes = format!(
        "{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nwebhook-id: 1\r\n\
         webhook-timestamp: 1\r\nwebhook-signature: v1,AAAA v1,!\r\n\r\n{body}"
    )
    .into_bytes();
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..bytes.len());
        bytes[at] = rng.random();
    }
    bytes.truncate(rng.random_range(0..=bytes.len()));
    bytes
}

#[tokio::test]
async fn junk_ends_no_webhook() {
    let scene = scene("bombarded").await;
    let agent = echo(scene.builder()).build();
    agent.check().await.expect("a key");
    let secret = "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = agent.webhook(secret).expect("a secret").into_router();
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    let mut rng = StdRng::seed_from_u64(17);
    for round in 0..600 {
        let bytes = if round % 2 == 0 {
            nearly(&mut rng)
        } else {
            let mut bytes = vec![0; rng.random_range(0..2_000)];
            rng.fill_bytes(&mut bytes);
            bytes
        };
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(&bytes).await.ok();
        stream.shutdown().await.ok();
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        read.expect("no connection hangs").ok();
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 5"), "{answer}");
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    // A body above the bound is refused before anybody looks at its signature.
    let large = reqwest::Client::new().post(format!("http://{address}/"));
    let refused = large.body(vec![b'x'; 3 << 20]).send().await;
    assert!(refused.is_err() || refused.is_ok_and(|it| it.status() == 413));
    // It still serves: the node asks it at once.
    let url = format!("http://{address}/");
    let webhook = agent.set_webhook(&url, secret).await.expect("registered");
    assert_eq!(
        webhook.status.as_str(),
        "active",
        "{:?}",
        webhook.last_error
    );
    let conversation = scene.conversation().await;
    let mut events = watch(&scene.ada).await;
    assert_eq!(events.ask(&conversation, "hello").await, "You said: hello");
    assert_eq!(texts(&conversation).await.len(), 2);
}
