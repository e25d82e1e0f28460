//! Key backups that are altered, cheap, somebody else's, or old.

use std::sync::Arc;

use blindpipe_client::{Client, protocol::ids::Principal, testing::PROTECTION_PASSWORD};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Proxy, Told, id};
use crate::support::{Shared, cluster, direct, texts};

/// Another device of a person, behind a proxy.
async fn device(
    cluster: &Shared,
    of: &blindpipe_client::testing::TestUser,
) -> (Client, Proxy, Told) {
    let (proxy, told) = (Proxy::before(cluster, 1).await, Told::default());
    let builder = Client::builder(proxy.server()).on_hook(told.hook());
    let signed_in = builder.login(&of.email, &of.password, "dev-pass").await;
    (signed_in.expect("signed in"), proxy, told)
}

/// Alters the list of backups.
type Lie = Box<dyn Fn(&mut Value) + Send>;

fn in_backups(proxy: &Proxy, mut rule: impl FnMut(&mut Value) + Send + 'static) {
    proxy.on_answer(move |call, answer| {
        if call.starts_with("GET /keys/backup") {
            rule(&mut answer["data"]);
        }
    });
}

#[tokio::test]
async fn an_altered_backup_restores_nothing() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let eve = cluster.user("eve").await.expect("a person");
    let (phone, proxy, _) = device(&cluster, &ada).await;
    let (eves, spying, _) = device(&cluster, &eve).await;
    let of_eve = Arc::new(Mutex::new(Value::Null));
    let seen = of_eve.clone();
    in_backups(&spying, move |backups| *seen.lock() = backups.clone());
    eves.devices()
        .restore(PROTECTION_PASSWORD)
        .await
        .expect("Eve's own");
    let eves = of_eve.lock().clone();
    assert!(eves.is_array());
    let lies: Vec<Lie> = vec![
        Box::new(|backups: &mut Value| {
            let other = backups[0]["backup_b"].clone();
            backups[0]["backup_a"] = other;
        }),
        Box::new(|backups: &mut Value| backups[0]["argon2_salt"] = "A".repeat(43).into()),
        Box::new(|backups: &mut Value| {
            backups[0]["argon2_params"] = json!({ "m": 8192, "t": 1, "p": 1 });
        }),
        // So high that it would stop the device.
        Box::new(|backups: &mut Value| backups[0]["argon2_params"]["m"] = 4_000_000.into()),
        Box::new(|backups: &mut Value| backups[0]["device_id"] = "another".into()),
        // Eve uses the password of Ada in this test: still her backup is not Ada's.
        Box::new(move |backups: &mut Value| *backups = eves.clone()),
    ];
    let lies = Arc::new(Mutex::new(lies));
    let lying = lies.clone();
    in_backups(&proxy, move |backups| {
        if let Some(lie) = lying.lock().first() {
            lie(backups);
        }
    });
    while !lies.lock().is_empty() {
        let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
        assert!(restored.is_err() && !phone.has_keys());
        drop(lies.lock().remove(0));
    }
    // A backup that nobody can pay for does not hide a good one.
    in_backups(&proxy, |backups| {
        let mut costly = backups[0].clone();
        costly["argon2_params"] = json!({ "m": 1_048_577, "t": 11, "p": 17 });
        backups.as_array_mut().expect("a list").insert(0, costly);
    });
    let restored = phone.devices().restore(PROTECTION_PASSWORD).await;
    assert!(!restored.expect("restored").is_old);
}

#[tokio::test]
async fn an_old_backup_is_said_to_be_old_and_introduces_nobody() {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&ada, &bob).await;
    conversation
        .send("under the first key")
        .await
        .expect("sent");
    let bobs = bob.client.conversation(conversation.id());
    assert_eq!(texts(&bobs).await, ["under the first key"]);
    // The server keeps the first backup, and serves it after the device has other keys.
    let (phone, proxy, _) = device(&cluster, &ada).await;
    let kept = Arc::new(Mutex::new(Value::Null));
    let seen = kept.clone();
    in_backups(&proxy, move |backups| *seen.lock() = backups.clone());
    phone
        .devices()
        .restore(PROTECTION_PASSWORD)
        .await
        .expect("restored");
    ada.client
        .devices()
        .create(PROTECTION_PASSWORD)
        .await
        .expect("new keys");
    let (tablet, proxy, _) = device(&cluster, &ada).await;
    let old = kept.lock().clone();
    in_backups(&proxy, move |backups| *backups = old.clone());
    let restored = tablet.devices().restore(PROTECTION_PASSWORD).await;
    assert!(restored.expect("restored").is_old);
    // It opens what is old, and Bob is asked before he believes the new device.
    let on_tablet = tablet.conversation(conversation.id());
    assert_eq!(texts(&on_tablet).await, ["under the first key"]);
    on_tablet.send("from the tablet").await.expect("sent");
    let last = crate::support::history(&bobs)
        .await
        .pop()
        .expect("a message");
    let opened = last.opened.as_ref().expect("shown under a notice");
    assert!(!opened.sender.authentic);
    let key = tablet.key_id().expect("a key");
    let of_ada = Principal::User(ada.client.user_id().expect("an id"));
    assert!(
        bob.client.confirm(of_ada, key).expect("the tap"),
        "{}",
        id(&ada)
    );
}
