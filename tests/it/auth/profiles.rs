//! Changes of users to themselves and their agents: names, locale, address.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, TestNode, User, blocked, connect, nodes, nodes_with, psql, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_send_code=1000/s,auth_send_code_day=1000/s,default_user=1000/s,default_ip=1000/s,auth_register_ip=1000/s",
);

fn address() -> String {
    format!("n{}@example.org", ulid().to_string().to_lowercase())
}

async fn ask(user: &User, email: &str) -> Answer {
    user.post("/users/me/email", json!({ "email": email }))
        .await
}

/// Asks for an address, and reads the code there.
async fn code(node: &TestNode, user: &User, email: &str) -> String {
    let asked = ask(user, email).await.expect(200);
    assert_eq!(asked.data(), &json!({ "expires_in_seconds": 600 }));
    node.world.mailed_code(email).await
}

async fn confirm(user: &User, email: &str, code: &str) -> Answer {
    let body = json!({ "email": email, "code": code, "turnstile_token": "dev-pass" });
    user.post("/users/me/email/confirm", body).await
}

async fn email_of(user: &User) -> Value {
    let me = user.get("/users/me").await.expect(200);
    me.data()["email"].clone()
}

/// The subjects of the mails to an address, without those of codes, once there are so many.
async fn subjects(node: &TestNode, email: &str, wanted: usize) -> Vec<String> {
    for _ in 0..400 {
        let mails = std::fs::read_dir(&node.world.mail_dir).expect("a folder");
        let texts = mails
            .flatten()
            .filter_map(|mail| std::fs::read_to_string(mail.path()).ok());
        let to = format!("To: {email}");
        let mine = texts.filter(|text| text.contains(&to)).filter_map(|text| {
            let subject = text.lines().find_map(|line| line.strip_prefix("Subject: "));
            subject.map(str::to_owned)
        });
        let mut mine: Vec<String> = mine.filter(|subject| !subject.contains("code")).collect();
        if mine.len() >= wanted {
            mine.sort();
            return mine;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("fewer than {wanted} mails to {email}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_changes_name_and_locale() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let body = json!({ "display_name": "Alice B.", "email": "ignored@example.org" });
    let changed = alice.patch("/users/me", body).await.expect(200);
    let shown = alice.on(&b).get("/users/me").await.expect(200);
    assert_eq!(changed.data(), shown.data());
    let data = shown.data();
    assert_eq!(
        (
            &data["display_name"],
            &data["device_locale"],
            &data["email"]
        ),
        (&json!("Alice B."), &json!("en-GB"), &json!(alice.email))
    );
    let body = json!({ "device_locale": "de-CH" });
    let changed = alice.on(&b).patch("/users/me", body).await.expect(200);
    let data = changed.data();
    assert_eq!(
        (&data["display_name"], &data["device_locale"]),
        (&json!("Alice B."), &json!("de-CH"))
    );
    for bad in [
        json!({}),
        json!({ "display_name": "" }),
        json!({ "display_name": "Al\u{202e}ice" }),
        json!({ "device_locale": "x".repeat(36) }),
        json!({ "display_name": 7 }),
    ] {
        let answer = alice.patch("/users/me", bad).await;
        answer.refused(400, "VALIDATION_ERROR");
    }
    assert_eq!(alice.get("/users/me").await.expect(200).data(), data);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_renames_an_agent_and_nobody_else_does() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    bob.talk_to(&agent).await;
    let path = format!("/agents/{}", agent.id);
    // The budget of manifests is the agent's, and the owner has another.
    for name in ["Helper", "Scribe"] {
        let body = json!({ "display_name": name, "description": "writes" });
        let changed = alice.on(&b).patch(&path, body).await.expect(200);
        let shown = alice.get(&path).await.expect(200);
        assert_eq!(changed.data(), shown.data());
        assert_eq!(shown.data()["display_name"], name);
    }
    let body = json!({ "description": "" });
    let changed = alice.patch(&path, body).await.expect(200);
    let data = changed.data();
    assert_eq!(
        (&data["display_name"], &data["description"]),
        (&json!("Scribe"), &json!(""))
    );
    for bad in [
        json!({}),
        json!({ "manifest": {} }),
        json!({ "display_name": "x", "manifest": {} }),
        json!({ "display_name": "x", "state": "active" }),
        json!({ "display_name": "" }),
        json!({ "description": "x".repeat(2001) }),
    ] {
        let answer = alice.patch(&path, bad).await;
        answer.refused(400, "VALIDATION_ERROR");
    }
    let body = json!({ "display_name": "his" });
    let foreign = bob.patch(&path, body.clone()).await;
    foreign.refused(404, "AGENT_NOT_REGISTERED");
    // For the agent it is a manifest, as ever.
    let own = agent.patch(&path, body).await;
    own.refused(400, "VALIDATION_ERROR");
    let manifest = json!({ "name": "mine", "tools": [], "permission_scopes": [] });
    let own = agent.patch(&path, manifest).await.expect(200);
    assert_eq!(own.data()["manifest_version"], 1);
    let shown = bob.get(&path).await.expect(200);
    assert_eq!(shown.data()["display_name"], "Scribe");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_moves_to_an_address_that_its_user_reads() {
    let [a, b] = nodes().await;
    let mut alice = a.user("alice").await;
    let [first, second] = [address(), address()];
    let same = ask(&alice, &alice.email).await;
    same.refused(400, "VALIDATION_ERROR");
    let early = code(&a, &alice, &first).await;
    // Each user and each address has one a minute.
    ask(&alice.on(&b), &second)
        .await
        .refused(429, "RATE_LIMITED");
    a.advance(Duration::from_secs(61)).await;
    let latest = code(&a, &alice, &second).await;
    let shouted = second.to_uppercase();
    for (email, code) in [(&first, &early), (&second, &early), (&first, &latest)] {
        let answer = confirm(&alice.on(&b), email, code).await;
        answer.refused(400, "CODE_INVALID");
    }
    let before = alice.email.clone();
    let moved = confirm(&alice.on(&b), &shouted, &latest).await.expect(200);
    assert_eq!(
        moved.data(),
        alice.get("/users/me").await.expect(200).data()
    );
    assert_eq!(moved.data()["email"], *second);
    confirm(&alice, &second, &latest)
        .await
        .refused(400, "CODE_INVALID");
    let told = subjects(&a, &before, 3).await;
    assert_eq!(
        told,
        [
            "A new address is asked for",
            "A new address is asked for",
            "Your account has a new address"
        ]
    );
    // The new address signs in, and the earlier one is free.
    alice.email = second;
    alice.login(&b, Some("phone")).await;
    let code = a.anon().code(&before, "register").await;
    let body = User::registration(&before, "somebody", &code);
    a.anon().post("/auth/register", body).await.expect(201);

    a.advance(Duration::from_secs(601)).await;
    let alice = alice.refreshed().await;
    ask(&alice, &first).await.refused(403, "REAUTH_REQUIRED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_address_shows_only_to_who_reads_its_mail() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let free = address();
    let mut faces = Vec::new();
    for email in [&alice.email, &free] {
        let asked = ask(&bob, email).await.expect(200);
        a.world.mailed_code(email).await;
        let wrong = confirm(&bob.on(&b), email, "00000000").await;
        faces.push((asked.body, wrong.status, wrong.body));
    }
    assert_eq!(faces[0], faces[1]);
    let right = code(&a, &bob, &alice.email).await;
    // Only a mail that was read says so, as at registration. The code stays good.
    for node in [&a, &b] {
        let answer = confirm(&bob.on(node), &alice.email, &right).await;
        answer.refused(409, "EMAIL_TAKEN");
    }
    assert_eq!(email_of(&bob).await, *bob.email);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_accounts_that_want_an_address_at_once_one_gets_it() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    for _ in 0..4 {
        let [alice, bob] = [a.user("alice").await, a.user("bob").await];
        let wanted = address();
        let alices = code(&a, &alice, &wanted).await;
        let bobs = code(&b, &bob, &wanted).await;
        let registers = a.anon().code(&wanted, "register").await;
        // A code is bound to the account that asked.
        for (user, code) in [(&alice, &bobs), (&bob, &alices), (&bob, &registers)] {
            let answer = confirm(user, &wanted, code).await;
            answer.refused(400, "CODE_INVALID");
        }
        let carol = b.anon();
        let body = User::registration(&wanted, "carol", &registers);
        let bob_on_b = bob.on(&b);
        let (first, second, third) = tokio::join!(
            confirm(&alice, &wanted, &alices),
            confirm(&bob_on_b, &wanted, &bobs),
            carol.post("/auth/register", body)
        );
        let answers = [&first, &second, &third];
        let won = answers.iter().filter(|answer| answer.status < 300).count();
        let lost = answers.iter().filter(|answer| answer.status == 409);
        assert_eq!((won, lost.count()), (1, 2), "{answers:?}");
        for (user, answer) in [(&alice, &first), (&bob, &second)] {
            let has = if answer.status == 200 {
                &wanted
            } else {
                &user.email
            };
            assert_eq!(email_of(user).await, **has);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_for_an_address_is_tried_five_times_in_ten_minutes() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let wanted = address();
    let burnt = code(&a, &alice, &wanted).await;
    for n in 0..3 {
        let node = [&a, &b][n % 2];
        let body = json!({ "email": wanted, "code": "00000000" });
        let answer = alice.on(node).post("/users/me/email/confirm", body).await;
        answer.refused(400, "CODE_INVALID");
    }
    // From now on the server wants a human.
    let body = json!({ "email": wanted, "code": burnt });
    let answer = alice.post("/users/me/email/confirm", body).await;
    answer.refused(403, "TURNSTILE_FAILED");
    for _ in 0..2 {
        let answer = confirm(&alice, &wanted, "00000000").await;
        answer.refused(400, "CODE_INVALID");
    }
    let answer = confirm(&alice, &wanted, &burnt).await;
    answer.refused(400, "CODE_INVALID");
    // Five of another code are the tenth of the hour.
    let other = code(&a, &alice, &wanted).await;
    for _ in 0..5 {
        confirm(&alice, &wanted, "00000000").await;
    }
    let answer = confirm(&alice.on(&b), &wanted, &other).await;
    answer.refused(429, "RATE_LIMITED");
    let late = address();
    let alice = alice.login(&a, Some("phone")).await;
    let slow = code(&a, &alice, &late).await;
    a.advance(Duration::from_secs(601)).await;
    let alice = alice.refreshed().await;
    let answer = confirm(&alice, &late, &slow).await;
    answer.refused(400, "CODE_INVALID");
    assert_eq!(email_of(&alice).await, *alice.email);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_address_ends_with_the_session_that_asked() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let stolen = alice.login(&a, Some("stolen")).await;
    let wanted = address();
    let right = code(&a, &stolen, &wanted).await;
    // Neither another session of the user, nor another user.
    confirm(&alice, &wanted, &right)
        .await
        .refused(400, "CODE_INVALID");
    alice
        .on(&b)
        .delete("/users/me/devices/stolen")
        .await
        .expect(200);
    confirm(&stolen, &wanted, &right)
        .await
        .refused(401, "UNAUTHORIZED");

    // The session ends while the confirmation, which was let in, waits.
    let stolen = alice.login(&a, Some("again")).await;
    let wanted = address();
    let right = code(&a, &stolen, &wanted).await;
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.batch_execute("update session set revoked_at = app_now() where device_id = 'again'")
        .await
        .expect("held");
    let end = async {
        blocked(&tx, 1).await;
        tx.batch_execute("commit").await.expect("let go");
    };
    let (late, ()) = tokio::join!(confirm(&stolen, &wanted, &right), end);
    late.refused(401, "UNAUTHORIZED");
    assert_eq!(email_of(&alice).await, *alice.email);
    // So it is with a change of the name.
    let stolen = alice.login(&a, Some("third")).await;
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.batch_execute("update session set revoked_at = app_now() where device_id = 'third'")
        .await
        .expect("held");
    let body = json!({ "display_name": "Mallory" });
    let call = stolen.request(Method::PATCH, "/users/me").json(&body);
    let end = async {
        blocked(&tx, 1).await;
        tx.batch_execute("commit").await.expect("let go");
    };
    let (late, ()) = tokio::join!(stolen.send(call), end);
    late.refused(401, "UNAUTHORIZED");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_change_when_the_account_or_its_time_ends() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let client = connect(&a.world.database).await;
    let left = async || {
        let row = client
            .query_one("select count(*) from email_change", &[])
            .await;
        row.expect("a count").get::<_, i64>(0)
    };
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    for user in [&alice, &bob] {
        code(&a, user, &address()).await;
    }
    assert_eq!(left().await, 2);
    alice.delete("/users/me").await.expect(200);
    assert_eq!(left().await, 1);
    a.advance(Duration::from_secs(601)).await;
    crate::support::request_upkeep(&a.world.database, "forget_codes").await;
    for _ in 0..400 {
        if left().await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!(
        "{:?}",
        psql(&a.world.database, "select * from email_change").await
    );
}
