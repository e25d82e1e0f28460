//! The events to others after the deletion of an account, and an erasure that fails.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{User, connect, nodes, psql};

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
