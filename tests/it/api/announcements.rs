//! Announcements: events for everybody who has to do with a user or an agent. The change commits
//! alone, whatever the audience, and a job tells the audience in pieces.

use std::time::{Duration, Instant};

use blindpipe::jobs::queue::LEASE;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{
    agents_keys::{Keys, register},
    keys::{backup, key_id},
};
use crate::support::{ProcessNode, connect, nodes, psql};

fn user_uuid(id: &str) -> Uuid {
    id.parse::<ulid::Ulid>().expect("an id").into()
}

/// Makes groups of `principals` and 490 people each, all different. They exist as rows only.
async fn fill(database: &str, owner: Uuid, principals: &[(Uuid, &str)], groups: usize) {
    let members: String = principals
        .iter()
        .map(|(id, kind)| {
            format!(
                "union all select g, '{id}'::uuid, '{kind}' from generate_series(1, {groups}) g "
            )
        })
        .collect();
    let sql = format!(
        "insert into conversation (conversation_id, kind, created_by)
             select md5('group' || g)::uuid, 'group', '{owner}' from generate_series(1, {groups}) g;
         insert into member (conversation_id, principal_id, principal_kind, role)
             select md5('group' || g)::uuid, principal_id, kind, 'member' from (
                 select g, md5(g || ' person ' || n)::uuid as principal_id, 'user' as kind
                 from generate_series(1, {groups}) g, generate_series(1, 490) n {members}) each;
         insert into inbox (principal_id)
             select principal_id from member where md5(principal_id::text) is not null
             on conflict do nothing;
         analyze member"
    );
    psql(database, &sql).await;
}

/// The number of the people made by [`fill`] whose inbox has exactly `n` events.
async fn reached(client: &Client, n: i64) -> i64 {
    let sql = "select count(*) from inbox i where head_seq = $1 and not exists (
                   select from user_account where user_id = principal_id union all
                   select from agent where agent_id = principal_id)";
    let row = client.query_one(sql, &[&n]).await.expect("a count");
    row.get(0)
}

async fn all_reached(client: &Client, n: i64, people: i64) {
    let since = Instant::now();
    while reached(client, n).await < people {
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "{} of {people}",
            reached(client, n).await
        );
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Waits until every announcement is told, and nothing is left of it.
async fn all_told(client: &Client) {
    let since = Instant::now();
    let left = "select (select count(*) from announcement) + (select count(*) from announcement_recipient)";
    while client
        .query_one(left, &[])
        .await
        .expect("a count")
        .get::<_, i64>(0)
        > 0
    {
        assert!(since.elapsed() < Duration::from_secs(20), "some are left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_commits_at_once_and_twenty_thousand_people_hear_of_it() {
    a_change_reaches_the_members_of(41).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
async fn a_change_commits_at_once_and_two_hundred_thousand_people_hear_of_it() {
    a_change_reaches_the_members_of(408).await;
}

/// Changes of a person who shares so many groups, each with 490 others.
async fn a_change_reaches_the_members_of(groups: usize) {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let phone = alice.login(&b, Some("phone")).await;
    phone
        .post("/keys/backup", backup("phone", 1))
        .await
        .expect(201);
    let client = connect(&a.world.database).await;
    all_told(&client).await;
    let (id, agent_id) = (user_uuid(&alice.id), agent.id.parse().expect("an id"));
    fill(
        &a.world.database,
        id,
        &[(id, "user"), (agent_id, "agent")],
        groups,
    )
    .await;

    let there = alice.on(&b);
    there.delete("/users/me/devices/phone").await.expect(200);
    phone.get("/users/me").await.refused(401, "UNAUTHORIZED");
    // The jobs may have most of them still to tell.
    let new = backup(&alice.device_id, 2);
    alice.post("/keys/backup", new).await.expect(201);
    register(&a, &agent, &agent, &Keys::new(1))
        .await
        .expect(201);
    let manifest = json!({ "tools": [], "permission_scopes": [] });
    let path = format!("/agents/{}", agent.id);
    agent.patch(path, manifest).await.expect(200);

    let sql =
        "select count(*), count(distinct principal_id) from inbox_entry where event_ids @> array(
                   select event_id from event where kind = 'key.device_removed')";
    // Alice and her agent hear of it, too.
    let people = 490 * i64::try_from(groups).expect("small") + 2;
    let since = Instant::now();
    loop {
        let told = client.query_one(sql, &[]).await.expect("a count");
        assert_eq!(
            told.get::<_, i64>(0),
            told.get::<_, i64>(1),
            "one was told twice"
        );
        if told.get::<_, i64>(0) == people {
            break;
        }
        let told: i64 = told.get(0);
        assert!(
            since.elapsed() < Duration::from_secs(120),
            "{told} of {people}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    no_change_told_anybody(&client).await;
}

/// The kinds of the events that the changes of the test above announce.
const ANNOUNCED: &str =
    "'key.device_removed', 'key.device_added', 'agent.key_registered', 'agent.manifest_updated'";
/// The most recipients that a transaction of a job tells.
const MAX_PIECE_RECIPIENTS: i64 = 500;

/// Holds that the transaction of a change tells nobody, and one of a job a piece of the audience.
async fn no_change_told_anybody(client: &Client) {
    let sql = format!(
        "with announced as (select event_id, kind, xmin::text as tx from event where kind in ({ANNOUNCED})),
              told as (select e.xmin::text as tx, count(*) as people from inbox_entry e
                  where exists (select from announced where event_ids @> array[event_id]) group by 1)
         select (select count(distinct kind) from announced), (select max(people) from told),
                (select count(*) from told where tx in (select tx from announced))"
    );
    let row = client.query_one(&sql, &[]).await.expect("a row");
    let (kinds, largest, by_a_change): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((kinds, by_a_change), (4, 0), "a change tells nobody");
    let a_piece = MAX_PIECE_RECIPIENTS - 10..=MAX_PIECE_RECIPIENTS;
    assert!(a_piece.contains(&largest), "{largest} by one transaction");
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_told_once_when_the_node_that_tells_them_is_killed() {
    let [a] = nodes().await;
    let alice = a.user("alice").await;
    let bob = a.user("bob").await;
    let phone = alice.login(&a, Some("phone")).await;
    phone
        .post("/keys/backup", backup("phone", 1))
        .await
        .expect(201);
    let client = connect(&a.world.database).await;
    all_told(&client).await;
    let (groups, owner) = (60, user_uuid(&alice.id));
    // Bob is in every group and is told once, too.
    let both = [(owner, "user"), (user_uuid(&bob.id), "user")];
    fill(&a.world.database, owner, &both, groups).await;
    let world = a.world.clone();
    a.drain().await;

    let mut killed = ProcessNode::start_in(&world).await;
    let alice = alice.at(&killed.base);
    alice.delete("/users/me/devices/phone").await.expect(200);
    let since = Instant::now();
    while reached(&client, 1).await == 0 {
        assert!(since.elapsed() < Duration::from_secs(10), "nobody is told");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    killed.kill();
    let people = 490 * i64::try_from(groups).expect("small");
    assert!(
        reached(&client, 1).await < people,
        "it was not in the middle"
    );

    let _survivor = world.node().await;
    world.advance(LEASE + Duration::from_secs(1)).await;
    all_reached(&client, 1, people).await;
    all_told(&client).await;
    assert_eq!(reached(&client, 1).await, people);
    let sql = "select head_seq from inbox where principal_id = $1";
    let head = client.query_one(sql, &[&user_uuid(&bob.id)]).await;
    assert_eq!(head.expect("an inbox").get::<_, i64>(0), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_one_principal_are_heard_in_their_order() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let direct = json!({ "type": "direct", "user_id": alice.id });
    bob.post("/conversations", direct).await.expect(201);
    let mut heard = bob.on(&b).connect().await;
    for seed in 1..=20 {
        let node = if seed % 2 == 0 { &a } else { &b };
        let body = backup(&alice.device_id, seed);
        let answer = alice.on(node).post("/keys/backup", body).await;
        answer.expect(if seed == 1 { 201 } else { 200 });
    }
    for seed in 1..=20 {
        if seed > 1 {
            let removed = heard.event("key.device_removed").await;
            assert_eq!(removed["data"]["key_id"], key_id(seed - 1).as_str());
        }
        let added = heard.event("key.device_added").await;
        assert_eq!(added["data"]["key_id"], key_id(seed).as_str());
    }
}
