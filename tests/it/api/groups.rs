//! Groups: members, roles, agent instances, races, and the quota.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, User, connect, crowd, nodes, nodes_with, ulid};

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
    let role = async |by: &User, who: &User, role: &str| {
        by.patch(
            format!("/groups/{group}/members/{}", who.id),
            json!({ "role": role }),
        )
        .await
    };
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

    // Pairs are not groups.
    let pair = alice
        .post(
            "/conversations",
            json!({ "type": "direct", "user_id": bob.id }),
        )
        .await
        .expect(201);
    let pair = pair.data()["conversation_id"].as_str().expect("an id");
    add(&alice, pair, &[&carol.id])
        .await
        .refused(404, "NOT_FOUND");
    remove(&alice, pair, &bob.id)
        .await
        .refused(404, "NOT_FOUND");
    role(&alice, &bob, "admin").await.refused(404, "NOT_FOUND");
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
        from inbox_entry e join inbox i using (principal_id) where $1 = any(event_ids)";
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

/// The most that one call adds, to a group that they fill: 45,000 events, while somebody goes on sending.
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
            select i.head_seq, coalesce(sum(cardinality(e.event_ids)), 0) as n from inbox i join member m using (principal_id)
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

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_addressed_hears_what_names_it() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [quiet, loud] = [
        a.agent(&alice, "quiet").await,
        a.agent(&alice, "loud").await,
    ];
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/agent-instances");
    alice
        .post(&path, json!({ "agent_id": ulid().to_string() }))
        .await
        .refused(400, "VALIDATION_ERROR");
    alice
        .post(&path, json!({ "agent_id": uuid::Uuid::nil() }))
        .await
        .refused(404, "AGENT_NOT_REGISTERED");
    alice
        .post(&path, json!({ "agent_id": quiet.id }))
        .await
        .refused(403, "RELATION_REQUIRED");
    alice.talk_to(&quiet).await;
    alice.talk_to(&loud).await;
    bob.post(&path, json!({ "agent_id": quiet.id }))
        .await
        .refused(403, "FORBIDDEN");
    alice
        .post(&path, json!({ "agent_id": quiet.id, "visibility": "some" }))
        .await
        .refused(400, "VALIDATION_ERROR");
    let place = alice
        .post(&path, json!({ "agent_id": quiet.id }))
        .await
        .expect(201);
    assert_eq!(
        (&place.data()["visibility"], &place.data()["agent_id"]),
        (&json!("addressed"), &json!(quiet.id))
    );
    alice
        .post(&path, json!({ "agent_id": loud.id, "visibility": "all" }))
        .await
        .expect(201);

    let mut quiet_socket = quiet.on(&b).connect().await;
    let mut others = loud.on(&b).connect().await;
    let mut bob_socket = bob.on(&b).connect().await;
    let say = async |text: &str, named: Value| {
        let body = json!({ "payload": { "type": "text", "text": text }, "recipients": named });
        alice
            .post(format!("/conversations/{group}/messages"), body)
            .await
    };
    alice.say(&group, "to all").await.expect(201);
    say("to loud", json!([loud.id])).await.expect(201);
    say("to quiet", json!([quiet.id, bob.id])).await.expect(201);
    let frame = json!({
        "type": "message.send", "ref": 1, "conversation_id": group, "recipients": [quiet.id],
        "payload": { "type": "text", "text": "by frame" },
    });
    bob_socket.say(frame).await;
    bob_socket.expect("message.sent").await;
    for text in ["to quiet", "by frame"] {
        assert_eq!(
            quiet_socket.event("message.created").await["data"]["payload"]["text"],
            text
        );
    }
    for text in ["to all", "to loud", "to quiet", "by frame"] {
        for socket in [&mut others, &mut bob_socket] {
            assert_eq!(
                socket.event("message.created").await["data"]["payload"]["text"],
                text
            );
        }
    }
    let texts = async |agent: &crate::support::Agent, query: &str| -> Vec<String> {
        let path = format!(
            "/agents/{}/conversations/{group}/messages?{query}",
            agent.id
        );
        let page = agent.get(path).await.expect(200);
        let messages = page.body["data"].as_array().expect("a list").clone();
        messages
            .iter()
            .map(|one| one["payload"]["text"].as_str().expect("text").to_owned())
            .collect()
    };
    assert_eq!(
        texts(&quiet, "direction=forward").await,
        ["to quiet", "by frame"]
    );
    assert_eq!(texts(&quiet, "").await, ["by frame", "to quiet"]);
    assert_eq!(texts(&quiet, "limit=1").await, ["by frame"]);
    assert_eq!(
        texts(&loud, "direction=forward").await,
        ["to all", "to loud", "to quiet", "by frame"]
    );
    let seen = quiet
        .get(format!("/conversations/{group}"))
        .await
        .expect(200);
    assert_eq!(
        (&seen.data()["unread_count"], &seen.data()["my_role"]),
        (&json!(2), &json!("agent"))
    );
    let history = bob
        .get(format!("/conversations/{group}/messages"))
        .await
        .expect(200);
    assert_eq!(
        history.body["data"][1]["recipients"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );

    for bad in [
        json!([]),
        json!(["x"]),
        json!([ulid().to_string()]),
        json!([uuid::Uuid::nil()]),
        json!("all"),
    ] {
        say("x", bad).await.refused(400, "VALIDATION_ERROR");
    }
    // Asked again with another visibility, it is the same place.
    let again = alice
        .post(&path, json!({ "agent_id": quiet.id, "visibility": "all" }))
        .await
        .expect(200);
    assert_eq!(again.data()["instance_id"], place.data()["instance_id"]);
    alice.say(&group, "now it hears").await.expect(201);
    assert_eq!(
        quiet_socket.event("message.created").await["data"]["payload"]["text"],
        "now it hears"
    );
    let instance = place.data()["instance_id"].as_str().expect("an id");
    bob.delete(format!("{path}/{instance}"))
        .await
        .refused(403, "FORBIDDEN");
    alice.delete(format!("{path}/{instance}")).await.expect(200);
    assert_eq!(
        quiet_socket.event("member.removed").await["data"]["member"]["principal_id"],
        quiet.id
    );
    quiet
        .say(&group, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
    alice
        .delete(format!("{path}/{instance}"))
        .await
        .refused(404, "NOT_FOUND");
    // An agent may leave by itself.
    loud.delete(format!("/groups/{group}/members/{}", loud.id))
        .await
        .expect(200);
    loud.say(&group, "x")
        .await
        .refused(403, "NOT_CONVERSATION_MEMBER");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budgets_of_a_group_are_its_members_alone() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let group = alice.group_with(&[&bob]).await;
    let path = format!("/groups/{group}/agent-instances");
    // Strangers, members without the right, wrong shapes and missing relations use up nothing.
    let stranger = a.user("stranger").await;
    for _ in 0..7 {
        add(&stranger, &group, &[&bob.id])
            .await
            .refused(404, "NOT_FOUND");
        add(&bob, &group, &[&bob.id])
            .await
            .refused(403, "FORBIDDEN");
        add(&alice, &group, &[])
            .await
            .refused(400, "VALIDATION_ERROR");
        alice
            .post(&path, json!({ "agent_id": agent.id }))
            .await
            .refused(403, "RELATION_REQUIRED");
    }
    for n in 0..5 {
        add(
            &alice.on(if n % 2 == 0 { &a } else { &b }),
            &group,
            &[&bob.id],
        )
        .await
        .expect(201);
    }
    let refused = add(&alice.on(&b), &group, &[&bob.id])
        .await
        .refused(429, "RATE_LIMITED");
    assert_eq!(refused.body["error"]["params"]["scope"], "group_member_add");
    assert_eq!(refused.body["error"]["params"]["limit"], "5/min");
    alice.talk_to(&agent).await;
    alice
        .post(&path, json!({ "agent_id": agent.id }))
        .await
        .expect(201);
    let refused = alice
        .on(&b)
        .post(&path, json!({ "agent_id": agent.id }))
        .await
        .refused(429, "RATE_LIMITED");
    assert_eq!(refused.body["error"]["params"]["limit"], "1/60s");
    // Another group has its own.
    let other = alice.group_with(&[&bob]).await;
    add(&alice, &other, &[&bob.id]).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_removed_in_mid_stream_gets_nothing_that_commits_after() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let start = bob.start_of_inbox().await;
    let mut bob_socket = bob.on(&b).connect().await;
    bob_socket.expect("caught_up").await;
    for round in 0..5 {
        let group = alice.group_with(&[&bob]).await;
        let senders = [alice.on(&a), alice.on(&b)];
        let sends = (0..60).map(|n| {
            let (sender, group) = (&senders[n % 2], &group);
            async move {
                sender.say(group, "x").await.expect(201).data()["seq"]
                    .as_i64()
                    .expect("a number")
            }
        });
        let removal = async {
            tokio::time::sleep(Duration::from_millis(5 * round)).await; // Real time: somewhere among the sends.
            remove(&alice.on(&b), &group, &bob.id).await.expect(200);
            // Everything said from here on was committed after the removal.
            alice.say(&group, "after").await.expect(201).data()["seq"]
                .as_i64()
                .expect("a number")
        };
        let (mut seqs, after) = tokio::join!(futures_util::future::join_all(sends), removal);
        seqs.push(after);
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=61).collect::<Vec<_>>());
        // His events are a prefix of it without gaps; then his removal, and nothing behind it.
        let mut heard = 0;
        loop {
            let frame = bob_socket.next().await.expect("a frame");
            if frame["event"] == "message.created" {
                heard += 1;
                assert_eq!(frame["data"]["seq"], heard);
            } else if frame["event"] == "member.removed" {
                break;
            }
        }
        assert!(heard < after, "heard {heard}, removed before {after}");
        bob_socket.expect_silence(Duration::from_millis(100)).await;
        let replayed = bob.connect_from(Some(&start)).await;
        let count = messages_of(replayed, &group).await;
        assert_eq!(count, heard, "his inbox has what his socket had");
    }
}

/// How many messages of a conversation a socket replays.
async fn messages_of(mut socket: crate::support::Socket, group: &str) -> i64 {
    let mut count = 0;
    loop {
        let frame = socket.next().await.expect("a frame");
        if frame["type"] == "caught_up" {
            return count;
        }
        count +=
            i64::from(frame["event"] == "message.created" && frame["conversation_id"] == *group);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn races_of_members_leave_one_owner_and_no_one_twice() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    for _ in 0..10 {
        let group = alice.group_with(&[&bob]).await;
        // Two add the same one at once, the owner leaves, a member leaves, someone is made admin: in any order.
        let (here, there, his) = (alice.on(&a), alice.on(&b), bob.on(&b));
        let ids = [carol.id.as_str()];
        let promote = bob.id.clone();
        let promote = here.patch(
            format!("/groups/{group}/members/{promote}"),
            json!({ "role": "admin" }),
        );
        let (one, two, left, promoted, spoke) = tokio::join!(
            add(&here, &group, &ids),
            add(&there, &group, &ids),
            remove(&there, &group, &alice.id),
            promote,
            his.say(&group, "x"),
        );
        left.expect(200);
        spoke.expect(201);
        for answer in [&one, &two, &promoted] {
            assert!([200, 201, 403, 404].contains(&answer.status), "{answer:?}");
        }
        let added = [&one, &two]
            .iter()
            .filter(|one| one.data()["added"] == json!(ids))
            .count();
        let all = roles(&bob, &group).await;
        assert!(added <= 1, "{one:?} {two:?}");
        assert_eq!(all.len(), 1 + added, "{all:?}");
        assert_eq!(
            all.iter().filter(|(_, role)| role == "owner").count(),
            1,
            "{all:?}"
        );
    }
}
