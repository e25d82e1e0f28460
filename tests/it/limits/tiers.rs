//! The tier of an agent: read from its groups, however many conversations it has, and once a
//! minute.

use serde_json::json;

use crate::support::{Agent, User, crowd, nodes_with, psql};

/// The rows of `GET /limits` that are tiers.
async fn tiers(agent: &Agent) -> Vec<String> {
    let limits = agent.get("/limits").await.expect(200);
    let rows = limits.data().as_array().expect("a list").iter();
    rows.filter_map(|row| row["scope"].as_str())
        .filter(|scope| scope.starts_with("agent_tier"))
        .map(str::to_owned)
        .collect()
}

/// Two agents in a group of twelve.
async fn in_a_group(alice: &User, agents: [&Agent; 2], database: &str) {
    let members: Vec<String> = crowd(database, 9).await;
    let group = json!({ "title": "g", "member_ids": members });
    let made = alice.post("/groups", group).await.expect(201);
    let group = made.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    for agent in agents {
        alice.talk_to(agent).await;
        let place = json!({ "agent_id": agent.id, "visibility": "all" });
        alice
            .post(format!("/groups/{group}/agent-instances"), place)
            .await
            .expect(201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_cannot_be_read_is_not_asked_for_at_every_call() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "group_agent_instance=100000/s")]).await;
    let database = &a.world.database;
    let alice = a.user("alice").await;
    let [popular, other] = [
        a.agent(&alice, "popular").await,
        a.agent(&alice, "other").await,
    ];
    in_a_group(&alice, [&popular, &other], database).await;

    psql(
        database,
        "alter table member rename column instance_id to instance_away",
    )
    .await;
    assert_eq!(tiers(&popular).await, ["agent_tier_1"]);
    psql(
        database,
        "alter table member rename column instance_away to instance_id",
    )
    .await;
    // It is remembered like an answer; another agent's is read.
    assert_eq!(tiers(&popular).await, ["agent_tier_1"]);
    assert_eq!(tiers(&other).await, ["agent_tier_2"]);
}
