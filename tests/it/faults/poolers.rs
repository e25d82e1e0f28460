//! A pooler that drops the options of a connection would leave a node without its time-outs.

use devcluster::services::SERVING_ROLE;
use serde_json::json;

use crate::support::{Ended, ProcessNode, nodes, psql, services, spawn, without_options};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_its_time_outs_refuses_to_serve() {
    let [a] = nodes().await;
    let world = &a.world;
    let port = services().postgres.port();
    let (pooler, relay) = without_options(port).await;
    spawn(relay);
    let direct = world.setting("DATABASE_URL");
    let pooled = direct.replace(&format!(":{port}/"), &format!(":{pooler}/"));
    assert_ne!(direct, pooled);
    let pooled = [("DATABASE_URL", pooled.as_str())];

    let (_, name) = world.database.rsplit_once('/').expect("a database");
    let set = async |setting: &str, ms: u32| {
        let sql = format!("alter role {SERVING_ROLE} in database {name} set {setting} = {ms}");
        psql(&services().postgres.admin_url(), &sql).await;
    };
    let refuses = async || {
        let Ended { code, said } = ProcessNode::ends(world, &pooled).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("for example by a pooler"), "{said}");
    };
    refuses().await;
    // A bound on statements is none on the locks that they hold between two of them.
    set("statement_timeout", 20_000).await;
    refuses().await;
    set("lock_timeout", 10_000).await;
    refuses().await;
    // Longer than the nodes' own.
    set("idle_in_transaction_session_timeout", 50_001).await;
    refuses().await;

    // The role has them instead, as the chart's document says.
    set("idle_in_transaction_session_timeout", 50_000).await;
    let node = ProcessNode::start_with(&a, &pooled).await;
    let alice = a.user("alice").await;
    let group = alice.group_with(&[]).await;
    let body = json!({ "payload": { "type": "encrypted" } });
    let path = format!("/conversations/{group}/messages");
    alice.at(&node.base).post(path, body).await.expect(201);
}
