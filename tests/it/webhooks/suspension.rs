//! Revoked tokens suspend the webhook of their agent, and cut its calls.

use std::time::Duration;

use serde_json::json;

use super::{BUSY, FAST, deliveries, put, registered, talking, until_caught_up};
use crate::support::{Agent, Receiver, Reply, nodes_with, psql};

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_cuts_and_suspends_the_webhook() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, agent, receiver, conversation) = talking(&a).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(3)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;
    let path = format!("/agents/{}/token/regenerate", agent.id);
    let regenerated = alice.on(&b).post(&path, json!({ "emergency": true })).await;
    let token = regenerated.expect(200).data()["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let suspended = alice.get(agent.webhook("")).await.expect(200);
    assert_eq!(suspended.data()["status"], "suspended");
    // The call was cut, so the event counts as undelivered. A second is more than the cut needs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    receiver.answer(200);
    let log = deliveries(&alice, &agent, "status=pending").await;
    assert_eq!(log.len(), 1);
    let agent = Agent {
        caller: agent.with_token(&token),
        ..agent
    };
    for (method, path) in [("PUT", ""), ("POST", "/verify"), ("POST", "/rotate-secret")] {
        let method = method.parse().expect("a method");
        let request = agent.request(method, agent.webhook(path));
        let request = request.json(&json!({ "url": receiver.url }));
        agent.send(request).await.refused(403, "FORBIDDEN");
    }
    alice
        .post(agent.webhook("/test"), json!({}))
        .await
        .refused(403, "FORBIDDEN");

    let resumed = alice
        .post(agent.webhook("/verify"), json!({}))
        .await
        .expect(200);
    assert_eq!(resumed.data()["status"], "active");
    assert!(
        resumed.data()["secret"]
            .as_str()
            .expect("a new one")
            .starts_with("whsec_")
    );
    let calls = receiver.receives(4).await;
    assert_eq!(
        (calls[3].delivery(), calls[3].attempt()),
        (calls[2].delivery(), 2)
    );
    until_caught_up(&alice, &agent).await;
    let log = deliveries(&alice, &agent, "limit=1").await;
    assert_eq!(log[0]["attempts"][0]["error"], "interrupted");

    // An ordinary regeneration changes nothing.
    alice
        .post(&path, json!({ "emergency": false }))
        .await
        .expect(200);
    alice.say(&conversation, "two").await.expect(201);
    receiver.receives(5).await;

    // An agent without a token has no webhook that delivers. The owner's PUT resumes it.
    let token = format!("/agents/{}/token", agent.id);
    alice.on(&b).delete(&token).await.expect(200);
    let suspended = alice.get(agent.webhook("")).await.expect(200);
    assert_eq!(suspended.data()["status"], "suspended");
    alice.say(&conversation, "three").await.expect(201);
    // Longer than a wake-up needs.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(receiver.events().len(), 5);
    assert_eq!(put(&alice, &agent, &receiver.url).await["status"], "active");
    receiver.receives(6).await;

    alice
        .delete(format!("/agents/{}", agent.id))
        .await
        .expect(200);
    for _ in 0..200 {
        let sql = "select 1 from webhook union all select 1 from webhook_delivery";
        let rows = psql(&a.world.database, sql).await;
        if rows
            .iter()
            .all(|row| !matches!(row, tokio_postgres::SimpleQueryMessage::Row(_)))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the log of a deleted agent is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_session_s_end_suspends_the_webhooks_of_its_agents() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let (alice, owned, genuine) = registered(&a).await;
    // The thief has the session of the phone: an agent and a webhook of its own, and a token of the
    // owner's agent.
    let phone = alice.login(&a, Some("phone")).await;
    let planted = a.agent(&phone, "planted").await;
    let receiver = Receiver::start().await;
    put(&phone, &planted, &receiver.url).await;
    let regenerate = format!("/agents/{}/token/regenerate", owned.id);
    let ordinary = json!({ "emergency": false });
    phone.post(&regenerate, ordinary.clone()).await.expect(200);
    let conversation = alice.talk_to(&planted).await;
    receiver.receives(2).await;
    receiver.behave(|_| Reply::status(200).after(Duration::from_secs(3)));
    alice.say(&conversation, "one").await.expect(201);
    receiver.receives(3).await;

    phone.refreshed().await;
    a.advance(Duration::from_secs(11)).await;
    let reused = phone.on(&b).with_cookie("/auth/refresh").await;
    reused.refused(401, "TOKEN_EXPIRED");
    for agent in [&planted, &owned] {
        let webhook = alice.on(&b).get(agent.webhook("")).await.expect(200);
        assert_eq!(webhook.data()["status"], "suspended");
    }
    // The call under way is cut: its answer would come after three seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    receiver.answer(200);
    let cut = deliveries(&alice, &planted, "status=pending").await;
    assert_eq!(cut.len(), 1);
    alice.say(&conversation, "two").await.expect(201);
    // Longer than a wake-up needs.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(receiver.texts(), ["one"]);

    // The owner alone resumes, and nothing is lost.
    let resumed = put(&alice, &owned, &genuine.url).await;
    assert_eq!(resumed["status"], "active");
    let path = format!("/agents/{}/token/regenerate", planted.id);
    alice.post(path, ordinary).await.expect(200);
    let resumed = alice.post(planted.webhook("/verify"), json!({})).await;
    assert!(resumed.expect(200).data()["secret"].is_string());
    until_caught_up(&alice, &planted).await;
    assert_eq!(receiver.texts(), ["one", "one", "two"]);
}

/// The agents and their tokens are the owner's. Webhooks that the stolen session set last are suspended.
#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_session_s_end_suspends_the_webhooks_that_it_set() {
    let [a, b] = nodes_with(&[FAST, BUSY]).await;
    let alice = a.user("alice").await;
    let receiver = Receiver::start().await;
    let phone = alice.login(&a, Some("phone")).await;
    let mut agents = Vec::new();
    for name in ["moved", "rotated", "restored", "untouched", "its own"] {
        let agent = a.agent(&alice, name).await;
        put(&alice, &agent, &receiver.url).await;
        agents.push(agent);
    }
    let [moved, rotated, restored, _, own] = &agents[..] else {
        unreachable!("five agents");
    };
    put(&phone, moved, &receiver.url).await;
    let rotation = rotated.webhook("/rotate-secret");
    phone.post(rotation, json!({})).await.expect(200);
    // Set again afterwards, by the owner and by the agent itself.
    put(&phone, restored, &receiver.url).await;
    put(&alice, restored, &receiver.url).await;
    put(&phone, own, &receiver.url).await;
    let body = json!({ "url": receiver.url });
    own.put(own.webhook(""), body).await.expect(200);

    phone.refreshed().await;
    a.advance(Duration::from_secs(11)).await;
    let reused = phone.on(&b).with_cookie("/auth/refresh").await;
    reused.refused(401, "TOKEN_EXPIRED");
    let mut statuses = Vec::new();
    for agent in &agents {
        let webhook = alice.on(&b).get(agent.webhook("")).await.expect(200);
        statuses.push(webhook.data()["status"].clone());
        // No token of an agent ends.
        agent.get("/limits").await.expect(200);
    }
    assert_eq!(
        statuses,
        ["suspended", "suspended", "active", "active", "active"]
    );
}
