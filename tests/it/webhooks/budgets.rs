//! The budgets of calls that an owner can ask for: they may go to a stranger's address.

use serde_json::{Value, json};

use super::{put, registered};
use crate::support::{Agent, Answer, Receiver, TestNode, User, nodes_with};

fn scope(refused: &Answer) -> &Value {
    &refused.body["error"]["params"]["scope"]
}

async fn test(by: &User, agent: &Agent) -> Answer {
    by.post(agent.webhook("/test"), json!({})).await
}

/// An owner with an agent that has no webhook yet.
async fn owner(node: &TestNode, name: &str) -> (User, Agent) {
    let user = node.user(name).await;
    let agent = node.agent(&user, "helper").await;
    (user, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_shares_ten_calls_a_minute_with_all_its_agents() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "webhook_call=4/10min")]).await;
    let (alice, one, receiver) = registered(&a).await;
    let other = b.agent(&alice, "other").await;
    test(&alice, &one).await.expect(200);
    one.on(&b)
        .post(one.webhook("/test"), json!({}))
        .await
        .expect(200);
    put(&alice, &other, &receiver.url).await;
    let calls = receiver.all().len();
    let refusals = [
        test(&alice, &other).await,
        other.post(other.webhook("/verify"), json!({})).await,
        alice
            .put(one.webhook(""), json!({ "url": receiver.url }))
            .await,
    ];
    for refusal in refusals {
        let refusal = refusal.refused(429, "RATE_LIMITED");
        assert_eq!(scope(&refusal), "webhook_call");
    }
    assert_eq!(receiver.all().len(), calls, "nothing was posted");
    let (bob, of_bob) = owner(&b, "bob").await;
    put(&bob, &of_bob, &receiver.url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_a_budget_over_all_accounts() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "webhook_origin=3/10min")]).await;
    let (alice, agent, receiver) = registered(&a).await;
    test(&alice, &agent).await.expect(200);
    let (bob, of_bob) = owner(&b, "bob").await;
    put(&bob, &of_bob, &receiver.url).await;
    let calls = receiver.all().len();
    // Another path is the same origin.
    let (carol, of_carol) = owner(&b, "carol").await;
    let url = format!("{}/elsewhere", receiver.url.trim_end_matches('/'));
    let refused = carol
        .put(of_carol.webhook(""), json!({ "url": url }))
        .await
        .refused(429, "RATE_LIMITED");
    assert_eq!(scope(&refused), "webhook_origin");
    assert_eq!(receiver.all().len(), calls, "nothing was posted");
    // Another port is another origin.
    let elsewhere = Receiver::start().await;
    put(&carol, &of_carol, &elsewhere.url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_verified_gets_no_test() {
    let [a] = nodes_with(&[]).await;
    let (alice, agent) = owner(&a, "alice").await;
    let receiver = Receiver::start().await;
    receiver.refuse_challenges();
    put(&alice, &agent, &receiver.url).await;
    let refused = test(&alice, &agent).await.refused(403, "FORBIDDEN");
    let params = &refused.body["error"]["params"];
    assert_eq!(params["status"], "pending_verification");
    assert_eq!(receiver.all().len(), 1, "the challenge alone");
}
