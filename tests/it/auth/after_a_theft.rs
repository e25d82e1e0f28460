//! After a theft: what ends, what is still there, and who is told.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use crate::support::{
    Agent, Authenticator, PASSWORD, TestNode, User, blocked, connect, nodes, nodes_with, psql,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "auth_send_code=1000/s,auth_send_code_day=1000/s,default_user=1000/s,group_agent_instance=1000/s",
);

async fn regenerate(owner: &User, agent: &Agent) -> Agent {
    let path = format!("/agents/{}/token/regenerate", agent.id);
    let answer = owner.post(path, json!({ "emergency": false })).await;
    let token = answer.expect(200).data()["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    Agent {
        caller: agent.with_token(&token),
        token,
        ..agent.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_session_takes_the_agent_tokens_that_it_made_and_no_others() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let owned = a.agent(&alice, "owned").await;
    // The thief has the session of the phone: an agent of its own, and the token of the owner's.
    let phone = alice.login(&a, Some("phone")).await;
    let planted = a.agent(&phone, "planted").await;
    let replaced = regenerate(&phone, &owned).await;
    let socket = planted.on(&b).connect().await;
    for agent in [&planted, &replaced, &owned] {
        agent.on(&b).get("/limits").await.expect(200);
    }
    phone.refreshed().await;
    a.advance(Duration::from_secs(11)).await;
    let reused = phone.on(&b).with_cookie("/auth/refresh").await;
    reused.refused(401, "TOKEN_EXPIRED");
    for agent in [&planted, &replaced] {
        for node in [&a, &b] {
            agent
                .on(node)
                .get("/limits")
                .await
                .refused(401, "AGENT_TOKEN_INVALID");
        }
    }
    let frames = socket.expect_close(4403).await;
    assert_eq!(frames.last().expect("a frame")["reason"], "refresh_reuse");
    // The owner's session and token live. The token counts as the current one again.
    owned.on(&b).get("/limits").await.expect(200);
    let state = async |agent: &Agent| {
        let answer = alice.get(format!("/agents/{}", agent.id)).await.expect(200);
        answer.data().clone()
    };
    for _ in 0..200 {
        let settled = state(&planted).await["state"] == "token_revoked"
            && state(&owned).await["token"]["grace_until"].is_null();
        if settled {
            a.advance(Duration::from_secs(8 * 86_400)).await;
            owned.get("/limits").await.expect(200);
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{} {}", state(&planted).await, state(&owned).await);
}

/// A failover without its last commits, or a restore: the session's row is older than its token.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_newer_than_its_session_is_no_theft() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let phone = alice.login(&a, Some("phone")).await;
    let agent = a.agent(&phone, "made by the phone").await;
    let first = phone.refreshed().await;
    let third = first.refreshed().await.refreshed().await;
    let before = a.metric("sessions_ahead_total", &[]).await;
    let lost = "update session set generation = generation - 2 where device_id = 'phone'";
    psql(&a.world.database, lost).await;
    a.advance(Duration::from_secs(60)).await;
    let fourth = third.on(&b).refreshed().await;
    assert!(a.metric("sessions_ahead_total", &[]).await > before);
    let fifth = fourth.on(&a).refreshed().await;
    fifth.get("/users/me").await.expect(200);
    agent.on(&b).get("/limits").await.expect(200);
    // An earlier token is a theft as before, of every session since.
    a.advance(Duration::from_secs(60)).await;
    let reused = first.on(&b).with_cookie("/auth/refresh").await;
    reused.refused(401, "TOKEN_EXPIRED");
    fifth.get("/users/me").await.refused(401, "UNAUTHORIZED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_says_whose_token_it_gives() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let answer = alice.with_cookie("/auth/refresh").await.expect(200);
    let data = answer.data();
    assert_eq!(
        (&data["user_id"], &data["device_id"]),
        (&json!(alice.id), &json!(alice.device_id))
    );
}

/// Waits until every mail has been sent; the subjects of those to this user, sorted.
async fn subjects(node: &TestNode, user: &User) -> Vec<String> {
    let client = connect(&node.world.database).await;
    for _ in 0..400 {
        let waiting =
            "select count(*) from job where kind in ('mail', 'login_notice', 'security_notice')";
        let waiting = client.query_one(waiting, &[]).await.expect("a count");
        if waiting.get::<_, i64>(0) == 0 {
            let mails = std::fs::read_dir(&node.world.mail_dir).expect("a folder");
            let texts = mails
                .flatten()
                .filter_map(|mail| std::fs::read_to_string(mail.path()).ok());
            let to = format!("To: {}", user.email);
            let subject = |text: String| {
                let mut lines = text.lines();
                let line = lines.find_map(|line| line.strip_prefix("Subject: "))?;
                (text.contains(&to) && !line.contains("code")).then(|| line.to_owned())
            };
            let mut subjects: Vec<_> = texts.filter_map(subject).collect();
            subjects.sort();
            return subjects;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("mails wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_thief_would_change_is_mailed_once_a_day() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [mut alice, bob] = [a.user("alice").await, a.user("bob").await];
    for day in 1..=2 {
        for n in 0..2 {
            let node = [&a, &b][n];
            Authenticator::enrol(&alice.on(node), "key").await;
            let agent = node.agent(&alice, "helper").await;
            regenerate(&alice.on(node), &agent).await;
            let body = json!({ "current_password": PASSWORD, "new_account_password": PASSWORD });
            alice
                .on(node)
                .post("/users/me/password", body)
                .await
                .expect(200);
        }
        // A change and a reset are one kind.
        let code = a.anon().code(&alice.email, "reset").await;
        let body = json!({ "email": alice.email, "code": code, "new_account_password": PASSWORD });
        let reset = b
            .anon()
            .post("/auth/reset-password", body)
            .await
            .expect(200);
        let still_there = json!({ "reset": true, "passkeys": 2 * day, "agents": 2 * day });
        assert_eq!(reset.data(), &still_there);
        let kinds = [
            "A new agent",
            "A new passkey",
            "A new password",
            "A new token of an agent",
        ];
        let subjects = subjects(&a, &alice).await;
        for kind in kinds {
            let mails = subjects.iter().filter(|subject| *subject == kind).count();
            assert_eq!(mails, day, "{kind}: {subjects:?}");
        }
        a.advance(Duration::from_secs(86_401)).await;
        alice = alice.login(&a, Some(&alice.device_id)).await;
    }
    assert!(subjects(&a, &bob).await.is_empty());
    // The answer to a revocation names what else there is.
    alice.login(&a, Some("phone")).await;
    let revoked = alice.delete("/users/me/devices/phone").await.expect(200);
    let data = revoked.data();
    assert_eq!((&data["passkeys"], &data["agents"]), (&json!(4), &json!(4)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_stolen_token_takes_no_passkey() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    Authenticator::enrol(&alice, "key").await;
    a.advance(Duration::from_secs(601)).await;
    let alice = alice.refreshed().await;
    let listed = alice.get("/users/me/passkeys").await.expect(200);
    let id = listed.data()[0]["passkey_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let path = format!("/users/me/passkeys/{id}");
    alice.delete(&path).await.refused(403, "REAUTH_REQUIRED");
    let alice = alice.login(&a, Some(&alice.device_id)).await;
    alice.delete(&path).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_changes_is_judged_when_it_is_written() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    Authenticator::enrol(&alice, "key").await;
    let passkeys = alice.get("/users/me/passkeys").await.expect(200);
    let passkey = passkeys.data()[0]["passkey_id"].as_str().expect("an id");
    let [placed, other] = [
        a.agent(&alice, "placed").await,
        a.agent(&alice, "other").await,
    ];
    for agent in [&placed, &other] {
        alice.talk_to(agent).await;
    }
    let group = alice.group_with(&[&bob]).await;
    let instances = format!("/groups/{group}/agent-instances");
    let placed = alice
        .post(&instances, json!({ "agent_id": placed.id }))
        .await
        .expect(201);
    let instance = placed.data()["instance_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let member = format!("/groups/{group}/members/{}", bob.id);
    let calls = [
        (
            Method::POST,
            instances.clone(),
            json!({ "agent_id": other.id }),
        ),
        (Method::DELETE, format!("{instances}/{instance}"), json!({})),
        (
            Method::POST,
            format!("/groups/{group}/members"),
            json!({ "user_ids": [carol.id] }),
        ),
        (Method::PATCH, member.clone(), json!({ "role": "admin" })),
        (Method::DELETE, member, json!({})),
        (
            Method::PATCH,
            format!("/conversations/{group}"),
            json!({ "title": "mine" }),
        ),
        (
            Method::POST,
            format!("/keys/groups/{group}/rotate"),
            json!({ "base_epoch": 0, "wrapped_keys": [] }),
        ),
        (
            Method::DELETE,
            format!("/users/me/passkeys/{passkey}"),
            json!({}),
        ),
    ];
    let mut client = connect(&a.world.database).await;
    for (method, path, body) in calls {
        let alice = alice.login(&a, Some(&alice.device_id)).await;
        // The session ends while the call, which was let in, waits.
        let tx = client.transaction().await.expect("begun");
        tx.batch_execute("update session set revoked_at = app_now() where revoked_at is null")
            .await
            .expect("held");
        let late = alice.send(alice.request(method.clone(), &path).json(&body));
        let end = async {
            blocked(&tx, 1).await;
            tx.batch_execute("commit").await.expect("let go");
        };
        let (late, ()) = tokio::join!(late, end);
        assert_eq!(late.status, 401, "{method} {path}: {late:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ex_member_holds_no_conversation_up() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/members/{}", bob.id);
    alice.delete(&path).await.expect(200);
    // Somebody holds the row: who has no right to it does not even wait for it.
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    tx.batch_execute("select 1 from conversation for update")
        .await
        .expect("held");
    for (method, path) in [
        (Method::PATCH, format!("/conversations/{group}")),
        (Method::DELETE, path),
    ] {
        let started = Instant::now();
        let body = json!({ "title": "mine" });
        let call = bob.request(method, path).json(&body);
        bob.send(call).await.refused(404, "NOT_FOUND");
        assert!(started.elapsed() < Duration::from_millis(700));
    }
    assert_eq!(crate::support::waiting(&tx).await, 0);
}
