//! Key backups and the directory of devices' keys.

mod fresh_login;

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{User, connect, nodes, psql};

/// A backup of `device` whose keys are made of `seed`.
pub fn backup(device: &str, seed: u8) -> Value {
    json!({
        "device_id": device,
        "public_key": BASE64.encode([seed; 32]),
        "signing_public_key": BASE64.encode([seed + 100; 32]),
        "backup_a": BASE64.encode(vec![seed; 60]),
        "backup_b": BASE64.encode(vec![seed + 1; 61]),
        "argon2_salt": BASE64.encode([9; 32]),
        "argon2_params": { "m": 65536, "t": 3, "p": 4 },
    })
}

pub fn key_id(seed: u8) -> String {
    let hash = Sha256::digest([[seed; 32], [seed + 100; 32]].concat());
    base16ct::lower::encode_string(&hash[..16])
}

async fn directory(asker: &User, of: &User) -> Value {
    asker
        .get(format!("/keys/users/{}/devices", of.id))
        .await
        .expect(200)
        .data()
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_comes_back_as_it_was_given() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let given = backup(&alice.device_id, 1);
    let kept = alice.post("/keys/backup", given.clone()).await.expect(201);
    let (data, id) = (kept.data(), key_id(1));
    let fields: Vec<&String> = data.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["created_at", "device_id", "key_id", "version"]);
    assert_eq!(
        (&data["device_id"], &data["key_id"], &data["version"]),
        (&json!(alice.device_id), &json!(id), &json!(1))
    );

    let read = alice.on(&b).get("/keys/backup").await.expect(200);
    assert_eq!(read.body["next_cursor"], Value::Null);
    let mut expected = given.clone();
    for (name, value) in data.as_object().expect("an object") {
        expected[name] = value.clone();
    }
    assert_eq!(read.data(), &json!([expected]));

    // Signing in says where backups are.
    let phone = alice.login(&b, Some("phone")).await;
    let body = json!({ "email": alice.email, "account_password": crate::support::PASSWORD, "turnstile_token": "dev-pass", "device_id": "phone" });
    let answer = a.anon().post("/auth/login", body).await.expect(200);
    assert_eq!(
        answer.data()["key_backup"],
        json!({ "exists": true, "device_ids": [alice.device_id] })
    );
    drop(phone);
    // Nobody else's.
    let bob = b.user("bob").await;
    assert_eq!(bob.get("/keys/backup").await.expect(200).data(), &json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_must_have_its_form() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let right = backup(&alice.device_id, 1);
    for (path, value) in [
        ("public_key", json!(BASE64.encode([1; 31]))),
        ("public_key", json!(BASE64.encode([1; 33]))),
        ("signing_public_key", json!("not base64!")),
        ("argon2_salt", json!(BASE64.encode([1; 16]))),
        ("argon2_salt", json!(BASE64.encode([1; 33]))),
        ("backup_a", json!("")),
        ("backup_b", json!(BASE64.encode(vec![1; 8193]))),
        ("argon2_params", json!({ "m": 19455, "t": 2, "p": 1 })),
        ("argon2_params", json!({ "m": 19456, "t": 1, "p": 1 })),
        ("argon2_params", json!({ "m": 19456, "t": 2, "p": 0 })),
        ("argon2_params", json!({ "m": 19456, "t": 2 })),
        ("argon2_params", json!({ "m": 1_048_577, "t": 2, "p": 1 })),
        ("argon2_params", json!({ "m": 19456, "t": 11, "p": 1 })),
        ("argon2_params", json!({ "m": 19456, "t": 2, "p": 17 })),
        ("device_id", json!("")),
        ("device_id", json!("x".repeat(129))),
        ("version", json!("1")),
    ] {
        let mut body = right.clone();
        body[path] = value.clone();
        let refused = alice
            .post("/keys/backup", body)
            .await
            .refused(400, "VALIDATION_ERROR");
        let at = refused.body["error"]["params"]["fields"][0]["path"]
            .as_str()
            .expect("a path")
            .to_owned();
        assert!(at.starts_with(path), "{path} {value}: {at}");
    }
    let fields = right.as_object().expect("an object");
    for field in fields.keys() {
        let mut body = right.clone();
        body.as_object_mut().expect("an object").remove(field);
        alice
            .post("/keys/backup", body)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    // On both edges.
    let mut body = right.clone();
    body["argon2_params"] = json!({ "m": 1_048_576, "t": 10, "p": 16 });
    alice.post("/keys/backup", body).await.expect(201);
    let mut body = right.clone();
    body["argon2_params"] = json!({ "m": 19456, "t": 2, "p": 1 });
    body["backup_b"] = json!(BASE64.encode(vec![1; 8192]));
    body["an unknown field"] = json!(1);
    alice.post("/keys/backup", body).await.expect(200);
    alice
        .post("/keys/backup", backup("another-device", 1))
        .await
        .refused(409, "DEVICE_MISMATCH");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_ten_versions_stay_and_one_of_many_writers_wins() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let put = async |node, version: Option<i32>| {
        let mut body = backup(&alice.device_id, 1);
        if let Some(version) = version {
            body["version"] = json!(version);
        }
        alice.on(node).post("/keys/backup", body).await
    };
    let refused = put(&a, Some(1)).await.refused(409, "VERSION_MISMATCH");
    assert_eq!(refused.body["error"]["params"]["current_version"], 0);
    put(&a, Some(0)).await.expect(201);
    // All at once on two nodes: the version says which.
    let answers = futures_util::future::join_all(
        (0..10).map(|n| put(if n % 2 == 0 { &a } else { &b }, Some(1))),
    )
    .await;
    let won: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .collect();
    assert_eq!((won.len(), &won[0].data()["version"]), (1, &json!(2)));
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 200 || answer.code() == "VERSION_MISMATCH")
    );
    for _ in 0..9 {
        put(&b, None).await.expect(200);
    }
    let all = alice.get("/keys/backup").await.expect(200);
    let versions: Vec<i64> = all
        .data()
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["version"].as_i64().expect("a number"))
        .collect();
    // The first of the day stays beside the last ten.
    assert_eq!(versions, (1..=11).rev().collect::<Vec<_>>());
    let page = alice.get("/keys/backup?limit=4").await.expect(200);
    let cursor = page.body["next_cursor"]
        .as_str()
        .expect("a cursor")
        .to_owned();
    assert_eq!(cursor, format!("{}:8", alice.device_id));
    let next = alice
        .get(format!("/keys/backup?limit=100&cursor={cursor}"))
        .await
        .expect(200);
    assert_eq!(
        (
            next.data().as_array().expect("a list").len(),
            &next.data()[0]["version"]
        ),
        (7, &json!(7))
    );
    for cursor in ["x", "x:1", "x:y", "", ":", "%00:1"] {
        alice
            .get(format!("/keys/backup?cursor={cursor}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    // Not even we can change or lose one.
    let client = connect(&a.world.database).await;
    for sql in [
        "update key_backup set version = 99",
        "delete from key_backup",
        "truncate key_backup",
    ] {
        let error = client.batch_execute(sql).await.expect_err(sql);
        assert!(
            format!("{error:?}").contains("append-only"),
            "{sql}: {error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_backup_names_a_device_that_has_no_name() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let unnamed = alice.login(&a, None).await;
    assert!(unnamed.device_id.starts_with("provisional-"));
    let mut socket = unnamed.on(&b).connect().await;
    agent.say(&conversation, "before").await.expect(201);
    let before = socket.event("message.created").await;
    // Two at once with different names: one names it.
    let tries = ["tablet", "slate"].map(|name| unnamed.post("/keys/backup", backup(name, 1)));
    let answers = futures_util::future::join_all(tries).await;
    let (named, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!((named.len(), refused[0].code()), (1, "DEVICE_MISMATCH"));
    let name = named[0].data()["device_id"]
        .as_str()
        .expect("a name")
        .to_owned();
    // The token at hand stays good, the next one carries the name.
    let me = unnamed.on(&b).get("/users/me").await.expect(200);
    assert_eq!(me.data()["device_id"], name.as_str());
    let refreshed = unnamed.refreshed().await;
    let claims = refreshed.access_token.split('.').nth(1).expect("claims");
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(claims)
        .expect("base64");
    assert_eq!(
        serde_json::from_slice::<Value>(&claims).expect("claims")["did"],
        name.as_str()
    );
    // The place in the inbox is the same, also for a socket that was opened under the old name.
    socket
        .say(json!({ "type": "ack", "cursor": before["cursor"] }))
        .await;
    agent.say(&conversation, "after").await.expect(201);
    // Acks of sockets are written ten times a second.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut again = refreshed.on(&a).connect().await;
    let first = again.next().await.expect("an event");
    assert_eq!(
        first["seq"].as_i64(),
        before["seq"].as_i64().map(|seq| seq + 1),
        "{first}"
    );
    alice
        .post("/keys/backup", backup("tablet2", 1))
        .await
        .refused(409, "DEVICE_MISMATCH");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_device_that_signed_in_without_its_name_is_that_device() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    phone
        .post("/keys/backup", backup("phone", 1))
        .await
        .expect(201);
    let old = phone.on(&b).connect().await;
    let unnamed = alice.login(&b, None).await;
    unnamed
        .post("/keys/backup", backup("phone", 1))
        .await
        .expect(200);
    // A device has one session.
    assert_eq!(
        old.expect_close(4403).await.last().expect("a frame")["reason"],
        "logout"
    );
    phone.get("/users/me").await.refused(401, "UNAUTHORIZED");
    let all = unnamed.get("/users/me/devices").await.expect(200);
    let ids: Vec<&str> = all
        .data()
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["device_id"].as_str().expect("an id"))
        .collect();
    assert_eq!(ids, ["phone", alice.device_id.as_str()]);
    unnamed.connect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_directory_is_for_those_who_share_a_conversation() {
    let [a, b] = nodes().await;
    let [alice, bob, eve] = [
        a.user("alice").await,
        b.user("bob").await,
        a.user("eve").await,
    ];
    let agent = a.agent(&alice, "helper").await;
    let path = format!("/keys/users/{}/devices", alice.id);
    assert_eq!(
        directory(&alice, &alice).await,
        json!({ "user_id": alice.id, "list_version": 0, "devices": [] })
    );
    let missing = eve
        .get(format!("/keys/users/{}/devices", crate::support::ulid()))
        .await
        .refused(404, "NOT_FOUND");
    for stranger in [&bob.caller, &eve.caller, &agent.caller] {
        assert_eq!(
            stranger.get(&path).await.refused(404, "NOT_FOUND").body,
            missing.body
        );
    }
    bob.get("/keys/users/nobody/devices")
        .await
        .refused(404, "NOT_FOUND");
    bob.post(
        "/conversations",
        json!({ "type": "direct", "user_id": alice.id }),
    )
    .await
    .expect(201);
    alice.talk_to(&agent).await;
    let [mut of_bob, mut of_alice] = [bob.on(&a).connect().await, alice.on(&b).connect().await];
    let mut of_agent = agent.on(&b).connect().await;
    let kept = alice
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(201);
    let expected = json!({
        "user_id": alice.id, "list_version": 1, "devices": [{
            "device_id": alice.device_id, "key_id": key_id(1), "public_key": BASE64.encode([1; 32]),
            "signing_public_key": BASE64.encode([101; 32]), "schemes": [],
            "created_at": kept.data()["created_at"],
        }],
    });
    assert_eq!(directory(&bob, &alice).await, expected);
    assert_eq!(agent.on(&b).get(&path).await.expect(200).data(), &expected);
    eve.get(&path).await.refused(404, "NOT_FOUND");
    let added = json!({ "user_id": alice.id, "device_id": alice.device_id, "key_id": key_id(1) });
    for socket in [&mut of_bob, &mut of_alice, &mut of_agent] {
        assert_eq!(socket.event("key.device_added").await["data"], added);
    }
    // Known keys again: nothing new. Other keys: the old ones are gone.
    alice
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(200);
    assert_eq!(directory(&bob, &alice).await, expected);
    alice
        .post("/keys/backup", backup(&alice.device_id, 2))
        .await
        .expect(200);
    for socket in [&mut of_bob, &mut of_alice, &mut of_agent] {
        assert_eq!(socket.event("key.device_removed").await["data"], added);
        assert_eq!(
            socket.event("key.device_added").await["data"]["key_id"],
            key_id(2).as_str()
        );
    }
    let now = directory(&bob, &alice).await;
    assert_eq!(
        (&now["list_version"], &now["devices"][0]["key_id"]),
        (&json!(2), &json!(key_id(2)))
    );
    // A revoked device has no keys, and coming back does not bring them back.
    let phone = alice.login(&b, Some("phone")).await;
    phone
        .delete(format!("/users/me/devices/{}", alice.device_id))
        .await
        .expect(200);
    assert_eq!(
        of_bob.event("key.device_removed").await["data"]["key_id"],
        key_id(2).as_str()
    );
    assert_eq!(
        directory(&bob, &phone).await,
        json!({ "user_id": alice.id, "list_version": 3, "devices": [] })
    );
    let back = phone.login(&a, Some(&alice.device_id)).await;
    assert_eq!(directory(&bob, &phone).await["devices"], json!([]));
    let again = back
        .post("/keys/backup", backup(&back.device_id, 2))
        .await
        .expect(200);
    assert_eq!(again.data()["version"], 4);
    assert_eq!(directory(&bob, &phone).await["list_version"], 4);
    // An agent loses sight of the user with the relation.
    psql(&a.world.database, "update relation set state = 'revoked'").await;
    agent.get(&path).await.refused(404, "NOT_FOUND");
    // Sixty a minute, over all of `/keys/users`.
    let callers = [eve.on(&a), eve.on(&b)];
    let mut answers = Vec::new();
    // Ten at once: a machine that does much else may not give seventy a connection in time.
    for _ in 0..7 {
        answers.extend(
            futures_util::future::join_all((0..10).map(|n| callers[n % 2].get(&path))).await,
        );
    }
    assert_eq!(
        answers.iter().filter(|answer| answer.status == 404).count(),
        57
    );
    assert!(
        answers
            .iter()
            .any(|answer| answer.body["error"]["params"]["scope"] == "keys_lookup")
    );
}
