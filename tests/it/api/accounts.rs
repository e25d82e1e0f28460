//! Codes, registration, login, sessions.

use serde_json::{Value, json};

use crate::support::{PASSWORD, User, nodes, nodes_with, ulid};

fn address() -> String {
    format!("u{}@example.org", ulid().to_string().to_lowercase())
}

fn login(email: &str, password: &str) -> Value {
    json!({ "email": email, "account_password": password, "turnstile_token": "dev-pass" })
}

#[tokio::test(flavor = "multi_thread")]
async fn registering_signs_in() {
    let [a, b] = nodes().await;
    let (caller, email) = (a.anon(), address());
    let code = caller.code(&email, "register").await;
    // Any node takes the code; the address is the same in capitals.
    let mut body = User::registration(&email.to_uppercase(), "alice", &code);
    body.as_object_mut().expect("an object").remove("device_id");
    let answer = caller.on(&b).post("/auth/register", body).await.expect(201);
    let data = answer.data();
    assert_eq!(
        (&data["expires_in_seconds"], &data["is_new_device"]),
        (&json!(300), &json!(true))
    );
    assert_eq!(
        data["key_backup"],
        json!({ "exists": false, "device_ids": [] })
    );
    assert!(
        data["device_id"]
            .as_str()
            .expect("a device")
            .starts_with("provisional-")
    );
    let cookie = answer.header("set-cookie").expect("a cookie");
    let (value, attributes) = cookie.split_once(';').expect("attributes");
    assert!(
        value
            .strip_prefix("refresh_token=")
            .expect("the name")
            .len()
            > 40
    );
    assert_eq!(
        attributes,
        " HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age=2592000"
    );
    let answer = caller
        .post("/auth/login", login(&email, PASSWORD))
        .await
        .expect(200);
    assert_eq!(answer.data()["user_id"], data["user_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_must_have_its_form() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "auth_register_ip=1000/s")]).await;
    let caller = a.anon();
    let right = User::registration(&address(), "x", "12345678");
    for (field, value) in [
        ("email", json!("no address")),
        ("email", json!("a@b.c\r\nBcc: d@e.f")),
        ("email", Value::Null),
        ("account_password", json!("seven77")),
        // Seven characters, and 28 bytes.
        ("account_password", json!("\u{1f511}".repeat(7))),
        ("account_password", json!("x".repeat(1025))),
        ("account_password", json!("nul\u{0}in the middle")),
        ("display_name", json!("")),
        ("display_name", json!("two\nlines")),
        ("display_name", json!("reads \u{202e}sdrawkcab")),
        ("device_name", json!("al\u{200b}ice's phone")),
        ("turnstile_token", json!("x".repeat(2049))),
        ("device_id", json!("spaces are not allowed")),
        ("device_id", json!("x".repeat(129))),
        ("user_id", json!("mass assignment")),
    ] {
        let mut body = right.clone();
        body[field] = value.clone();
        let refused = caller
            .post("/auth/register", body)
            .await
            .refused(400, "VALIDATION_ERROR");
        let fault = &refused.body["error"]["params"]["fields"][0];
        assert!(
            fault["path"] == field || fault["rule"] == "nul",
            "{field} {value}: {fault}"
        );
        assert!(fault["rule"].is_string() && fault["message"].is_string());
    }
    for field in [
        "email",
        "code",
        "account_password",
        "display_name",
        "device_locale",
        "turnstile_token",
    ] {
        let mut body = right.clone();
        body.as_object_mut().expect("an object").remove(field);
        let refused = caller
            .post("/auth/register", body)
            .await
            .refused(400, "VALIDATION_ERROR");
        let fault = &refused.body["error"]["params"]["fields"][0];
        assert_eq!(
            (&fault["path"], &fault["rule"]),
            (&json!(field), &json!("required"))
        );
    }
}
