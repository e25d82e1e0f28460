//! Read marks with many readers: lock waits, and the recipients of the events.

use std::time::Duration;

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::{Answer, Caller, User, blocked, connect, crowd, nodes_with, spawn};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=10000/s,default_user=10000/s,group_member_add=10000/s",
);
/// The largest group in which all are told.
const TOLD: usize = 50;

async fn mark(caller: &Caller, group: &str, message: &str) -> Answer {
    caller
        .post(
            format!("/conversations/{group}/read"),
            json!({ "message_id": message }),
        )
        .await
}

async fn say(user: &User, group: &str) -> String {
    let answer = user.say(group, "x").await.expect(201);
    answer.data()["message_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

fn uuid(id: &str) -> uuid::Uuid {
    id.parse::<ulid::Ulid>().expect("a ULID").into()
}

/// A group of `members` users, with `alice` and `bob` among them.
async fn group(alice: &User, bob: &User, database: &str, members: usize) -> String {
    let mut ids = crowd(database, members - 2).await;
    ids.push(bob.id.clone());
    let made = alice
        .post("/groups", json!({ "member_ids": ids }))
        .await
        .expect(201);
    made.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

/// How many marks of this message were told, and to whom.
async fn told(client: &Client, group: &str, message: &str) -> Vec<uuid::Uuid> {
    let sql = "select principal_id from inbox_entry join event on event_id = any(event_ids)
        where kind = 'message.read' and event.conversation_id = $1 and data::json ->> 'message_id' = $2 order by 1";
    let rows = client
        .query(sql, &[&uuid(group), &message])
        .await
        .expect("entries");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_read_waits_for_nobody_who_sends() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let mut client = connect(&a.world.database).await;
    for members in [3, TOLD + 10] {
        let group = group(&alice, &bob, &a.world.database, members).await;
        let message = say(&alice, &group).await;
        let tx = client.transaction().await.expect("begun");
        let lock = "select 1 from conversation where conversation_id = $1 for update";
        tx.execute(lock, &[&uuid(&group)]).await.expect("locked");
        // A send holds the conversation for as long as it likes.
        let marked = mark(&bob.on(&b), &group, &message).await.expect(200);
        assert_eq!(marked.data()["unread_count"], 0);
        tx.rollback().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_many_read_only_the_reader_s_devices_are_told() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let client = connect(&a.world.database).await;
    let mut bob_socket = bob.on(&b).connect().await;
    for members in [TOLD, TOLD + 1, 500] {
        let group = group(&alice, &bob, &a.world.database, members).await;
        let messages = [say(&alice, &group).await, say(&alice, &group).await];
        mark(&bob, &group, &messages[1]).await.expect(200);
        // Back, and once more: nothing.
        for message in &messages {
            assert_eq!(
                mark(&bob.on(&b), &group, message).await.expect(200).data()["unread_count"],
                0
            );
        }
        let event = bob_socket.event("message.read").await;
        assert_eq!(
            event["data"],
            json!({ "principal_id": bob.id, "message_id": messages[1] })
        );
        let expected = if members <= TOLD { members } else { 1 };
        let who = told(&client, &group, &messages[1]).await;
        assert_eq!(who.len(), expected, "{members} members");
        assert!(who.contains(&uuid(&bob.id)));
        assert!(told(&client, &group, &messages[0]).await.is_empty());
        // Others do not see it, and it is there for him.
        let seen = async |user: &User| {
            let shown = user
                .get(format!("/conversations/{group}"))
                .await
                .expect(200);
            shown.data()["unread_count"].clone()
        };
        assert_eq!((seen(&alice).await, seen(&bob).await), (json!(0), json!(0)));
        say(&alice, &group).await;
        assert_eq!(seen(&bob.on(&b)).await, json!(1));
    }
}

/// Marks of one reader race on both nodes: each that is told is further than the one before, and
/// the last is the furthest.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_is_told_only_when_it_moves() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let group = alice.group_with(&[&bob]).await;
    let mut alice_socket = alice.connect().await;
    let mut messages = Vec::new();
    for _ in 0..30 {
        messages.push(say(&alice, &group).await);
    }
    let his = [bob.on(&a), bob.on(&b)];
    let marks = messages
        .iter()
        .enumerate()
        .map(|(n, message)| mark(&his[n % 2], &group, message));
    for answer in futures_util::future::join_all(marks).await {
        answer.expect(200);
    }
    let mut reached = None;
    while reached != Some(29) {
        let event = alice_socket.event("message.read").await;
        assert_eq!(event["data"]["principal_id"], bob.id);
        let at = messages
            .iter()
            .position(|message| event["data"]["message_id"] == **message);
        assert!(at > reached, "{at:?} after {reached:?}");
        reached = at;
    }
    alice_socket
        .expect_silence(Duration::from_millis(300))
        .await;
    let shown = bob.get(format!("/conversations/{group}")).await.expect(200);
    assert_eq!(shown.data()["unread_count"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_left_is_told_of_no_mark() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    let group = alice.group_with(&[&bob, &carol]).await;
    let message = say(&alice, &group).await;
    let mut client = connect(&a.world.database).await;
    let tx = client.transaction().await.expect("begun");
    // Carol is put out, and it is not committed yet: who marks must wait to know.
    let gone = "delete from member where conversation_id = $1 and principal_id = $2";
    tx.execute(gone, &[&uuid(&group), &uuid(&carol.id)])
        .await
        .expect("deleted");
    let marking = spawn({
        let (bob, group, message) = (bob.clone(), group.clone(), message.clone());
        async move { mark(&bob, &group, &message).await }
    });
    blocked(&tx, 1).await;
    tx.commit().await.expect("committed");
    marking.await.expect("no panic").expect(200);
    let mut expected = vec![uuid(&alice.id), uuid(&bob.id)];
    expected.sort();
    assert_eq!(told(&client, &group, &message).await, expected);
    mark(&carol, &group, &message)
        .await
        .refused(404, "NOT_FOUND");
}

/// Owners leave and members are marked as having read at the same time: nobody waits for each other
/// in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn marks_and_changes_of_members_do_not_lock_each_other_out() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
    ];
    for _ in 0..15 {
        let group = alice.group_with(&[&bob, &carol]).await;
        let mut messages = Vec::new();
        for _ in 0..4 {
            messages.push(say(&alice, &group).await);
        }
        let readers = [&bob, &carol].map(|user| user.on(&b));
        let marks = messages
            .iter()
            .flat_map(|message| readers.iter().map(|reader| mark(reader, &group, message)));
        let leaving = alice.delete(format!("/groups/{group}/members/{}", alice.id));
        let (marked, left) = tokio::join!(futures_util::future::join_all(marks), leaving);
        left.expect(200);
        let statuses: Vec<u16> = marked.iter().map(|answer| answer.status).collect();
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        let shown = bob.get(format!("/conversations/{group}")).await.expect(200);
        let roles: Vec<&Value> = shown.data()["members"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|member| &member["role"])
            .collect();
        assert_eq!(
            roles.iter().filter(|role| **role == "owner").count(),
            1,
            "{roles:?}"
        );
    }
}

/// The entries of an inbox with read marks, and the marks in them.
async fn entries_with_marks(client: &Client, of: &str) -> (i64, i64) {
    let sql = "select count(distinct seq), count(*) from inbox_entry join event on event_id = any(event_ids)
        where kind = 'message.read' and principal_id = $1";
    let row = client.query_one(sql, &[&uuid(of)]).await.expect("a row");
    (row.get(0), row.get(1))
}

/// Readers race on both nodes. Each answer is true at once on every node. The others hear of each
/// reader's newest mark, in a few entries of their inboxes.
#[tokio::test(flavor = "multi_thread")]
async fn marks_of_many_readers_are_told_together() {
    const MESSAGES: usize = 8;
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob, carol, dave] = [
        a.user("alice").await,
        a.user("bob").await,
        a.user("carol").await,
        a.user("dave").await,
    ];
    let client = connect(&a.world.database).await;
    let mut ids = crowd(&a.world.database, 16).await;
    ids.extend([bob.id.clone(), carol.id.clone(), dave.id.clone()]);
    let made = alice.post("/groups", json!({ "member_ids": ids })).await;
    let made = made.expect(201);
    let group = made.data()["conversation_id"].as_str().expect("an id");
    let mut messages = Vec::new();
    for _ in 0..MESSAGES {
        messages.push(say(&alice, group).await);
    }
    let mut socket = alice.connect().await;
    let readers = [&bob, &carol, &dave];
    let marks = readers.iter().flat_map(|reader| {
        let at = [reader.on(&a), reader.on(&b)];
        let each = messages.iter().enumerate();
        each.map(move |(n, message)| (at[n % 2].caller.clone(), message))
    });
    let marks: Vec<(Caller, &String)> = marks.collect();
    let marked = marks.iter().map(|(at, message)| mark(at, group, message));
    for answer in futures_util::future::join_all(marked).await {
        answer.expect(200);
    }
    for reader in readers {
        let path = format!("/conversations/{group}");
        let shown = reader.on(&b).get(path).await.expect(200);
        assert_eq!(shown.data()["unread_count"], 0);
    }
    let mut reached = [None; 3];
    while reached != [Some(MESSAGES - 1); 3] {
        let event = socket.event("message.read").await;
        let is_by = |reader: &&User| event["data"]["principal_id"] == reader.id;
        let is_of = |message: &String| event["data"]["message_id"] == **message;
        let reader = readers.iter().position(is_by).expect("a reader");
        let at = messages.iter().position(is_of);
        assert!(at > reached[reader], "{at:?} after {reached:?}");
        reached[reader] = at;
    }
    let (entries, told) = entries_with_marks(&client, &alice.id).await;
    assert!(entries <= 4, "{entries} entries");
    assert!(told <= 12, "{told} of {} marks", 3 * MESSAGES);
}

/// The node that gathered the mark has died.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_its_node_did_not_tell_is_told() {
    let [a, _] = nodes_with(&[RAISED_LIMITS, ("UPKEEP_SPEED", "30")]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let client = connect(&a.world.database).await;
    let group = group(&alice, &bob, &a.world.database, 12).await;
    let message = say(&alice, &group).await;
    let mut socket = alice.connect().await;
    let gathered =
        "update member set read_seq = 1, mark_untold_since = app_now() - interval '10 seconds'
        where conversation_id = $1 and principal_id = $2";
    let ids = (uuid(&group), uuid(&bob.id));
    let n = client.execute(gathered, &[&ids.0, &ids.1]).await;
    assert_eq!(n.expect("gathered"), 1);
    let event = socket.event("message.read").await;
    assert_eq!(
        event["data"],
        json!({ "principal_id": bob.id, "message_id": message })
    );
}

/// A group whose marks cannot be told delays no other group.
#[tokio::test(flavor = "multi_thread")]
async fn marks_that_cannot_be_told_hold_up_no_others() {
    let [a, _] = nodes_with(&[RAISED_LIMITS, ("UPKEEP_SPEED", "30")]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let client = connect(&a.world.database).await;
    // The older group is looked at first.
    let mut groups = Vec::new();
    for _ in 0..2 {
        groups.push(group(&alice, &bob, &a.world.database, 12).await);
        a.advance(Duration::from_millis(5)).await;
    }
    let refuse = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'broken'; end $$;
         create trigger refuse before update on member for each row
         when (old.conversation_id = '{}' and old.mark_untold_since is not null and new.mark_untold_since is null)
         execute function refuse()",
        uuid(&groups[0])
    );
    client.batch_execute(&refuse).await.expect("a trigger");
    let message = say(&alice, &groups[1]).await;
    say(&alice, &groups[0]).await;
    let mut socket = alice.connect().await;
    let gathered =
        "update member set read_seq = 1, mark_untold_since = app_now() - interval '10 seconds'
        where principal_id = $1";
    let n = client.execute(gathered, &[&uuid(&bob.id)]).await;
    assert_eq!(n.expect("gathered"), 2);
    let event = socket.event("message.read").await;
    assert_eq!(
        event["data"],
        json!({ "principal_id": bob.id, "message_id": message })
    );
}
