//! Devices: their list, their revocation, their online state.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{User, nodes};

async fn devices(user: &User) -> Vec<Value> {
    user.get("/users/me/devices")
        .await
        .expect(200)
        .data()
        .as_array()
        .expect("a list")
        .clone()
}

async fn device(user: &User, id: &str) -> Value {
    devices(user)
        .await
        .into_iter()
        .find(|device| device["device_id"] == id)
        .expect(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_listed_newest_first_in_pages() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    a.advance(Duration::from_secs(1)).await;
    let laptop = alice.login(&b, Some("laptop")).await;
    a.advance(Duration::from_secs(1)).await;
    let unnamed = alice.login(&a, None).await;
    let all = devices(&alice).await;
    let ids: Vec<&str> = all
        .iter()
        .map(|device| device["device_id"].as_str().expect("an id"))
        .collect();
    assert_eq!(
        ids,
        [
            unnamed.device_id.as_str(),
            "laptop",
            alice.device_id.as_str()
        ]
    );
    let item = all[1].as_object().expect("an object");
    let fields = [
        "created_at",
        "current",
        "device_id",
        "display_name",
        "has_keys",
        "last_seen_at",
        "online",
        "platform",
        "session_id",
    ];
    assert_eq!(item.keys().map(String::as_str).collect::<Vec<_>>(), fields);
    assert_eq!(
        (&item["current"], &item["has_keys"], &item["online"]),
        (&json!(false), &json!(false), &json!(false))
    );
    assert_eq!(device(&laptop, "laptop").await["current"], true);

    let first = alice
        .on(&b)
        .get("/users/me/devices?limit=2")
        .await
        .expect(200);
    assert_eq!(
        (
            first.data().as_array().expect("a list").len(),
            &first.body["next_cursor"]
        ),
        (2, &json!("laptop"))
    );
    let rest = alice
        .get("/users/me/devices?limit=2&cursor=laptop")
        .await
        .expect(200);
    assert_eq!(
        (&rest.data()[0]["device_id"], &rest.body["next_cursor"]),
        (&json!(alice.device_id), &Value::Null)
    );
    let none = alice
        .get(format!("/users/me/devices?cursor={}", alice.device_id))
        .await
        .expect(200);
    assert_eq!(none.body, json!({ "data": [], "next_cursor": null }));
    for query in [
        "cursor=nobody",
        "cursor=",
        "cursor=%20",
        "limit=0",
        "limit=101",
        "limit=x",
    ] {
        alice
            .get(format!("/users/me/devices?{query}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    // A named device that is signed out could be anything.
    unnamed.with_cookie("/auth/logout").await.expect(200);
    laptop.with_cookie("/auth/logout").await.expect(200);
    assert_eq!(devices(&alice).await.len(), 2);
    // Others' devices are no concern of mine.
    let bob = b.user("bob").await;
    assert_eq!(devices(&bob).await.len(), 1);
    bob.delete("/users/me/devices/laptop")
        .await
        .refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_online_while_it_has_a_socket_on_any_node() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let socket = phone.on(&b).connect().await;
    let becomes = async |online: bool| {
        for _ in 0..100 {
            if device(&alice, "phone").await["online"] == online {
                return;
            }
            // A slot is given back a moment after its socket has gone.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("online does not become {online}");
    };
    becomes(true).await;
    assert_eq!(device(&alice, &alice.device_id).await["online"], false);
    let seen = device(&alice, "phone").await;
    assert!(
        seen["last_seen_at"].as_str() > seen["created_at"].as_str(),
        "{seen}"
    );
    drop(socket);
    becomes(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_device_ends_it_everywhere_at_once() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let sockets = [phone.on(&a).connect().await, phone.on(&b).connect().await];
    let mut own = alice.on(&b).connect().await;
    let answer = alice
        .on(&b)
        .delete("/users/me/devices/phone")
        .await
        .expect(200);
    let fields: Vec<&String> = answer
        .data()
        .as_object()
        .expect("an object")
        .keys()
        .collect();
    let wanted = [
        "agents",
        "device_id",
        "passkeys",
        "revoked_at",
        "session_id",
    ];
    assert_eq!(fields, wanted);
    assert_eq!(answer.data()["device_id"], "phone");
    for node in [&a, &b] {
        phone
            .on(node)
            .get("/users/me")
            .await
            .refused(401, "UNAUTHORIZED");
        phone
            .on(node)
            .with_cookie("/auth/refresh")
            .await
            .refused(401, "TOKEN_EXPIRED");
    }
    for socket in sockets {
        let said = socket.expect_close(4403).await;
        let last = said.last().expect("a frame");
        assert_eq!(
            (&last["type"], &last["reason"]),
            (&json!("session.invalidated"), &json!("device_revoked"))
        );
        assert_eq!(last["device_id"], "phone");
        assert!(last["at"].as_str().expect("a time").ends_with('Z'));
    }
    own.say(json!({ "type": "ping" })).await;
    own.expect("pong").await;
    assert_eq!(devices(&alice).await.len(), 1);
    alice
        .delete("/users/me/devices/phone")
        .await
        .refused(404, "NOT_FOUND");
    alice
        .delete("/users/me/devices/%00")
        .await
        .refused(404, "NOT_FOUND");
    // It may come back, as a new one.
    let back = alice.login(&b, Some("phone")).await;
    assert_eq!(devices(&back).await.len(), 2);
    // A device may revoke itself.
    back.delete("/users/me/devices/phone").await.expect(200);
    back.get("/users/me").await.refused(401, "UNAUTHORIZED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_comes_back_is_new_if_it_was_revoked_and_not_if_it_was_not() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let is_new = async |device: &str| {
        let body = json!({ "email": alice.email, "account_password": crate::support::PASSWORD, "turnstile_token": "dev-pass",
            "device_id": device, "device_name": "My phone", "platform": "ios" });
        let answer = a.anon().post("/auth/login", body).await.expect(200);
        answer.data()["is_new_device"].as_bool().expect("a flag")
    };
    assert!(is_new("phone").await);
    assert!(!is_new("phone").await);
    let phone = device(&alice, "phone").await;
    assert_eq!(
        (&phone["display_name"], &phone["platform"]),
        (&json!("My phone"), &json!("ios"))
    );
    alice.delete("/users/me/devices/phone").await.expect(200);
    assert!(is_new("phone").await);
    assert!(!is_new(&alice.device_id).await);
}
