//! A change of `SERVER_SECRET`, under which endpoints are sealed and from which the server's key comes.

use std::time::Duration;

use serde_json::Value;

use super::{BUSY, PushService, path};
use crate::support::{ProcessNode, World, server_secrets};

const OLD: u8 = 2;
const NEW: u8 = 9;
/// Upkeep every second that otherwise comes every minute.
const OFTEN: (&str, &str) = ("UPKEEP_SPEED", "60");

async fn node(world: &World, secrets: &[u8]) -> ProcessNode {
    let ring = server_secrets(secrets);
    ProcessNode::start_in_with(world, &[("SERVER_SECRET", &ring), OFTEN]).await
}

/// Waits until a gauge that the node has measured is `wanted`.
async fn until_gauge(node: &ProcessNode, name: &str, wanted: f64) {
    for _ in 0..600 {
        let is_measured = node.metrics().await.contains(&format!("\n{name} "));
        if is_measured && node.metric(name, "").await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} is not {wanted}: {}", node.metrics().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_outlives_a_change_until_its_secret_leaves_the_ring() {
    let world = World::new(&[BUSY]).await;
    let old = server_secrets(&[OLD]);
    let first = world.node_with(&[("SERVER_SECRET", &old)]).await;
    let alice = first.user("alice").await;
    let bob = first.user("bob").await;
    let conversation = bob.direct_with(&alice).await;
    let service = PushService::start().await;
    service.subscribe(&alice).await;
    first.drain().await;

    let both = node(&world, &[NEW, OLD]).await;
    until_gauge(&both, "push_secrets_old", 0.0).await;
    bob.at(&both.base)
        .say(&conversation, "one")
        .await
        .expect(201);
    let pushes = service.receives(1).await;
    // The push service knows the key that the device subscribed with.
    let key = alice.at(&both.base).get("/push/key").await.expect(200);
    let key = key.data()["public_key"].as_str().expect("a key").to_owned();
    assert!(!pushes[0].header("authorization").ends_with(&key));
    both.terminate();

    let new = node(&world, &[NEW]).await;
    until_gauge(&new, "push_secrets_unreadable", 0.0).await;
    world.advance(Duration::from_secs(11)).await;
    let (alice, bob) = (alice.at(&new.base), bob.at(&new.base));
    bob.say(&conversation, "two").await.expect(201);
    let own = path(&alice.device_id);
    for _ in 0..400 {
        let shown = alice.get(&own).await.expect(200).data().clone();
        if shown["last_error"] != Value::Null {
            assert_eq!(shown["last_error"], "secret_unreadable");
            service.subscribe(&alice).await;
            bob.say(&conversation, "three").await.expect(201);
            let pushes = service.receives(2).await;
            assert!(pushes[1].header("authorization").ends_with(&key));
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the owner sees nothing");
}
