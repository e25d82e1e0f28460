//! Proofs of identity in a session that goes on, and what an old session may not do without one.

use std::time::Duration;

use serde_json::{Value, json};

use super::undo::{RAISED_LIMITS, let_in, text};
use crate::support::{Agent, Authenticator, PASSWORD, User, nodes_with, ulid};

#[tokio::test(flavor = "multi_thread")]
async fn an_old_session_lets_no_stranger_in_without_a_proof() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, developer] = [a.user("alice").await, b.user("dev").await];
    let own = a.agent(&alice, "own").await;
    let [first, second, known] = [
        b.agent(&developer, "first").await,
        b.agent(&developer, "second").await,
        b.agent(&developer, "known").await,
    ];
    alice.talk_to(&known).await;
    let relations = alice.get("/relations").await.expect(200);
    let relation = text(&relations.data()[0], "relation_id");
    let group = alice.group_with(&[]).await;
    a.advance(Duration::from_secs(3601)).await;
    let alice = alice.refreshed().await;
    let open = async |by: &User, agent: &Agent| {
        let body = json!({ "type": "agent", "agent_id": agent.id });
        by.post("/conversations", body).await
    };
    for node in [&a, &b] {
        let refused = open(&alice.on(node), &first).await;
        refused.refused(403, "REAUTH_REQUIRED");
    }
    // One's own agent, and one that the user knew, are no strangers.
    open(&alice, &own).await.expect(201);
    let ended = alice.delete(format!("/relations/{relation}")).await;
    ended.expect(200);
    open(&alice, &known).await.expect(200);
    let_in(&alice, &group, &own, "addressed").await.expect(201);
    let_in(&alice, &group, &known, "all")
        .await
        .refused(403, "REAUTH_REQUIRED");
    let widened = let_in(&alice, &group, &own, "all").await;
    widened.refused(403, "REAUTH_REQUIRED");

    let proof = json!({ "account_password": PASSWORD });
    let proven = alice.on(&b).post("/auth/reauth", proof).await.expect(200);
    assert_eq!(proven.data(), &json!({ "expires_in_seconds": 600 }));
    open(&alice, &first).await.expect(201);
    let_in(&alice, &group, &own, "all").await.expect(200);
    a.advance(Duration::from_secs(601)).await;
    let alice = alice.refreshed().await;
    // What is so already needs no proof.
    let_in(&alice, &group, &own, "all").await.expect(200);
    open(&alice, &first).await.expect(200);
    open(&alice, &second).await.refused(403, "REAUTH_REQUIRED");
    // Another sign-in is a proof as well.
    let tablet = alice.login(&b, Some("tablet")).await;
    open(&tablet, &second).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_is_proven_by_password_code_or_passkey() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    let mut key = Authenticator::enrol(&alice, "key").await;
    let mut bobs_key = Authenticator::enrol(&bob, "key").await;
    let agent = b.agent(&bob, "agent").await;
    a.advance(Duration::from_secs(601)).await;
    let mut alice = alice.refreshed().await;
    let is_recent = async |alice: &User| {
        let begun = alice.post("/users/me/passkeys/begin", json!({})).await;
        begun.status == 200
    };
    let prove = async |alice: &User, body: Value| alice.on(&b).post("/auth/reauth", body).await;
    for body in [
        json!({}),
        json!({ "account_password": PASSWORD, "code": "12345678" }),
        json!({ "challenge_id": ulid().to_string() }),
        json!({ "account_password": PASSWORD, "password": PASSWORD }),
    ] {
        prove(&alice, body).await.refused(400, "VALIDATION_ERROR");
    }
    let wrong = json!({ "code": "00000000" });
    prove(&alice, wrong).await.refused(400, "CODE_INVALID");
    let foreign = bobs_key.answer(&alice).await;
    prove(&alice, foreign).await.refused(401, "PASSKEY_INVALID");
    let body = json!({ "account_password": PASSWORD });
    let nobody = a.anon().post("/auth/reauth", body.clone()).await;
    nobody.refused(401, "UNAUTHORIZED");
    let by_agent = agent.post("/auth/reauth", body.clone()).await;
    assert_eq!(by_agent.status, 401);
    assert!(!is_recent(&alice).await);

    for kind in ["password", "code", "passkey"] {
        let proof = match kind {
            "password" => body.clone(),
            "code" => json!({ "code": a.anon().code(&alice.email, "login").await }),
            _ => key.answer(&alice).await,
        };
        prove(&alice, proof).await.expect(200);
        assert!(is_recent(&alice).await, "{kind}");
        a.advance(Duration::from_secs(601)).await;
        alice = alice.refreshed().await;
        assert!(!is_recent(&alice).await);
    }
    // A wrong password counts towards the lock, and a right one ends the count.
    let wrong = json!({ "account_password": "not the password" });
    for _ in 0..4 {
        prove(&alice, wrong.clone())
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    prove(&alice, body.clone()).await.expect(200);
    for _ in 0..5 {
        prove(&alice, wrong.clone())
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    prove(&alice, body).await.refused(423, "ACCOUNT_LOCKED");
}
