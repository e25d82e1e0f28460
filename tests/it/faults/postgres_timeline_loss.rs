//! Postgres returns without its latest commits. Revoked credentials stay revoked.

use std::time::{Duration, Instant};

use crate::support::{ProcessNode, TestNode, connect, nodes, psql, redis_client};
use fred::interfaces::SortedSetsInterface;

/// Waits until so many revocations are kept, and returns them.
async fn tombstones(node: &TestNode, n: usize) -> (fred::clients::Client, String, Vec<String>) {
    let redis = redis_client(node.world.setting("REDIS_URL")).await;
    let key = format!("{}:gone", node.world.setting("REDIS_PREFIX"));
    let started = Instant::now();
    loop {
        let all: Vec<String> = redis
            .zrange(&key, 0, -1, None, false, None, false)
            .await
            .expect("an answer");
        if all.len() >= n {
            return (redis, key, all);
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{all:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The words of a promoted standby that was behind, or of a restored backup.
const LOST: &str = "update session set revoked_at = null, revoke_reason = null;
                    update agent_token t set revoked_at = null, revoke_reason = null, bcrypt_hash = kept.hash
                    from kept where kept.token_id = t.token_id";
const RESTORED: &str = "update cluster set restores = restores + 1";

#[tokio::test(flavor = "multi_thread")]
async fn what_was_revoked_in_a_lost_tail_is_revoked_again() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let thief = alice.login(&a, None).await;
    let database = &a.world.database;
    psql(
        database,
        "create table kept as select token_id, bcrypt_hash as hash from agent_token",
    )
    .await;
    alice
        .delete(format!("/users/me/devices/{}", thief.device_id))
        .await
        .expect(200);
    alice
        .delete(format!("/agents/{}/token", agent.id))
        .await
        .expect(200);
    let (redis, key, kept) = tombstones(&a, 2).await;
    assert!(
        kept.iter().all(|entry| !entry.contains(&agent.token[4..])),
        "{kept:?}"
    );

    psql(database, LOST).await;
    // Back to life, on both nodes: that is what must not last.
    for node in [&a, &b] {
        thief.on(node).get("/users/me").await.expect(200);
        agent.on(node).poll("").await.expect(200);
    }
    let sql = "select (select count(*) from session where revoked_at is not null and revoke_reason = 'device_revoked'),
                      (select count(*) from agent_token where revoked_at is not null and bcrypt_hash is null)";
    let client = connect(database).await;
    let revoked = async || {
        let row = client.query_one(sql, &[]).await.expect("counts");
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    assert_eq!(revoked().await, (0, 0));
    // Nobody who can write to Redis revokes anything: neither by a name alone nor by another's
    // seal.
    let row = client
        .query_one(
            "select session_id from session where device_id = $1",
            &[&alice.device_id],
        )
        .await;
    let other: uuid::Uuid = row.expect("a session").get(0);
    let seal = kept[0].rsplit(' ').next().expect("a seal");
    for forged in [
        format!("{} logout {seal}", other.simple()),
        format!("{} logout ", other.simple()),
        "junk".to_owned(),
    ] {
        redis
            .zadd::<(), _, _>(&key, None, None, false, false, (1e15, forged))
            .await
            .expect("written");
    }
    psql(database, RESTORED).await;
    let started = Instant::now();
    while revoked().await != (1, 1) {
        assert!(started.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in [&a, &b] {
        thief
            .on(node)
            .get("/users/me")
            .await
            .refused(401, "UNAUTHORIZED");
        agent
            .on(node)
            .poll("")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
        // And nobody else is concerned.
        alice.on(node).get("/users/me").await.expect(200);
    }
    assert_eq!(revoked().await, (1, 1));
    // Nor does it matter that nobody was there when it happened: a node looks when it starts.
    psql(database, LOST).await;
    let _late = ProcessNode::start(&a).await;
    let started = Instant::now();
    while revoked().await != (1, 1) {
        assert!(started.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
