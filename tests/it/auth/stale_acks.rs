//! Acks of a credential that is dead already, although its socket does not know it yet.

use serde_json::json;

use crate::support::{connect, nodes, psql};

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_of_a_revoked_token_moves_nothing() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut socket = agent.connect().await;
    alice.say(&conversation, "for the agent").await.expect(201);
    let event = socket.event("message.created").await;
    // Committed, and the node hears of it with its next sweep only.
    let revoke = "update agent_token set revoked_at = app_now(), revoke_reason = 'token_revoked'";
    psql(&a.world.database, revoke).await;
    socket
        .say(json!({ "type": "ack", "cursor": event["cursor"] }))
        .await;
    let told = socket.expect_close(4403).await;
    assert_eq!(told.last().expect("a frame")["type"], "session.invalidated");
    let postgres = connect(&a.world.database).await;
    let acked = "select max(r.acked_seq) < i.head_seq as is_behind from inbox_reader r join inbox i using (principal_id)
        where r.principal_id = $1 group by i.head_seq";
    let id: uuid::Uuid = agent.id.parse().expect("a UUID");
    let row = postgres.query_one(acked, &[&id]).await.expect("a reader");
    assert!(row.get::<_, bool>("is_behind"));
}
