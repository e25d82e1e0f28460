//! Mails about a login on a new device.

use std::time::Duration;

use serde_json::json;

use crate::support::{Authenticator, PASSWORD, TestNode, User, connect, nodes};

const DAY: Duration = Duration::from_secs(86_400);

/// Logs in with the password; whether the device is new. `proof` is the cookie of a session.
async fn log_in_by(
    node: &TestNode,
    user: &User,
    device: &str,
    name: &str,
    proof: Option<&str>,
) -> (bool, String) {
    let body = json!({ "email": user.email, "account_password": PASSWORD, "turnstile_token": "dev-pass",
        "device_id": device, "device_name": name });
    let caller = node.anon();
    let mut request = caller
        .request(reqwest::Method::POST, "/auth/login")
        .json(&body);
    if let Some(cookie) = proof {
        request = request.header("cookie", cookie);
    }
    let answer = caller.send(request).await.expect(200);
    let is_new = answer.data()["is_new_device"] == true;
    (
        is_new,
        User::signed_in(caller, user.email.clone(), &answer).cookie,
    )
}

async fn log_in(node: &TestNode, user: &User, device: &str, name: &str) -> bool {
    log_in_by(node, user, device, name, None).await.0
}

/// Waits until every mail has been sent; those that tell this user of a device.
async fn notices(node: &TestNode, user: &User) -> Vec<String> {
    let client = connect(&node.world.database).await;
    let waiting = "select count(*) from job where kind in ('mail', 'login_notice')";
    for _ in 0..400 {
        if client
            .query_one(waiting, &[])
            .await
            .expect("a count")
            .get::<_, i64>(0)
            == 0
        {
            let mails = std::fs::read_dir(&node.world.mail_dir)
                .expect("a folder")
                .flatten();
            let texts = mails.map(|mail| std::fs::read_to_string(mail.path()).expect("a mail"));
            let to = format!("To: {}", user.email);
            return texts
                .filter(|mail| mail.contains("A login on a new device") && mail.contains(&to))
                .collect();
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("mails wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_on_a_new_device_is_mailed_once_and_says_which_and_when() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    // A user who registers knows, and so does a user who comes back with the cookie.
    let (device, cookie) = (alice.device_id.as_str(), Some(alice.cookie.as_str()));
    assert!(!log_in_by(&b, &alice, device, "the first", cookie).await.0);
    assert!(notices(&a, &alice).await.is_empty());

    let name = "Ada's phone, 12345678";
    let (is_new, phone) = log_in_by(&b, &alice, "phone", name, None).await;
    assert!(is_new);
    let again = log_in_by(&a, &alice, "phone", "Ada's phone", Some(&phone)).await;
    // The cookie of a session that has ended proves the device as well.
    let third = log_in_by(&a, &alice, "phone", "Ada's phone", Some(&phone)).await;
    assert!(!again.0 && !third.0);
    let mails = notices(&a, &alice).await;
    assert_eq!(mails.len(), 1, "{mails:?}");
    let (head, text) = mails[0].split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("Subject: A login on a new device"), "{head}");
    assert!(text.contains("Device: Ada's phone, 12345678\r\n"), "{text}");
    let client = connect(&a.world.database).await;
    let at = "select to_char(noticed_at at time zone 'UTC', '\"Time: \"YYYY-MM-DD HH24:MI \"UTC\"') from login_notice";
    let at: String = client.query_one(at, &[]).await.expect("a time").get(0);
    assert!(text.contains(&at), "{at} in {text}");
    // Neither whose it is nor from where.
    for told in [
        alice.email.as_str(),
        &alice.id,
        "10.0.",
        "127.0.0.1",
        "http",
    ] {
        assert!(!text.contains(told), "{told} in {text}");
    }
    assert!(notices(&a, &bob).await.is_empty());

    a.advance(Duration::from_secs(61)).await;
    // By a mailed code, which is found beside the other mails, and without a name.
    let code = a.anon().code(&alice.email, "login").await;
    let body = json!({ "email": alice.email, "code": code, "device_id": "tablet" });
    b.anon().post("/auth/login-code", body).await.expect(200);
    let mails = notices(&a, &alice).await;
    assert_eq!(mails.len(), 2);
    assert!(
        mails
            .iter()
            .any(|mail| mail.contains("Device: without a name")),
        "{mails:?}"
    );
    // By a passkey; without an id each login is a device of its own.
    let mut key = Authenticator::enrol(&bob, "key").await;
    key.sign_in(&b.anon()).await.expect(200);
    assert_eq!(notices(&a, &bob).await.len(), 1);
    // A device that was revoked is new again, also with its cookie.
    let body = json!({ "email": alice.email, "account_password": PASSWORD, "turnstile_token": "dev-pass",
        "device_id": alice.device_id });
    let request = alice.request(reqwest::Method::POST, "/auth/login");
    let request = request.header("cookie", &alice.cookie).json(&body);
    let answer = alice.send(request).await.expect(200);
    let alice = User::signed_in(a.anon(), alice.email.clone(), &answer);
    alice.delete("/users/me/devices/phone").await.expect(200);
    assert!(
        log_in_by(&b, &alice, "phone", "Ada's phone", Some(&third.1))
            .await
            .0
    );
    assert_eq!(notices(&a, &alice).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_only_names_a_known_device_is_mailed() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    // The id is the client's choice, and contacts can read it.
    assert!(!log_in(&b, &alice, &alice.device_id, "x").await);
    assert_eq!(notices(&a, &alice).await.len(), 1);
    // Neither another device's cookie nor another user's proves it.
    let (_, tablet) = log_in_by(&a, &alice, "tablet", "x", None).await;
    let (_, hers) = log_in_by(&a, &bob, &alice.device_id, "x", None).await;
    for proof in [&tablet, &hers] {
        log_in_by(&b, &alice, &alice.device_id, "x", Some(proof)).await;
    }
    assert_eq!(notices(&a, &alice).await.len(), 4);
    // A passkey proves the devices on which it was used.
    let mut key = Authenticator::enrol(&bob, "key").await;
    let before = notices(&a, &bob).await.len();
    for (device, mails) in [
        ("laptop", 1),
        ("laptop", 1),
        ("desk", 2),
        ("laptop", 2),
        ("desk", 2),
    ] {
        key.sign_in_on(&b.anon(), Some(device)).await.expect(200);
        assert_eq!(notices(&a, &bob).await.len() - before, mails, "{device}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_mailed_of_more_than_five_in_a_day() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    for n in 0..8 {
        assert!(
            log_in(
                if n % 2 == 0 { &a } else { &b },
                &alice,
                &format!("device-{n}"),
                "x"
            )
            .await
        );
    }
    assert_eq!(notices(&a, &alice).await.len(), 5);
    a.advance(DAY + Duration::from_secs(1)).await;
    // At once, too, on both nodes; as many as may be tried at once.
    let devices: Vec<String> = (0..5).map(|n| format!("another-{n}")).collect();
    let logins = devices
        .iter()
        .enumerate()
        .map(|(n, id)| log_in(if n % 2 == 0 { &a } else { &b }, &alice, id, "x"));
    assert!(
        futures_util::future::join_all(logins)
            .await
            .into_iter()
            .all(|new| new)
    );
    for n in 0..8 {
        log_in(&a, &alice, &format!("third-{n}"), "x").await;
    }
    assert_eq!(notices(&a, &alice).await.len(), 10);
    // The places of a day ago are used again.
    let client = connect(&a.world.database).await;
    let places = client
        .query_one("select count(*) from login_notice", &[])
        .await
        .expect("a count");
    assert_eq!(places.get::<_, i64>(0), 5);
}
