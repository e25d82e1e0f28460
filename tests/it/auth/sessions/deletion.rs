//! The deletion of an account, and what has run out.

use super::*;

/// No credential of the account opens anything.
async fn nobody_of_it_is_let_in(node: &TestNode, user: &User, phone: &User, agent: &Agent) {
    user.on(node)
        .get("/users/me")
        .await
        .refused(401, "UNAUTHORIZED");
    phone
        .on(node)
        .with_cookie("/auth/refresh")
        .await
        .refused(401, "TOKEN_EXPIRED");
    agent
        .on(node)
        .poll("")
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    login(node, &user.email, PASSWORD)
        .await
        .refused(401, "INVALID_CREDENTIALS");
}

/// The rows that say who a user was.
async fn rows_about(node: &TestNode, user: &User) -> i64 {
    let client = connect(&node.world.database).await;
    let sql = "select (select count(*) from key_backup) + (select count(*) from user_account where email like $1)
               + (select count(*) from device where user_id = $2 and (display_name is not null or key_id is not null))";
    let id: uuid::Uuid = user.id.parse::<ulid::Ulid>().expect("a ULID").into();
    client
        .query_one(sql, &[&format!("%{}%", user.email), &id])
        .await
        .expect("a count")
        .get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_account_is_dead_everywhere_and_leaves_its_conversations() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    let [helper, of_bob] = [
        a.agent(&alice, "helper").await,
        b.agent(&bob, "of bob").await,
    ];
    let direct = alice.direct_with(&bob).await;
    let with_helper = bob.talk_to(&helper).await;
    let with_alice = alice.talk_to(&of_bob).await;
    alice.say(&direct, "what stays").await.expect(201);
    let keys = json!({
        "device_id": alice.device_id, "public_key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
        "signing_public_key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "backup_a": "AQ==", "backup_b": "AQ==",
        "argon2_salt": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "argon2_params": { "m": 19456, "t": 2, "p": 1 },
    });
    alice.post("/keys/backup", keys).await.expect(201);
    a.advance(Duration::from_secs(601)).await;
    let alice = alice.refreshed().await;
    alice
        .delete("/users/me")
        .await
        .refused(403, "REAUTH_REQUIRED");
    let alice = alice.login(&a, Some(&alice.device_id)).await;
    let phone = alice.login(&b, Some("phone")).await;
    let bob = bob.login(&b, Some(&bob.device_id)).await;
    let dying = [
        alice.on(&b).connect().await,
        phone.on(&a).connect().await,
        helper.on(&b).connect().await,
    ];
    let mut heard = bob.on(&a).connect().await;

    let answer = alice.on(&b).delete("/users/me").await.expect(200);
    assert_eq!(answer.data()["user_id"], alice.id.as_str());
    assert!(answer.data()["deleted_at"].is_string());
    for node in [&a, &b] {
        nobody_of_it_is_let_in(node, &alice, &phone, &helper).await;
    }
    for socket in dying {
        let said = socket.expect_close(4403).await;
        let last = said.last().expect("a frame");
        assert_eq!(
            (&last["type"], &last["reason"]),
            (&json!("session.invalidated"), &json!("account_deleted"))
        );
    }
    // Everybody who shared a conversation hears of it; the history stays theirs.
    assert_eq!(
        heard.event("key.device_removed").await["data"]["user_id"],
        alice.id.as_str()
    );
    let (mut ended, mut left) = (Vec::new(), Vec::new());
    while ended.is_empty() || left.len() < 2 {
        let event = heard.expect("event").await;
        let data = &event["data"];
        match event["event"].as_str() {
            Some("relation.revoked") => ended.push(data["agent_id"].clone()),
            Some("member.removed") => left.push(data["member"]["principal_id"].clone()),
            _ => {}
        }
    }
    assert_eq!(ended, [json!(helper.id)]);
    assert!(
        left.contains(&json!(alice.id)) && left.contains(&json!(helper.id)),
        "{left:?}"
    );
    bob.say(&direct, "hello?").await.expect(201);
    bob.say(&with_helper, "hello?").await.expect(201);
    of_bob
        .say(&with_alice, "hello?")
        .await
        .refused(403, "RELATION_REVOKED");
    bob.get(format!("/keys/users/{}/devices", alice.id))
        .await
        .refused(404, "NOT_FOUND");
    bob.post(
        "/conversations",
        json!({ "type": "agent", "agent_id": helper.id }),
    )
    .await
    .refused(404, "AGENT_NOT_REGISTERED");
    // Nothing that says who it was is left after the grace of backups, and the address is free at once.
    assert_eq!(rows_about(&a, &alice).await, 1);
    a.advance(Duration::from_secs(61)).await;
    let code = a.anon().code(&alice.email, "register").await;
    let again = a
        .anon()
        .post(
            "/auth/register",
            User::registration(&alice.email, "alice", &code),
        )
        .await
        .expect(201);
    assert_ne!(again.data()["user_id"], alice.id.as_str());
    a.advance(Duration::from_secs(7 * 86_400)).await;
    let url = crate::support::erasing(&a.world.database);
    assert_eq!(erase::at(&url).await.expect("erased"), 1);
    let client = connect(&a.world.database).await;
    let left = client.query_one("select count(*) from key_backup", &[]);
    assert_eq!(left.await.expect("a count").get::<_, i64>(0), 0);
}

/// Holds everything that a send waits for, and the user's relations.
const HOLD: &str =
    "begin; select 1 from conversation for update; select 1 from relation for update;
                    select 1 from inbox for update";

#[tokio::test(flavor = "multi_thread")]
async fn deleting_an_account_waits_for_nobodys_sends() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    let [helper, of_bob] = [
        a.agent(&alice, "helper").await,
        b.agent(&bob, "of bob").await,
    ];
    bob.talk_to(&helper).await;
    let conversation = alice.talk_to(&of_bob).await;
    let mut heard = of_bob.on(&a).connect().await;
    let client = connect(&a.world.database).await;
    client.batch_execute(HOLD).await.expect("held");
    alice.delete("/users/me").await.expect(200);
    login(&b, &alice.email, PASSWORD)
        .await
        .refused(401, "INVALID_CREDENTIALS");
    helper
        .on(&b)
        .poll("")
        .await
        .refused(401, "AGENT_TOKEN_INVALID");
    client.batch_execute("commit").await.expect("let go");
    assert_eq!(
        heard.event("relation.revoked").await["data"]["user_id"],
        alice.id.as_str()
    );
    of_bob
        .say(&conversation, "hello?")
        .await
        .refused(403, "RELATION_REVOKED");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_run_out_is_forgotten_in_batches() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let client = connect(&a.world.database).await;
    let fill = "insert into login_guard select n || '@x', 1, app_now() from generate_series(1, 2500) n;
                insert into code_guard select n || '@x', array[app_now()] from generate_series(1, 2500) n;
                insert into code_guard values ('none@x', '{}');
                insert into email_code select n || '@x', 'login', gen_random_uuid(), 5, app_now() from generate_series(1, 2500) n";
    client.batch_execute(fill).await.expect("filled");
    a.advance(Duration::from_secs(3700)).await;
    let fresh = "insert into login_guard values ('fresh@x', 1, app_now());
                 insert into code_guard values ('fresh@x', array[app_now() - interval '2 hours', app_now()])";
    client.batch_execute(fresh).await.expect("added");
    let db = crate::support::db(&a.world.database);
    forget(&db, &Overrides::default()).await.expect("forgotten");
    let sql = "select (select count(*) from email_code), (select string_agg(email, ',') from login_guard),
                      (select string_agg(email, ',') from code_guard), (select count(*) from session)";
    let row = client.query_one(sql, &[]).await.expect("counts");
    let kept: (i64, String, String, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!(kept, (0, "fresh@x".to_owned(), "fresh@x".to_owned(), 1));
    // An operator's longer windows keep what they need.
    let longer: Overrides = "auth_login_fail=5/2h,auth_code_tries=10/2h"
        .parse()
        .expect("overrides");
    client.batch_execute("delete from code_guard; delete from login_guard;
        insert into login_guard values ('kept@x', 1, app_now() - interval '110 min'), ('gone@x', 9, app_now() - interval '121 min');
        insert into code_guard values ('kept@x', array[app_now() - interval '110 min']), ('gone@x', array[app_now() - interval '121 min'])")
        .await
        .expect("added");
    forget(&db, &longer).await.expect("forgotten");
    let row = client.query_one(sql, &[]).await.expect("counts");
    assert_eq!(
        (row.get::<_, String>(1), row.get::<_, String>(2)),
        ("kept@x".to_owned(), "kept@x".to_owned())
    );
    // Thirty days after its end a session says nothing any more, nor does a device that we named.
    let unnamed = alice.login(&a, None).await;
    a.advance(Duration::from_secs(61 * 86400)).await;
    forget(&db, &Overrides::default()).await.expect("forgotten");
    let sql =
        "select (select count(*) from session), (select count(*) from device where device_id = $1)";
    let row = client
        .query_one(sql, &[&unnamed.device_id])
        .await
        .expect("counts");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 0));
}
