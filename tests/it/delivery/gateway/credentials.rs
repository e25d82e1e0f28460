//! Sockets whose session or token ends.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_dies_loses_its_socket_and_its_requests_on_every_node() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let alice_socket = alice.on(&b).connect().await;
    let agent_socket = agent.on(&b).connect().await;
    agent
        .on(&b)
        .say(&conversation, "known to both nodes")
        .await
        .expect(201);
    agent
        .say(&conversation, "known to both nodes")
        .await
        .expect(201);

    // A login of the same device ends the session that it had.
    let body = json!({
        "email": alice.email, "account_password": crate::support::PASSWORD, "turnstile_token": "dev-pass", "device_id": alice.device_id,
    });
    let started = Instant::now();
    alice.post("/auth/login", body).await.expect(200);
    for node in [&a, &b] {
        alice
            .on(node)
            .say(&conversation, "x")
            .await
            .refused(401, "UNAUTHORIZED");
        alice
            .on(node)
            .post("/agents", json!({ "display_name": "x" }))
            .await
            .refused(401, "UNAUTHORIZED");
    }
    let before = alice_socket.expect_close(4403).await;
    assert!(started.elapsed() < Duration::from_secs(1));
    let last = before.last().expect("a frame");
    assert_eq!(
        (&last["type"], &last["reason"]),
        (&json!("session.invalidated"), &json!("logout"))
    );
    assert_eq!(last["device_id"], alice.device_id);

    // Nobody hints at what is done to the table by hand: requests see it at once, sockets by the
    // sweep.
    psql(
        &a.world.database,
        "update agent_token set revoked_at = app_now(), bcrypt_hash = null",
    )
    .await;
    for node in [&a, &b] {
        agent
            .on(node)
            .say(&conversation, "x")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        agent
            .on(node)
            .poll("")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
    }
    let started = Instant::now();
    let before = agent_socket.expect_close(4403).await;
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(before.last().expect("a frame")["reason"], "token_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_socket_lives_as_long_as_its_token() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = alice.connect().await;
    socket.expect("caught_up").await;
    assert!(socket.ready["token_expires_at"].is_string());

    a.advance_to(alice.after_its_end(-55)).await;
    socket.expect("auth.expiring").await;
    let renewed = alice.refreshed().await;
    socket
        .say(json!({ "type": "auth.renew", "access_token": renewed.access_token }))
        .await;
    socket.expect("auth.renewed").await;

    // Over: no events, but a token is still taken, and then nothing has been missed.
    a.advance_to(renewed.after_its_end(1)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    agent.say(&conversation, "while expired").await.expect(201);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(300) {
        if let Ok(Ok(frame)) = tokio::time::timeout(Duration::from_millis(100), socket.next()).await
        {
            assert_ne!(frame["event"], "message.created", "{frame}");
        }
    }
    let renewed = renewed.refreshed().await;
    socket
        .say(json!({ "type": "auth.renew", "access_token": renewed.access_token }))
        .await;
    socket.expect("auth.renewed").await;
    assert_eq!(
        socket.event("message.created").await["data"]["payload"]["text"],
        "while expired"
    );

    a.advance_to(renewed.after_its_end(11)).await;
    let before = socket.expect_close(4401).await;
    assert_eq!(
        before.last(),
        Some(&json!({ "type": "auth.error", "reason": "token_expired" }))
    );
    let mut late = Socket::open(&a.anon()).await;
    late.say(json!({ "type": "auth", "access_token": alice.access_token }))
        .await;
    assert_eq!(
        late.expect_close(4401).await,
        [json!({ "type": "auth.error", "reason": "token_expired" })]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_is_of_the_same_user_and_session() {
    let [a] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    for token in [&bob.access_token, &agent.token, &"junk".to_owned()] {
        let mut socket = alice.connect().await;
        socket
            .say(json!({ "type": "auth.renew", "access_token": token }))
            .await;
        let before = socket.expect_close(4401).await;
        assert_eq!(
            before.last(),
            Some(&json!({ "type": "auth.error", "reason": "invalid_token" }))
        );
    }
}
