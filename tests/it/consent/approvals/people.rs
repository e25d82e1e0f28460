//! People and agents who leave, and what goes with a relation.

use serde_json::{Value, json};

use super::{Room, admit, ask_in, closed, heard, heard_by_agent, names, text};
use crate::support::{User, connect, request_upkeep};

async fn leave(user: &User, group: &str) {
    let path = format!("/groups/{group}/members/{}", user.id);
    user.delete(path).await.expect(200);
}

/// Ends the user's relation with an agent.
async fn end_relation(user: &User, agent: &str) {
    let relations = user.get("/relations").await.expect(200);
    let relations = relations.body["data"].as_array().expect("a list").clone();
    let active = relations
        .iter()
        .find(|one| one["agent_id"] == agent && one["state"] == "active")
        .expect("a relation");
    let path = format!("/relations/{}", text(active, "relation_id"));
    user.delete(path).await.expect(200);
}

/// Waits until an approval asks so many.
async fn until_asked(room: &Room, item: &Value, count: usize) -> Value {
    for _ in 0..400 {
        let item = room.item(item).await;
        if item["asked"].as_array().expect("a list").len() == count {
            return item;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("{item} never asks {count}");
}

fn outcome(item: &Value) -> (&str, &str) {
    let word = |name: &str| item[name].as_str().unwrap_or_default();
    (word("state"), word("reason"))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_is_asked_no_longer() {
    let room = Room::new().await;
    let [a, b] = &room.nodes;
    let all = room.ask(json!({ "quorum": 2, "deny_quorum": 2 })).await;
    let two =
        json!({ "of": [room.bob.user.id, room.carol.user.id], "quorum": 2, "deny_quorum": 2 });
    let two = room.ask(two).await;
    let one = json!({ "of": [room.carol.user.id] });
    let one = room.ask(one).await;
    room.carol.decide(b, &all, "approved").await.expect(200);
    leave(&room.carol.user, &room.group).await;
    // Nobody is left, or too few are.
    assert_eq!(
        outcome(&closed(&room.agent, &one).await),
        ("expired", "nobody_left")
    );
    assert_eq!(
        outcome(&closed(&room.agent, &two).await),
        ("expired", "undecidable")
    );
    let item = room.item(&all).await;
    assert_eq!(item["state"], "open");
    room.carol
        .decide(a, &all, "approved")
        .await
        .refused(404, "NOT_FOUND");
    let path = format!("/approvals/{}", text(&all, "approval_id"));
    room.carol.user.get(&path).await.refused(404, "NOT_FOUND");
    // The decision of who has left counts.
    let done = room.bob.decide(a, &all, "approved").await.expect(200);
    assert_eq!(outcome(done.data()), ("approved", ""));
    let asked = done.data()["asked"].as_array().expect("a list");
    assert_eq!(asked.len(), 3);
    // Who comes back is not asked again, and hears of none of these.
    let members = json!({ "user_ids": [room.carol.user.id] });
    let again = format!("/groups/{}/members", room.group);
    room.alice.user.post(again, members).await.expect(201);
    room.carol.user.get(&path).await.refused(404, "NOT_FOUND");
    let events = heard(&room.carol.user).await;
    assert!(events.iter().all(|(name, _)| name != "approval.closed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_relation_of_a_pair_withdraws() {
    let room = Room::new().await;
    let pair = room.bob.user.talk_to(&room.agent).await;
    let asked = ask_in(&room.agent, &pair, json!({})).await;
    let item = asked.expect(201).data().clone();
    let elsewhere = room.ask(json!({ "quorum": 3, "deny_quorum": 3 })).await;
    end_relation(&room.bob.user, &room.agent.id).await;
    let mut closed = Vec::new();
    while closed.is_empty() {
        closed = heard(&room.bob.user).await;
        closed.retain(|(name, _)| name == "approval.closed");
    }
    let by_id = |item: &Value| {
        let id = &item["approval_id"];
        closed.iter().find(|(_, data)| data["approval_id"] == *id)
    };
    let (_, data) = by_id(&item).expect("closed");
    assert_eq!(outcome(data), ("withdrawn", "relation_revoked"));
    // The agent has lost its place there, and hears of the end.
    let path = format!("/approvals/{}", text(&item, "approval_id"));
    room.agent.get(&path).await.refused(404, "NOT_FOUND");
    room.bob.user.get(&path).await.expect(200);
    let events = heard_by_agent(&room.agent).await;
    assert!(names(&events).contains(&"approval.closed"));
    // In the group, this member is asked no longer.
    let left = super::closed(&room.agent, &elsewhere).await;
    assert_eq!(outcome(&left), ("expired", "undecidable"));
    let refused = room.bob.decide(room.node(0), &item, "approved").await;
    let refused = refused.refused(409, "APPROVAL_CLOSED");
    assert_eq!(refused.body["error"]["params"]["state"], "withdrawn");
    // A new relation opens none of it again.
    assert_eq!(
        room.bob
            .user
            .post(
                "/conversations",
                json!({ "type": "agent", "agent_id": room.agent.id })
            )
            .await
            .expect(200)
            .data()["conversation_id"],
        json!(pair)
    );
    room.agent.get(&path).await.refused(404, "NOT_FOUND");
    let kept = room.bob.user.get(&path).await.expect(200);
    assert_eq!(kept.data()["state"], "withdrawn");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_who_ends_a_relation_is_asked_no_longer() {
    let room = Room::new().await;
    room.bob.user.talk_to(&room.agent).await;
    let item = room.ask(json!({ "quorum": 2, "deny_quorum": 2 })).await;
    end_relation(&room.bob.user, &room.agent.id).await;
    let item = until_asked(&room, &item, 2).await;
    assert_eq!(item["state"], "open");
    room.bob
        .decide(room.node(0), &item, "approved")
        .await
        .refused(404, "NOT_FOUND");
    // The relation of who has brought the agent carries its place.
    end_relation(&room.alice.user, &room.agent.id).await;
    let path = format!("/approvals/{}", text(&item, "approval_id"));
    let mut shown = room.carol.user.get(&path).await.expect(200);
    while shown.data()["state"] == "open" {
        shown = room.carol.user.get(&path).await.expect(200);
    }
    assert_eq!(outcome(shown.data()), ("withdrawn", "relation_revoked"));
    room.try_ask(json!({}))
        .await
        .refused(403, "RELATION_REVOKED");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_removal_of_the_agent_withdraws_and_so_does_its_deletion() {
    let room = Room::new().await;
    let other = room.nodes[0].agent(&room.developer, "other").await;
    room.alice.user.talk_to(&other).await;
    let instance = admit(&room.alice.user, &room.group, &other, "addressed").await;
    let removed = ask_in(&other, &room.group, json!({})).await.expect(201);
    let deleted = room.ask(json!({})).await;
    let place = format!(
        "/groups/{}/agent-instances/{}",
        room.group,
        text(&instance, "instance_id")
    );
    room.alice.user.delete(place).await.expect(200);
    let owned = format!("/agents/{}", room.agent.id);
    room.developer.delete(owned).await.expect(200);
    for (item, reason) in [
        (removed.data(), &["agent_removed"][..]),
        (&deleted, &["agent_removed", "relation_revoked"][..]),
    ] {
        let path = format!("/approvals/{}", text(item, "approval_id"));
        let mut shown = room.bob.user.get(&path).await.expect(200);
        while shown.data()["state"] == "open" {
            shown = room.bob.user.get(&path).await.expect(200);
        }
        let (state, why) = outcome(shown.data());
        assert!(state == "withdrawn" && reason.contains(&why), "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_goes_with_the_messages_of_its_relation() {
    let room = Room::new().await;
    let pair = room.bob.user.talk_to(&room.agent).await;
    let asked = ask_in(&room.agent, &pair, json!({})).await;
    let item = asked.expect(201).data().clone();
    room.bob
        .decide(room.node(0), &item, "approved")
        .await
        .expect(200);
    end_relation(&room.bob.user, &room.agent.id).await;
    let database = &room.nodes[0].world.database;
    let client = connect(database).await;
    let left = async || {
        let sql = "select (select count(*) from approval) + (select count(*) from approval_asked) as left";
        client
            .query_one(sql, &[])
            .await
            .expect("a count")
            .get::<_, i64>("left")
    };
    room.advance(6 * 86_400).await;
    request_upkeep(database, "purge_relations").await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await; // real time of the purge
    assert_eq!(left().await, 2);
    room.advance(2 * 86_400).await;
    request_upkeep(database, "purge_relations").await;
    for _ in 0..400 {
        if left().await == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("the approval is still there");
}
