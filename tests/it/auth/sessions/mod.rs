//! Codes instead of passwords, changes of passwords, logout, and the end of an account.

mod deletion;

use std::time::Duration;

use blindpipe::{
    features::{accounts::jobs::forget, keys::erase},
    limits::table::Overrides,
};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Agent, FULL_HASHES, PASSWORD, TestNode, User, connect, nodes, nodes_with, ulid,
};

const OTHER: &str = "another horse battery";

async fn login(node: &TestNode, email: &str, password: &str) -> crate::support::Answer {
    let body =
        json!({ "email": email, "account_password": password, "turnstile_token": "dev-pass" });
    node.anon().post("/auth/login", body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_signs_in_without_a_password() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    a.advance(Duration::from_secs(61)).await;
    let caller = a.anon();
    let code = caller.code(&alice.email, "login").await;
    let body = json!({ "email": alice.email.to_uppercase(), "code": code, "device_id": "phone", "platform": "ios" });
    let answer = caller
        .on(&b)
        .post("/auth/login-code", body.clone())
        .await
        .expect(200);
    let data = answer.data();
    assert_eq!(
        (&data["user_id"], &data["device_id"], &data["is_new_device"]),
        (&json!(alice.id), &json!("phone"), &json!(true))
    );
    assert_eq!(data["expires_in_seconds"], 300);
    let phone = User::signed_in(caller.clone(), alice.email.clone(), &answer);
    phone.refreshed().await.get("/users/me").await.expect(200);
    // Once.
    caller
        .post("/auth/login-code", body)
        .await
        .refused(400, "CODE_INVALID");
    // Without an account the right code is worth nothing.
    let stranger = format!("nobody-{}@example.org", ulid().to_string().to_lowercase());
    let code = caller.code(&stranger, "login").await;
    caller
        .post(
            "/auth/login-code",
            json!({ "email": stranger, "code": code }),
        )
        .await
        .refused(400, "CODE_INVALID");
    // A human's token is not asked for, but judged.
    let body = |token: Value| json!({ "email": alice.email, "code": "12345678", "turnstile_token": token });
    caller
        .post("/auth/login-code", body(json!("dev-fail")))
        .await
        .refused(403, "TURNSTILE_FAILED");
    caller
        .post("/auth/login-code", body(json!("dev-pass")))
        .await
        .refused(400, "CODE_INVALID");
    caller
        .post("/auth/login-code", body(json!("")))
        .await
        .refused(400, "VALIDATION_ERROR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_password_ends_every_session_and_keeps_the_keys() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&b, Some("phone")).await;
    let sockets = [alice.on(&b).connect().await, phone.on(&a).connect().await];
    // Locked out, which a reset ends, too.
    for _ in 0..5 {
        login(&a, &alice.email, OTHER)
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    login(&b, &alice.email, PASSWORD)
        .await
        .refused(423, "ACCOUNT_LOCKED");
    a.advance(Duration::from_secs(61)).await;
    let code = a.anon().code(&alice.email, "reset").await;
    let reset = |code: &str, password: &str| {
        let body = json!({ "email": alice.email, "code": code, "new_account_password": password });
        let caller = b.anon();
        async move { caller.post("/auth/reset-password", body).await }
    };
    reset("1", OTHER).await.refused(400, "CODE_INVALID");
    reset(&code, "short").await.refused(400, "VALIDATION_ERROR");
    assert_eq!(
        reset(&code, OTHER).await.expect(200).data(),
        &json!({ "reset": true, "passkeys": 0, "agents": 0 })
    );
    reset(&code, OTHER).await.refused(400, "CODE_INVALID");
    for socket in sockets {
        assert_eq!(
            socket.expect_close(4403).await.last().expect("a frame")["reason"],
            "password_reset"
        );
    }
    for (session, node) in [(&alice, &a), (&alice, &b), (&phone, &a), (&phone, &b)] {
        session
            .on(node)
            .get("/users/me")
            .await
            .refused(401, "UNAUTHORIZED");
        session
            .on(node)
            .with_cookie("/auth/refresh")
            .await
            .refused(401, "TOKEN_EXPIRED");
    }
    login(&a, &alice.email, PASSWORD)
        .await
        .refused(401, "INVALID_CREDENTIALS");
    login(&b, &alice.email, OTHER).await.expect(200);
    // Nobody's address.
    let stranger = format!("nobody-{}@example.org", ulid().to_string().to_lowercase());
    let code = a.anon().code(&stranger, "reset").await;
    let body = json!({ "email": stranger, "code": code, "new_account_password": OTHER });
    a.anon()
        .post("/auth/reset-password", body)
        .await
        .refused(400, "CODE_INVALID");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_under_way_does_not_survive_a_reset() {
    let raised = ("LIMIT_OVERRIDES", "auth_login_ip=100000/s");
    let [a, b] = nodes_with(&[raised, FULL_HASHES]).await;
    let alice = a.user("alice").await;
    let client = connect(&a.world.database).await;
    let [mut old, mut new] = [PASSWORD, OTHER];
    let mut overtaken = 0;
    for _ in 0..3 {
        a.advance(Duration::from_secs(61)).await;
        let code = a.anon().code(&alice.email, "reset").await;
        let body = json!({ "email": alice.email, "code": code, "new_account_password": new });
        // Node a has hashes to compute before it comes to this login's, whose account it has
        // already read.
        let strangers: Vec<String> = (0..16)
            .map(|_| format!("nobody-{}@example.org", ulid().to_string().to_lowercase()))
            .collect();
        let queue = join_all(
            strangers
                .iter()
                .map(|email| login(&a, email, "a wrong password")),
        );
        let counted = async |emails: &[String]| {
            let sql =
                "select count(*) = cardinality($1::text[]) from login_guard where email = any($1)";
            while !client
                .query_one(sql, &[&emails])
                .await
                .expect("a count")
                .get::<_, bool>(0)
            {}
        };
        let race = async {
            counted(&strangers).await;
            tokio::join!(login(&a, &alice.email, old), async {
                counted(std::slice::from_ref(&alice.email)).await;
                b.anon()
                    .post("/auth/reset-password", body)
                    .await
                    .expect(200);
            })
        };
        let (_, (signed, ())) = tokio::join!(queue, race);
        // Either it came too late, or the reset has ended what it began.
        match signed.status {
            200 => {
                let token = signed.data()["access_token"].as_str().expect("a token");
                a.anon()
                    .with_token(token)
                    .get("/users/me")
                    .await
                    .refused(401, "UNAUTHORIZED");
            }
            _ => {
                signed.refused(401, "INVALID_CREDENTIALS");
                overtaken += 1;
            }
        }
        [old, new] = [new, old];
    }
    assert!(overtaken > 0, "no reset came in between");
}

#[tokio::test(flavor = "multi_thread")]
async fn logging_out_ends_the_session_and_clears_the_cookie() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let socket = alice.on(&b).connect().await;
    let answer = alice.on(&a).with_cookie("/auth/logout").await.expect(200);
    assert_eq!(answer.data(), &json!({ "logged_out": true }));
    let cleared = "refresh_token=; HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age=0";
    assert_eq!(answer.header("set-cookie"), Some(cleared));
    alice
        .on(&b)
        .get("/users/me")
        .await
        .refused(401, "UNAUTHORIZED");
    alice
        .on(&b)
        .with_cookie("/auth/refresh")
        .await
        .refused(401, "TOKEN_EXPIRED");
    assert_eq!(
        socket.expect_close(4403).await.last().expect("a frame")["reason"],
        "logout"
    );
    phone.get("/users/me").await.expect(200);
    // Again, or without a cookie, or with another's junk: still logged out.
    alice.with_cookie("/auth/logout").await.expect(200);
    let nobody = a.anon();
    nobody
        .send(nobody.request(Method::POST, "/auth/logout"))
        .await
        .expect(200);
    let junk = nobody
        .request(Method::POST, "/auth/logout")
        .header("cookie", "refresh_token=junk");
    nobody.send(junk).await.expect(200);
    let foreign = phone
        .request(Method::POST, "/auth/logout")
        .header("cookie", &phone.cookie);
    phone
        .send(foreign.header("origin", "https://evil.example"))
        .await
        .refused(403, "ORIGIN_NOT_ALLOWED");
    phone.get("/users/me").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_password_needs_the_one_before_and_ends_the_other_sessions() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let change = async |user: &User, current: &str, new: &str| {
        user.post(
            "/users/me/password",
            json!({ "current_password": current, "new_account_password": new }),
        )
        .await
    };
    change(&alice, OTHER, OTHER)
        .await
        .refused(401, "INVALID_CREDENTIALS");
    change(&alice, PASSWORD, "short")
        .await
        .refused(400, "VALIDATION_ERROR");
    a.advance(Duration::from_secs(700)).await;
    let alice = alice.refreshed().await;
    alice
        .get("/keys/backup")
        .await
        .refused(403, "REAUTH_REQUIRED");
    let phone = alice.login(&b, Some("phone")).await;
    let socket = phone.on(&b).connect().await;
    assert_eq!(
        change(&alice, PASSWORD, OTHER).await.expect(200).data(),
        &json!({ "changed": true })
    );
    // A user who has just proven the password need not log in for what needs a fresh login.
    alice.get("/keys/backup").await.expect(200);
    phone
        .with_cookie("/auth/refresh")
        .await
        .refused(401, "TOKEN_EXPIRED");
    assert_eq!(
        socket.expect_close(4403).await.last().expect("a frame")["reason"],
        "password_reset"
    );
    login(&b, &alice.email, PASSWORD)
        .await
        .refused(401, "INVALID_CREDENTIALS");
    login(&b, &alice.email, OTHER).await.expect(200);
    // A stolen access token cannot be used to guess: five tries, counted with the logins.
    for _ in 0..5 {
        change(&alice, PASSWORD, OTHER)
            .await
            .refused(401, "INVALID_CREDENTIALS");
    }
    change(&alice, OTHER, PASSWORD)
        .await
        .refused(423, "ACCOUNT_LOCKED");
}

#[tokio::test(flavor = "multi_thread")]
async fn me_is_who_calls() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let me = alice.on(&b).get("/users/me").await.expect(200);
    let mut data = me.data().clone();
    assert!(data["created_at"].as_str().expect("a time").ends_with('Z'));
    data.as_object_mut()
        .expect("an object")
        .remove("created_at");
    let expected = json!({ "user_id": alice.id, "email": alice.email, "display_name": "alice", "device_locale": "en-GB", "device_id": alice.device_id });
    assert_eq!(data, expected);
}
