//! The sweep finds what no hint has said, and costs what changed.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::support::{Socket, User, claims_of, connect, nodes, nodes_with, private_redis};

/// The bound of a revocation that no node was told of.
const REVOCATION_BOUND: Duration = Duration::from_secs(3);

fn session_of(user: &User) -> Uuid {
    let claims = claims_of(&user.access_token);
    let id: ulid::Ulid = claims["sid"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .expect("a ULID");
    Uuid::from(id)
}

async fn expect_revoked(socket: Socket, from: Instant) {
    let last = socket.expect_close(4403).await.pop().expect("a frame");
    assert_eq!(last["type"], "session.invalidated");
    let took = from.elapsed();
    assert!(took < REVOCATION_BOUND, "{took:?}");
}

const REVOKE: &str =
    "update session set revoked_at = app_now(), revoke_reason = 'logout' where session_id = $1";

/// The transaction that revokes first commits last. A reader that only remembers how far it has
/// read would pass it by.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_that_commits_late_is_found() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let tablet = alice.login(&a, Some("tablet")).await;
    let mut sockets = [phone.on(&b).connect().await, tablet.on(&b).connect().await];
    for socket in &mut sockets {
        socket.expect("caught_up").await;
    }
    let [phone_socket, tablet_socket] = sockets;
    let late = connect(&a.world.database).await;
    late.batch_execute("begin").await.expect("a transaction");
    late.execute(REVOKE, &[&session_of(&phone)])
        .await
        .expect("revoked");
    let prompt = connect(&a.world.database).await;
    let started = Instant::now();
    prompt
        .execute(REVOKE, &[&session_of(&tablet)])
        .await
        .expect("revoked");
    expect_revoked(tablet_socket, started).await;
    late.batch_execute("commit").await.expect("committed");
    expect_revoked(phone_socket, Instant::now()).await;
}

/// Redis is away, so no invalidation can cross; nodes hear of it from the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_without_redis_ends_its_sockets_within_the_bound() {
    let mut redis = private_redis("revoking").await;
    let url = redis.url();
    let [a, b] = nodes_with(&[("REDIS_URL", &url)]).await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let mut socket = phone.on(&b).connect().await;
    socket.expect("caught_up").await;
    redis.kill();
    let started = Instant::now();
    alice.delete("/users/me/devices/phone").await.expect(200);
    expect_revoked(socket, started).await;
}
