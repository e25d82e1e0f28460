//! Backups ask for a fresh login.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn backups_are_read_after_a_fresh_login_and_the_other_devices_hear_of_it() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    alice
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(201);
    let mut other = alice.on(&b).connect().await;
    let phone = alice.login(&a, Some("phone")).await;
    phone.get("/keys/backup?device_id=phone").await.expect(200);
    let read = phone
        .get(format!("/keys/backup?device_id={}", alice.device_id))
        .await
        .expect(200);
    assert_eq!(read.data().as_array().expect("a list").len(), 1);
    let told = other.event("key.backup_accessed").await;
    assert_eq!(told["data"]["device_id"], "phone");
    assert!(told["data"]["at"].is_string());

    a.advance(Duration::from_secs(601)).await;
    let phone = phone.refreshed().await;
    phone
        .get("/keys/backup")
        .await
        .refused(403, "REAUTH_REQUIRED");
    let phone = alice.login(&a, Some("phone")).await;
    // Ten an hour; refused ones were free, the two above count.
    for n in 2..10 {
        phone
            .on(if n % 2 == 0 { &a } else { &b })
            .get("/keys/backup")
            .await
            .expect(200);
    }
    let limited = phone.get("/keys/backup").await.refused(429, "RATE_LIMITED");
    let params = &limited.body["error"]["params"];
    assert_eq!(
        (&params["scope"], &params["limit"]),
        (&json!("keys_backup_read"), &json!("10/h"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn other_keys_for_a_device_need_a_fresh_login() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    alice
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(201);
    a.advance(Duration::from_secs(301)).await;
    let alice = alice.refreshed().await;
    alice
        .post("/keys/backup", backup(&alice.device_id, 2))
        .await
        .refused(403, "REAUTH_REQUIRED");
    // Known keys under another password of protection are no risk.
    alice
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(200);
    let alice = alice.login(&a, Some(&alice.device_id)).await;
    let answer = alice
        .post("/keys/backup", backup(&alice.device_id, 2))
        .await
        .expect(200);
    assert_eq!(
        (&answer.data()["version"], &answer.data()["key_id"]),
        (&json!(3), &json!(key_id(2)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_stale_login_pushes_a_backup_out() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    alice
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(201);
    a.advance(Duration::from_secs(301)).await;
    let thief = alice.refreshed().await;
    for _ in 2..=10 {
        thief
            .post("/keys/backup", backup(&alice.device_id, 1))
            .await
            .expect(200);
    }
    thief
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .refused(403, "REAUTH_REQUIRED");
    let kept = alice.login(&a, Some(&alice.device_id)).await;
    let all = kept.get("/keys/backup").await.expect(200);
    assert_eq!(all.data()[9]["version"], 1);
    let answer = kept
        .post("/keys/backup", backup(&alice.device_id, 1))
        .await
        .expect(200);
    assert_eq!(answer.data()["version"], 11);
}
