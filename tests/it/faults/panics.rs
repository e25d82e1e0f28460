//! Tasks that panic: an operator reads which one and what follows, and its work goes on.

use std::time::{Duration, Instant};

use crate::support::{ProcessNode, nodes, psql};

/// Waits until the sweep of a node has panicked so often.
async fn panicked(node: &ProcessNode, times: f64) {
    let began = Instant::now();
    while node
        .metric("task_panics_total", "task=\"reconciler\"")
        .await
        < times
    {
        let waited = began.elapsed();
        assert!(
            waited < Duration::from_secs(20),
            "it runs on: {}",
            node.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An epoch that is null is a value that no code expects, so the sweep panics for real.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_panics_is_logged_counted_and_started_again() {
    let [a] = nodes().await;
    let node = ProcessNode::start(&a).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let mut socket = agent.at(&node.base).connect().await;
    socket.expect("caught_up").await;
    let database = &a.world.database;
    let plant = "alter table cluster alter column restores drop not null;
                 update cluster set restores = null";
    psql(database, plant).await;
    // The second one shows that it was started again.
    panicked(&node, 2.0).await;
    let log = node.log();
    let line = log
        .lines()
        .find(|line| line.contains("\"a task panicked\""))
        .unwrap_or_else(|| panic!("no line: {log}"));
    for field in [
        "\"level\":\"ERROR\"",
        "\"operation\":\"reconciler\"",
        "\"remedy\":\"the task starts again\"",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
    // Nobody publishes this revocation, so only the sweep can find it.
    let heal_and_revoke = format!(
        "update cluster set restores = 0;
         update agent_token set revoked_at = app_now(), revoke_reason = 'token_revoked', bcrypt_hash = null
         where agent_id = '{}'",
        agent.id
    );
    psql(database, &heal_and_revoke).await;
    socket.expect("session.invalidated").await;
}
