//! Keys of the server's own beside, or in the place of, a key that people compared or a link named.

use std::sync::Arc;

use blindpipe_client::{e2ee::AgentKey, protocol::ids::Principal};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{NOTHING, Proxy, Told, id, keys_of, listed, victim};
use crate::support::{Shared, cluster, direct, texts};

const EVIL: &str = "evil";

/// The server lists a key of its own: beside those of somebody, or instead of them.
fn list_evil(proxy: &Proxy, of: String, instead: bool) {
    let mut evil = listed(&keys_of(9), EVIL);
    evil["retired_at"] = Value::Null;
    proxy.on_answer(super::in_directory(Some(of), move |devices| {
        if instead {
            devices.clear();
        }
        devices.push(evil.clone());
    }));
}

/// The wraps for the server's own key. They go no further, because the node never asked for them.
fn evil_wraps(proxy: &Proxy) -> Arc<Mutex<Vec<Value>>> {
    let wraps = Arc::new(Mutex::new(Vec::new()));
    let seen = wraps.clone();
    proxy.on_request(move |call, body| {
        if call.ends_with("/rotate")
            && let Some(list) = body["wrapped_keys"].as_array_mut()
        {
            list.retain(|wrap| {
                let is_evil = wrap["device_id"] == EVIL;
                if is_evil {
                    seen.lock().push(wrap["wrapped_key"].clone());
                }
                !is_evil
            });
        }
    });
    wraps
}

#[tokio::test]
async fn a_key_beside_the_one_that_people_compared_reads_nothing() {
    let cluster = cluster().await;
    let bob = cluster.user("bob").await.expect("a person");
    let (ada, proxy, told) = victim(&cluster, "ada").await;
    list_evil(&proxy, id(&bob), false);
    let wraps = evil_wraps(&proxy);
    let conversation = direct(&ada, &bob).await;
    conversation.send("first contact").await.expect("sent");
    assert_ne!(wraps.lock().last(), Some(&json!(NOTHING)));
    let of_ada = Principal::User(ada.client.user_id().expect("an id"));
    let of_bob = Principal::User(bob.client.user_id().expect("an id"));
    // The digits are of all keys, so they differ.
    let on_bobs_phone = bob.client.safety_number(of_ada).await.expect("digits");
    let on_adas_phone = ada.client.safety_number(of_bob).await.expect("digits");
    assert_ne!(on_bobs_phone, on_adas_phone);
    assert!(!ada.client.verify(of_bob, &on_bobs_phone).expect("stored"));
    // Bob shows the key of his device alone.
    let bobs_key = bob.client.key_id().expect("a key");
    assert!(ada.client.verify_key(of_bob, bobs_key).expect("stored"));
    assert!(told.notices().contains(&"waiting_key"));
    conversation.send("for Bob alone").await.expect("sent");
    assert_eq!(wraps.lock().last(), Some(&json!(NOTHING)));
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(texts(&bobs).await, ["first contact", "for Bob alone"]);
}

/// Ada follows an agent's link, while the server lists a key of its own.
async fn linked(cluster: &Shared, instead: bool) -> (Vec<Value>, Told, Result<(), String>) {
    let owner = cluster.user("owner").await.expect("a person");
    let agent = cluster.agent("linked", &owner.client, None).await;
    let agent = agent.expect("an agent");
    let started = cluster.builder(&agent, 0).expect("a node");
    let running = crate::support::running(crate::support::echo(started)).await;
    let (ada, proxy, told) = victim(cluster, "ada").await;
    list_evil(&proxy, agent.id.to_string(), instead);
    let wraps = evil_wraps(&proxy);
    let key = AgentKey::parse(&agent.key).expect("a key");
    let key = key.keys().key_id();
    let of_link = ada.client.link(agent.id, key).expect("stored");
    assert_eq!(of_link, [], "nothing is known yet");
    let conversation = ada.client.open_agent(agent.id).await;
    let conversation = conversation.expect("a conversation");
    let sent = conversation.send("for the agent").await;
    running.stop().await;
    let wraps = wraps.lock().clone();
    (
        wraps,
        told,
        sent.map(drop).map_err(|error| error.to_string()),
    )
}

#[tokio::test]
async fn a_key_beside_the_one_of_a_link_reads_nothing() {
    let (wraps, told, sent) = linked(&cluster().await, false).await;
    assert_eq!(sent, Ok(()));
    assert!(told.notices().contains(&"waiting_key"));
    assert!(!wraps.is_empty() && wraps.iter().all(|wrap| *wrap == NOTHING));
}

#[tokio::test]
async fn a_key_instead_of_the_one_of_a_link_reads_nothing() {
    let (wraps, told, _) = linked(&cluster().await, true).await;
    let notices = told.notices();
    assert!(notices.contains(&"link_retired") && notices.contains(&"waiting_key"));
    assert!(!wraps.is_empty() && wraps.iter().all(|wrap| *wrap == NOTHING));
}
