//! An active server: each lie is refused or said. `docs/encryption.md` has the table.

mod answers;
mod backups;
mod comparisons;
mod consent;
mod deliveries;
mod drops;
mod epochs;
mod members;
mod messages;
mod resync;
mod streams;
mod table;

use std::sync::Arc;

use blindpipe_client::{
    Client, Hook,
    client::{ClientBuilder, ClientEvent, Conversation, Received},
    e2ee::{PrivateKeys, from_base64, to_base64},
    protocol::ids::ConversationId,
    testing::TestUser,
};
use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    proxy::Proxy,
    support::{Shared, Watch, cluster, direct},
};

/// The notices of a client's hook.
#[derive(Clone, Default)]
pub struct Told(Arc<Mutex<Vec<Hook>>>);

impl Told {
    pub fn hook(&self) -> impl Fn(&Hook) + Send + Sync + 'static {
        let told = self.0.clone();
        move |hook| told.lock().push(hook.clone())
    }

    /// The reasons of what did not open.
    pub fn refused(&self) -> Vec<&'static str> {
        let reason = |hook: &Hook| match hook {
            Hook::Undecryptable { reason, .. } => Some(reason.reason()),
            _ => None,
        };
        self.0.lock().iter().filter_map(reason).collect()
    }

    /// Where the notices of a kind stand.
    fn places(&self, kind: &str) -> Vec<Option<ConversationId>> {
        let place = |hook: &Hook| match hook {
            Hook::Notice {
                notice,
                conversation_id,
            } if notice.kind.name() == kind => Some(*conversation_id),
            _ => None,
        };
        self.0.lock().iter().filter_map(place).collect()
    }

    fn notices(&self) -> Vec<&'static str> {
        let name = |hook: &Hook| match hook {
            Hook::Notice { notice, .. } => Some(notice.kind.name()),
            _ => None,
        };
        self.0.lock().iter().filter_map(name).collect()
    }
}

/// A person behind a proxy before node 1, and what her client's hook is told.
async fn victim(cluster: &Shared, name: &str) -> (TestUser, Proxy, Told) {
    victim_with(cluster, name, |builder| builder).await
}

/// Ada, and Bob behind a proxy, in their direct conversation.
struct Attacked {
    cluster: Shared,
    ada: TestUser,
    bob: TestUser,
    proxy: Proxy,
    told: Told,
    conversation: Conversation,
}

async fn attacked() -> Attacked {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let (bob, proxy, told) = victim(&cluster, "bob").await;
    let conversation = direct(&ada, &bob).await;
    Attacked {
        cluster,
        ada,
        bob,
        proxy,
        told,
        conversation,
    }
}

async fn victim_with(
    cluster: &Shared,
    name: &str,
    more: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> (TestUser, Proxy, Told) {
    let (proxy, told) = (Proxy::before(cluster, 1).await, Told::default());
    let builder = Client::builder(proxy.server()).on_hook(told.hook());
    let user = cluster.user_with(name, more(builder)).await;
    (user.expect("a person"), proxy, told)
}

/// The next message in a conversation, whoever sent it.
pub async fn next_message(events: &mut Watch, of: ConversationId) -> Received {
    loop {
        if let ClientEvent::Message {
            received,
            conversation,
            ..
        } = events.next().await
            && conversation.id() == of
        {
            return *received;
        }
    }
}

/// The notices beside a message that opened.
fn notices(received: &Received) -> Vec<&'static str> {
    let opened = received.opened.as_ref().expect("it opens");
    let notices = opened.notices.iter();
    notices.map(|notice| notice.kind.name()).collect()
}

/// Keys that are equal at every run.
pub fn keys_of(seed: u64) -> PrivateKeys {
    PrivateKeys::random(&mut StdRng::seed_from_u64(seed))
}

/// Keys as the directory lists them.
fn listed(keys: &PrivateKeys, device_id: &str) -> Value {
    json!({
        "device_id": device_id,
        "key_id": "00000000000000000000000000000000",
        "public_key": to_base64(keys.public().public_key()),
        "signing_public_key": to_base64(keys.public().signing_public_key()),
        "schemes": ["bp1"],
        "created_at": "2026-01-01T00:00:00.000Z",
    })
}

/// Alters the keys that the directory shows: of one principal, or of everybody.
fn in_directory(
    of: Option<String>,
    mut rule: impl FnMut(&mut Vec<Value>) + Send,
) -> impl FnMut(&str, &mut Value) + Send {
    let is_meant = move |holder: &Value| {
        let is_of = |id: &String| holder["principal_id"] == **id || holder["user_id"] == **id;
        of.as_ref().is_none_or(is_of)
    };
    move |call, answer| {
        let reads_keys = call.contains("/recipients") || call.contains("/devices");
        if !call.starts_with("GET ") || !reads_keys {
            return;
        }
        for holder in holders(answer).into_iter().filter(|it| is_meant(it)) {
            if let Some(devices) = holder["devices"].as_array_mut() {
                rule(devices);
            }
        }
    }
}

/// The holders of keys in an answer that lists one or many.
fn holders(answer: &mut Value) -> Vec<&mut Value> {
    match &mut answer["data"] {
        data if data["members"].is_array() => {
            let members = data["members"].as_array_mut();
            members.into_iter().flatten().collect()
        }
        data => vec![data],
    }
}

/// Flips a bit of the envelope of a payload.
fn flip(payload: &mut Value, at: impl FnOnce(usize) -> usize) {
    let text = payload["ciphertext"].as_str().expect("an envelope");
    let mut bytes = from_base64(text).expect("base64");
    let at = at(bytes.len());
    bytes[at] ^= 1;
    payload["ciphertext"] = to_base64(&bytes).into();
}

/// The wraps of each rotation that goes through, by principal.
#[derive(Clone, Default)]
struct Wraps(Arc<Mutex<Vec<(String, String)>>>);

impl Wraps {
    /// Records wraps. Those for `stranger` go no further, because the node never asked for them.
    fn of(proxy: &Proxy, stranger: Option<String>) -> Self {
        let wraps = Self::default();
        let seen = wraps.clone();
        proxy.on_request(move |call, body| {
            if !call.ends_with("/rotate") {
                return;
            }
            let Some(list) = body["wrapped_keys"].as_array_mut() else {
                return;
            };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            for wrap in &*list {
                let wrap = (text(&wrap["principal_id"]), text(&wrap["wrapped_key"]));
                seen.0.lock().push(wrap);
            }
            list.retain(|wrap| Some(text(&wrap["principal_id"])) != stranger);
        });
        wraps
    }

    /// The latest wrap for somebody.
    fn last(&self, of: &str) -> Option<String> {
        let wraps = self.0.lock();
        let mut wraps = wraps.iter().rev();
        wraps.find(|(id, _)| id == of).map(|(_, wrap)| wrap.clone())
    }
}

/// The wrap of somebody who is given nothing.
const NOTHING: &str = "AA==";

fn id(of: &TestUser) -> String {
    of.client.user_id().expect("an id").to_string()
}

async fn group(of: &TestUser, with: &[&TestUser]) -> Conversation {
    let ids = with
        .iter()
        .map(|user| user.client.user_id().expect("an id"));
    let opened = of.client.open_group("group", ids.collect()).await;
    opened.expect("a group")
}
