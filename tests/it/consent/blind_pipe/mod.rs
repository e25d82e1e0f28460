//! The proof that the pipe is blind: clients that encrypt use every feature, and nothing that they
//! keep to themselves is anywhere in the server.

mod marks;
mod people;
mod places;
mod talk;

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::routes;
use reqwest::Method;
use serde_json::json;

use self::{
    marks::Marks,
    people::{Person, field, find, mailed_code, ok, register_agent_keys},
    places::{Haystack, RedisCommands},
};
use crate::support::{
    Agent, Authenticator, Caller, Collector, ProcessNode, Receiver, User, World, private_redis,
    psql,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_send_code=1000/s,agent_manifest_update=1000/s,group_agent_instance=1000/s,default_user=1000/s",
);

/// Routes that no client gets a success from.
const NOT_DRIVEN: [(&str, &str); 6] = [
    (
        "POST /auth/device/code",
        "planned for V2: every call is 501",
    ),
    (
        "POST /auth/device/verify",
        "planned for V2: every call is 501",
    ),
    (
        "POST /auth/device/poll",
        "planned for V2: every call is 501",
    ),
    ("GET /app", "files of a folder that these nodes do not have"),
    (
        "GET /app/{asset}",
        "files of a folder that these nodes do not have",
    ),
    (
        "GET /app/assets/{asset}",
        "files of a folder that these nodes do not have",
    ),
];

/// The people, the nodes and what they share.
pub struct Cast {
    world: Arc<World>,
    nodes: [ProcessNode; 2],
    marks: Marks,
    alice: Person,
    bob: Person,
    agent: Agent,
    /// Of Alice with the agent.
    conversation: String,
    receiver: Receiver,
    /// Has the spans of all requests.
    collector: Collector,
}

impl Cast {
    async fn new(world: &Arc<World>) -> Self {
        // Everything that an operator could make a node log.
        let collector = Collector::start().await;
        let export = collector.settings("node", "1");
        let loud = [&[("LOG", "trace")], &export[..]].concat();
        let nodes = [
            ProcessNode::start_in_with(world, &loud).await,
            ProcessNode::start_in_with(world, &loud).await,
        ];
        let marks = Marks::default();
        let alice = Person::register(world, &nodes[0].base, "alice", &marks).await;
        let bob = Person::register(world, &nodes[1].base, "bob", &marks).await;
        let agent = make_agent(&bob.user, "helper").await;
        register_agent_keys(world, &agent, &marks).await;
        let conversation = alice.user.talk_to(&agent).await;
        Cast {
            world: world.clone(),
            nodes,
            marks,
            alice,
            bob,
            agent,
            conversation,
            receiver: Receiver::start().await,
            collector,
        }
    }

    fn in_an_hour(&self) -> String {
        blindpipe::clock::iso(self.world.clock.now() + Duration::from_secs(3600))
    }

    /// Everything that the server keeps or has said.
    async fn places(&self, redis: &RedisCommands) -> Vec<Haystack> {
        let mut all = places::tables(&self.world.database).await;
        all.extend(redis.so_far().await);
        all.extend(places::files("object", &self.world.objects_dir));
        all.extend(places::files("mail", &self.world.mail_dir));
        for node in &self.nodes {
            all.push(("log".to_owned(), node.log().into_bytes()));
            all.push(("metrics".to_owned(), node.metrics().await.into_bytes()));
        }
        for exported in self.collector.spans() {
            all.push(("span".to_owned(), format!("{exported:?}").into_bytes()));
        }
        for call in self.receiver.all() {
            let said = format!("{:?} {}", call.headers, call.body);
            all.push(("webhook".to_owned(), said.into_bytes()));
        }
        all
    }
}

async fn make_agent(owner: &User, name: &str) -> Agent {
    let made = ok(owner.post("/agents", json!({ "display_name": name })).await);
    let token = field(&made, "token");
    Agent {
        caller: Caller::to(&owner.world, &owner.base).with_token(&token),
        id: field(&made, "agent_id"),
        token,
    }
}

/// Sessions, passwords, devices and passkeys.
async fn accounts(cast: &mut Cast) {
    let Cast {
        world,
        bob,
        marks,
        nodes,
        ..
    } = cast;
    let anon = Caller::to(world, &nodes[0].base);
    let login = json!({
        "email": bob.user.email, "account_password": bob.password, "turnstile_token": "dev-pass", "device_id": "phone",
    });
    let phone = ok(anon.post("/auth/login", login).await);
    let phone = User::signed_in(anon.clone(), bob.user.email.clone(), &phone);
    phone.refreshed().await;
    let proof = json!({ "account_password": bob.password });
    ok(phone.post("/auth/reauth", proof).await);
    let sessions = ok(bob.user.get("/users/me/sessions").await);
    let session = sessions.data()[0]["session_id"].as_str().expect("an id");
    let session = format!("/users/me/sessions/{session}");
    ok(bob.user.get(format!("{session}/changes")).await);
    ok(bob
        .user
        .post(format!("{session}/undo"), json!({ "ids": [] }))
        .await);
    let path = format!("/users/me/devices/{}", phone.device_id);
    ok(bob.user.delete(path).await);
    ok(bob.user.get("/users/me/devices").await);
    ok(bob.user.get("/users/me").await);
    pushes(&bob.user).await;
    let profile = json!({ "display_name": "Bob", "device_locale": "de" });
    ok(bob.user.patch("/users/me", profile).await);
    let moved = format!("moved-{}", bob.user.email);
    let body = json!({ "email": moved });
    ok(bob.user.post("/users/me/email", body).await);
    let code = mailed_code(world, &moved, &mut bob.mails).await;
    let body = json!({ "email": moved, "code": code });
    ok(bob.user.post("/users/me/email/confirm", body).await);
    bob.user.email = moved;

    let new = marks.text("a new account password");
    let change = json!({ "current_password": bob.password, "new_account_password": new });
    ok(bob.user.post("/users/me/password", change).await);
    let mut code_for = async |scene: &str| {
        let body =
            json!({ "email": bob.user.email, "scene": scene, "turnstile_token": "dev-pass" });
        ok(anon.post("/auth/send-code", body).await);
        mailed_code(world, &bob.user.email, &mut bob.mails).await
    };
    let by_code =
        json!({ "email": bob.user.email, "code": code_for("login").await, "device_id": "tablet" });
    let tablet = ok(anon.post("/auth/login-code", by_code).await);
    let tablet = User::signed_in(anon.clone(), bob.user.email.clone(), &tablet);
    ok(tablet.with_cookie("/auth/logout").await);
    let reset = json!({
        "email": bob.user.email, "code": code_for("reset").await,
        "new_account_password": marks.text("a password after a reset"),
    });
    ok(anon.post("/auth/reset-password", reset).await);
    passkeys(&cast.alice.user, &anon).await;
    let alice = &cast.alice.user;
    ok(alice.get("/keys/backup").await);
    ok(alice.get(format!("/keys/users/{}/devices", alice.id)).await);
}

async fn pushes(user: &User) {
    let path = format!("/users/me/devices/{}/push", user.device_id);
    ok(user.get("/push/key").await);
    let subscription = json!({
        "kind": "webpush", "endpoint": "http://127.0.0.1:9/x", "auth": "A".repeat(22),
        "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
    });
    ok(user.put(&path, subscription).await);
    ok(user.get(&path).await);
    ok(user.delete(&path).await);
}

async fn passkeys(user: &User, anon: &Caller) {
    let begun = ok(user.post("/users/me/passkeys/begin", json!({})).await);
    let mut key = Authenticator::default();
    let credential = key.create(&begun.data()["public_key"]);
    let body = json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential, "name": "my key" });
    let id = field(
        &ok(user.post("/users/me/passkeys/complete", body).await),
        "passkey_id",
    );
    ok(user.get("/users/me/passkeys").await);
    let begun = ok(anon.post("/auth/passkey/begin", json!({})).await);
    let credential = key.get(&begun.data()["public_key"]);
    let body = json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential });
    ok(anon.post("/auth/passkey/complete", body).await);
    ok(user.delete(format!("/users/me/passkeys/{id}")).await);
}

/// Agents, blocks, and what is public.
async fn agents_and_others(cast: &Cast) {
    let (alice, agent) = (&cast.alice.user, &cast.agent);
    let own = make_agent(alice, "owned").await;
    let path = |rest: &str| format!("/agents/{}{rest}", own.id);
    let key = register_agent_keys(&cast.world, &own, &cast.marks).await;
    ok(own
        .post(path("/keys/check"), json!({ "key_id": key }))
        .await);
    ok(own.get(path("/keys")).await);
    ok(alice.get("/agents").await);
    talk::webhooks(cast, alice, &own).await;
    ok(alice
        .post(path("/token/regenerate"), json!({ "emergency": false }))
        .await);
    ok(alice.delete(path("/token")).await);
    ok(alice.get(path("")).await);
    ok(alice.delete(path("")).await);

    let carol = Person::register(&cast.world, &cast.nodes[1].base, "carol", &cast.marks).await;
    let block = format!("/users/me/blocks/{}", carol.user.id);
    ok(alice.put(&block, json!({})).await);
    ok(alice.get("/users/me/blocks").await);
    ok(alice.delete(block).await);
    ok(carol.user.delete("/users/me").await);
    for public in [
        "/health",
        "/version",
        "/openapi.json",
        "/asyncapi.yaml",
        "/events/types",
        "/docs",
        "/docs/openapi.js",
    ] {
        let request = agent.stranger().request(Method::GET, public);
        assert_eq!(
            request.send().await.expect("an answer").status(),
            200,
            "{public}"
        );
    }
    ok(agent.get("/limits").await);
    let relations = ok(alice.get("/relations").await);
    let of_agent = |one: &&serde_json::Value| one["agent_id"] == agent.id;
    let relation = relations.body["data"]
        .as_array()
        .expect("a list")
        .iter()
        .find(of_agent);
    let id = relation.expect("a relation")["relation_id"]
        .as_str()
        .expect("an id");
    ok(alice.delete(format!("/relations/{id}")).await);
}

/// Routes without a success in the metrics of these nodes.
async fn not_driven(nodes: &[ProcessNode]) -> Vec<String> {
    let mut text = String::new();
    for node in nodes {
        text.push_str(&node.metrics().await);
    }
    let was_driven = |method: &str, path: &str| {
        let start = format!("http_requests_total{{route=\"{path}\",method=\"{method}\",status=\"");
        let mut statuses = text
            .lines()
            .filter_map(|line| line.strip_prefix(start.as_str()));
        statuses.any(|status| status.starts_with('2') || status.starts_with("101"))
    };
    let all = routes::table().into_iter();
    let missing = all.filter(|route| !was_driven(route.method.as_str(), route.path));
    missing
        .map(|route| format!("{} {}", route.method, route.path))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_client_keeps_to_itself_reaches_any_place_of_the_server() {
    let redis = private_redis("blind-pipe").await;
    let world = World::new(&[("REDIS_URL", &redis.url()), RAISED_LIMITS]).await;
    let commands = RedisCommands::record(&redis.url()).await;
    let mut cast = Cast::new(&world).await;
    talk::messages(&cast).await;
    talk::groups(&cast).await;
    talk::files(&cast).await;
    talk::tools(&cast).await;
    talk::approvals(&cast).await;
    talk::deletions(&cast).await;
    accounts(&mut cast).await;
    agents_and_others(&cast).await;

    let missing = not_driven(&cast.nodes).await;
    let reasons = NOT_DRIVEN.map(|(route, _)| route.to_owned());
    assert_eq!(missing, reasons, "routes without a success in this test");

    let places = cast.places(&commands).await;
    for kind in [
        "table message",
        "column key_backup.backup_a",
        "Redis",
        "object",
        "mail",
        "log",
        "metrics",
        "span",
        "webhook",
    ] {
        let is_there = |(place, bytes): &Haystack| place.starts_with(kind) && !bytes.is_empty();
        assert!(places.iter().any(is_there), "nothing of {kind}");
    }
    assert_eq!(
        find(&places, &cast.marks),
        None,
        "a place, and the mark in it"
    );
    planted_marks_are_found(&cast, &redis.url(), &commands).await;
}

/// The search finds a mark in every kind of place.
async fn planted_marks_are_found(cast: &Cast, redis: &str, commands: &RedisCommands) {
    let url = &cast.world.database;
    let found = async |purpose: &str| {
        let places = cast.places(commands).await;
        // Later marks alone: the earlier ones are in their places still.
        let (place, mark) = find(&places, &cast.marks).expect("a mark");
        assert!(mark.starts_with("planted"), "{mark}");
        assert!(place.contains(purpose), "{purpose}: {place}");
    };
    let base64 = BASE64.encode(cast.marks.text("planted").as_bytes());
    psql(url, &format!("update conversation set title = 'x{base64}'")).await;
    found("table conversation").await;
    psql(url, "update conversation set title = null").await;
    let key = cast.marks.key("planted key");
    let hex = base16ct::lower::encode_string(&key);
    psql(url, &format!("insert into share (share_hash, owner_id, kind, expires_at) select '\\x00{hex}', user_id, 'contact', now() from user_account limit 1")).await;
    found("share").await;
    psql(url, "delete from share").await;
    let folder = &cast.world.objects_dir;
    std::fs::write(folder.join("x"), key).expect("written");
    found("object").await;
    std::fs::remove_file(folder.join("x")).expect("removed");
    places::set(redis, "x", &hex).await;
    found("Redis").await;
}
