//! Whoever reads Redis, or its slow log, finds no address and no e-mail there.

use fred::interfaces::ClientLike;
use futures_util::StreamExt;
use serde_json::json;

use crate::support::{nodes, redis_client};

#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_redis_shows_an_address_or_an_e_mail() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = b.agent(&alice, "helper").await;
    let address = alice.ip().to_string();
    // Windows of every kind of address: of callers, mailboxes, and origins of webhooks.
    let caller = alice.stranger().on(&b);
    let address_of_stranger = caller.ip().to_string();
    let body =
        json!({ "email": "Wombat@example.org", "scene": "login", "turnstile_token": "dev-pass" });
    caller.post("/auth/send-code", &body).await.expect(200);
    caller
        .post("/auth/send-code", &body)
        .await
        .refused(429, "RATE_LIMITED");
    let webhook = json!({ "url": "http://wombat.example.net:8443/" });
    alice.put(agent.webhook(""), webhook).await;
    caller.get("/share/none").await;

    let redis = redis_client(a.world.setting("REDIS_URL")).await;
    let pattern = format!("{}:*", a.world.setting("REDIS_PREFIX"));
    let found: Vec<_> = if redis.is_clustered() {
        redis
            .scan_cluster_buffered(pattern, Some(1000), None)
            .collect()
            .await
    } else {
        redis
            .scan_buffered(pattern, Some(1000), None)
            .collect()
            .await
    };
    let keys: Vec<String> = found
        .into_iter()
        .map(|key| key.expect("a key").into_string().expect("text"))
        .collect();
    for scope in [
        "auth_send_code",
        "auth_register_ip",
        "share_open",
        "webhook_origin",
    ] {
        assert!(
            keys.iter().any(|key| key.contains(scope)),
            "{scope}: {keys:?}"
        );
    }
    for word in ["@", "wombat", &address, &address_of_stranger, "example"] {
        let shown: Vec<_> = keys
            .iter()
            .filter(|key| key.to_lowercase().contains(word))
            .collect();
        assert!(shown.is_empty(), "{word}: {shown:?}");
    }
}
