//! Agents and their tokens.

use serde_json::json;

use crate::support::{nodes, nodes_with};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_a_token_of_the_documented_form() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let body = agent.token.strip_prefix("hsk_").expect("the prefix");
    assert!(body.len() == 40 && body.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{body:?}");
    assert_eq!(uuid::Uuid::parse_str(&agent.id).expect("a UUID").get_version_num(), 7);
    agent.on(&b).poll("").await.expect(200);
    alice.post("/agents", json!({})).await.refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_own_token_opens_an_agents_routes() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let [one, two] = [a.agent(&alice, "one").await, a.agent(&alice, "two").await];
    let hashed = b.metric("token_cache_total", &["hashed"]).await;
    let path = format!("/agents/{}/messages/poll", one.id);
    for token in [
        "",
        "junk",
        "hsk_",
        &alice.access_token,
        &two.token,
        &one.token[..43],
        &format!("{}0", &one.token[..43]),
    ] {
        a.anon().with_token(token).get(&path).await.refused(401, "AGENT_TOKEN_INVALID");
    }
    a.anon().get(&path).await.refused(401, "AGENT_TOKEN_INVALID");
    one.get("/agents/not-an-id/messages/poll").await.refused(401, "AGENT_TOKEN_INVALID");
    alice
        .with_token(&one.token)
        .post("/agents", json!({ "display_name": "x" }))
        .await
        .refused(401, "UNAUTHORIZED");
    // Of all these, only what was somebody's token was worth a hash.
    let hashes = b.metric("token_cache_total", &["hashed"]).await - hashed;
    assert!(hashes <= 2.0, "{hashes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_agent_is_the_last_however_many_ask() {
    let [a, b] = nodes_with(&[("AGENTS_PER_USER", "5")]).await;
    let alice = a.user("alice").await;
    let users = [alice.on(&a), alice.on(&b)];
    let tries =
        (0..12).map(|n| users[n % 2].post("/agents", json!({ "display_name": format!("agent {n}") })));
    let answers = futures_util::future::join_all(tries).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 5);
    for answer in answers.into_iter().filter(|answer| answer.status != 201) {
        let refused = answer.refused(403, "AGENT_LIMIT_EXCEEDED");
        let params = &refused.body["error"]["params"];
        assert_eq!((&params["limit"], &params["alias"]), (&json!(5), &json!("AGT_008")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_token_spends_nobodys_budget() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    agent.say(&conversation, "known to the node").await.expect(201);
    let sql = "update agent_token set revoked_at = app_now(), bcrypt_hash = null";
    crate::support::psql(&a.world.database, sql).await;
    // Far more than the budget of five a second; every one is told that its token is dead, none that it is too fast.
    for _ in 0..20 {
        agent.say(&conversation, "x").await.refused(401, "AGENT_TOKEN_INVALID");
    }
}
