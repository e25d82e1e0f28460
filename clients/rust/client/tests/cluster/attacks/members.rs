//! Injected members and keys, swapped keys, and people who are said to speak no `bp1`.

use std::sync::Arc;

use blindpipe_client::{Client, MemoryStore};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{NOTHING, Proxy, Wraps, attacked, group, id, in_directory, keys_of, listed, victim};
use crate::support::{cluster, direct, texts};

const STRANGER: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[tokio::test]
async fn a_recipient_who_is_no_member_is_given_nothing() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let (ada, proxy, told) = victim(&cluster, "ada").await;
    let keys = keys_of(1);
    proxy.on_answer(move |call, answer| {
        if call.contains("/recipients")
            && let Some(members) = answer["data"]["members"].as_array_mut()
        {
            members.push(json!({
                "principal_type": "user",
                "principal_id": STRANGER,
                "is_member": true,
                "list_version": 1,
                "devices": [listed(&keys, "evil")],
            }));
        }
    });
    let wraps = Wraps::of(&proxy, Some(STRANGER.to_owned()));
    let conversation = direct(&ada, &bob).await;
    conversation.send("for Bob").await.expect("sent");
    assert_eq!(wraps.last(STRANGER).as_deref(), Some(NOTHING));
    assert!(told.notices().contains(&"not_member"));
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(texts(&bobs).await, ["for Bob"]);
}

#[tokio::test]
async fn an_injected_member_is_named_before_the_first_message_sealed_for_it() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let carol = cluster.user("carol").await.expect("a person");
    let log = Arc::new(Mutex::new(Vec::new()));
    let hooked = log.clone();
    let (ada, proxy, _) = super::victim_with(&cluster, "ada", |builder| {
        builder.on_hook(move |hook| {
            if let blindpipe_client::Hook::Notice { notice, .. } = hook {
                hooked.lock().push(notice.kind.name());
            }
        })
    })
    .await;
    let conversation = group(&ada, &[&bob]).await;
    conversation.send("for Bob").await.expect("sent");
    proxy.on_answer(inject_member);
    let posted = log.clone();
    proxy.on_request(move |call, _| {
        if call.starts_with("POST /conversations/") && call.ends_with("/messages") {
            posted.lock().push("message");
        }
    });
    let added = vec![carol.client.user_id().expect("an id")];
    conversation.add_members(added).await.expect("added");
    conversation.send("for Bob and Carol").await.expect("sent");
    let log = log.lock();
    let sent = log.iter().position(|it| *it == "message").expect("sent");
    let named = log[..sent].iter().filter(|it| **it == "member_added");
    assert_eq!(named.count(), 2, "Carol and the stranger: {log:?}");
}

/// The server shows a member of its own making.
fn inject_member(call: &str, answer: &mut Value) {
    let is_info = call.starts_with("GET /conversations/") && !call.contains("/messages");
    if let Some(members) = answer["data"]["members"].as_array_mut().filter(|_| is_info) {
        members.push(json!({
            "principal_type": "user",
            "principal_id": STRANGER,
            "display_name": "Carol",
            "role": "member",
            "joined_at": "2026-01-01T00:00:00.000Z",
        }));
    }
}

#[tokio::test]
async fn a_member_who_is_injected_while_the_client_is_off_is_named_first_too() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let store = Arc::new(MemoryStore::default());
    let with_store =
        |builder: blindpipe_client::client::ClientBuilder| builder.store(store.clone());
    let (ada, proxy, _) = super::victim_with(&cluster, "ada", with_store).await;
    let conversation = group(&ada, &[&bob]).await;
    conversation.send("for Bob").await.expect("sent");
    let id = conversation.id();
    drop((ada, conversation));
    proxy.on_answer(inject_member);
    let log = Arc::new(Mutex::new(Vec::new()));
    let (hooked, posted) = (log.clone(), log.clone());
    proxy.on_request(move |call, _| {
        if call.ends_with("/messages") || call.ends_with("/rotate") {
            posted.lock().push("sealed");
        }
    });
    let resumed = Client::builder(proxy.server()).store(store.clone());
    let resumed = resumed.on_hook(move |hook| {
        if let blindpipe_client::Hook::Notice { notice, .. } = hook {
            hooked.lock().push(notice.kind.name());
        }
    });
    let resumed = resumed.resume().await.expect("a session");
    let conversation = resumed.expect("it is live").conversation(id);
    conversation.send("for Bob").await.expect("sent");
    let log = log.lock();
    assert!(log.contains(&"sealed"));
    assert_eq!(log.first(), Some(&"member_added"), "{log:?}");
}

#[tokio::test]
async fn nobody_joins_two() {
    let it = super::attacked().await;
    let conversation = it.bob.client.conversation(it.conversation.id());
    let is_lying = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let lies = is_lying.clone();
    it.proxy.on_answer(move |call, answer| {
        if lies.load(std::sync::atomic::Ordering::Relaxed) {
            inject_member(call, answer);
        }
    });
    let sent = conversation.send("for Ada alone").await;
    let malformed = blindpipe_client::e2ee::Error::Malformed;
    assert!(
        matches!(sent, Err(blindpipe_client::Error::Decrypt(it)) if it == malformed),
        "{sent:?}"
    );
    is_lying.store(false, std::sync::atomic::Ordering::Relaxed);
    conversation.send("for Ada").await.expect("sent");
    assert_eq!(texts(&it.conversation).await, ["for Ada"]);
}

/// The directory shows these keys in the place of somebody's own.
fn swap(of: &str) -> impl FnMut(&str, &mut Value) + Send + use<> {
    let keys = listed(&keys_of(2), "swapped");
    in_directory(Some(of.to_owned()), move |devices| {
        for device in devices {
            device["public_key"] = keys["public_key"].clone();
            device["signing_public_key"] = keys["signing_public_key"].clone();
        }
    })
}

#[tokio::test]
async fn a_swapped_key_waits_for_a_tap_and_is_given_nothing() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let carol = cluster.user("carol").await.expect("a person");
    let (ada, proxy, told) = victim(&cluster, "ada").await;
    let wraps = Wraps::of(&proxy, None);
    let conversation = group(&ada, &[&bob]).await;
    conversation.send("first contact").await.expect("sent");
    assert_ne!(wraps.last(&id(&bob)).as_deref(), Some(NOTHING));
    proxy.on_answer(swap(&id(&bob)));
    let added = vec![carol.client.user_id().expect("an id")];
    conversation.add_members(added).await.expect("added");
    conversation.send("not for the server").await.expect("sent");
    assert_eq!(wraps.last(&id(&bob)).as_deref(), Some(NOTHING));
    assert_ne!(wraps.last(&id(&carol)).as_deref(), Some(NOTHING));
    let places = told.places("waiting_key");
    let is_here = |place: &Option<_>| *place == Some(conversation.id());
    assert!(!places.is_empty() && places.iter().all(is_here));
}

#[tokio::test]
async fn somebody_who_spoke_bp1_is_never_written_to_in_clear() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let store = Arc::new(MemoryStore::default());
    let builder = Client::builder(cluster.node(0).expect("a node")).store(store.clone());
    let ada = cluster.user_with("ada", builder).await.expect("a person");
    let conversation = direct(&ada, &bob).await;
    conversation.send("encrypted").await.expect("sent");
    let id = conversation.id();
    drop((ada, conversation));
    // After a restart nothing is known but what the store holds.
    let proxy = Proxy::before(&cluster, 1).await;
    let payloads = Arc::new(Mutex::new(Vec::new()));
    let posted = payloads.clone();
    proxy.on_request(move |call, body| {
        if call.starts_with("POST ") && call.ends_with("/messages") {
            posted.lock().push(body["payload"]["type"].clone());
        }
    });
    proxy.on_answer(in_directory(None, |devices| {
        for device in devices {
            device["schemes"] = json!([]);
        }
    }));
    proxy.on_answer(|_, answer| {
        // Nothing was ever encrypted here, says the server.
        if answer["data"]["epoch"].is_number() {
            answer["data"]["epoch"] = 0.into();
        }
    });
    let resumed = Client::builder(proxy.server()).store(store).resume().await;
    let ada = resumed.expect("a session").expect("it is live");
    let conversation = ada.conversation(id);
    conversation.choose_clear().expect("chosen");
    let sent = conversation.send("never in clear").await;
    let types = payloads.lock().clone();
    assert!(types.iter().all(|kind| kind == "encrypted"), "{types:?}");
    assert_eq!(sent.is_ok(), !types.is_empty());
}

#[tokio::test]
async fn a_key_on_ones_own_list_that_one_did_not_add_is_an_alarm() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let (ada, proxy, told) = victim(&cluster, "ada").await;
    let keys = keys_of(3);
    proxy.on_answer(in_directory(Some(id(&ada)), move |devices| {
        devices.push(listed(&keys, "evil"));
    }));
    // The client looks when it starts.
    let _events = crate::support::watch(&ada).await;
    assert!(told.notices().contains(&"own_list_key"));
    let evil = Arc::new(Mutex::new(Vec::new()));
    let seen = evil.clone();
    proxy.on_request(move |call, body| {
        if call.ends_with("/rotate")
            && let Some(list) = body["wrapped_keys"].as_array_mut()
        {
            list.retain(|wrap| {
                let is_evil = wrap["device_id"] == "evil";
                if is_evil {
                    seen.lock().push(wrap["wrapped_key"].clone());
                }
                !is_evil
            });
        }
    });
    let conversation = direct(&ada, &bob).await;
    conversation.send("for Bob").await.expect("sent");
    assert!(told.notices().contains(&"own_list_key"));
    assert_eq!(*evil.lock(), [NOTHING]);
}

#[tokio::test]
async fn a_live_message_by_a_retired_key_is_said_by_nobody() {
    let it = attacked().await;
    it.proxy
        .on_answer(in_directory(Some(id(&it.ada)), |devices| {
            for device in devices {
                device["retired_at"] = "2026-01-01T00:00:00.000Z".into();
            }
        }));
    let mut events = crate::support::watch(&it.bob).await;
    it.conversation.send("by a thief").await.expect("sent");
    let received = super::next_message(&mut events, it.conversation.id()).await;
    let reason = received.opened.expect_err("the key had left").reason();
    assert_eq!(reason, "retired_key");
    assert_eq!(it.told.refused(), ["retired_key"]);
}
