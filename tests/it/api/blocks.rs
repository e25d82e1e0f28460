//! The block list: what a blocked user and a blocked agent can no longer do, and races with it.

use std::collections::HashSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Caller, connect, nodes, ulid};

async fn block(user: &Caller, id: &str) -> Answer {
    let path = format!("/users/me/blocks/{id}");
    user.send(user.request(Method::PUT, path)).await
}

async fn unblock(user: &Caller, id: &str) -> Answer {
    user.delete(format!("/users/me/blocks/{id}")).await
}

async fn direct(user: &Caller, other: &str) -> Answer {
    let body = json!({ "type": "direct", "user_id": other });
    user.post("/conversations", body).await
}

async fn group(user: &Caller, members: &[&str]) -> Answer {
    user.post("/groups", json!({ "member_ids": members })).await
}

/// An error without what differs between any two answers.
fn refusal(answer: &Answer, id: &str) -> (u16, String) {
    (answer.status, answer.body.to_string().replace(id, "<id>"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_user_is_answered_as_if_the_blocker_did_not_exist() {
    let [a, b] = nodes().await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let unknown = ulid().to_string();
    let bobs_group = bob.group_with(&[&carol]).await;
    let first = block(&alice, &bob.id).await.expect(200);
    assert_eq!(first.data()["principal_id"], json!(bob.id));
    let again = block(&alice.on(&b), &bob.id).await.expect(200);
    assert_eq!(again.data(), first.data(), "a repeat changes nothing");

    let bob = bob.on(&b);
    for (there, nowhere) in [
        (direct(&bob, &alice.id).await, direct(&bob, &unknown).await),
        (
            group(&bob, &[&carol.id, &alice.id]).await,
            group(&bob, &[&carol.id, &unknown]).await,
        ),
    ] {
        assert_eq!(there.status, 404);
        assert_eq!(refusal(&there, &alice.id), refusal(&nowhere, &unknown));
    }
    let path = format!("/groups/{bobs_group}/members");
    let body = json!({ "user_ids": [alice.id, unknown] });
    let added = bob.post(path.clone(), body).await.expect(201);
    assert_eq!(added.data()["added"], json!([]));
    let failed: HashSet<&str> = added.data()["failed"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["reason"].as_str().expect("a reason"))
        .collect();
    assert_eq!(failed, HashSet::from(["NOT_FOUND"]));
    assert_eq!(alice.get("/conversations").await.body["data"], json!([]));

    // The blocker may still open one, and others may add both.
    carol.group_with(&[&alice, &bob]).await;
    unblock(&alice, &bob.id).await.expect(200);
    unblock(&alice, &bob.id).await.expect(200);
    direct(&bob, &alice.id).await.expect(201);
    bob.post(path, json!({ "user_ids": [alice.id] }))
        .await
        .expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exists_goes_on() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    let pair = direct(&bob, &alice.id).await.expect(201);
    let pair = pair.data()["conversation_id"].as_str().expect("an id");
    let team = bob.group_with(&[&alice]).await;
    block(&alice, &bob.id).await.expect(200);
    bob.say(pair, "still here").await.expect(201);
    bob.say(&team, "here too").await.expect(201);
    let found = direct(&bob, &alice.id).await.expect(200);
    assert_eq!(found.data()["conversation_id"], json!(pair));
    let path = format!("/groups/{team}/members");
    let again = bob.post(path, json!({ "user_ids": [alice.id] })).await;
    assert_eq!(again.expect(201).data()["already"], json!([alice.id]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_agent_loses_its_relation_and_gets_none_until_it_is_unblocked() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut agent_socket = agent.on(&b).connect().await;
    block(&alice, &agent.id).await.expect(200);
    let revoked = agent_socket.event("relation.revoked").await;
    assert_eq!(revoked["data"]["user_id"], json!(alice.id));
    agent
        .on(&b)
        .say(&conversation, "hello?")
        .await
        .refused(403, "RELATION_REVOKED");
    let open = || async {
        let body = json!({ "type": "agent", "agent_id": agent.id });
        alice.on(&b).post("/conversations", body).await
    };
    open().await.refused(403, "FORBIDDEN");
    // Others are not concerned.
    bob.talk_to(&agent).await;
    block(&alice, &agent.id).await.expect(200);
    unblock(&alice, &agent.id).await.expect(200);
    open().await.expect(200);
    agent.say(&conversation, "hello again").await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_the_users_own_and_comes_in_pages() {
    let [a] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    let carol = a.user("carol").await;
    for id in [&bob.id, &agent.id, &carol.id] {
        block(&alice, id).await.expect(200);
    }
    let mut seen: Vec<Value> = Vec::new();
    let mut path = "/users/me/blocks?limit=2".to_owned();
    loop {
        let page = alice.get(&path).await.expect(200);
        seen.extend(page.body["data"].as_array().expect("a list").clone());
        let Some(cursor) = page.body["next_cursor"].as_str() else {
            break;
        };
        path = format!("/users/me/blocks?limit=2&cursor={cursor}");
    }
    let ids: Vec<&Value> = seen.iter().map(|one| &one["principal_id"]).collect();
    assert_eq!(ids, [&json!(carol.id), &json!(agent.id), &json!(bob.id)]);
    assert_eq!(seen[1]["principal_type"], "agent");
    assert_eq!(seen[1]["display_name"], "helper");
    assert_eq!(bob.get("/users/me/blocks").await.body["data"], json!([]));

    block(&alice, &alice.id)
        .await
        .refused(400, "VALIDATION_ERROR");
    for id in [ulid().to_string(), uuid::Uuid::from(ulid()).to_string()] {
        block(&alice, &id).await.refused(404, "NOT_FOUND");
        unblock(&alice, &id).await.refused(404, "NOT_FOUND");
    }
    let unknown = format!("/users/me/blocks?cursor={}", ulid());
    alice.get(unknown).await.refused(400, "VALIDATION_ERROR");
    // A deleted principal can be taken off the list.
    carol.delete("/users/me").await.expect(200);
    unblock(&alice, &carol.id).await.expect(200);
    unblock(&alice, &carol.id).await.refused(404, "NOT_FOUND");
    alice.delete("/users/me").await.expect(200);
    let client = connect(&a.world.database).await;
    let left = client
        .query("select 1 from block", &[])
        .await
        .expect("rows");
    assert_eq!(left.len(), 0);
}

/// Whichever comes first, an opening that succeeds was not after the answer to the block, and a
/// blocked one made nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_and_an_opening_at_one_moment_come_one_after_the_other() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let bob = a.user("bob").await;
    let agents = [a.agent(&bob, "one").await, a.agent(&bob, "two").await];
    let mut client = connect(&a.world.database).await;
    let lock = "select 1 from user_account where email = $1 for update";

    // The block waits in front; the opening that arrives later sees it.
    let held = client.transaction().await.expect("begun");
    held.execute(lock, &[&alice.email]).await.expect("locked");
    let (blocker, opener) = (alice.clone(), bob.on(&b));
    let id = bob.id.clone();
    let blocking = crate::support::spawn(async move { block(&blocker, &id).await.status });
    crate::support::blocked(&held, 1).await;
    let alice_id = alice.id.clone();
    let opening = crate::support::spawn(async move { direct(&opener, &alice_id).await.status });
    crate::support::blocked(&held, 2).await;
    held.rollback().await.expect("released");
    assert_eq!(blocking.await.expect("no panic"), 200);
    assert_eq!(opening.await.expect("no panic"), 404);

    // Many of both at once: no relation stays active beside its block.
    for agent in &agents {
        let calls = (0..6).map(|n| {
            let caller = alice.on(if n % 2 == 0 { &a } else { &b });
            let id = agent.id.clone();
            async move {
                if n == 3 {
                    block(&caller, &id).await.status
                } else {
                    let body = json!({ "type": "agent", "agent_id": id });
                    caller.post("/conversations", body).await.status
                }
            }
        });
        let statuses = futures_util::future::join_all(calls).await;
        assert!(
            statuses
                .iter()
                .all(|status| [200, 201, 403].contains(status)),
            "{statuses:?}"
        );
        let relations = alice.get("/relations").await.expect(200);
        let active = relations.body["data"].as_array().expect("a list").iter();
        let active = active.filter(|one| one["agent_id"] == agent.id && one["state"] == "active");
        assert_eq!(active.count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_account_fills_no_strangers_inboxes() {
    let [a, b] = nodes().await;
    let mallory = a.user("mallory").await;
    let victims = crate::support::crowd(&a.world.database, 31).await;
    let (last, victims) = victims.split_last().expect("31");
    let calls = victims.iter().enumerate().map(|(n, victim)| {
        let caller = mallory.on(if n % 2 == 0 { &a } else { &b });
        async move {
            match n % 3 {
                0 => group(&caller, &[victim]).await.status,
                _ => direct(&caller, victim).await.status,
            }
        }
    });
    let statuses = futures_util::future::join_all(calls).await;
    let opened = statuses.iter().filter(|status| **status == 201).count();
    let refused = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!((opened, refused), (20, 10), "{statuses:?}");
    // Opened conversations stay charged.
    let refused = direct(&mallory, last).await.refused(429, "RATE_LIMITED");
    let scope = &refused.body["error"]["params"]["scope"];
    assert_eq!(scope, "conversation_open");
    // A conversation that is there costs nothing, however often it is asked for at once.
    let is_pair = |n: &usize| !n.is_multiple_of(3) && statuses[*n] == 201;
    let there = (0..victims.len()).find(is_pair).expect("a pair");
    let again = (0..20).map(|_| direct(&mallory, &victims[there]));
    for answer in futures_util::future::join_all(again).await {
        answer.expect(200);
    }
}
