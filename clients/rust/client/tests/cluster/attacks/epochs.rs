//! Epochs of the server's own making, epochs by people who have left, and old epochs.

use std::sync::Arc;

use blindpipe_client::{
    Client, Error, MemoryStore, Store,
    client::{ClientEvent, Conversation},
    e2ee::{
        EpochKey, Id, Principal as Owner, PrivateKeys, PublicKeys, Secret,
        envelope::Header,
        from_base64, to_base64,
        wrap::{self, Recipient, Rotation},
    },
    protocol::ids::{ConversationId, Principal},
    testing::TestUser,
};
use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{Proxy, Told, group, keys_of, next_message, victim_with};
use crate::support::{Watch, cluster, texts, until, watch};

/// Fields of the device that a store holds.
fn stored_keys(store: &MemoryStore) -> PrivateKeys {
    let document = store.load().expect("a store").expect("a document");
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    let secret = |name: &str| {
        let text = document["keys"][name].as_str().expect("a key");
        let bytes = from_base64(text).expect("base64").try_into();
        Secret::new(bytes.expect("32 bytes"))
    };
    PrivateKeys::new(secret("x25519"), &secret("ed25519"))
}

fn bytes_of(user: &TestUser) -> Id {
    user.client.user_id().expect("an id").0.into_bytes()
}

/// An epoch that the server knows the secret of.
struct Forgery {
    of: ConversationId,
    secret: EpochKey,
    wrapped: String,
}

impl Forgery {
    fn wraps(&self, to: &TestUser) -> Value {
        let device = to.client.device_id().expect("an id");
        json!([{ "device_id": device, "wrapped_key": self.wrapped }])
    }

    /// Tells a client of the rotation, and waits until it was looked into.
    async fn announce(&self, proxy: &Proxy, events: &mut Watch, by: &TestUser, to: &TestUser) {
        let data = json!({
            "conversation_id": self.of,
            "epoch": self.secret.epoch(),
            "by": by.client.user_id().expect("an id"),
            "reason": null,
                "wrapped_keys": self.wraps(to),
        });
        let forged = proxy.inject_event("key.rotated", &self.of.to_string(), &data);
        loop {
            if let ClientEvent::Event(event) = events.next().await
                && event.event_id.to_string() == forged
            {
                return;
            }
        }
    }
}

/// A wrap for `to`, which names `rotator` and is signed with `by`.
fn forge(
    of: &Conversation,
    epoch: u32,
    rotator: Id,
    by: &PrivateKeys,
    to: &TestUser,
    keys: &PublicKeys,
) -> Forgery {
    let mut rng = StdRng::seed_from_u64(9);
    let secret = EpochKey::random(of.id().0.into_bytes(), epoch, &mut rng);
    let rotation = Rotation {
        key: &secret,
        previous: [0; 16],
        rotator,
        rotator_keys: by,
        // Later than every rotation of the test, and within the ten minutes.
        time: now_ms() + 60_000,
    };
    let to = Recipient {
        principal: Owner::User(bytes_of(to)),
        keys,
        addressed: false,
    };
    let wrapped = wrap::seal(&rotation, &to, &mut rng).expect("a wrap");
    Forgery {
        of: of.id(),
        wrapped: to_base64(&wrapped),
        secret,
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "clients read the system's clock as well"
)]
fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("in range")
}

/// The envelopes that a client posts.
fn posted(proxy: &Proxy) -> Arc<Mutex<Vec<Header>>> {
    let posted = Arc::new(Mutex::new(Vec::new()));
    let seen = posted.clone();
    proxy.on_request(move |call, body| {
        if call.ends_with("/messages") {
            let text = body["payload"]["ciphertext"].as_str().expect("an envelope");
            let envelope = from_base64(text).expect("base64");
            seen.lock()
                .push(Header::parse(&envelope).expect("a header"));
        }
    });
    posted
}

#[tokio::test]
async fn nobody_seals_with_an_epoch_of_the_servers_making() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let store = Arc::new(MemoryStore::default());
    let (ada, proxy, _) = victim_with(&cluster, "ada", |it| it.store(store.clone())).await;
    let conversation = group(&ada, &[&bob]).await;
    conversation.send("honest").await.expect("sent");
    let mut events = watch(&ada).await;
    let keys = *stored_keys(&store).public();
    let forgery = forge(&conversation, 2, bytes_of(&bob), &keys_of(4), &ada, &keys);
    let wraps = forgery.wraps(&ada);
    // The server says so wherever it is asked.
    let (told, listed) = (conversation.id(), wraps.clone());
    proxy.on_answer(move |call, answer| {
        if call.starts_with(&format!("GET /keys/groups/{told}")) && !call.contains("recipients") {
            answer["data"]["epoch"] = 2.into();
            answer["data"]["current_epoch"] = 2.into();
            answer["data"]["wrapped_keys"] = listed.clone();
        }
    });
    let posted = posted(&proxy);
    forgery.announce(&proxy, &mut events, &bob, &ada).await;
    conversation.send("for Bob alone").await.expect("sent");
    let headers = posted.lock().clone();
    assert_eq!(headers.len(), 1);
    assert_ne!(headers[0].sid, forgery.secret.sid());
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(texts(&bobs).await, ["honest", "for Bob alone"]);
}

#[tokio::test]
async fn nobody_seals_with_an_epoch_of_an_ex_member() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let eves = Arc::new(MemoryStore::default());
    let builder = Client::builder(cluster.node(0).expect("a node")).store(eves.clone());
    let eve = cluster.user_with("eve", builder).await.expect("a person");
    let store = Arc::new(MemoryStore::default());
    let (ada, proxy, _) = victim_with(&cluster, "ada", |it| it.store(store.clone())).await;
    let conversation = group(&ada, &[&bob, &eve]).await;
    conversation.send("with Eve").await.expect("sent");
    let mut events = watch(&ada).await;
    let eve_id = Principal::User(eve.client.user_id().expect("an id"));
    conversation.remove(eve_id).await.expect("removed");
    // All that the removal brought is known by now.
    conversation.send("between").await.expect("sent");
    while next_message(&mut events, conversation.id()).await.text() != "between" {}
    conversation.info().await.expect("read");
    // Eve's own key signs it: the server and she work together.
    let keys = *stored_keys(&store).public();
    let by = stored_keys(&eves);
    let forgery = forge(&conversation, 3, bytes_of(&eve), &by, &ada, &keys);
    let posted = posted(&proxy);
    forgery.announce(&proxy, &mut events, &eve, &ada).await;
    conversation.send("without Eve").await.expect("sent");
    let headers = posted.lock().clone();
    assert_eq!(headers.len(), 1);
    assert_ne!(headers[0].sid, forgery.secret.sid());
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(texts(&bobs).await, ["with Eve", "between", "without Eve"]);
}

#[tokio::test]
async fn nobody_goes_back_to_an_old_epoch() {
    let cluster = cluster().await;
    let eve = cluster.user("eve").await.expect("a person");
    let store = Arc::new(MemoryStore::default());
    let (ada, proxy, _) = victim_with(&cluster, "ada", |it| it.store(store.clone())).await;
    // The wrap of epoch 1 for Ada, as she made it.
    let old = Arc::new(Mutex::new(None));
    let (seen, device) = (old.clone(), ada.client.device_id().expect("an id"));
    proxy.on_request(move |call, body| {
        if call.ends_with("/rotate") && body["base_epoch"] == 0 {
            let list = body["wrapped_keys"].as_array().expect("wraps");
            let own = list.iter().find(|wrap| wrap["device_id"] == device);
            *seen.lock() = own.cloned();
        }
    });
    let group = group(&ada, &[&eve]).await;
    group.send("with Eve").await.expect("sent");
    let eve_id = Principal::User(eve.client.user_id().expect("an id"));
    group.remove(eve_id).await.expect("removed");
    group.send("without Eve").await.expect("sent");
    let of = group.id();
    drop(group);

    let lying = Arc::new(Mutex::new(true));
    let (lies, wrap) = (lying.clone(), old.lock().clone().expect("a wrap"));
    let proxy = Proxy::before(&cluster, 1).await;
    proxy.on_answer(move |call, answer| {
        if !*lies.lock() || !call.starts_with("GET ") {
            return;
        }
        if call.contains("/keys/groups/") && !call.contains("recipients") {
            answer["data"]["epoch"] = 1.into();
            answer["data"]["current_epoch"] = 1.into();
            answer["data"]["rotation_required"] = false.into();
            answer["data"]["wrapped_keys"] = json!([wrap]);
        } else if answer["data"]["epoch"].is_number() {
            answer["data"]["epoch"] = 1.into();
            answer["data"]["rotation_required"] = false.into();
        }
    });
    let posted = posted(&proxy);
    let resumed = Client::builder(proxy.server()).store(store).resume().await;
    let ada = resumed.expect("a session").expect("it is live");
    let refused = ada.conversation(of).send("for Eve too?").await;
    assert!(refused.is_err(), "the node knows a later epoch");
    assert_eq!(posted.lock().len(), 0);
    *lying.lock() = false;
    let honest = ada.conversation(of);
    honest
        .rotate()
        .await
        .expect("a secret that Eve does not have");
    honest.send("still without Eve").await.expect("sent");
    let headers = posted.lock().clone();
    assert!(headers.iter().all(|header| header.epoch >= 2));
    assert_eq!(headers.len(), 1);
}

#[tokio::test]
async fn an_agent_waits_rather_than_go_back_to_an_old_epoch() {
    let scene = crate::support::scene("waiting").await;
    let store = Arc::new(MemoryStore::default());
    let failures = Arc::new(Mutex::new(Vec::new()));
    let seen = failures.clone();
    let (proxy, told) = (Proxy::before(&scene.cluster, 1).await, Told::default());
    let builder = proxy.agent(&scene.agent).store(store).on_hook(told.hook());
    let builder = builder.on_message(move |ctx| {
        let seen = seen.clone();
        async move {
            let sent = ctx.reply("an answer").await;
            let is_waiting = matches!(sent, Err(Error::KeyUnavailable(_)));
            seen.lock().push(is_waiting);
            Ok(())
        }
    });
    let talk = scene.talk(builder).await;
    talk.conversation.send("one").await.expect("sent");
    until(|| failures.lock().len() == 1).await;
    talk.conversation.rotate().await.expect("rotated");
    // The server calls epoch 1 the current one, wherever it says so.
    proxy.on_answer(|_, answer| {
        for name in ["epoch", "current_epoch"] {
            if answer["data"][name].is_number() {
                answer["data"][name] = 1.into();
            }
        }
    });
    talk.conversation.send("two").await.expect("sent");
    until(|| failures.lock().len() == 2).await;
    // It knows epoch 2 by the rotation's own event: it goes on there, or waits.
    let texts = texts(&talk.conversation).await;
    talk.agent.stop().await;
    let answered = failures.lock().iter().filter(|waiting| !**waiting).count();
    assert_eq!(texts.len(), 2 + answered, "{texts:?}");
    let all = crate::support::history(&talk.conversation).await;
    let last = all.last().expect("a message");
    let opened = last.opened.as_ref().expect("it opens");
    assert_eq!(opened.epoch, 2);
}
