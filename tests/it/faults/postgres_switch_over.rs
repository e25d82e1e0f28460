//! A primary with a synchronous standby ends in mid-load, as Patroni ends it, and the standby takes
//! its place. Nodes know both hosts and look for the one that takes writes.

use std::time::{Duration, Instant};

use devcluster::services::PostgresServer;

use super::load::{LOAD_LIMITS, Load, Revoked};
use crate::support::{TestNode, nodes_with, synchronous_postgres};

/// The URL of nodes that names both hosts.
fn url_of_both(servers: &[PostgresServer; 2]) -> String {
    let [first, second] = servers.each_ref().map(PostgresServer::port);
    let hosts = format!("127.0.0.1:{first},127.0.0.1:{second}");
    let url = servers[0].serving_url();
    url.replace(&format!("127.0.0.1:{first}"), &hosts)
}

async fn is_ready(node: &TestNode) -> bool {
    let answer = reqwest::get(format!("{}/health/ready", node.admin)).await;
    answer.is_ok_and(|answer| answer.status().is_success())
}

/// Ends the primary in mid-load with `end`, promotes the standby, and judges.
async fn switch_over(name: &'static str, end: fn(&mut PostgresServer)) {
    let mut servers = synchronous_postgres(name).await;
    let url = url_of_both(&servers);
    let nodes: [TestNode; 2] =
        nodes_with(&[("LIMIT_OVERRIDES", LOAD_LIMITS), ("DATABASE_URL", &url)]).await;
    let alice = nodes[0].user("alice").await;
    let thief = alice.login(&nodes[1], None).await;
    let load = Load::start(&nodes).await;
    load.until_acked(100).await;

    // The last commit of the primary that anybody was told of ends a device.
    let revoked = Revoked::watch(&nodes, &alice, &thief).await;
    let since = Instant::now();
    let servers = tokio::task::spawn_blocking(move || {
        end(&mut servers[0]);
        servers[1].promote().expect("promoted");
        servers
    })
    .await
    .expect("no panic");
    load.until_acked(100).await;
    // Requests wait for a second at most. Nodes look for the primary with each new connection.
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "{:?}",
        since.elapsed()
    );
    for node in &nodes {
        while !is_ready(node).await {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "it gets not ready"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    load.until_acked(100).await;
    // The timeline is another, so listeners are told to start anew, by the sweep at the latest.
    load.until_resynced().await;
    revoked.was_refused().await;
    let outcome = load.judge().await;
    assert!(outcome.acked >= 300, "{outcome:?}");
    drop(servers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_over_of_postgres_loses_and_doubles_nothing() {
    switch_over("switch-over", PostgresServer::stop).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_primary_loses_and_doubles_nothing() {
    switch_over("crash-over", PostgresServer::kill).await;
}
