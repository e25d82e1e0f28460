//! A fresh secret that is due and that the server does not take.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_client::{
    Client, Clock, Error, Hook, MemoryStore,
    e2ee::consent::Sensitivity,
    protocol::ids::{ConversationId, Principal},
    testing::{PROTECTION_PASSWORD, TestUser},
};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    approvals::{SCOPE, TOOL, agent_of, asking, grant, next_request},
    faults::Fault,
    proxy::Proxy,
    support::{Shared, cluster, direct, pair, running, texts, watch},
};

/// Ada behind a server that takes no rotation while it is told so.
struct Limited {
    ada: TestUser,
    proxy: Proxy,
    clock: Clock,
    is_limited: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<ConversationId>>>,
    store: Arc<MemoryStore>,
}

async fn limited(cluster: &Shared) -> Limited {
    let (proxy, clock) = (Proxy::before(cluster, 1).await, Clock::default());
    let (is_limited, told) = (
        Arc::new(AtomicBool::default()),
        Arc::<Mutex<Vec<_>>>::default(),
    );
    let (limits, telling) = (is_limited.clone(), told.clone());
    proxy.on_call(move |call| {
        let is_refused = call.ends_with("/rotate") || call == "GET /conversations";
        let is_refused = is_refused && limits.load(Ordering::Relaxed);
        is_refused.then_some(Fault::Refusal(429))
    });
    let store = Arc::new(MemoryStore::default());
    let builder = Client::builder(proxy.server()).clock(clock.clone());
    let builder = builder.store(store.clone());
    let builder = builder.tool(TOOL, SCOPE, Sensitivity::Low);
    let builder = builder.on_hook(move |hook| {
        if let Hook::NotRotated { conversation_id } = hook {
            telling.lock().push(*conversation_id);
        }
    });
    let ada = cluster.user_with("ada", builder).await;
    Limited {
        ada: ada.expect("a person"),
        proxy,
        clock,
        is_limited,
        told,
        store,
    }
}

#[tokio::test]
async fn nothing_is_said_under_a_secret_that_a_removed_member_holds() {
    let cluster = cluster().await;
    let limited = limited(&cluster).await;
    let (bob, eve) = pair(&cluster).await;
    let ids = [&bob, &eve].map(|user| user.client.user_id().expect("an id"));
    let group = limited.ada.client.open_group("few", ids.to_vec()).await;
    let group = group.expect("a group");
    group.send("with Eve").await.expect("sent");
    let before = group.info().await.expect("read");
    // The server goes on as if nobody had left.
    let members = serde_json::to_value(&before.members).expect("JSON");
    limited.proxy.on_answer(move |_, answer| {
        let data = &mut answer["data"];
        if data["members"].is_array() && data["kind"] == "group" {
            data["members"] = members.clone();
        }
        if data["rotation_required"] == Value::Bool(true) {
            data["rotation_required"] = false.into();
        }
    });
    limited.is_limited.store(true, Ordering::Relaxed);
    let removed = group.remove(Principal::User(ids[1])).await;
    assert!(
        matches!(removed, Err(Error::KeyUnavailable(_))),
        "{removed:?}"
    );
    let sent = group.send("without Eve").await;
    assert!(matches!(sent, Err(Error::KeyUnavailable(_))), "{sent:?}");
    assert_eq!(*limited.told.lock(), [group.id(), group.id()]);
    // A due rotation stays due over a restart.
    let again = Client::builder(limited.proxy.server()).store(limited.store.clone());
    let again = again.clock(limited.clock.clone()).resume().await;
    let again = again.expect("a session").expect("it is live");
    let group = again.conversation(group.id());
    let sent = group.send("without Eve").await;
    assert!(matches!(sent, Err(Error::KeyUnavailable(_))), "{sent:?}");
    limited.is_limited.store(false, Ordering::Relaxed);
    group.send("without Eve").await.expect("sent");
    let after = group.info().await.expect("read");
    assert_eq!(after.epoch, before.epoch + 1);
}

#[tokio::test]
async fn nothing_is_said_under_a_secret_that_a_revoked_device_holds() {
    let cluster = cluster().await;
    let limited = limited(&cluster).await;
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&limited.ada, &bob).await;
    let phone = cluster.device(&limited.ada, 0, "phone").await;
    let phone = phone.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    conversation.send("on the phone too").await.expect("sent");
    // The server lists no conversation, and says that no fresh secret is due.
    limited.proxy.on_answer(|_, answer| {
        if answer["data"]["rotation_required"] == Value::Bool(true) {
            answer["data"]["rotation_required"] = false.into();
        }
    });
    limited.is_limited.store(true, Ordering::Relaxed);
    let revoked = limited.ada.client.devices().revoke("phone").await;
    revoked.expect("revoked");
    let again = Client::builder(limited.proxy.server()).store(limited.store.clone());
    let again = again.clock(limited.clock.clone()).resume().await;
    let again = again.expect("a session").expect("it is live");
    let conversation = again.conversation(conversation.id());
    let sent = conversation.send("without the phone").await;
    assert!(matches!(sent, Err(Error::KeyUnavailable(_))), "{sent:?}");
    limited.is_limited.store(false, Ordering::Relaxed);
    let sent = conversation.send("without the phone").await;
    sent.expect("sent under a fresh secret");
    let theirs = texts(&bob.client.conversation(conversation.id())).await;
    assert_eq!(theirs, ["on the phone too", "without the phone"]);
}

#[tokio::test]
async fn nothing_runs_whose_answer_could_not_be_sealed() {
    let cluster = cluster().await;
    let limited = limited(&cluster).await;
    let made = agent_of(&cluster, &limited.ada).await;
    let agent = asking(cluster.builder(&made, 0).expect("a node"));
    let agent = running(agent).await;
    let conversation = limited.ada.client.open_agent(made.id).await;
    let conversation = conversation.expect("opened");
    grant(&limited.ada, &agent.agent, &conversation).await;
    let phone = cluster.device(&limited.ada, 0, "phone").await;
    let phone = phone.expect("signed in");
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    restored.expect("restored");
    let mut events = watch(&limited.ada).await;
    conversation.send("hello").await.expect("sent");
    let request = next_request(&mut events).await;
    let claims = Arc::<AtomicU32>::default();
    let claiming = claims.clone();
    limited.proxy.on_call(move |call| {
        claiming.fetch_add(u32::from(call.ends_with("/claim")), Ordering::Relaxed);
        None
    });
    limited.is_limited.store(true, Ordering::Relaxed);
    let revoked = limited.ada.client.devices().revoke("phone").await;
    revoked.expect("revoked");
    request.approve();
    let runs = Arc::<AtomicU32>::default();
    let run = || {
        let runs = runs.clone();
        async move |_, _| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(Value::Null)
        }
    };
    let refused = request.execute_with(run()).await;
    assert!(
        matches!(refused, Err(Error::KeyUnavailable(_))),
        "{refused:?}"
    );
    let refused = request.deny("no").await;
    assert!(
        matches!(refused, Err(Error::KeyUnavailable(_))),
        "{refused:?}"
    );
    let counted = |count: &AtomicU32| count.load(Ordering::Relaxed);
    assert_eq!((counted(&runs), counted(&claims)), (0, 0));
    // It is still approved, and still this device's to run.
    limited.is_limited.store(false, Ordering::Relaxed);
    request.execute_with(run()).await.expect("executed");
    assert_eq!(events.answer(&conversation).await.text(), "Executed ");
    assert_eq!((counted(&runs), counted(&claims)), (1, 1));
    agent.stop().await;
}

#[tokio::test]
async fn an_old_secret_goes_on_for_ten_minutes() {
    let cluster = cluster().await;
    let limited = limited(&cluster).await;
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&limited.ada, &bob).await;
    conversation.send("young").await.expect("sent");
    let before = conversation.info().await.expect("read").epoch;
    limited.is_limited.store(true, Ordering::Relaxed);
    limited.clock.advance(Duration::from_secs(8 * 24 * 3600));
    conversation.send("old").await.expect("sent");
    limited.clock.advance(Duration::from_secs(9 * 60));
    conversation.send("older").await.expect("sent");
    assert!(limited.told.lock().is_empty());
    limited.clock.advance(Duration::from_secs(60));
    let sent = conversation.send("too old").await;
    assert!(matches!(sent, Err(Error::KeyUnavailable(_))), "{sent:?}");
    assert_eq!(*limited.told.lock(), [conversation.id()]);
    assert_eq!(conversation.info().await.expect("read").epoch, before);
    limited.is_limited.store(false, Ordering::Relaxed);
    conversation.send("young again").await.expect("sent");
    assert_eq!(conversation.info().await.expect("read").epoch, before + 1);
}
