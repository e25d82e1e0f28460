//! Heartbeats beside frames that wait.

use std::time::Duration;

use serde_json::json;

use crate::support::{blocked, connect, nodes_with};

/// The interval between two pings, and the time that a pong may take.
const HEARTBEAT: Duration = Duration::from_secs(25);
const PONG: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// A socket with 64 waiting sends is not read, and neither are its pongs.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_frames_wait_is_not_taken_for_gone() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=100000/s")]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let mut socket = alice.connect().await;
    socket.expect("caught_up").await;
    let mut postgres = connect(&a.world.database).await;
    let held = postgres.transaction().await.expect("begun");
    held.batch_execute("select from conversation for update")
        .await
        .expect("locked");
    for n in 0..59 {
        socket.say(json!({ "type": "message.send", "ref": n, "conversation_id": group, "payload": { "type": "t" } })).await;
    }
    blocked(&held, 1).await;
    // Real time: sixty frames a second are no flood.
    tokio::time::sleep(SECOND).await;
    for n in 59..90 {
        socket.say(json!({ "type": "message.send", "ref": n, "conversation_id": group, "payload": { "type": "t" } })).await;
    }
    for step in [HEARTBEAT + SECOND, PONG + SECOND, PONG + SECOND] {
        // Real time: the node takes what it may, and its timers fire.
        tokio::time::sleep(Duration::from_millis(100)).await;
        a.advance(step).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.rollback().await.expect("released");
    let mut answered = 0;
    while answered < 90 {
        let frame = socket
            .next()
            .await
            .unwrap_or_else(|code| panic!("closed with {code:?} after {answered}"));
        answered += u32::from(frame["ref"].is_u64());
    }
}
