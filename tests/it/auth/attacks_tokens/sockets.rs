//! Sockets do not outlive their credential.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::json;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

use crate::support::{Socket, User, nodes_with, private_redis};

use super::RAISED_LIMITS;

#[tokio::test(flavor = "multi_thread")]
async fn attack_23_sockets_of_a_revoked_device_close_without_redis_too() {
    let mut redis = private_redis("revoked").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("REDIS_URL", &url)]).await;
    let alice = a.user("alice").await;
    let [phone, tablet] = [
        alice.login(&a, Some("phone")).await,
        alice.login(&b, Some("tablet")).await,
    ];
    let ended = async |victim: &User, sockets: [Socket; 2]| {
        alice
            .delete(format!("/users/me/devices/{}", victim.device_id))
            .await
            .expect(200);
        let answered = Instant::now();
        for socket in sockets {
            let last = socket.expect_close(4403).await.pop().expect("a frame");
            assert_eq!(
                (&last["reason"], &last["device_id"]),
                (&json!("device_revoked"), &json!(victim.device_id))
            );
        }
        answered.elapsed()
    };
    let sockets = [phone.on(&a).connect().await, phone.on(&b).connect().await];
    let took = ended(&phone, sockets).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let sockets = [tablet.on(&a).connect().await, tablet.on(&b).connect().await];
    redis.kill();
    // By the sweep.
    let without = ended(&tablet, sockets).await;
    assert!(without < Duration::from_secs(3), "{without:?}");
    tracing::info!(
        ?took,
        ?without,
        "the slower of two sockets, from the answer on"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_24_a_renewal_with_anothers_token_ends_the_socket() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let phone = alice.login(&b, Some("phone")).await;
    let gone = alice.login(&b, Some("tablet")).await;
    alice.delete("/users/me/devices/tablet").await.expect(200);
    let old = alice.access_token.clone();
    a.advance(Duration::from_secs(200)).await;
    let alice = alice.refreshed().await;
    a.advance(Duration::from_secs(110)).await;
    // The first of them has expired meanwhile.
    for token in [
        old.as_str(),
        &bob.access_token,
        &phone.access_token,
        &gone.access_token,
        &agent.token,
        "junk",
        "",
    ] {
        let mut socket = alice.on(&b).connect().await;
        socket
            .say(json!({ "type": "auth.renew", "access_token": token }))
            .await;
        let last = socket.expect_close(4401).await.pop();
        assert_eq!(
            last,
            Some(json!({ "type": "auth.error", "reason": "invalid_token" })),
            "{token}"
        );
    }
    // The session itself goes on.
    let mut socket = alice.on(&b).connect().await;
    let renewed = alice.refreshed().await;
    socket
        .say(json!({ "type": "auth.renew", "access_token": renewed.access_token }))
        .await;
    assert!(socket.expect("auth.renewed").await["expires_at"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_47_a_socket_does_not_outlive_its_token() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let [mut kept, mut left] = [alice.on(&b).connect().await, alice.on(&a).connect().await];
    a.advance_to(alice.after_its_end(-55)).await;
    for socket in [&mut kept, &mut left] {
        socket.expect("auth.expiring").await;
        // By the moved clock the socket was silent for long; this is its sign of life.
        socket.say(json!({ "type": "ping" })).await;
        socket.expect("pong").await;
    }
    a.advance_to(alice.after_its_end(1)).await;
    // The node's timer has to see it; the token is over either way when an event is written.
    agent.say(&conversation, "after the end").await.expect(201);
    for socket in [&mut kept, &mut left] {
        // Real time: nothing comes.
        while let Ok(frame) = tokio::time::timeout(Duration::from_millis(300), socket.next()).await
        {
            assert_ne!(frame.expect("open")["event"], "message.created");
        }
    }
    // It sends nothing either.
    let message = json!({
        "type": "message.send", "ref": 1, "conversation_id": conversation, "payload": { "type": "text" },
    });
    kept.say(message.clone()).await;
    let refused = kept.expect("error").await;
    assert_eq!(
        (&refused["error"]["code"], &refused["ref"]),
        (&json!("UNAUTHORIZED"), &json!(1))
    );
    a.advance_to(alice.after_its_end(5)).await;
    let renewed = alice.refreshed().await;
    kept.say(json!({ "type": "auth.renew", "access_token": renewed.access_token }))
        .await;
    kept.expect("auth.renewed").await;
    assert_eq!(
        kept.event("message.created").await["data"]["payload"]["text"],
        "after the end"
    );
    kept.say(message).await;
    kept.expect("message.sent").await;
    a.advance_to(alice.after_its_end(11)).await;
    let before = left.expect_close(4401).await;
    assert_eq!(
        before.last(),
        Some(&json!({ "type": "auth.error", "reason": "token_expired" }))
    );
    assert!(
        before
            .iter()
            .all(|frame| frame["event"] != "message.created")
    );
    kept.say(json!({ "type": "ping" })).await;
    kept.expect("pong").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_48_a_socket_is_not_opened_by_another_page_or_a_token_in_its_address() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let handshake = async |path: &str, origin: Option<&'static str>| {
        let request = alice
            .request(Method::GET, path)
            .header("connection", "upgrade")
            .header("upgrade", "websocket");
        let request = request
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let request = request.header("cookie", &alice.cookie);
        match origin {
            Some(origin) => alice.send(request.header("origin", origin)).await,
            None => alice.send(request).await,
        }
    };
    for origin in [
        "https://evil.example",
        "null",
        "http://localhost",
        "https://localhost:444",
    ] {
        handshake("/ws", Some(origin))
            .await
            .refused(403, "ORIGIN_NOT_ALLOWED");
    }
    assert_eq!(
        handshake("/ws", Some("https://localhost")).await.status,
        101
    );
    assert_eq!(handshake("/ws", None).await.status, 101);
    // A token in the address, in a header or in the cookie opens nothing: the frame is waited for.
    let address = a.base.trim_start_matches("http://");
    let mut request = format!(
        "ws://{address}/ws?access_token={0}&token={0}",
        alice.access_token
    )
    .into_client_request()
    .expect("a request");
    for (name, value) in [
        ("x-forwarded-proto", "https".to_owned()),
        ("authorization", format!("Bearer {}", alice.access_token)),
        ("cookie", alice.cookie.clone()),
    ] {
        request
            .headers_mut()
            .insert(name, value.parse().expect("a header"));
    }
    let stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("connected");
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream)
        .await
        .expect("a socket");
    socket
        .send(Message::text(r#"{"type":"ping"}"#))
        .await
        .expect("sent");
    // Not an answer but the end, with the code of who is not let in.
    match socket.next().await {
        Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 4401),
        other => panic!("{other:?}"),
    }
}
