//! Groups, from their opening to their last member.

mod agents;
mod races;
mod rules_version;
mod size;

use serde_json::{Value, json};

use crate::support::{Answer, User, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=10000/s,agent_message_send=10000/s,user_messages_list=10000/s,agent_tier_1=10000/s,\
     default_user=10000/s,group_agent_instance=10000/s,group_member_add=10000/s",
);

async fn add(admin: &User, group: &str, ids: &[&str]) -> Answer {
    admin
        .post(
            format!("/groups/{group}/members"),
            json!({ "user_ids": ids }),
        )
        .await
}

async fn remove(by: &User, group: &str, id: &str) -> Answer {
    by.delete(format!("/groups/{group}/members/{id}")).await
}

async fn roles(user: &User, group: &str) -> Vec<(String, String)> {
    let conversation = user
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    let members = conversation.data()["members"]
        .as_array()
        .expect("a list")
        .clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    members
        .iter()
        .map(|member| (text(&member["display_name"]), text(&member["role"])))
        .collect()
}

fn named(roles: &[(&str, &str)]) -> Vec<(String, String)> {
    roles
        .iter()
        .map(|(name, role)| ((*name).to_owned(), (*role).to_owned()))
        .collect()
}

async fn set_role(by: &User, group: &str, who: &User, role: &str) -> Answer {
    by.patch(
        format!("/groups/{group}/members/{}", who.id),
        json!({ "role": role }),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_from_its_opening_to_its_last_member() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [carol, dave] = [a.user("carol").await, a.user("dave").await];
    let mut bob_socket = bob.on(&b).connect().await;
    // The caller's own id and an id named twice count once.
    let body = json!({ "title": "four", "member_ids": [bob.id, bob.id, alice.id] });
    let made = alice.post("/groups", body).await.expect(201);
    let group = made.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert_eq!(
        (&made.data()["type"], &made.data()["member_count"]),
        (&json!("group"), &json!(2))
    );
    assert_eq!(
        (&made.data()["epoch"], &made.data()["rotation_required"]),
        (&json!(0), &json!(false))
    );
    let told = bob_socket.event("conversation.created").await;
    assert_eq!(
        (&told["data"]["conversation_id"], &told["data"]["title"]),
        (&json!(group), &json!("four"))
    );
    assert_eq!(
        (told["data"].get("members"), told["data"].get("my_role")),
        (None, None)
    );

    let nobody = ulid().to_string();
    let added = add(&alice, &group, &[&carol.id, &bob.id, &nobody, &carol.id])
        .await
        .expect(201);
    let failed = json!([{ "user_id": nobody, "reason": "NOT_FOUND" }]);
    let expected = json!({ "added": [carol.id], "already": [bob.id], "failed": failed, "rotation_required": false });
    assert_eq!(added.data(), &expected);
    let told = bob_socket.event("member.added").await;
    assert_eq!(told["data"]["member"]["principal_id"], carol.id);
    assert_eq!(told["data"]["member"]["role"], "member");
    assert_eq!(
        (&told["data"]["by"], &told["data"]["conversation_id"]),
        (&json!(alice.id), &json!(group))
    );
    // Carol was told too, of herself.
    let mut carol_socket = carol
        .connect_from(Some(&carol.start_of_inbox().await))
        .await;
    assert_eq!(
        carol_socket.event("member.added").await["data"],
        told["data"]
    );

    // Members are no admins.
    add(&bob, &group, &[&dave.id])
        .await
        .refused(403, "FORBIDDEN");
    remove(&bob, &group, &carol.id)
        .await
        .refused(403, "FORBIDDEN");
    let role = async |by: &User, who: &User, role: &str| set_role(by, &group, who, role).await;
    role(&bob, &bob, "admin").await.refused(403, "FORBIDDEN");
    role(&alice, &alice, "member")
        .await
        .refused(403, "FORBIDDEN");
    role(&alice, &dave, "admin").await.refused(404, "NOT_FOUND");
    role(&alice, &bob, "agent")
        .await
        .refused(400, "VALIDATION_ERROR");
    assert_eq!(
        role(&alice, &carol, "admin").await.expect(200).data()["role"],
        "admin"
    );
    bob_socket.event("conversation.updated").await;
    role(&carol, &bob, "admin").await.refused(403, "FORBIDDEN");
    add(&carol, &group, &[&dave.id]).await.expect(201);
    remove(&carol, &group, &alice.id)
        .await
        .refused(403, "FORBIDDEN");
    let expected = named(&[
        ("alice", "owner"),
        ("bob", "member"),
        ("carol", "admin"),
        ("dave", "member"),
    ]);
    assert_eq!(roles(&dave, &group).await, expected);

    // An owner may hand over, and take its leave.
    role(&alice, &bob, "owner").await.expect(200);
    assert_eq!(
        roles(&alice, &group).await[..2],
        named(&[("alice", "admin"), ("bob", "owner")])
    );
    let gone = remove(&bob, &group, &bob.id).await.expect(200);
    let expected =
        json!({ "conversation_id": group, "principal_id": bob.id, "rotation_required": true });
    assert_eq!(gone.data(), &expected);
    assert_eq!(
        bob_socket.event("member.removed").await["data"]["member"]["principal_id"],
        bob.id
    );
    bob.get(format!("/conversations/{group}"))
        .await
        .refused(404, "NOT_FOUND");
    bob.say(&group, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    // Alice and Carol are admins; Alice has been here longer.
    let expected = named(&[("alice", "owner"), ("carol", "admin"), ("dave", "member")]);
    assert_eq!(roles(&dave, &group).await, expected);
    remove(&alice, &group, &alice.id).await.expect(200);
    remove(&carol, &group, &carol.id).await.expect(200);
    assert_eq!(roles(&dave, &group).await, named(&[("dave", "owner")]));
    remove(&dave, &group, &dave.id).await.expect(200);
    dave.get(format!("/conversations/{group}"))
        .await
        .refused(404, "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_is_no_group_and_a_group_needs_members_that_are_there() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let nobody = ulid().to_string();
    let pair = alice.direct_with(&bob).await;
    add(&alice, &pair, &[&carol.id])
        .await
        .refused(404, "NOT_FOUND");
    remove(&alice, &pair, &bob.id)
        .await
        .refused(404, "NOT_FOUND");
    set_role(&alice, &pair, &bob, "admin")
        .await
        .refused(404, "NOT_FOUND");
    let body = json!({ "member_ids": [nobody] });
    let refused = alice.post("/groups", body).await.refused(404, "NOT_FOUND");
    assert_eq!(refused.body["error"]["params"]["user_ids"], json!([nobody]));
    for bad in [
        json!({ "title": "" }),
        json!({ "encryption": "none" }),
        json!({ "member_ids": ["x"] }),
    ] {
        alice
            .post("/groups", bad)
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    alice.post("/groups", json!({})).await.expect(201);
}
