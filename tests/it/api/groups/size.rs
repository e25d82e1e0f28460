//! Groups of up to five hundred.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{connect, crowd, nodes_with};

use super::{RAISED_LIMITS, add, remove};

#[tokio::test(flavor = "multi_thread")]
async fn a_group_has_five_hundred_members_and_not_one_more() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    alice.talk_to(&agent).await;
    let many = crowd(&a.world.database, 560).await;
    let refused = alice
        .post("/groups", json!({ "member_ids": many[..500] }))
        .await;
    refused.refused(400, "VALIDATION_ERROR");
    let made = alice
        .post("/groups", json!({ "member_ids": many[..470] }))
        .await
        .expect(201);
    assert_eq!(made.data()["members"].as_array().map(Vec::len), Some(471));
    let group = made.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let ids: Vec<&str> = many.iter().map(String::as_str).collect();
    add(&alice, &group, &[])
        .await
        .refused(400, "VALIDATION_ERROR");
    add(&alice, &group, &ids[..101])
        .await
        .refused(400, "VALIDATION_ERROR");
    // Twelve calls of five race for 29 places; an agent, too.
    let admins = [alice.on(&a), alice.on(&b)];
    let calls = (0..12).map(|n| add(&admins[n % 2], &group, &ids[470 + 5 * n..475 + 5 * n]));
    let place = alice.post(
        format!("/groups/{group}/agent-instances"),
        json!({ "agent_id": agent.id }),
    );
    let (answers, place) = tokio::join!(futures_util::future::join_all(calls), place);
    let count = |name: &str| -> usize {
        let lists = answers
            .iter()
            .map(|answer| answer.data()[name].as_array().expect("a list").len());
        lists.sum()
    };
    let agents = usize::from(place.status == 201);
    assert_eq!(
        (count("added"), count("failed")),
        (29 - agents, 31 + agents),
        "{place:?}"
    );
    let whole = alice
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    assert_eq!(whole.data()["member_count"], 500);
    let full = add(&alice, &group, &ids[555..]).await.expect(201);
    assert!(
        full.data()["failed"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|one| one["reason"] == "GROUP_FULL")
    );
    if agents == 0 {
        assert_eq!(
            place.refused(403, "FORBIDDEN").body["error"]["params"]["limit"],
            500
        );
    }
    remove(&alice, &group, &many[0]).await.expect(200);
    assert_eq!(
        add(&alice, &group, &[&many[0], &many[559]])
            .await
            .expect(201)
            .data()["added"],
        json!([many[0]])
    );

    // A send reaches all of them, in one statement.
    let said = alice.on(&b).say(&group, "hello, all").await.expect(201);
    let client = connect(&a.world.database).await;
    let id: ulid::Ulid = said.data()["message_id"]
        .as_str()
        .expect("an id")
        .parse()
        .expect("a ULID");
    let sql =
        "select count(*), count(distinct principal_id), count(*) filter (where e.seq = i.head_seq)
        from inbox_entry e join inbox i using (principal_id) join message m on m.conversation_id = e.conversation_id
            and m.seq = e.message_seq where m.message_id = $1";
    let row = client
        .query_one(sql, &[&uuid::Uuid::from(id)])
        .await
        .expect("a row");
    let reached = 500 - agents as i64;
    assert_eq!(
        (
            row.get::<_, i64>(0),
            row.get::<_, i64>(1),
            row.get::<_, i64>(2)
        ),
        (reached, reached, reached)
    );
}

/// The most that one call adds, to a group that they fill: 45,000 events, while somebody goes on
/// sending.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stdout, reason = "what it takes is worth seeing")]
async fn a_hundred_join_a_large_group_in_one_call() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let many = crowd(&a.world.database, 510).await;
    let (there, new) = many.split_at(399);
    let members: Vec<&String> = there.iter().chain([&bob.id]).collect();
    let made = alice
        .post("/groups", json!({ "member_ids": members }))
        .await
        .expect(201);
    let group = made.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let mut bob_socket = bob.on(&b).connect().await;
    bob_socket.expect("caught_up").await;
    let started = std::time::Instant::now();
    let ids: Vec<&str> = new[..100].iter().map(String::as_str).collect();
    let adding = async {
        let added = add(&alice, &group, &ids).await.expect(201);
        (added, started.elapsed())
    };
    let sending = async {
        let mut worst = Duration::ZERO;
        for n in 0..20 {
            let began = std::time::Instant::now();
            bob.on(&b).say(&group, &format!("{n}")).await.expect(201);
            worst = worst.max(began.elapsed());
        }
        worst
    };
    let ((added, took), worst) = tokio::join!(adding, sending);
    println!("100 into 401 took {took:?}; the slowest send meanwhile {worst:?}");
    // 401 and 99 are 500: the last one finds it full.
    let full = json!([{ "user_id": ids[99], "reason": "GROUP_FULL" }]);
    let expected =
        json!({ "added": ids[..99], "already": [], "failed": full, "rotation_required": false });
    assert_eq!(added.data(), &expected);
    // Told of each once, and of every message.
    let (mut joined, mut said) = (Vec::new(), 0);
    while joined.len() < 99 || said < 20 {
        let frame = bob_socket.next().await.expect("an event");
        match frame["event"].as_str() {
            Some("member.added") => {
                assert_eq!(frame["data"]["conversation_id"], group);
                joined.push(frame["data"]["member"]["principal_id"].clone());
            }
            Some("message.created") => said += 1,
            Some("conversation.created") => {}
            _ => panic!("{frame}"),
        }
    }
    let told: std::collections::BTreeSet<&str> = joined.iter().filter_map(Value::as_str).collect();
    assert_eq!((told.len(), joined.len()), (99, 99));
    assert_eq!(told, ids[..99].iter().copied().collect());
    // New members were told of themselves, and inboxes have no gaps.
    let client = connect(&a.world.database).await;
    let sql = "select count(*) from inbox_entry e join event v on v.event_id = any(e.event_ids)
        where v.kind = 'member.added' and v.data::json #>> '{member,principal_id}' = any($1)
            and e.principal_id = any($2) and v.data::json #>> '{member,principal_id}' = ($3::text[])[array_position($2, e.principal_id)]";
    let uuids: Vec<uuid::Uuid> = ids[..99]
        .iter()
        .map(|id| id.parse::<ulid::Ulid>().expect("a ULID").into())
        .collect();
    let names: Vec<&str> = ids[..99].to_vec();
    let own: i64 = client
        .query_one(sql, &[&names, &uuids, &names])
        .await
        .expect("a count")
        .get(0);
    assert_eq!(own, 99);
    let sql = "select count(*) from (
            select i.head_seq, coalesce(sum(e.events), 0) as n from inbox i join member m using (principal_id)
            join inbox_entry e using (principal_id) group by i.principal_id, i.head_seq
        ) one where head_seq <> n";
    assert_eq!(
        client
            .query_one(sql, &[])
            .await
            .expect("a count")
            .get::<_, i64>(0),
        0
    );
    // Full is full, and asking again for who is there harms nobody.
    let again = add(&alice, &group, &[ids[0], ids[99]]).await.expect(201);
    assert_eq!(
        (&again.data()["added"], &again.data()["already"]),
        (&json!([]), &json!([ids[0]]))
    );
}
