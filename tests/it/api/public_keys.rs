//! Public keys that stay: what their holders say of them, the members' keys in one read, and the
//! keys of those who have gone.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use super::{
    agents_keys::{Keys, register},
    keys::{backup, key_id},
};
use crate::support::{Caller, User, nodes, nodes_with};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "keys_lookup=10000/s,group_agent_instance=100/s,default_user=10000/s",
);

fn introduction(by: u8) -> Value {
    json!({ "by_key_id": key_id(by), "signature": BASE64.encode([by; 64]) })
}

/// Gives the user's device the keys of `seed`, with what is said of them.
async fn show(user: &User, seed: u8, said: Value) {
    let mut body = backup(&user.device_id, seed);
    for (name, value) in said.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let kept = user.post("/keys/backup", body).await;
    assert!(matches!(kept.status, 200 | 201), "{kept:?}");
}

async fn read(asker: &Caller, conversation: &str, query: &str) -> Value {
    asker
        .get(format!("/keys/groups/{conversation}/recipients{query}"))
        .await
        .expect(200)
        .data()
        .clone()
}

/// The keys of one of those who were read.
fn keys_of<'a>(read: &'a Value, principal: &str) -> Vec<&'a Value> {
    let members = read["members"].as_array().expect("a list");
    let one = members
        .iter()
        .find(|member| member["principal_id"] == principal);
    one.unwrap_or_else(|| panic!("no {principal}: {read}"))["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_says_what_it_speaks_and_who_introduced_it() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    alice.group_with(&[&bob]).await;
    let said = json!({ "schemes": ["bp1", "x9"], "introduction": introduction(7) });
    show(&alice, 1, said).await;
    let directory = async || {
        let path = format!("/keys/users/{}/devices", alice.id);
        bob.on(&b).get(path).await.expect(200).data().clone()
    };
    let before = directory().await;
    assert_eq!(before["devices"][0]["schemes"], json!(["bp1", "x9"]));
    assert_eq!(before["devices"][0]["introduction"], introduction(7));

    // A replaced backup of the same keys keeps what it does not mention.
    show(&alice, 1, json!({})).await;
    assert_eq!(directory().await, before);
    // Another scheme is another list, and those who may read it hear of that.
    let mut socket = bob.on(&b).connect().await;
    show(&alice, 1, json!({ "schemes": ["bp2"] })).await;
    let event = socket.event("key.device_added").await;
    assert_eq!(event["data"]["key_id"], key_id(1));
    let after = directory().await;
    assert_eq!(after["devices"][0]["schemes"], json!(["bp2"]));
    assert_eq!(after["devices"][0]["introduction"], introduction(7));
    let version = |list: &Value| list["list_version"].as_i64().expect("a number");
    assert_eq!(version(&after), version(&before) + 1);

    for (field, wrong) in [
        (
            "schemes",
            json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]),
        ),
        ("schemes", json!([""])),
        (
            "introduction",
            json!({ "by_key_id": "F".repeat(32), "signature": BASE64.encode([1; 64]) }),
        ),
        (
            "introduction",
            json!({ "by_key_id": key_id(1), "signature": BASE64.encode([1; 63]) }),
        ),
    ] {
        let mut body = backup(&alice.device_id, 1);
        body[field] = wrong;
        let refused = alice.post("/keys/backup", body).await;
        let refused = refused.refused(400, "VALIDATION_ERROR");
        let path = &refused.body["error"]["params"]["fields"][0]["path"];
        assert!(path.as_str().expect("a path").starts_with(field), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_read_all_keys_of_a_conversation_page_by_page_with_the_retired_ones() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol, eve] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
        a.user("eve").await,
    ];
    let agent = a.agent(&alice, "with keys").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob, &carol]).await;
    alice
        .post(
            format!("/groups/{group}/agent-instances"),
            json!({ "agent_id": agent.id, "visibility": "addressed" }),
        )
        .await
        .expect(201);
    show(&alice, 1, json!({ "schemes": ["bp1"] })).await;
    show(&bob, 2, json!({})).await;
    show(&bob, 3, json!({ "introduction": introduction(2) })).await;
    let [old, new] = [Keys::new(21), Keys::new(22)];
    for keys in [&old, &new] {
        register(&a, &agent, &agent, keys).await.expect(201);
    }

    let whole = read(&bob.on(&b), &group, "").await;
    assert_eq!(whole["epoch"], 0);
    assert_eq!(whole["next_cursor"], Value::Null);
    let ids = |read: &Value| -> Vec<String> {
        let members = read["members"].as_array().expect("a list").iter();
        members
            .map(|member| member["principal_id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert_eq!(ids(&whole).len(), 4);
    let keys = keys_of(&whole, &bob.id);
    let listed: Vec<&Value> = keys.iter().map(|key| &key["key_id"]).collect();
    assert_eq!(
        listed,
        [&json!(key_id(3)), &json!(key_id(2))],
        "the retired ones last"
    );
    assert_eq!(keys[0]["introduction"], introduction(2));
    assert!(keys[0].get("retired_at").is_none() && keys[1]["retired_at"].is_string());
    assert_eq!(keys[1]["public_key"], BASE64.encode([2; 32]));
    assert_eq!(keys_of(&whole, &alice.id)[0]["schemes"], json!(["bp1"]));
    assert!(keys_of(&whole, &carol.id).is_empty());
    let of_agent = keys_of(&whole, &agent.id);
    assert_eq!(of_agent[0]["key_id"], new.id());
    // Its grace ends a week ahead.
    assert!(of_agent[1]["key_id"] == old.id() && of_agent[1]["retired_at"].is_string());
    assert!(of_agent[0].get("device_id").is_none());
    let members = whole["members"].as_array().expect("a list");
    let shown = members.iter().find(|one| one["principal_id"] == agent.id);
    let shown = shown.expect("the agent");
    assert_eq!(
        (&shown["visibility"], &shown["is_member"]),
        (&json!("addressed"), &json!(true))
    );
    assert_eq!(shown["principal_type"], "agent");

    // The agent, `addressed` as it is, reads the same; a page has at most as many as asked for.
    assert_eq!(read(&agent.on(&b), &group, "").await, whole);
    let mut paged = Vec::new();
    let mut query = "?limit=1".to_owned();
    loop {
        let page = read(&alice, &group, &query).await;
        paged.extend(ids(&page));
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        query = format!("?limit=1&cursor={next}");
    }
    assert_eq!(paged, ids(&whole));

    for (stranger, what) in [(&eve, ""), (&bob, "?principal_id=nonsense")] {
        let path = format!("/keys/groups/{group}/recipients{what}");
        let status = stranger.get(path).await.status;
        assert_eq!(status, if what.is_empty() { 404 } else { 400 });
    }
    // Eve was never there, so there is nothing to be told.
    let path = format!("/keys/groups/{group}/recipients?principal_id={}", eve.id);
    bob.get(path).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_read_of_the_members_keys_is_in_the_access_log() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "reader").await;
    let conversation = alice.talk_to(&agent).await;
    show(&alice, 1, json!({})).await;
    read(&agent, &conversation, "").await;
    let log = alice.get("/grants/access-log").await.expect(200);
    let rows = log.body["data"].as_array().expect("a list");
    let of_keys: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "keys").collect();
    assert_eq!(of_keys.len(), 1, "{log:?}");
    assert_eq!(of_keys[0]["conversation_id"], conversation);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_those_who_have_gone_verify_what_they_wrote() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let group = alice.group_with(&[&bob, &carol]).await;
    for (user, seed) in [(&alice, 1), (&bob, 2)] {
        show(user, seed, json!({})).await;
    }
    let wrapped: Vec<Value> = [&alice, &bob]
        .iter()
        .map(|user| json!({ "principal_id": user.id, "device_id": user.device_id, "wrapped_key": "k" }))
        .collect();
    let body = json!({ "base_epoch": 0, "wrapped_keys": wrapped });
    alice
        .post(format!("/keys/groups/{group}/rotate"), body)
        .await
        .expect(201);
    bob.delete("/users/me").await.expect(200);
    let query = format!("?principal_id={}", bob.id);
    let gone = async || {
        let read = read(&carol.on(&b), &group, &query).await;
        (read["members"][0]["is_member"] == false).then_some(read)
    };
    let found = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            if let Some(found) = gone().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let found = found.await.expect("the erasure takes bob out of the group");
    let keys = keys_of(&found, &bob.id);
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0]["signing_public_key"], BASE64.encode([102; 32]));
    assert!(keys[0]["retired_at"].is_string());
    // The list of the members no longer has him.
    let whole = read(&carol, &group, "").await;
    assert_eq!(whole["members"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_list_of_keys_has_a_version_that_every_change_raises() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "with keys").await;
    alice.talk_to(&agent).await;
    let list = async || {
        let path = format!("/agents/{}/keys", agent.id);
        alice.get(path).await.expect(200).data().clone()
    };
    let version = |list: &Value| list["list_version"].as_i64().expect("a number");
    let mut versions = Vec::new();
    for n in [31, 32] {
        register(&a, &agent, &agent, &Keys::new(n))
            .await
            .expect(201);
        versions.push(version(&list().await));
    }
    register(&a, &agent, &agent, &Keys::new(32))
        .await
        .expect(201);
    let same = list().await;
    assert!(versions[0] > 0 && versions[1] > versions[0]);
    assert_eq!(version(&same), versions[1], "a repeat changes nothing");
    assert_eq!(same["keys"][0]["schemes"], json!([]));

    let said = json!({ "schemes": ["bp1"], "introduction": introduction(1) });
    let described = Keys::new(32).register_with(&a, &agent, &said).await;
    described.expect(201);
    let after = list().await;
    assert_eq!(version(&after), versions[1] + 1);
    assert_eq!(after["keys"][0]["schemes"], json!(["bp1"]));
    assert_eq!(after["keys"][0]["introduction"], introduction(1));
    assert_eq!(after["keys"][1]["schemes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_sees_more_or_less_than_before_needs_another_key() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob]).await;
    let place = async |visibility: &str| {
        let body = json!({ "agent_id": agent.id, "visibility": visibility });
        let path = format!("/groups/{group}/agent-instances");
        let placed = alice.post(path, body).await;
        assert!(matches!(placed.status, 200 | 201), "{placed:?}");
    };
    place("all").await;
    show(&alice, 1, json!({})).await;
    let mut epoch = 0;
    let mut rotate = async || {
        let key =
            json!({ "principal_id": alice.id, "device_id": alice.device_id, "wrapped_key": "k" });
        let body = json!({ "base_epoch": epoch, "wrapped_keys": [key] });
        let path = format!("/keys/groups/{group}/rotate");
        alice.post(path, body).await.expect(201);
        epoch += 1;
    };
    let required = async || {
        read(&bob.on(&b), &group, "").await["rotation_required"]
            .as_bool()
            .expect("a flag")
    };
    rotate().await;
    for visibility in ["addressed", "all"] {
        assert!(!required().await);
        place(visibility).await;
        assert!(required().await, "after a change to {visibility}");
        rotate().await;
    }
    place("all").await;
    assert!(!required().await, "nothing changed");
}
