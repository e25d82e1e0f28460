//! Attacks on decisions: forged, borrowed, old and moved signatures.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use chrono::TimeDelta;
use serde_json::{Value, json};

use super::{Keys, Person, Room, decide, text};
use crate::support::connect;

/// A body with one field changed.
fn with(body: &Value, name: &str, value: Value) -> Value {
    let mut changed = body.clone();
    assert_ne!(changed[name], value, "{name}");
    changed[name] = value;
    changed
}

async fn must_be_undecided(room: &Room, item: &Value) {
    let item = room.item(item).await;
    assert_eq!(
        (&item["decisions"], &item["state"]),
        (&json!([]), &json!("open"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_60_a_forged_or_moved_signature_decides_nothing() {
    let room = Room::new().await;
    let item = room.ask(json!({})).await;
    let other = room.ask(json!({ "digest": BASE64.encode([8; 32]) })).await;
    let now = room.now();
    let good = room.alice.answer(&item, "approved", Some([1; 32]), now);
    let signature = BASE64.decode(text(&good, "signature")).expect("base64");
    let refuse = async |body: Value, what: &str| {
        let refused = decide(&room.alice.user, &item, body).await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, "SIGNATURE_INVALID"),
            "{what}"
        );
    };
    // Every byte of the signature counts.
    for at in 0..signature.len() {
        let mut changed = signature.clone();
        changed[at] ^= 1;
        refuse(
            with(&good, "signature", json!(BASE64.encode(changed))),
            "a bit",
        )
        .await;
    }
    refuse(
        with(&good, "signature", json!(BASE64.encode([0; 64]))),
        "zeros",
    )
    .await;
    refuse(with(&good, "decision", json!("denied")), "the word").await;
    refuse(
        with(&good, "answer_digest", json!(BASE64.encode([2; 32]))),
        "the answer",
    )
    .await;
    refuse(with(&good, "answer_digest", Value::Null), "no answer").await;
    let later = blindpipe::clock::iso(now + TimeDelta::milliseconds(1));
    refuse(with(&good, "decided_at", json!(later)), "the time").await;
    // Signed for another question, another conversation, another agent, another person.
    for (name, value) in [
        ("approval_id", other["approval_id"].clone()),
        ("conversation_id", other["approval_id"].clone()),
        ("agent_id", json!(uuid::Uuid::nil().to_string())),
        ("digest", other["digest"].clone()),
    ] {
        let moved = with(&item, name, value);
        refuse(room.alice.word(&moved, "approved", now), name).await;
    }
    let bob = Person {
        user: room.bob.user.clone(),
        keys: Keys::new(),
    };
    let by_bob = with(
        &bob.word(&item, "approved", now),
        "key_id",
        json!(room.alice.keys.id()),
    );
    refuse(by_bob, "another signer under this key's name").await;
    must_be_undecided(&room, &item).await;
    // A good one for this question does not decide the other one.
    decide(&room.alice.user, &item, good.clone())
        .await
        .expect(200);
    let replayed = decide(&room.alice.user, &other, good).await;
    replayed.refused(400, "SIGNATURE_INVALID");
    must_be_undecided(&room, &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_60_another_s_key_or_a_retired_one_decides_nothing() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let item = room.ask(json!({})).await;
    let refuse = async |person: &Person| {
        let refused = person.decide(b, &item, "approved").await;
        refused.refused(409, "KEY_MISMATCH");
    };
    // Bob's key by Alice, a key that nobody has, and the key of a device that is gone.
    let phone = room.alice.user.login(a, Some("phone")).await;
    let on_phone = Keys::of(&phone).await;
    room.alice
        .user
        .delete("/users/me/devices/phone")
        .await
        .expect(200);
    let Room { alice, bob, .. } = &room;
    for keys in [&bob.keys, &Keys::new(), &on_phone] {
        let body = with_keys(alice, keys, &item, room.now());
        let refused = decide(&alice.user, &item, body).await;
        refused.refused(409, "KEY_MISMATCH");
    }
    // A key that another has replaced.
    let replaced = Person {
        user: alice.user.clone(),
        keys: Keys::of(&alice.user).await,
    };
    refuse(alice).await;
    must_be_undecided(&room, &item).await;
    replaced.decide(b, &item, "approved").await.expect(200);
}

/// A decision that is signed by other keys, rightly otherwise.
fn with_keys(
    person: &Person,
    keys: &Keys,
    item: &Value,
    at: chrono::DateTime<chrono::Utc>,
) -> Value {
    let key_id = keys.id();
    let mut bytes = b"blindpipe approval v1\0".to_vec();
    for text in [
        text(item, "approval_id"),
        text(item, "agent_id"),
        text(item, "conversation_id"),
        person.user.id.clone(),
        key_id.clone(),
        "approved".to_owned(),
    ] {
        bytes.extend(u16::try_from(text.len()).expect("short").to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes.extend(BASE64.decode(text(item, "digest")).expect("base64"));
    bytes.extend([0; 32]);
    bytes.extend(at.timestamp_millis().to_be_bytes());
    json!({
        "decision": "approved", "decided_at": blindpipe::clock::iso(at), "key_id": key_id,
        "signature": BASE64.encode(keys.signing.sign(&bytes)),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_60_only_who_is_asked_decides() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let item = room.ask(json!({ "of": [room.alice.user.id] })).await;
    let stranger = Person::register(a, "stranger").await;
    for person in [&room.bob, &stranger] {
        let refused = person.decide(b, &item, "approved").await;
        refused.refused(404, "NOT_FOUND");
    }
    // An agent does not decide, and a signature does not make up for a token.
    let body = room.alice.word(&item, "approved", room.now());
    let path = format!("/approvals/{}/decision", text(&item, "approval_id"));
    room.agent
        .post(&path, body.clone())
        .await
        .refused(401, "UNAUTHORIZED");
    room.bob
        .user
        .post(&path, body)
        .await
        .refused(404, "NOT_FOUND");
    // A member that leaves has decided nothing by then.
    let path = format!("/groups/{}/members/{}", room.group, room.alice.user.id);
    room.alice.user.delete(path).await.expect(200);
    let refused = room.alice.decide(b, &item, "approved").await;
    refused.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_has_its_shape_and_its_time() {
    let room = Room::new().await;
    let item = room.ask(json!({})).await;
    let question = room.ask(json!({ "kind": "ask" })).await;
    let now = room.now();
    let good = room.alice.word(&item, "approved", now);
    for (name, value, path) in [
        ("decision", json!("maybe"), "decision"),
        ("decision", json!("answered"), "decision"),
        ("decided_at", json!("yesterday"), "decided_at"),
        ("key_id", json!(""), "key_id"),
        ("signature", json!("AAAA"), "signature"),
        ("answer_digest", json!("AAAA"), "answer_digest"),
        ("payload", json!(7), "payload"),
        ("payload", json!({ "text": "without a type" }), "payload"),
    ] {
        let refused = decide(&room.alice.user, &item, with(&good, name, value)).await;
        let refused = refused.refused(400, "VALIDATION_ERROR");
        let fields = &refused.body["error"]["params"]["fields"];
        assert_eq!(fields[0]["path"], path, "{name}");
    }
    let refused = room.alice.decide(room.node(0), &question, "approved").await;
    refused.refused(400, "VALIDATION_ERROR");
    for seconds in [-301, 301] {
        let at = now + TimeDelta::seconds(seconds);
        let body = room.alice.word(&item, "approved", at);
        let refused = decide(&room.alice.user, &item, body).await;
        refused.refused(400, "VALIDATION_ERROR");
    }
    let huge = json!({ "type": "encrypted", "c": "x".repeat(1024 * 1024) });
    let refused = decide(&room.alice.user, &item, with(&good, "payload", huge)).await;
    refused.refused(413, "MESSAGE_TOO_LARGE");
    must_be_undecided(&room, &item).await;
    let early = room
        .alice
        .word(&item, "approved", now - TimeDelta::seconds(290));
    decide(&room.alice.user, &item, early).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_decisions_is_in_the_access_log() {
    let room = Room::new().await;
    let item = room.ask(json!({})).await;
    room.item(&item).await;
    let client = connect(&room.nodes[0].world.database).await;
    let logged = async || {
        let sql = "select count(*) as n from access_log where kind = 'approval'";
        client
            .query_one(sql, &[])
            .await
            .expect("a count")
            .get::<_, i64>("n")
    };
    assert_eq!(logged().await, 0, "there was nothing of a user's");
    room.alice
        .decide(room.node(0), &item, "approved")
        .await
        .expect(200);
    room.item(&item).await;
    let own = format!("/agents/{}/approvals?state=closed", room.agent.id);
    room.agent.get(own).await.expect(200);
    assert_eq!(logged().await, 2);
    let rows = room.alice.user.get("/grants/access-log").await.expect(200);
    let rows = rows.body["data"].as_array().expect("rows").clone();
    assert!(rows.iter().any(|row| row["kind"] == "approval"), "{rows:?}");
}
