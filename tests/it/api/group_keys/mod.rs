//! Shared keys: rotations that race, recipients that change, and keys that nobody else sees.

mod revocation;

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use crate::support::{
    Answer, TestNode, User, blocked, connect, nodes, nodes_with, psql, spawn, ulid,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "keys_group_rotate=10000/s,keys_rotation_request=10000/s,default_user=10000/s,group_agent_instance=100/s,\
     group_member_add=10000/s",
);

/// Gives the user's device keys of its own.
async fn with_keys(user: &User) {
    let backup = json!({
        "device_id": user.device_id,
        "public_key": BASE64.encode(rand::random::<[u8; 32]>()),
        "signing_public_key": BASE64.encode(rand::random::<[u8; 32]>()),
        "backup_a": BASE64.encode([1; 60]),
        "backup_b": BASE64.encode([2; 60]),
        "argon2_salt": BASE64.encode([9; 32]),
        "argon2_params": { "m": 65536, "t": 3, "p": 4 },
    });
    // 201 the first time, 200 for a device that comes back.
    let kept = user.post("/keys/backup", backup).await;
    assert!(matches!(kept.status, 200 | 201), "{kept:?}");
}

fn key_for(user: &User, device: &str, text: &str) -> Value {
    json!({ "principal_id": user.id, "device_id": device, "wrapped_key": format!("{text} for {device}") })
}

async fn rotate(user: &User, group: &str, base: i64, keys: Value) -> Answer {
    let body = json!({ "base_epoch": base, "reason": "because", "wrapped_keys": keys });
    user.post(format!("/keys/groups/{group}/rotate"), body)
        .await
}

async fn own(user: &User, group: &str, query: &str) -> Value {
    user.get(format!("/keys/groups/{group}{query}"))
        .await
        .expect(200)
        .data()
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_rotated_for_exactly_the_devices_that_are_there() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let phone = alice.login(&b, Some("phone")).await;
    for user in [&alice, &phone, &bob, &carol] {
        with_keys(user).await;
    }
    let agent = a.agent(&alice, "without keys").await;
    alice.talk_to(&agent).await;
    let group = alice.group_with(&[&bob]).await;
    alice
        .post(
            format!("/groups/{group}/agent-instances"),
            json!({ "agent_id": agent.id }),
        )
        .await
        .expect(201);
    let mut phone_socket = phone.on(&b).connect().await;
    let mut bob_socket = bob.on(&b).connect().await;
    let expected = json!({
        "conversation_id": group, "epoch": 0, "current_epoch": 0, "rotation_required": false, "wrapped_keys": [],
    });
    assert_eq!(own(&bob, &group, "").await, expected);

    let first = json!([
        key_for(&alice, &alice.device_id, "first"),
        key_for(&alice, "phone", "first"),
        key_for(&bob, &bob.device_id, "first")
    ]);
    let rotated = rotate(&bob, &group, 0, first.clone()).await.expect(201);
    assert_eq!(rotated.data()["epoch"], 1);
    assert!(rotated.data()["rotated_at"].is_string());
    // Each is told of its own keys and of no others.
    let told = phone_socket.event("key.rotated").await;
    let keys = json!([
        { "device_id": alice.device_id, "wrapped_key": format!("first for {}", alice.device_id) },
        { "device_id": "phone", "wrapped_key": "first for phone" },
    ]);
    assert_eq!(
        (&told["data"]["wrapped_keys"], &told["data"]["epoch"]),
        (&keys, &json!(1))
    );
    assert_eq!(
        (&told["data"]["by"], &told["data"]["conversation_id"]),
        (&json!(bob.id), &json!(group))
    );
    let told = bob_socket.event("key.rotated").await;
    assert!(!told.to_string().contains("phone"), "{told}");
    assert_eq!(
        told["data"]["wrapped_keys"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(own(&alice, &group, "").await["wrapped_keys"], keys);
    let polled = agent.poll("limit=100").await.expect(200).body.to_string();
    assert!(
        polled.contains("key.rotated") && !polled.contains("first for"),
        "{polled}"
    );

    refuses_what_does_not_fit(&alice, &group, [&bob, &carol], &agent.id, first).await;

    // A new member has no key yet, and a leaving member had one: both ask for the next.
    let added = alice
        .post(
            format!("/groups/{group}/members"),
            json!({ "user_ids": [carol.id] }),
        )
        .await
        .expect(201);
    assert_eq!(added.data()["rotation_required"], true);
    assert_eq!(own(&carol, &group, "").await["wrapped_keys"], json!([]));
    bob.delete(format!("/groups/{group}/members/{}", bob.id))
        .await
        .expect(200);
    bob.get(format!("/keys/groups/{group}"))
        .await
        .refused(404, "NOT_FOUND");
    rotate(&bob, &group, 1, json!([]))
        .await
        .refused(404, "NOT_FOUND");
    let mut second = json!([
        key_for(&alice, &alice.device_id, "second"),
        key_for(&alice, "phone", "second"),
        key_for(&carol, &carol.device_id, "second"),
    ]);
    rotate(&alice, &group, 1, second.clone()).await.expect(201);
    let now = alice
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    assert_eq!(
        (&now.data()["epoch"], &now.data()["rotation_required"]),
        (&json!(2), &json!(false))
    );
    // Old keys stay for what was said under them.
    assert_eq!(own(&alice, &group, "?epoch=1").await["wrapped_keys"], keys);
    assert_eq!(
        own(&carol, &group, "?epoch=1").await["wrapped_keys"],
        json!([])
    );

    // A device that is revoked is no recipient any more, and an agent is one as soon as it has
    // keys.
    alice.delete("/users/me/devices/phone").await.expect(200);
    let keys = "insert into agent_key (agent_id, key_id, public_key, signing_public_key)";
    psql(
        &a.world.database,
        &format!("{keys} values ('{}', 'k', '', '')", agent.id),
    )
    .await;
    let refused = rotate(&alice, &group, 2, second.clone())
        .await
        .refused(409, "RECIPIENTS_MISMATCH");
    let params = &refused.body["error"]["params"];
    assert_eq!(params["missing"], json!([{ "principal_id": agent.id }]));
    assert_eq!(
        params["extra"],
        json!([{ "principal_id": alice.id, "device_id": "phone" }])
    );
    second[1] = json!({ "principal_id": agent.id, "wrapped_key": "for the agent" });
    rotate(&alice, &group, 2, second).await.expect(201);
    let its = agent
        .on(&b)
        .get(format!("/keys/groups/{group}"))
        .await
        .expect(200);
    assert_eq!(
        its.data()["wrapped_keys"],
        json!([{ "wrapped_key": "for the agent" }])
    );
}

/// A stale base, one too few, one too many, one twice, one too long.
async fn refuses_what_does_not_fit(
    alice: &User,
    group: &str,
    [bob, carol]: [&User; 2],
    agent: &str,
    right: Value,
) {
    let stale = rotate(alice, group, 0, right)
        .await
        .refused(409, "VERSION_MISMATCH");
    assert_eq!(stale.body["error"]["params"]["current_epoch"], 1);
    let odd = json!([
        key_for(alice, &alice.device_id, "x"),
        key_for(bob, &bob.device_id, "x"),
        key_for(carol, &carol.device_id, "x"),
        { "principal_id": agent, "wrapped_key": "x" },
        { "principal_id": bob.id, "wrapped_key": "x" },
    ]);
    let refused = rotate(alice, group, 1, odd)
        .await
        .refused(409, "RECIPIENTS_MISMATCH");
    let params = &refused.body["error"]["params"];
    assert_eq!(
        params["missing"],
        json!([{ "principal_id": alice.id, "device_id": "phone" }])
    );
    let extra = params["extra"].as_array().expect("a list");
    assert_eq!(extra.len(), 3, "{extra:?}");
    for odd in [
        json!({ "principal_id": carol.id, "device_id": carol.device_id }),
        json!({ "principal_id": agent }),
        json!({ "principal_id": bob.id }),
    ] {
        assert!(extra.contains(&odd), "{extra:?}");
    }
    let twice = json!([key_for(bob, "d", "x"), key_for(bob, "d", "y")]);
    rotate(alice, group, 1, twice)
        .await
        .refused(400, "VALIDATION_ERROR");
    let long =
        json!([{ "principal_id": bob.id, "device_id": "d", "wrapped_key": "x".repeat(4097) }]);
    rotate(alice, group, 1, long)
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_racing_rotations_one_wins_each_epoch() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    for user in [&alice, &bob, &carol] {
        with_keys(user).await;
    }
    let group = alice.group_with(&[&bob]).await;
    let both = json!([
        key_for(&alice, &alice.device_id, "x"),
        key_for(&bob, &bob.device_id, "x")
    ]);
    for epoch in 0..5 {
        let callers = [alice.on(&a), bob.on(&b)];
        let calls = (0..6).map(|n| rotate(&callers[n % 2], &group, epoch, both.clone()));
        let mut statuses: Vec<u16> = futures_util::future::join_all(calls)
            .await
            .iter()
            .map(|answer| answer.status)
            .collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409, 409, 409, 409, 409]);
    }
    // A rotation for two against a third who joins: whoever is later sees the other. Never is there
    // a key that a member cannot open and that nobody is asked to replace.
    let mut epoch = 5;
    for _ in 0..10 {
        let callers = [alice.on(&a), alice.on(&b)];
        let add = callers[0].post(
            format!("/groups/{group}/members"),
            json!({ "user_ids": [carol.id] }),
        );
        let (added, rotated) = tokio::join!(add, rotate(&callers[1], &group, epoch, both.clone()));
        added.expect(201);
        epoch += i64::from(rotated.status == 201);
        if rotated.status != 201 {
            let refused = rotated.refused(409, "RECIPIENTS_MISMATCH");
            let missing = json!([{ "principal_id": carol.id, "device_id": carol.device_id }]);
            assert_eq!(refused.body["error"]["params"]["missing"], missing);
        }
        let state = own(&carol, &group, "").await;
        assert_eq!(
            (&state["current_epoch"], &state["rotation_required"]),
            (&json!(epoch), &json!(true))
        );
        alice
            .delete(format!("/groups/{group}/members/{}", carol.id))
            .await
            .expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_asked_to_rotate_and_a_group_is_not() {
    let [a, b] = nodes().await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let direct = alice.direct_with(&bob).await;
    let group = alice.group_with(&[&bob]).await;
    let mut alice_socket = alice.on(&b).connect().await;
    let mut bob_socket = bob.on(&b).connect().await;
    let ask = async |user: &User, id: &str| {
        user.post(
            "/keys/rotation/request",
            json!({ "conversation_id": id, "reason": "lost a phone" }),
        )
        .await
    };
    // Another's conversation, or no pair of users, uses up nothing.
    for _ in 0..8 {
        ask(&carol, &direct).await.refused(404, "NOT_FOUND");
        ask(&alice, &ulid().to_string())
            .await
            .refused(404, "NOT_FOUND");
        ask(&alice, &group).await.refused(400, "VALIDATION_ERROR");
    }
    let asked = ask(&alice, &direct).await.expect(201);
    let told = bob_socket.event("key.rotation_requested").await;
    let expected = json!({
        "request_id": asked.data()["request_id"], "conversation_id": direct, "by": alice.id, "reason": "lost a phone",
    });
    assert_eq!(
        (&told["data"], &told["event_id"]),
        (&expected, &asked.data()["request_id"])
    );
    assert!(asked.data()["expires_at"].as_str() > told["created_at"].as_str());
    for n in 1..6 {
        ask(if n % 2 == 0 { &alice } else { &bob }, &direct)
            .await
            .expect(201);
    }
    let refused = ask(&bob.on(&b), &direct).await.refused(429, "RATE_LIMITED");
    assert_eq!(refused.body["error"]["params"]["limit"], "6/h");
    assert_eq!(
        refused.body["error"]["params"]["scope"],
        "keys_rotation_request"
    );
    // She hears of his requests, not of her own.
    assert_eq!(
        alice_socket.event("key.rotation_requested").await["data"]["by"],
        bob.id
    );

    // A rotation's budget is the conversation's; a stranger does not use it up, a stale base does.
    for _ in 0..8 {
        rotate(&carol, &group, 0, json!([]))
            .await
            .refused(404, "NOT_FOUND");
    }
    for n in 0..6 {
        let answer = rotate(if n % 2 == 0 { &alice } else { &bob }, &group, 7, json!([])).await;
        answer.refused(409, "VERSION_MISMATCH");
    }
    let refused = rotate(&alice.on(&b), &group, 0, json!([]))
        .await
        .refused(429, "RATE_LIMITED");
    assert_eq!(
        refused.body["error"]["params"]["scope"],
        "keys_group_rotate"
    );
}
