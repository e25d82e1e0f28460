//! The routes of webhooks: registration, secrets, tests, the log, and their refusals.

use serde_json::{Value, json};

use super::{put, registered, talking};
use crate::support::{Receiver, nodes, psql};

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_challenged_and_its_secret_is_shown_once() {
    let [a, b] = nodes().await;
    let (alice, agent, receiver) = registered(&a).await;
    let shown = put(&alice, &agent, &receiver.url).await;
    assert_eq!(
        (shown["status"].as_str(), &shown["last_error"]),
        (Some("active"), &Value::Null)
    );
    assert!(
        shown["secret"]
            .as_str()
            .expect("a secret")
            .starts_with("whsec_")
    );
    let challenge = receiver.all().pop().expect("a challenge");
    assert_eq!(
        (challenge.event(), challenge.attempt()),
        ("webhook.verify", 1)
    );
    assert_eq!(challenge.body["agent_id"], agent.id);
    assert_eq!(
        challenge.header("x-service-delivery-id"),
        challenge.delivery()
    );

    let read = agent.on(&b).get(agent.webhook("")).await.expect(200);
    assert_eq!(read.data()["url"], receiver.url);
    assert!(read.data().get("secret").is_none());
    let mode = alice.get(format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(mode.data()["delivery_mode"], "webhook");

    let gone = agent.delete(agent.webhook("")).await.expect(200);
    assert_eq!(gone.data()["agent_id"], agent.id);
    alice.get(agent.webhook("")).await.refused(404, "NOT_FOUND");
    agent
        .delete(agent.webhook(""))
        .await
        .refused(404, "NOT_FOUND");
    let mode = alice.get(format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(mode.data()["delivery_mode"], "pull");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_fails_its_challenge_waits_for_verification() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let receiver = Receiver::start().await;
    receiver.refuse_challenges();
    let shown = put(&alice, &agent, &receiver.url).await;
    assert_eq!(shown["status"], "pending_verification");
    assert_eq!(shown["last_error"], "challenge_mismatch");
    // Nothing is delivered meanwhile.
    let conversation = alice.talk_to(&agent).await;
    alice.say(&conversation, "one").await.expect(201);
    let again = alice
        .post(agent.webhook("/verify"), json!({}))
        .await
        .expect(200);
    assert_eq!(again.data()["status"], "pending_verification");
    assert!(receiver.events().is_empty());

    let silent = put(&alice, &agent, "http://127.0.0.1:1/hook").await;
    assert_eq!(silent["last_error"], "connect");
    let other = Receiver::start().await;
    let sql = format!(
        "update webhook set url = '{}' where agent_id = '{}'",
        other.url, agent.id
    );
    psql(&a.world.database, &sql).await;
    let verified = agent
        .post(agent.webhook("/verify"), json!({}))
        .await
        .expect(200);
    assert_eq!(verified.data()["status"], "active");
    assert_eq!(verified.data()["last_error"], Value::Null);
    other.receives(3).await;
    assert_eq!(other.texts(), ["one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_bad_values_are_refused() {
    let [a] = nodes().await;
    let (alice, agent, receiver) = registered(&a).await;
    let bob = a.user("bob").await;
    let other = a.agent(&alice, "other").await;
    let body = json!({ "url": receiver.url });
    bob.put(agent.webhook(""), body.clone())
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    bob.get(agent.webhook(""))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    bob.get(format!("/agents/{}/deliveries", agent.id))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    other
        .put(agent.webhook(""), body)
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    for path in ["/verify", "/rotate-secret", "/test"] {
        alice
            .post(other.webhook(path), json!({}))
            .await
            .refused(404, "NOT_FOUND");
    }
    for (field, body) in [
        ("url", json!({ "url": "ftp://example.org" })),
        ("url", json!({ "url": "http://10.0.0.1/hook" })),
        ("url", json!({})),
        ("secret", json!({ "url": receiver.url, "secret": "short" })),
        (
            "webhook_secret",
            json!({ "url": receiver.url, "webhook_secret": "short" }),
        ),
        (
            "webhook_secret",
            json!({ "url": receiver.url, "secret": "one secret of the two", "webhook_secret": "another secret of the two" }),
        ),
    ] {
        let refused = alice.put(agent.webhook(""), body).await;
        let refused = refused.refused(400, "VALIDATION_ERROR");
        assert_eq!(refused.body["error"]["params"]["fields"][0]["path"], field);
    }
    alice
        .post(
            agent.webhook("/rotate-secret"),
            json!({ "overlap_seconds": 604_801 }),
        )
        .await
        .refused(400, "VALIDATION_ERROR");
    for query in [
        "limit=0",
        "cursor=x",
        "status=lost",
        "cursor=0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e",
    ] {
        alice
            .get(format!("/agents/{}/deliveries?{query}", agent.id))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    let unknown = format!(
        "/agents/{}/deliveries/0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e/redeliver",
        agent.id
    );
    alice
        .post(unknown, json!({}))
        .await
        .refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_secret_signs_beside_its_successor_until_its_end() {
    let [a, b] = nodes().await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    let rotated = alice
        .on(&b)
        .post(
            agent.webhook("/rotate-secret"),
            json!({ "overlap_seconds": 600 }),
        )
        .await
        .expect(200);
    assert!(
        rotated.data()["secret"]
            .as_str()
            .expect("a secret")
            .starts_with("whsec_")
    );
    assert!(rotated.data()["previous_secret_valid_until"].is_string());
    alice.say(&conversation, "both").await.expect(201);
    let calls = receiver.receives(3).await;
    assert_eq!(calls[2].header("webhook-signature").split(' ').count(), 2);
    assert!(!calls[2].header("x-service-signature-previous").is_empty());

    a.advance(std::time::Duration::from_secs(601)).await;
    let alice = alice.refreshed().await;
    alice.say(&conversation, "one").await.expect(201);
    let calls = receiver.receives(4).await;
    assert_eq!(calls[3].header("webhook-signature").split(' ').count(), 1);
    assert!(calls[3].header("x-service-signature-previous").is_empty());
    let read = alice.get(agent.webhook("")).await.expect(200);
    assert_eq!(read.data()["previous_secret_valid_until"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_is_posted_at_once_and_logged() {
    let [a] = nodes().await;
    let (alice, agent, receiver) = registered(&a).await;
    let passed = alice
        .post(agent.webhook("/test"), json!({}))
        .await
        .expect(200);
    assert_eq!(passed.data()["status"], "success");
    assert_eq!(passed.data()["response_status"], 200);
    receiver.answer(503);
    let failed = agent
        .post(agent.webhook("/test"), json!({}))
        .await
        .expect(200);
    assert_eq!(failed.data()["status"], "exhausted");
    assert_eq!(failed.data()["error"], "unexpected_status");
    let log = alice
        .get(format!("/agents/{}/deliveries", agent.id))
        .await
        .expect(200);
    let log = log.data().as_array().expect("a list").clone();
    assert_eq!(log.len(), 2);
    assert_eq!(log[0]["delivery_id"], failed.data()["delivery_id"]);
    assert_eq!(
        (&log[0]["event"], &log[0]["seq"]),
        (&json!("webhook.test"), &Value::Null)
    );
    assert_eq!(log[0]["attempts"][0]["response_status"], 503);
    let path = format!(
        "/agents/{}/deliveries/{}/redeliver",
        agent.id,
        log[0]["delivery_id"].as_str().expect("an id")
    );
    alice.post(path, json!({})).await.refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_has_two_names() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let receiver = Receiver::start().await;
    let secret = "a-secret-of-the-tests-that-is-long-enough";
    for names in [&["webhook_secret"][..], &["secret", "webhook_secret"]] {
        let mut body = json!({ "url": receiver.url });
        for name in names {
            body[name] = json!(secret);
        }
        let shown = alice.put(agent.webhook(""), body).await.expect(200);
        assert_eq!(shown.data()["secret"], secret);
        assert_eq!(shown.data()["status"], "active");
    }
}
