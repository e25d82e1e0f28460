//! Passkeys: enrolment, sign-in, and answers that must not count.

mod answers;

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Answer, Authenticator, Caller, PASSWORD, ProcessNode, User, blocked, connect, db, nodes,
    nodes_with, psql, ulid,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_passkey_begin=1000/s,default_ip=1000/s,default_user=1000/s",
);

async fn delete(user: &User, id: &str) -> Answer {
    user.send(user.request(Method::DELETE, format!("/users/me/passkeys/{id}")))
        .await
}

async fn complete(caller: &Caller, body: &Value) -> Answer {
    caller.post("/auth/passkey/complete", body.clone()).await
}

async fn count(url: &str, table: &str) -> u32 {
    let rows = psql(url, &format!("select count(*) from {table}")).await;
    let row = rows.iter().find_map(|row| match row {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    row.expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passkey_is_enrolled_on_one_node_and_signs_in_on_another() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let begun = alice
        .post("/users/me/passkeys/begin", json!({}))
        .await
        .expect(200);
    let options = &begun.data()["public_key"];
    assert_eq!(options["rp"]["id"], "localhost");
    assert_eq!(options["user"]["name"], alice.email);
    let selection = &options["authenticatorSelection"];
    assert_eq!(
        (&selection["residentKey"], &selection["userVerification"]),
        (&json!("preferred"), &json!("required"))
    );
    assert!(options["challenge"].is_string() && options["pubKeyCredParams"].is_array());

    let mut key = Authenticator::default();
    let credential = key.create(options);
    let body = json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential, "name": "my phone" });
    let enrolled = alice
        .on(&b)
        .post("/users/me/passkeys/complete", body.clone())
        .await
        .expect(201);
    let data = enrolled.data();
    assert_eq!(data["name"], "my phone");
    alice
        .post("/users/me/passkeys/complete", body)
        .await
        .refused(400, "CHALLENGE_EXPIRED");
    let listed = alice
        .on(&b)
        .get("/users/me/passkeys")
        .await
        .expect(200)
        .body;
    let item = json!({ "passkey_id": data["passkey_id"], "name": "my phone", "created_at": data["created_at"], "last_used_at": null });
    assert_eq!(listed, json!({ "data": [item], "next_cursor": null }));
    // The browser is told not to make another one on the same key.
    let again = alice
        .post("/users/me/passkeys/begin", json!({}))
        .await
        .expect(200);
    assert_eq!(
        again.data()["public_key"]["excludeCredentials"][0]["id"],
        credential["id"]
    );

    let stranger = a.anon();
    let begun = stranger
        .post("/auth/passkey/begin", json!({}))
        .await
        .expect(200);
    let data = begun.data();
    assert_eq!(data["mediation"], "conditional");
    assert_eq!(data["public_key"]["rpId"], "localhost");
    assert_eq!(data["public_key"]["userVerification"], "required");
    assert_eq!(data["public_key"]["allowCredentials"], json!([]));
    assert!(data["expires_at"].as_str().expect("a time").ends_with('Z'));
    let credential = key.get(&data["public_key"]);
    let body = json!({
        "challenge_id": data["challenge_id"], "credential": credential,
        "device_id": "laptop", "device_name": "Laptop", "platform": "web",
    });
    let signed = complete(&stranger.on(&b), &body).await.expect(200);
    let data = signed.data();
    assert_eq!(
        (&data["user_id"], &data["device_id"]),
        (&json!(alice.id), &json!("laptop"))
    );
    assert_eq!(
        (&data["expires_in_seconds"], &data["is_new_device"]),
        (&json!(300), &json!(true))
    );
    assert!(data["key_backup"]["exists"].is_boolean());
    let cookie = signed.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.ends_with("; HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age=2592000"));
    // It is a session like any other.
    let again = User::signed_in(stranger, alice.email.clone(), &signed)
        .refreshed()
        .await;
    let listed = again.on(&a).get("/users/me/passkeys").await.expect(200);
    assert!(
        listed.data()[0]["last_used_at"]
            .as_str()
            .expect("a time")
            .ends_with('Z')
    );

    let id = listed.data()[0]["passkey_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let bob = a.user("bob").await;
    delete(&bob, &id).await.refused(404, "NOT_FOUND");
    let gone = delete(&alice, &id).await.expect(200);
    assert_eq!(gone.data()["passkey_id"], id);
    delete(&alice.on(&b), &id).await.refused(404, "NOT_FOUND");
    key.sign_in(&b.anon()).await.refused(401, "PASSKEY_INVALID");
    // A session that began with it stays.
    again.get("/users/me/passkeys").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passkey_needs_no_password_that_is_locked_and_no_human_that_was_not_claimed() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let mut key = Authenticator::enrol(&alice, "key").await;
    let login = |password: &str| json!({ "email": alice.email, "account_password": password, "turnstile_token": "dev-pass" });
    for _ in 0..5 {
        a.anon()
            .post("/auth/login", login("a wrong password"))
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    a.anon()
        .post("/auth/login", login(PASSWORD))
        .await
        .refused(423, "ACCOUNT_LOCKED");
    key.sign_in(&b.anon()).await.expect(200);

    let begin = async |body: Value| a.anon().post("/auth/passkey/begin", body).await;
    begin(json!({ "turnstile_token": "dev-pass" }))
        .await
        .expect(200);
    begin(json!({ "turnstile_token": "dev-fail" }))
        .await
        .refused(403, "TURNSTILE_FAILED");
    begin(json!({ "turnstile_token": "x".repeat(2049) }))
        .await
        .refused(400, "VALIDATION_ERROR");
    begin(json!({ "email": alice.email }))
        .await
        .refused(400, "VALIDATION_ERROR");
    // The interface shows no body, so there need not be one.
    a.anon()
        .send(a.anon().request(Method::POST, "/auth/passkey/begin"))
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolment_must_be_verified_fresh_and_new() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let enrol = async |user: &User, change: &dyn Fn(&mut Value), origin: &'static str| {
        let begun = user
            .post("/users/me/passkeys/begin", json!({}))
            .await
            .expect(200);
        let mut options = begun.data()["public_key"].clone();
        change(&mut options);
        let credential = Authenticator::default().at(origin).create(&options);
        (
            json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential }),
            credential,
        )
    };
    let complete =
        async |user: &User, body: Value| user.post("/users/me/passkeys/complete", body).await;

    let home = "https://localhost";
    let (body, _) = enrol(
        &alice,
        &|options| options["authenticatorSelection"]["userVerification"] = json!("discouraged"),
        home,
    )
    .await;
    complete(&alice, body.clone())
        .await
        .refused(401, "PASSKEY_INVALID");
    complete(&alice, body)
        .await
        .refused(400, "CHALLENGE_EXPIRED");
    let (body, _) = enrol(
        &alice,
        &|options| options["rp"]["id"] = json!("evil.example"),
        "https://evil.example",
    )
    .await;
    complete(&alice, body).await.refused(401, "PASSKEY_INVALID");
    let (body, _) = enrol(
        &alice,
        &|options| options["challenge"] = json!("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        home,
    )
    .await;
    complete(&alice, body).await.refused(401, "PASSKEY_INVALID");
    let (body, _) = enrol(&alice, &|_| (), home).await;
    a.advance(Duration::from_secs(301)).await;
    let (alice, bob) = (alice.refreshed().await, bob.refreshed().await);
    complete(&alice, body)
        .await
        .refused(400, "CHALLENGE_EXPIRED");

    // A name is optional; a credential is one user's.
    let (body, credential) = enrol(&alice, &|_| (), home).await;
    assert_eq!(
        complete(&alice, body).await.expect(201).data()["name"],
        "Passkey"
    );
    let (mut body, _) = enrol(&bob, &|_| (), home).await;
    body["credential"] = credential;
    complete(&bob, body).await.refused(401, "PASSKEY_INVALID");
    for (field, value) in [
        ("challenge_id", json!("x")),
        ("credential", json!({})),
        ("credential", json!("x")),
        ("name", json!("")),
        ("name", json!("x".repeat(201))),
    ] {
        let (mut body, _) = enrol(&bob, &|_| (), home).await;
        body[field] = value;
        complete(&bob, body).await.refused(400, "VALIDATION_ERROR");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn enrolling_needs_a_fresh_login_that_still_lives() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let enrol = async |user: &User| {
        let begun = user
            .post("/users/me/passkeys/begin", json!({}))
            .await
            .expect(200);
        let credential = Authenticator::default().create(&begun.data()["public_key"]);
        json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential })
    };
    // The session ends while the enrolment waits for its user's lock.
    let body = enrol(&alice).await;
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.batch_execute(
        "select 1 from user_account for update; update session set revoked_at = app_now()",
    )
    .await
    .expect("held");
    let late = alice.post("/users/me/passkeys/complete", body);
    let end = async {
        blocked(&tx, 1).await;
        tx.batch_execute("commit").await.expect("let go");
    };
    let (late, ()) = tokio::join!(late, end);
    late.refused(401, "UNAUTHORIZED");

    let alice = alice.login(&a, None).await;
    a.advance(Duration::from_secs(590)).await;
    let alice = alice.refreshed().await;
    let body = enrol(&alice).await;
    a.advance(Duration::from_secs(11)).await;
    alice
        .post("/users/me/passkeys/begin", json!({}))
        .await
        .refused(403, "REAUTH_REQUIRED");
    alice
        .post("/users/me/passkeys/complete", body)
        .await
        .refused(403, "REAUTH_REQUIRED");
    assert_eq!(count(&a.world.database, "passkey").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_twenty_passkeys_and_reads_them_page_by_page() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    for n in 0..19 {
        Authenticator::enrol(&alice, &format!("key {n}")).await;
    }
    // Four at once for the one place that is left.
    let mut bodies = Vec::new();
    for _ in 0..4 {
        let begun = alice
            .post("/users/me/passkeys/begin", json!({}))
            .await
            .expect(200);
        let credential = Authenticator::default().create(&begun.data()["public_key"]);
        bodies.push(
            json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential }),
        );
    }
    let users = [alice.on(&a), alice.on(&b)];
    let calls = bodies
        .into_iter()
        .enumerate()
        .map(|(n, body)| users[n % 2].post("/users/me/passkeys/complete", body));
    let (made, refused): (Vec<_>, Vec<_>) = join_all(calls)
        .await
        .into_iter()
        .partition(|answer| answer.status == 201);
    assert_eq!((made.len(), refused.len()), (1, 3));
    for answer in refused {
        assert_eq!(
            answer.refused(403, "FORBIDDEN").body["error"]["params"]["limit"],
            20
        );
    }

    let mut names = Vec::new();
    let mut path = "/users/me/passkeys?limit=8".to_owned();
    loop {
        let page = alice.get(&path).await.expect(200);
        let items = page.data().as_array().expect("a list");
        names.extend(
            items
                .iter()
                .map(|item| item["name"].as_str().expect("a name").to_owned()),
        );
        let Some(next) = page.body["next_cursor"].as_str() else {
            break;
        };
        assert_eq!(next, items[7]["passkey_id"]);
        path = format!("/users/me/passkeys?limit=8&cursor={next}");
    }
    assert_eq!(
        (names.len(), names[0].as_str(), names[18].as_str()),
        (20, "key 0", "key 18")
    );
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "cursor=x",
        "cursor=",
        &format!("cursor={}", ulid()),
    ] {
        alice
            .get(format!("/users/me/passkeys?{query}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn challenges_are_limited_and_forgotten() {
    let [a, b] = nodes().await;
    let caller = a.anon();
    for n in 0..30 {
        let node = if n % 2 == 0 { &a } else { &b };
        caller
            .on(node)
            .post("/auth/passkey/begin", json!({}))
            .await
            .expect(200);
    }
    let limited = caller
        .post("/auth/passkey/begin", json!({}))
        .await
        .refused(429, "RATE_LIMITED");
    let params = &limited.body["error"]["params"];
    assert_eq!(
        (&params["scope"], &params["limit"]),
        (&json!("auth_passkey_begin"), &json!("30/min"))
    );

    let url = &a.world.database;
    let db = db(url);
    let forget = async || {
        blindpipe::features::passkeys::forget_challenges(&db)
            .await
            .expect("forgotten")
    };
    assert!(!forget().await);
    assert_eq!(count(url, "passkey_challenge").await, 30);
    psql(url, "insert into passkey_challenge select gen_random_uuid(), null, '{}', app_now() from generate_series(1, 1000)").await;
    a.advance(Duration::from_secs(301)).await;
    assert!(forget().await);
    assert!(!forget().await);
    assert_eq!(count(url, "passkey_challenge").await, 0);
}
