//! When a device is pushed: windows, and sockets that may still ack.

use super::Scene;

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_has_one_push_in_ten_seconds_and_the_rest_goes_as_one() {
    let scene = Scene::new().await;
    scene.says("one").await;
    scene.service.receives(1).await;
    scene.says("two").await;
    let three = scene.says("three").await;
    scene.stays_at(1).await;
    // Another conversation has a window of its own.
    let carol = scene.nodes[0].user("carol").await;
    let other = carol.direct_with(&scene.alice).await;
    carol.say(&other, "hello").await.expect(201);
    let pushes = scene.service.receives(2).await;
    assert_eq!(pushes[1].content["conversation_id"], *other);
    assert_ne!(pushes[1].header("topic"), pushes[0].header("topic"));

    scene.advance(10).await;
    let pushes = scene.service.receives(3).await;
    assert_eq!(pushes[2].content["event_id"], *three);
    assert_eq!(pushes[2].header("topic"), pushes[0].header("topic"));
    assert!(pushes[2].content["count"].as_i64() > pushes[0].content["count"].as_i64());
    // Nothing was held back in this window.
    scene.advance(11).await;
    scene.stays_at(3).await;
    scene.says("four").await;
    scene.service.receives(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_acks_is_not_pushed_and_one_that_does_not_is_after_half_a_minute() {
    let scene = Scene::new().await;
    let mut socket = scene.alice.on(&scene.nodes[1]).connect().await;
    scene.says("seen").await;
    let seen = socket.event("message.created").await;
    let ack = serde_json::json!({ "type": "ack", "cursor": seen["cursor"] });
    socket.say(ack).await;
    scene.stays_at(0).await;
    scene.advance(31).await;
    scene.stays_at(0).await;

    // A frozen tab: its socket lives, and acks nothing.
    let unseen = scene.says("unseen").await;
    socket.event("message.created").await;
    scene.stays_at(0).await;
    scene.advance(31).await;
    let pushes = scene.service.receives(1).await;
    assert_eq!(pushes[0].content["event_id"], *unseen);
    assert_eq!(pushes[0].content["count"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_ends_leaves_what_it_has_not_acked_to_the_push() {
    let scene = Scene::new().await;
    let mut socket = scene.alice.connect().await;
    let message = scene.says("unseen").await;
    socket.event("message.created").await;
    scene.stays_at(0).await;
    drop(socket);
    let pushes = scene.service.receives(1).await;
    assert_eq!(pushes[0].content["event_id"], *message);
}

/// A socket of another device says nothing about this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_another_device_holds_up_nothing() {
    let scene = Scene::new().await;
    let laptop = scene.alice.login(&scene.nodes[1], Some("laptop")).await;
    let mut socket = laptop.connect().await;
    scene.says("on the laptop").await;
    socket.event("message.created").await;
    scene.service.receives(1).await;
}
