//! Agents' keys: the proof, replacement with grace, the end with the token.

use std::time::Duration;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::clock::iso;
use serde_json::{Value, json};

use crate::{
    files::count,
    support::{Agent, Answer, Caller, TestNode, nodes, nodes_with, psql, request_upkeep},
};

const DAY: Duration = Duration::from_secs(86_400);

/// The keys of an agent: a signing pair, and an encryption key of which only the public half
/// matters here.
pub struct Keys {
    signing: Ed25519KeyPair,
    public: [u8; 32],
}

impl Keys {
    pub fn new(n: u8) -> Self {
        let signing = Ed25519KeyPair::from_seed_unchecked(&[n; 32]).expect("a seed");
        Keys {
            signing,
            public: [n; 32],
        }
    }

    fn signing_public(&self) -> String {
        BASE64.encode(self.signing.public_key())
    }

    /// As the documents spell it, independently of the service.
    pub fn id(&self) -> String {
        use sha2::{Digest, Sha256};
        let hash = Sha256::digest([&self.public[..], self.signing.public_key().as_ref()].concat());
        base16ct::lower::encode_string(&hash[..16])
    }

    /// Registers the keys with more fields in the body.
    pub async fn register_with(&self, node: &TestNode, agent: &Agent, said: &Value) -> Answer {
        let mut body = self.registration(&agent.id, &iso(node.world.clock.now()));
        for (name, value) in said.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let path = format!("/agents/{}/keys/register", agent.id);
        agent.on(node).post(path, body).await
    }

    fn registration(&self, agent: &str, timestamp: &str) -> Value {
        let (public, signing) = (BASE64.encode(self.public), self.signing_public());
        let text = format!("keys-register|{agent}|{public}|{signing}|{timestamp}");
        let signature = BASE64.encode(self.signing.sign(text.as_bytes()));
        json!({ "public_key": public, "signing_public_key": signing, "timestamp": timestamp, "signature": signature })
    }
}

pub async fn register(node: &TestNode, caller: &Caller, agent: &Agent, keys: &Keys) -> Answer {
    let body = keys.registration(&agent.id, &iso(node.world.clock.now()));
    caller
        .on(node)
        .post(format!("/agents/{}/keys/register", agent.id), body)
        .await
}

async fn key_ids(caller: &Caller, agent: &Agent) -> Vec<String> {
    let answer = caller
        .get(format!("/agents/{}/keys", agent.id))
        .await
        .expect(200);
    let keys = answer.data()["keys"].as_array().expect("a list").clone();
    keys.iter()
        .map(|key| key["key_id"].as_str().expect("an id").to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_key_makes_an_agent_active_and_its_users_hear_of_it() {
    let [a, b] = nodes().await;
    let [alice, bob, eve] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("eve").await,
    ];
    let agent = a.agent(&alice, "helper").await;
    bob.talk_to(&agent).await;
    let (mut hers, mut his) = (alice.on(&b).connect().await, bob.on(&b).connect().await);
    let keys = Keys::new(1);
    let answer = register(&a, &agent, &agent, &keys).await.expect(201);
    assert_eq!(
        *answer.data(),
        json!({ "key_id": keys.id(), "previous_key_id": null, "previous_valid_until": null })
    );
    let changed = hers.event("agent.state_changed").await;
    let data = &changed["data"];
    assert_eq!(
        (&data["state"], &data["previous_state"]),
        (&json!("active"), &json!("registered"))
    );
    let told = his.event("agent.key_registered").await;
    assert_eq!(
        told["data"],
        json!({ "agent_id": agent.id, "key_id": keys.id() })
    );
    for caller in [&alice.caller, &bob.caller, &agent.caller] {
        let answer = caller
            .on(&b)
            .get(format!("/agents/{}/keys", agent.id))
            .await
            .expect(200);
        let key = &answer.data()["keys"][0];
        assert_eq!(
            (&key["public_key"], &key["signing_public_key"]),
            (
                &json!(BASE64.encode([1; 32])),
                &json!(keys.signing_public())
            )
        );
        assert_eq!(
            (&key["current"], &key["valid_until"]),
            (&json!(true), &json!(null))
        );
    }
    let shown = bob.get(format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(
        (&shown.data()["key_id"], &shown.data()["state"]),
        (&json!(keys.id()), &json!("active"))
    );
    eve.get(format!("/agents/{}/keys", agent.id))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    // The answer was lost: the same again says the same, and nobody is told twice.
    assert_eq!(
        register(&b, &agent, &agent, &keys).await.expect(201).data(),
        answer.data()
    );
    his.expect_silence(Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_replaced_is_good_for_seven_days_more() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let [one, two] = [Keys::new(1), Keys::new(2)];
    register(&a, &agent, &agent, &one).await.expect(201);
    // Its owner may do it, too.
    let answer = register(&b, &alice, &agent, &two).await.expect(201);
    assert_eq!(
        (&answer.data()["key_id"], &answer.data()["previous_key_id"]),
        (&json!(two.id()), &json!(one.id()))
    );
    assert!(answer.data()["previous_valid_until"].is_string());
    assert_eq!(key_ids(&agent, &agent).await, [two.id(), one.id()]);
    let check = async |key: &str| {
        agent
            .on(&b)
            .post(
                format!("/agents/{}/keys/check", agent.id),
                json!({ "key_id": key }),
            )
            .await
    };
    assert_eq!(check(&two.id()).await.expect(200).data()["current"], true);
    let old = check(&one.id()).await.expect(200);
    assert_eq!(
        old.data(),
        &json!({ "key_id": one.id(), "current": false, "valid_until": answer.data()["previous_valid_until"] })
    );
    let refused = check(&Keys::new(3).id())
        .await
        .refused(409, "AGENT_KEYS_MISMATCH");
    assert_eq!(
        refused.body["error"]["params"]["expected_key_ids"],
        json!([two.id(), one.id()])
    );
    a.advance(7 * DAY - Duration::from_secs(30)).await;
    check(&one.id()).await.expect(200);
    a.advance(Duration::from_secs(31)).await;
    check(&one.id()).await.refused(409, "AGENT_KEYS_MISMATCH");
    assert_eq!(key_ids(&agent, &agent).await, [two.id()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_shares_the_fate_of_its_token() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/agents/{}", agent.id);
    let keys = Keys::new(1);
    register(&a, &agent, &agent, &keys).await.expect(201);
    // Ordinary: seven days, in which a new one should come; it does not.
    let answer = alice
        .post(
            format!("{path}/token/regenerate"),
            json!({ "emergency": false }),
        )
        .await
        .expect(200);
    let agent = Agent {
        caller: agent
            .caller
            .with_token(answer.data()["token"].as_str().expect("a token")),
        ..agent
    };
    assert_eq!(key_ids(&agent, &agent).await, [keys.id()]);
    assert_eq!(alice.get(&path).await.data()["state"], "active");
    a.advance(7 * DAY + Duration::from_secs(1)).await;
    assert!(key_ids(&agent.on(&b), &agent).await.is_empty());
    let alice = alice.refreshed().await;
    // Real time: the job that buries what is over runs every five seconds.
    for _ in 0..150 {
        if alice.get(&path).await.data()["state"] == "registered" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(alice.get(&path).await.data()["state"], "registered");

    // Emergency: at once.
    register(&a, &agent, &agent, &keys).await.expect(201);
    assert_eq!(alice.get(&path).await.data()["state"], "active");
    let answer = alice
        .post(
            format!("{path}/token/regenerate"),
            json!({ "emergency": true }),
        )
        .await
        .expect(200);
    let agent = Agent {
        caller: agent
            .caller
            .with_token(answer.data()["token"].as_str().expect("a token")),
        ..agent
    };
    assert!(key_ids(&agent.on(&b), &agent).await.is_empty());
    assert_eq!(alice.get(&path).await.data()["state"], "registered");

    // Revocation: at once, too.
    register(&a, &agent, &agent, &keys).await.expect(201);
    alice.delete(format!("{path}/token")).await.expect(200);
    assert!(key_ids(&alice.on(&b), &agent).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_its_proof_is_refused() {
    let [a] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    let [keys, others] = [Keys::new(1), Keys::new(2)];
    let path = format!("/agents/{}/keys/register", agent.id);
    let now = a.world.clock.now();
    let good = keys.registration(&agent.id, &iso(now));
    let post = async |body: Value| agent.post(&path, body).await;

    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    for body in [
        // Signed by another key, for another agent, over another key, another time, not at all.
        with(
            "signature",
            others.registration(&agent.id, &iso(now))["signature"].clone(),
        ),
        keys.registration(&other.id, &iso(now)),
        with("public_key", json!(BASE64.encode([9; 32]))),
        with("signing_public_key", json!(others.signing_public())),
        with("timestamp", json!(iso(now + Duration::from_millis(1)))),
        with("signature", json!(BASE64.encode([0; 64]))),
    ] {
        post(body).await.refused(409, "AGENT_KEYS_MISMATCH");
    }
    for body in [
        with("public_key", json!(BASE64.encode([1; 31]))),
        with("public_key", json!("!")),
        with("signing_public_key", json!(BASE64.encode([1; 33]))),
        with("signature", json!(BASE64.encode([0; 63]))),
        with("signature", json!(7)),
        with("timestamp", json!("yesterday")),
        with("timestamp", json!(now.timestamp())),
        json!({}),
    ] {
        post(body).await.refused(400, "VALIDATION_ERROR");
    }
    // 300 s either way, with some for the test itself.
    for (seconds, good) in [(-330, false), (-270, true), (270, true), (330, false)] {
        let at = iso(now + chrono::TimeDelta::seconds(seconds));
        let answer = post(keys.registration(&agent.id, &at)).await;
        assert_eq!(
            answer.status,
            if good { 201 } else { 400 },
            "{seconds}: {}",
            answer.body
        );
    }
    bob.post(&path, good.clone())
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    other
        .post(&path, good)
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_registrations_leave_one_current_key() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let keys: Vec<Keys> = (1..=10).map(Keys::new).collect();
    let all = keys
        .iter()
        .enumerate()
        .map(|(n, keys)| register(if n % 2 == 0 { &a } else { &b }, &agent, &agent, keys));
    for answer in futures_util::future::join_all(all).await {
        answer.expect(201);
    }
    let answer = agent
        .get(format!("/agents/{}/keys", agent.id))
        .await
        .expect(200);
    let listed = answer.data()["keys"].as_array().expect("a list");
    assert_eq!(
        (
            listed.len(),
            listed.iter().filter(|key| key["current"] == true).count()
        ),
        (10, 1)
    );
}

/// The data of the notices that an agent's keys end, once the upkeep that gives them is done.
async fn endings(node: &TestNode, agent: &Agent) -> Vec<Value> {
    let database = &node.world.database;
    request_upkeep(database, "tell_ending_agent_keys").await;
    let due = "select count(*) from job where unique_key = 'tell_ending_agent_keys' and run_at <= app_now()";
    // Real time: a worker takes the job.
    for _ in 0..800 {
        if count(database, due).await == 0 {
            let page = agent.poll("limit=100").await.expect(200);
            let mut events = page.body["data"].as_array().expect("events").clone();
            events.retain(|event| event["event"] == "agent.key_ending");
            return events.iter().map(|event| event["data"].clone()).collect();
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the upkeep is not done");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_and_its_owner_hear_three_days_and_a_day_before_a_key_ends() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let start = alice.start_of_inbox().await;
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    let [first, second] = [Keys::new(1), Keys::new(2)];
    register(&a, &agent, &agent, &first).await.expect(201);
    register(&b, &other, &other, &first).await.expect(201);
    register(&b, &agent, &agent, &second).await.expect(201);

    a.advance(4 * DAY - Duration::from_secs(60)).await;
    assert_eq!(endings(&a, &agent).await, Vec::<Value>::new());
    a.advance(Duration::from_secs(120)).await;
    let told = endings(&b, &agent.on(&b)).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["agent_id"], json!(agent.id));
    assert_eq!(told[0]["key_id"], json!(first.id()));
    assert!(told[0]["valid_until"].is_string());
    a.advance(DAY).await;
    assert_eq!(endings(&a, &agent).await.len(), 1, "once for three days");
    a.advance(DAY).await;
    assert_eq!(endings(&a, &agent).await.len(), 2);
    assert_eq!(endings(&b, &agent).await.len(), 2, "once for a day");

    // The key that takes its place has notices of its own, also if it is the one before.
    register(&a, &agent, &agent, &first).await.expect(201);
    a.advance(6 * DAY + Duration::from_secs(60)).await;
    let told = endings(&a, &agent).await;
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(told[2]["key_id"], json!(second.id()));
    register(&a, &agent, &agent, &second).await.expect(201);
    a.advance(5 * DAY).await;
    let told = endings(&a, &agent).await;
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!(told[3]["key_id"], json!(first.id()));

    assert_eq!(endings(&a, &other).await, Vec::<Value>::new());
    let later = alice.login(&b, Some("later")).await;
    let mut socket = later.connect_from(Some(&start)).await;
    for notice in told {
        assert_eq!(socket.event("agent.key_ending").await["data"], notice);
    }
}

/// An agent whose keys cannot end delays no other agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_cannot_be_retired_holds_up_no_other() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "default_user=10000/s")]).await;
    let alice = a.user("alice").await;
    let mut agents = Vec::new();
    for n in 0..6 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        register(&a, &agent, &agent, &Keys::new(n))
            .await
            .expect(201);
        agents.push(agent);
    }
    let sql = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'broken'; end $$;
         create trigger refuse before delete on agent_key for each row when (old.agent_id in ('{}', '{}'))
         execute function refuse();
         update agent_key set valid_until = app_now()",
        agents[0].id, agents[5].id
    );
    psql(&a.world.database, &sql).await;
    for agent in &agents[1..5] {
        let path = format!("/agents/{}", agent.id);
        // Real time: the job runs every five seconds.
        for _ in 0..600 {
            if alice.get(&path).await.expect(200).data()["state"] == "registered" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(alice.get(&path).await.data()["state"], "registered");
    }
    let path = format!("/agents/{}", agents[0].id);
    assert_eq!(alice.get(&path).await.data()["state"], "active");
}
