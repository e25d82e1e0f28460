//! The end of subscriptions: by the push service, by the session, by the account.

use std::time::Duration;

use super::{Scene, path};
use crate::support::connect;

async fn subscriptions(scene: &Scene) -> i64 {
    let client = connect(&scene.nodes[0].world.database).await;
    let row = client
        .query_one("select count(*) from push_subscription", &[])
        .await
        .expect("a count");
    row.get(0)
}

/// Waits until no subscription is left.
async fn until_none(scene: &Scene) {
    for _ in 0..400 {
        if subscriptions(scene).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("a subscription is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_service_ends_a_subscription_with_404_and_410() {
    for status in [404, 410] {
        let scene = Scene::new().await;
        scene.service.answer(&[(status, None)]);
        scene.says("one").await;
        scene.service.receives(1).await;
        until_none(&scene).await;
        let own = path(&scene.alice.device_id);
        scene.alice.get(own).await.refused(404, "NOT_FOUND");
        scene.says("two").await;
        scene.stays_at(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_ends_its_subscription() {
    for name in ["device", "account"] {
        let scene = Scene::new().await;
        let laptop = scene.alice.login(&scene.nodes[1], Some("laptop")).await;
        let end = match name {
            "device" => format!("/users/me/devices/{}", scene.alice.device_id),
            _ => "/users/me".to_owned(),
        };
        laptop.delete(end).await.expect(200);
        scene.says(name).await;
        until_none(&scene).await;
        scene.stays_at(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_out_ends_it_and_a_new_session_subscribes_anew() {
    let scene = Scene::new().await;
    scene.alice.with_cookie("/auth/logout").await.expect(200);
    until_none(&scene).await;
    let device = scene.alice.device_id.clone();
    let back = scene.alice.login(&scene.nodes[1], Some(&device)).await;
    scene.says("unheard").await;
    scene.stays_at(0).await;
    scene.service.subscribe(&back).await;
    let heard = scene.says("heard").await;
    let pushes = scene.service.receives(1).await;
    assert_eq!(pushes[0].content["event_id"], *heard);
}
