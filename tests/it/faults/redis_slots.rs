//! A Redis Cluster changes under load: a master gives its hash slots away, and another dies and
//! is replaced by its replica.

use super::{
    load::{LOAD_LIMITS, Load, Revoked, is_closed_by_the_sweep},
    redis_sentinel::{limits_are_exact, until_hints_are_fast},
};
use crate::support::{TestNode, nodes_with, redis_cluster};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
async fn moved_slots_and_a_lost_master_of_a_redis_cluster_lose_nothing() {
    let (mut cluster, replica) = {
        let cluster = redis_cluster("slots").await;
        tokio::task::spawn_blocking(move || {
            let replica = cluster.replica_of(&cluster.masters[1]).expect("a replica");
            (cluster, replica)
        })
        .await
        .expect("no panic")
    };
    let url = cluster.url();
    let nodes: [TestNode; 2] =
        nodes_with(&[("LIMIT_OVERRIDES", LOAD_LIMITS), ("REDIS_URL", &url)]).await;
    let alice = nodes[0].user("alice").await;
    let thieves = [
        alice.login(&nodes[1], None).await,
        alice.login(&nodes[1], None).await,
    ];
    let thief_socket = thieves[1].on(&nodes[1]).connect().await;
    let agent = nodes[0].agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.on(&nodes[1]).connect().await;
    let load = Load::start(&nodes).await;
    load.until_acked(50).await;
    until_hints_are_fast(&alice, &conversation, &mut socket).await;

    // Some 5,000 of its slots go to the others: channels of nodes, the directory, limits, slots.
    let moved = tokio::task::spawn_blocking(move || {
        cluster.move_slots_from(&cluster.masters[0]).expect("moved");
        cluster
    });
    let revoked = Revoked::watch(&nodes, &alice, &thieves[0]).await;
    cluster = moved.await.expect("no panic");
    until_hints_are_fast(&alice, &conversation, &mut socket).await;
    limits_are_exact(&nodes, &alice).await;
    load.until_acked(50).await;
    revoked.was_refused().await;

    cluster.masters[1].kill();
    let revoked = Revoked::watch(&nodes, &alice, &thieves[1]).await;
    is_closed_by_the_sweep(thief_socket).await;
    load.until_acked(50).await;
    until_hints_are_fast(&alice, &conversation, &mut socket).await;
    limits_are_exact(&nodes, &alice).await;
    revoked.was_refused().await;
    let outcome = load.judge().await;
    assert_eq!(outcome.max_resyncs, 0);
    drop((cluster, replica));
}
