//! The routes of a subscription.

use serde_json::{Value, json};

use super::{PushService, Scene, path};
use crate::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_shown_without_its_secrets_and_ends_by_its_owner_alone() {
    let scene = Scene::new().await;
    let own = path(&scene.alice.device_id);
    let shown = scene.alice.on(&scene.nodes[1]).get(&own).await.expect(200);
    assert_eq!(shown.data()["device_id"], *scene.alice.device_id);
    assert_eq!(shown.data()["kind"], "webpush");
    assert_eq!(shown.data()["last_error"], Value::Null);
    let text = shown.body.to_string();
    for secret in ["endpoint", "a-secret-address", "auth", "p256dh"] {
        assert!(!text.contains(secret), "{text}");
    }
    // A device of somebody else is none.
    let body = scene.service.subscription();
    scene.bob.get(&own).await.refused(404, "NOT_FOUND");
    scene.bob.put(&own, &body).await.refused(404, "NOT_FOUND");
    scene.bob.delete(&own).await.refused(404, "NOT_FOUND");
    let unknown = path("no-device");
    scene.alice.get(&unknown).await.refused(404, "NOT_FOUND");
    scene
        .alice
        .put(&unknown, &body)
        .await
        .refused(404, "NOT_FOUND");

    // Another device of the owner may end it.
    let laptop = scene.alice.login(&scene.nodes[1], Some("laptop")).await;
    let mut unified = body.clone();
    unified["kind"] = json!("unifiedpush");
    let changed = laptop.put(&own, &unified).await.expect(200);
    assert_eq!(changed.data()["kind"], "unifiedpush");
    laptop.delete(&own).await.expect(200);
    scene.alice.get(&own).await.refused(404, "NOT_FOUND");
    scene.alice.delete(&own).await.refused(404, "NOT_FOUND");
    scene.says("unheard").await;
    scene.stays_at(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_subscription_is_refused() {
    let scene = Scene::new().await;
    let own = path(&scene.alice.device_id);
    for (field, value) in [
        ("p256dh", json!("AAAA")),
        // 65 bytes, and no point.
        ("p256dh", json!("BA".to_owned() + &"A".repeat(85))),
        ("auth", json!("AAAA")),
        ("auth", json!("!!!")),
        ("endpoint", json!("ftp://push.example/x")),
        ("endpoint", json!("not a url")),
        ("endpoint", json!("http://192.168.0.1/x")),
        ("endpoint", json!("http://10.0.0.1/x")),
        ("endpoint", json!("http://169.254.169.254/latest")),
        ("endpoint", json!("http://[::ffff:10.0.0.1]/x")),
    ] {
        let mut body = scene.service.subscription();
        body[field] = value.clone();
        let refused = scene.alice.put(&own, body).await;
        let refused = refused.refused(400, "VALIDATION_ERROR");
        let fields = refused.body["error"]["params"]["fields"].to_string();
        assert!(fields.contains(field), "{field} {value}: {}", refused.body);
    }
}

/// Outside the dev profile neither loopback nor http is called.
#[tokio::test(flavor = "multi_thread")]
async fn production_refuses_loopback_and_http() {
    let rules = blindpipe::egress::UrlRules::default();
    let service = PushService::start().await;
    for url in [
        service.endpoint.as_str(),
        "https://127.0.0.1/x",
        "https://[::1]/x",
    ] {
        let settings = blindpipe::egress::EgressSettings {
            rules: rules.clone(),
            name_servers: Vec::new(),
            max_in_flight: 1,
            max_in_flight_per_origin: 1,
            timeout: std::time::Duration::from_secs(5),
            roots: None,
        };
        let egress = blindpipe::egress::Egress::new(settings, ());
        assert!(egress.check(url).await.is_err(), "{url}");
    }
    assert_eq!(service.pushes().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_show_one_key() {
    let world = World::new(&[]).await;
    let (a, b) = (world.node().await, world.node().await);
    let key = async |node: &crate::support::TestNode| {
        let answer = node.anon().get("/push/key").await.expect(200);
        answer.data()["public_key"]
            .as_str()
            .expect("a key")
            .to_owned()
    };
    let shown = key(&a).await;
    assert_eq!(shown.len(), 87);
    assert_eq!(shown, key(&b).await);
}
