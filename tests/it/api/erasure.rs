//! The events to others after the deletion of an account, and an erasure that fails.

use std::time::Duration;

use blindpipe::features::keys::erase;
use serde_json::{Value, json};

use crate::support::{User, connect, erasing, nodes, psql};

async fn role_of(viewer: &User, group: &str, id: &str) -> Value {
    let conversation = viewer
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    let members = conversation.data()["members"].as_array().expect("a list");
    let member = members.iter().find(|member| member["principal_id"] == id);
    member.expect("a member")["role"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_owner_deletes_the_account_hears_of_the_next_one() {
    let [a, b] = nodes().await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let group = alice.group_with(&[&bob, &carol]).await;
    let mut his = bob.on(&b).connect().await;
    let path = format!("/groups/{group}/members/{}", carol.id);
    alice
        .patch(path, json!({ "role": "admin" }))
        .await
        .expect(200);
    his.event("conversation.updated").await;

    alice.delete("/users/me").await.expect(200);
    let removed = his.event("member.removed").await;
    let member = &removed["data"]["member"];
    assert_eq!(
        (
            &member["principal_id"],
            &member["role"],
            &member["display_name"]
        ),
        (&json!(alice.id), &json!("owner"), &json!("Deleted account"))
    );
    assert_eq!(removed["data"]["by"], alice.id);
    let updated = his.event("conversation.updated").await;
    assert_eq!(updated["data"]["conversation_id"], json!(group));
    assert_eq!(
        (
            &updated["data"]["member_count"],
            &updated["data"]["rotation_required"]
        ),
        (&json!(2), &json!(true))
    );
    assert_eq!(role_of(&bob, &group, &carol.id).await, "owner");
    assert_eq!(role_of(&bob, &group, &bob.id).await, "member");
}

/// Waits until the erasure of a user has failed and is to be tried again.
async fn until_it_waits(database: &str, user: &str) {
    let client = connect(database).await;
    let waiting =
        "select 1 from job where unique_key = $1 and last_error is not null and failed_at is null";
    for _ in 0..400 {
        let found = client.query_opt(waiting, &[&user]).await;
        if found.expect("an answer").is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it does not wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_fails_stands_before_no_other() {
    let [a, b] = nodes().await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    bob.group_with(&[&alice, &carol]).await;
    let mut his = bob.on(&b).connect().await;
    let id: uuid::Uuid = alice.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let refusal = format!(
        "create function refuse() returns trigger language plpgsql as $$
         begin if old.principal_id = '{id}' then raise exception 'no'; end if; return old; end $$;
         create trigger refuse before delete on member for each row execute function refuse()"
    );
    psql(&a.world.database, &refusal).await;

    alice.delete("/users/me").await.expect(200);
    carol.delete("/users/me").await.expect(200);
    let removed = his.event("member.removed").await;
    assert_eq!(removed["data"]["member"]["principal_id"], carol.id);
    until_it_waits(&a.world.database, &alice.id).await;

    psql(&a.world.database, "drop trigger refuse on member").await;
    a.advance(Duration::from_secs(60)).await;
    let removed = his.event("member.removed").await;
    assert_eq!(removed["data"]["member"]["principal_id"], alice.id);
}

/// The tables that hold a word anywhere.
async fn tables_with(database: &str, word: &str) -> Vec<String> {
    let client = connect(database).await;
    let sql = "select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by 1";
    let tables = client.query(sql, &[]).await.expect("a catalog");
    let mut found = Vec::new();
    for table in tables {
        let table: String = table.get(0);
        let sql = format!("select exists (select from {table} t where t::text like $1)");
        let row = client.query_one(&sql, &[&format!("%{word}%")]).await;
        if row.expect(&sql).get(0) {
            found.push(table);
        }
    }
    found
}

/// The device of the first message that a member sees.
async fn device_of_first(viewer: &User, conversation: &str) -> Value {
    let path = format!("/conversations/{conversation}/messages?direction=forward");
    let history = viewer.get(path).await.expect(200);
    history.data()[0]["sender"]["device_id"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_takes_the_words_of_people() {
    let [a, b] = nodes().await;
    let database = &a.world.database;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    // A device, an agent and a prompt with words that nothing else has.
    let alice = alice.login(&a, Some("Wombats-phone")).await;
    let key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let backup = json!({ "device_id": alice.device_id, "public_key": key, "signing_public_key": key,
        "backup_a": "AQ==", "backup_b": "AQ==", "argon2_salt": key,
        "argon2_params": { "m": 19456, "t": 2, "p": 1 } });
    alice.post("/keys/backup", backup).await.expect(201);
    let described = json!({ "display_name": "Wombats-helper", "description": "of Wombats-household",
        "manifest": { "tools": [{ "name": "look", "description": "Wombats-prompt" }], "permission_scopes": [] } });
    let kept = alice.post("/agents", &described).await.expect(201);
    let gone = alice.post("/agents", &described).await.expect(201);
    let direct = alice.direct_with(&bob).await;
    alice.say(&direct, "hello").await.expect(201);
    let wraps = json!({ "base_epoch": 0, "wrapped_keys": [
        { "principal_id": alice.id, "device_id": alice.device_id, "wrapped_key": "AQEB" }] });
    let path = format!("/keys/groups/{direct}/rotate");
    alice.post(path, wraps).await.expect(201);
    assert_eq!(device_of_first(&bob, &direct).await, "Wombats-phone");

    // An agent that goes alone has no texts, and the other one has its own.
    let path = format!(
        "/agents/{}",
        gone.data()["agent_id"].as_str().expect("an id")
    );
    alice.delete(path).await.expect(200);
    let sql = format!(
        "select 1 from agent where agent_id = '{}' and agent::text like '%Wombats%'",
        gone.data()["agent_id"].as_str().expect("an id")
    );
    assert_eq!(
        connect(database)
            .await
            .query(&sql, &[])
            .await
            .expect("rows")
            .len(),
        0
    );
    assert_eq!(kept.data()["display_name"], "Wombats-helper");

    alice.on(&b).delete("/users/me").await.expect(200);
    for _ in 0..400 {
        if device_of_first(&bob, &direct).await.is_null() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(device_of_first(&bob, &direct).await, Value::Null);
    for _ in 0..400 {
        let jobs = "select from job where kind = 'erase_account'";
        if connect(database)
            .await
            .query(jobs, &[])
            .await
            .expect("rows")
            .is_empty()
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    // The grace keeps the ids of devices with the backups.
    assert!(
        tables_with(database, "Wombats")
            .await
            .contains(&"device".to_owned())
    );
    a.advance(Duration::from_secs(7 * 86_400 + 1)).await;
    assert_eq!(erase::at(&erasing(database)).await.expect("erased"), 1);
    // Events are kept for a month.
    assert_eq!(tables_with(database, "Wombats").await, ["event"]);
    let bob = bob.refreshed().await;
    // Bob still has what verifies the old messages.
    let path = format!("/keys/groups/{direct}/recipients?principal_id={}", alice.id);
    let holders = bob.get(path).await.expect(200);
    let keys = &holders.data()["members"][0]["devices"];
    assert_eq!(keys[0]["public_key"], key, "{holders:?}");
}
