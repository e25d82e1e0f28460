//! Approvals: every state and transition, who hears of them, races, and attacks on signatures.

mod attacks;
mod people;
mod races;
mod requests;
mod states;

use std::time::{Duration, Instant};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::clock::iso;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::text;
use crate::support::{Agent, Answer, TestNode, User, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "approval_request=10000/s,default_user=10000/s,agent_tier_1=10000/s,group_agent_instance=100/s,\
     agent_poll=10000/s,conversation_open=100/s,ws_connect=10000/min,group_member_add=100/s,user_message_send=100/s",
);

/// The keys of a device: a signing pair, and an encryption key whose public half alone matters here.
pub struct Keys {
    signing: Ed25519KeyPair,
    public: [u8; 32],
}

impl Keys {
    fn new() -> Self {
        let seed: [u8; 32] = rand::random();
        Keys {
            signing: Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed"),
            public: rand::random(),
        }
    }

    /// New keys, which become those of the user's device.
    pub async fn of(user: &User) -> Self {
        let keys = Keys::new();
        let backup = json!({
            "device_id": user.device_id,
            "public_key": BASE64.encode(keys.public),
            "signing_public_key": BASE64.encode(keys.signing.public_key()),
            "backup_a": BASE64.encode([1; 60]),
            "backup_b": BASE64.encode([2; 60]),
            "argon2_salt": BASE64.encode([9; 32]),
            "argon2_params": { "m": 65536, "t": 3, "p": 4 },
        });
        let kept = user.post("/keys/backup", backup).await;
        assert!(matches!(kept.status, 200 | 201), "{kept:?}");
        keys
    }

    /// As the documents spell it, independently of the service.
    fn id(&self) -> String {
        let hash = Sha256::digest([&self.public[..], self.signing.public_key().as_ref()].concat());
        base16ct::lower::encode_string(&hash[..16])
    }
}

/// A member with keys.
pub struct Person {
    pub user: User,
    pub keys: Keys,
}

impl Person {
    async fn register(node: &TestNode, name: &str) -> Self {
        let user = node.user(name).await;
        let keys = Keys::of(&user).await;
        Person { user, keys }
    }

    /// The body of a decision, as the documents spell its bytes.
    pub fn word(&self, item: &Value, decision: &str, at: DateTime<Utc>) -> Value {
        self.answer(item, decision, None, at)
    }

    /// The body of a decision with the digest of an answer.
    fn answer(
        &self,
        item: &Value,
        decision: &str,
        digest: Option<[u8; 32]>,
        at: DateTime<Utc>,
    ) -> Value {
        let key_id = self.keys.id();
        let mut bytes = b"blindpipe approval v1\0".to_vec();
        for text in [
            text(item, "approval_id"),
            text(item, "agent_id"),
            text(item, "conversation_id"),
            self.user.id.clone(),
            key_id.clone(),
            decision.to_owned(),
        ] {
            bytes.extend(u16::try_from(text.len()).expect("short").to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend(BASE64.decode(text(item, "digest")).expect("base64"));
        bytes.extend(digest.unwrap_or_default());
        bytes.extend(at.timestamp_millis().to_be_bytes());
        let mut body = json!({
            "decision": decision, "decided_at": iso(at), "key_id": key_id,
            "signature": BASE64.encode(self.keys.signing.sign(&bytes)),
        });
        if let Some(digest) = digest {
            body["answer_digest"] = json!(BASE64.encode(digest));
        }
        body
    }

    /// Decides at a node, now.
    pub async fn decide(&self, node: &TestNode, item: &Value, decision: &str) -> Answer {
        let body = self.word(item, decision, node.world.clock.now());
        decide(&self.user.on(node), item, body).await
    }
}

pub async fn decide(user: &User, item: &Value, body: Value) -> Answer {
    let path = format!("/approvals/{}/decision", text(item, "approval_id"));
    user.post(path, body).await
}

async fn withdraw(agent: &Agent, item: &Value) -> Answer {
    let path = format!("/approvals/{}/withdraw", text(item, "approval_id"));
    agent.post(path, json!({})).await
}

/// A group of three people and an agent that hears everything, over two nodes.
struct Room {
    nodes: [TestNode; 2],
    developer: User,
    agent: Agent,
    alice: Person,
    bob: Person,
    carol: Person,
    group: String,
}

impl Room {
    async fn new() -> Self {
        let nodes: [TestNode; 2] = nodes_with(&[RAISED_LIMITS]).await;
        let developer = nodes[1].user("dev").await;
        let agent = nodes[1].agent(&developer, "helper").await;
        let alice = Person::register(&nodes[0], "alice").await;
        let bob = Person::register(&nodes[1], "bob").await;
        let carol = Person::register(&nodes[0], "carol").await;
        alice.user.talk_to(&agent).await;
        let group = alice.user.group_with(&[&bob.user, &carol.user]).await;
        admit(&alice.user, &group, &agent, "all").await;
        Room {
            nodes,
            developer,
            agent,
            alice,
            bob,
            carol,
            group,
        }
    }

    fn node(&self, n: usize) -> &TestNode {
        &self.nodes[n % 2]
    }

    fn now(&self) -> DateTime<Utc> {
        self.nodes[0].world.clock.now()
    }

    /// Asks in the group with more fields.
    async fn try_ask(&self, more: Value) -> Answer {
        ask_in(&self.agent, &self.group, more).await
    }

    async fn ask(&self, more: Value) -> Value {
        self.try_ask(more).await.expect(201).data().clone()
    }

    async fn item(&self, item: &Value) -> Value {
        item_of(&self.agent, item).await
    }

    async fn advance(&self, seconds: u64) {
        self.nodes[0].advance(Duration::from_secs(seconds)).await;
    }
}

async fn admit(admin: &User, group: &str, agent: &Agent, visibility: &str) -> Value {
    let place = json!({ "agent_id": agent.id, "visibility": visibility });
    let path = format!("/groups/{group}/agent-instances");
    admin.post(path, place).await.expect(201).data().clone()
}

/// The body of a request, with more fields.
pub fn question(more: Value) -> Value {
    let mut body = json!({
        "payload": { "type": "encrypted", "c": "a sealed question" }, "kind": "approve",
        "digest": BASE64.encode([7; 32]), "client_message_id": ulid().to_string(),
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

pub fn approvals_of(agent: &Agent, conversation: &str) -> String {
    format!(
        "/agents/{}/conversations/{conversation}/approvals",
        agent.id
    )
}

async fn ask_in(agent: &Agent, conversation: &str, more: Value) -> Answer {
    let path = approvals_of(agent, conversation);
    agent.post(path, question(more)).await
}

async fn item_of(agent: &Agent, item: &Value) -> Value {
    let path = format!("/approvals/{}", text(item, "approval_id"));
    agent.get(path).await.expect(200).data().clone()
}

/// Waits until an approval is closed, and for no longer than a sweep takes.
async fn closed(agent: &Agent, item: &Value) -> Value {
    let since = Instant::now();
    loop {
        let item = item_of(agent, item).await;
        if item["state"] != "open" {
            return item;
        }
        assert!(since.elapsed() < Duration::from_secs(15), "{item} is open");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// The events of approvals in a user's inbox: names and data.
async fn heard(user: &User) -> Vec<(String, Value)> {
    let start = user.start_of_inbox().await;
    let mut socket = user.connect_from(Some(&start)).await;
    let mut events = Vec::new();
    loop {
        let frame = socket.next().await.expect("a frame");
        if frame["type"] == "caught_up" {
            return of_approvals(events);
        }
        events.push(frame);
    }
}

/// The events of approvals in an agent's inbox.
async fn heard_by_agent(agent: &Agent) -> Vec<(String, Value)> {
    let page = agent.poll("limit=100").await.expect(200);
    of_approvals(page.body["data"].as_array().expect("events").clone())
}

fn of_approvals(events: Vec<Value>) -> Vec<(String, Value)> {
    let named = events.into_iter().filter_map(|event| {
        let name = event["event"].as_str()?.to_owned();
        name.starts_with("approval.")
            .then(|| (name, event["data"].clone()))
    });
    named.collect()
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}
