//! Failures of push services, lost hints, and nodes that die.

use std::time::Duration;

use serde_json::{Value, json};

use super::{BUSY, PushService, Scene, path};
use crate::support::{ProcessNode, nodes_with, psql, request_upkeep};

#[tokio::test(flavor = "multi_thread")]
async fn a_push_service_that_fails_is_asked_again_later_and_at_most_six_times() {
    let scene = Scene::new().await;
    scene
        .service
        .answer(&[(500, None), (429, Some(100)), (503, None)]);
    let message = scene.says("one").await;
    scene.service.receives(1).await;
    scene.stays_at(1).await;
    let own = path(&scene.alice.device_id);
    let shown = scene.alice.get(&own).await.expect(200);
    assert_eq!(shown.data()["last_error"], "unexpected_status");
    scene.advance(7).await;
    scene.settles_at(2).await;
    // The push service asked for more than the wait of 20 seconds.
    scene.advance(30).await;
    scene.stays_at(2).await;
    scene.advance(75).await;
    scene.settles_at(3).await;
    scene.advance(100).await;
    let pushes = scene.service.receives(4).await;
    assert!(
        pushes
            .iter()
            .all(|push| push.content["event_id"] == *message)
    );
    for _ in 0..200 {
        let shown = scene.alice.get(&own).await.expect(200);
        if shown.data()["last_error"] == Value::Null {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }

    scene.advance(11).await;
    scene.service.answer(&[(500, None); 20]);
    scene.says("two").await;
    for n in 5..=10 {
        scene.settles_at(n).await;
        scene.advance(2_000).await;
    }
    scene.stays_at(10).await;
}

/// A refusal is repeated by no attempt, and the owner sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_is_refused_is_given_up() {
    let scene = Scene::new().await;
    scene.service.answer(&[(403, None)]);
    scene.says("one").await;
    scene.service.receives(1).await;
    scene.advance(60).await;
    scene.stays_at(1).await;
    let own = path(&scene.alice.device_id);
    let shown = scene.alice.get(own).await.expect(200);
    assert_eq!(shown.data()["last_error"], "unexpected_status");
    scene.says("two").await;
    scene.service.receives(2).await;
}

/// Both nodes hear of each message, and both claim.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_race_push_once() {
    let scene = Scene::new().await;
    for round in 1..=5 {
        let sends = (0..8).map(|n| {
            let sender = scene.bob.on(&scene.nodes[n % 2]);
            let conversation = scene.conversation.clone();
            async move { sender.say(&conversation, "at once").await.expect(201) }
        });
        futures_util::future::join_all(sends).await;
        // One at once, and one for what came after it.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        scene.advance(10).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let pushes = scene.service.pushes().len();
        assert!((round..=2 * round).contains(&pushes), "{pushes} pushes");
        scene.advance(10).await;
    }
}

/// The node that stored the message dies before its hint.
#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_finds_what_a_dead_node_did_not_tell() {
    let scene = Scene::new().await;
    let database = &scene.nodes[0].world.database;
    // As a commit leaves the rows, without the hint.
    let lost = "with e as (insert into event (event_id, kind, data) values (gen_random_uuid(), 'key.backup_accessed', '{}')
                returning event_id),
            i as (update inbox set head_seq = head_seq + 1 where principal_id = (select user_id from push_subscription) returning principal_id, head_seq)
        insert into inbox_entry (principal_id, seq, events, event_ids)
        select principal_id, head_seq, 1, array[event_id] from e, i";
    psql(database, lost).await;
    request_upkeep(database, "sweep_pushes").await;
    let pushes = scene.service.receives(1).await;
    assert_eq!(pushes[0].event(), "key.backup_accessed");
}

/// A worker is killed while it calls. Another one pushes when its lease is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_push_is_made_by_another() {
    let [a] = nodes_with(&[BUSY, ("WEBHOOK_WORKER", "false")]).await;
    let mut worker = ProcessNode::start_worker(&a, &[]).await;
    let alice = a.user("alice").await;
    let bob = a.user("bob").await;
    let conversation = bob.direct_with(&alice).await;
    // A push service that accepts and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = silent.local_addr().expect("an address");
    let service = PushService::start().await;
    let mut body = service.subscription();
    body["endpoint"] = json!(format!("http://{address}/x"));
    alice.put(path(&alice.device_id), body).await.expect(200);
    bob.say(&conversation, "one").await.expect(201);
    let _call = silent.accept().await.expect("a call");
    worker.kill();
    service.subscribe(&alice).await;
    let _other = ProcessNode::start_worker(&a, &[]).await;
    a.advance(Duration::from_secs(31)).await;
    service.receives(1).await;
}
