//! A right token is refused for nothing that is no guess: a caller who leaves, a fault of Postgres.

use std::time::Duration;

use crate::support::{connect, nodes_with};

const LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "agent_token_unknown=1/10min,agent_token_wrong=1/10min",
);

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_leave_while_their_token_is_verified_are_charged_nothing() {
    let [a] = nodes_with(&[LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let lock = connect(&a.world.database).await;
    let held = "begin; lock table agent_token in access exclusive mode";
    lock.batch_execute(held).await.expect("held");
    let left = tokio::time::timeout(Duration::from_millis(200), agent.poll(""));
    assert!(left.await.is_err(), "nobody can look it up");
    lock.batch_execute("rollback").await.expect("let go");
    // The look-ups that were begun end, and give their charges back.
    let is_served = async {
        while agent.poll("").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let served = tokio::time::timeout(Duration::from_secs(10), is_served).await;
    served.expect("the charges are given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_that_fails_is_charged_to_nobody() {
    let [a] = nodes_with(&[LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let lock = connect(&a.world.database).await;
    let held = "begin; lock table agent_token in access exclusive mode";
    lock.batch_execute(held).await.expect("held");
    let answer = agent.poll("").await;
    assert!(answer.status >= 500, "{}", answer.status);
    lock.batch_execute("rollback").await.expect("let go");
    agent.poll("").await.expect(200);
}
