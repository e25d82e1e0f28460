//! The end of a relation, and the purge of its messages.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use blindpipe::{
    db::{Db, Plans},
    features::retention,
};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::{Agent, User, World, connect, db, nodes, nodes_with, serving, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "user_message_send=10000/s,agent_message_send=10000/s,user_messages_list=10000/s,agent_tier_1=10000/s,\
     default_user=10000/s,group_agent_instance=10000/s",
);
const DAY: Duration = Duration::from_secs(86_400);

async fn relation_of(user: &User, agent: &Agent) -> String {
    let list = user.get("/relations").await.expect(200);
    let relations = list.body["data"].as_array().expect("a list").clone();
    let mine = relations
        .iter()
        .find(|one| one["agent_id"] == *agent.id && one["state"] == "active");
    mine.expect("a relation")["relation_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

async fn revoke(user: &User, agent: &Agent) -> Value {
    let id = relation_of(user, agent).await;
    user.delete(format!("/relations/{id}"))
        .await
        .expect(200)
        .data()
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_ends_a_relation_and_the_agent_is_cut_off_everywhere() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&bob, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    bob.talk_to(&agent).await;
    // It is in a group by her relation too.
    let group = alice.group_with(&[&bob]).await;
    let place = json!({ "agent_id": agent.id, "visibility": "all" });
    alice
        .post(format!("/groups/{group}/agent-instances"), place.clone())
        .await
        .expect(201);
    let mut agent_socket = agent.on(&b).connect().await;
    let mut alice_socket = alice.on(&b).connect().await;
    agent.say(&group, "in time").await.expect(201);

    let id = relation_of(&alice, &agent).await;
    bob.delete(format!("/relations/{id}"))
        .await
        .refused(404, "NOT_FOUND");
    let ended = alice.delete(format!("/relations/{id}")).await.expect(200);
    let relation = ended.data();
    assert_eq!(
        (&relation["state"], &relation["relation_id"]),
        (&json!("revoked"), &json!(id))
    );
    let at = |name: &str| {
        chrono::DateTime::parse_from_rfc3339(relation[name].as_str().expect(name)).expect("a time")
    };
    assert_eq!(
        at("purge_at") - at("revoked_at"),
        chrono::TimeDelta::days(7)
    );
    for socket in [&mut agent_socket, &mut alice_socket] {
        assert_eq!(&socket.event("relation.revoked").await["data"], relation);
    }
    for node in [&a, &b] {
        let agent = agent.on(node);
        for place in [&conversation, &group] {
            agent.say(place, "x").await.refused(403, "RELATION_REVOKED");
            agent
                .get(format!("/conversations/{place}"))
                .await
                .refused(404, "NOT_FOUND");
            let history = format!("/agents/{}/conversations/{place}/messages", agent.id);
            agent.get(history).await.refused(404, "NOT_FOUND");
        }
        alice
            .on(node)
            .say(&conversation, "to nobody")
            .await
            .expect(201);
        bob.on(node).say(&group, "not for it").await.expect(201);
    }
    let list = agent
        .get(format!("/agents/{}/conversations", agent.id))
        .await
        .expect(200);
    assert_eq!(
        list.body["data"].as_array().map(Vec::len),
        Some(1),
        "his own is left: {}",
        list.body
    );
    // The second end is the first one.
    assert_eq!(
        alice
            .delete(format!("/relations/{id}"))
            .await
            .expect(200)
            .data(),
        relation
    );

    // Opened again it has its place in their conversation, and sees what comes from now on; the
    // group asks for itself.
    alice
        .post(
            "/conversations",
            json!({ "type": "agent", "agent_id": agent.id }),
        )
        .await
        .expect(200);
    assert_eq!(
        agent.say(&conversation, "again").await.expect(201).data()["seq"],
        3
    );
    agent
        .say(&group, "x")
        .await
        .refused(403, "RELATION_REVOKED");
    alice
        .post(format!("/groups/{group}/agent-instances"), place)
        .await
        .expect(200);
    agent.say(&group, "again").await.expect(201);
    for place in [&conversation, &group] {
        let history = agent
            .get(format!(
                "/agents/{}/conversations/{place}/messages",
                agent.id
            ))
            .await
            .expect(200);
        assert_eq!(
            history.body["data"].as_array().map(Vec::len),
            Some(1),
            "{}",
            history.body
        );
    }
    // Messages in between never reach it.
    alice.say(&group, "for it").await.expect(201);
    assert_eq!(
        agent_socket.event("message.created").await["data"]["payload"]["text"],
        "for it"
    );
    let ended = alice.get("/relations").await.expect(200).body["data"]
        .as_array()
        .expect("a list")
        .clone();
    let states: Vec<_> = ended
        .iter()
        .map(|one| (one["state"].clone(), one["purge_at"].is_null()))
        .collect();
    assert_eq!(states, [(json!("active"), true), (json!("revoked"), true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_send_that_begins_after_the_end_is_taken() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let mut taken = 0;
    for _ in 0..20 {
        let ended = AtomicBool::new(false);
        let send = async |agent: Agent| {
            let mut outcomes = Vec::new();
            loop {
                let late = ended.load(Ordering::SeqCst);
                let status = agent.say(&conversation, "x").await.status;
                outcomes.push((late, status));
                if late {
                    return outcomes;
                }
            }
        };
        let end = async {
            revoke(&alice, &agent).await;
            ended.store(true, Ordering::SeqCst);
        };
        let (one, two, three, ()) = tokio::join!(
            send(agent.on(&a)),
            send(agent.on(&b)),
            send(agent.on(&b)),
            end
        );
        for (late, status) in one.into_iter().chain(two).chain(three) {
            assert!(
                status == 403 || (status == 201 && !late),
                "{status}, after the end: {late}"
            );
            taken += usize::from(status == 201);
        }
        alice
            .post(
                "/conversations",
                json!({ "type": "agent", "agent_id": agent.id }),
            )
            .await
            .expect(200);
    }
    assert!(taken > 0, "nothing was ever under way");
}

/// Texts in order; `None` for what is purged.
async fn texts(user: &User, conversation: &str) -> Vec<Option<String>> {
    let page = user
        .get(format!(
            "/conversations/{conversation}/messages?direction=forward&limit=100"
        ))
        .await
        .expect(200);
    let messages = page.body["data"].as_array().expect("a list");
    let seqs: Vec<i64> = messages
        .iter()
        .filter_map(|message| message["seq"].as_i64())
        .collect();
    assert_eq!(
        seqs,
        (1..=messages.len() as i64).collect::<Vec<_>>(),
        "numbers keep no gaps"
    );
    let text = |message: &Value| {
        assert_eq!(
            message["payload"].is_null(),
            message["purged"] == true,
            "{message}"
        );
        message["payload"]["text"].as_str().map(str::to_owned)
    };
    messages.iter().map(text).collect()
}

async fn purge(url: &str) {
    let db = db(url);
    for _ in 0..1000 {
        if !retention::purge_relations(&db).await.expect("a turn") {
            return;
        }
    }
    panic!("the purge does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_is_purged_after_seven_days_and_nothing_else() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [mut alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [agent, other] = [
        a.agent(&alice, "helper").await,
        a.agent(&alice, "other").await,
    ];
    let [conversation, kept] = [alice.talk_to(&agent).await, alice.talk_to(&other).await];
    let group = alice.group_with(&[&bob]).await;
    let place = json!({ "agent_id": agent.id, "visibility": "all" });
    alice
        .post(format!("/groups/{group}/agent-instances"), place)
        .await
        .expect(201);
    let start = alice.start_of_inbox().await;
    for n in 0..90 {
        agent
            .on(if n % 2 == 0 { &a } else { &b })
            .say(&conversation, "secret")
            .await
            .expect(201);
    }
    agent.say(&group, "to all").await.expect(201);
    alice.say(&kept, "kept").await.expect(201);
    revoke(&alice, &agent).await;
    alice.say(&conversation, "to nobody").await.expect(201);

    a.advance(DAY * 7 - Duration::from_secs(60)).await;
    alice = alice.refreshed().await;
    purge(&a.world.database).await;
    assert!(
        texts(&alice, &conversation)
            .await
            .iter()
            .all(Option::is_some),
        "a minute is left"
    );
    a.advance(Duration::from_secs(120)).await;
    alice.say(&conversation, "just now").await.expect(201);
    // Two nodes at once do no harm, and a second run finds nothing.
    let url = &a.world.database;
    tokio::join!(purge(url), purge(url));
    purge(url).await;
    let left = texts(&alice, &conversation).await;
    assert_eq!(left.len(), 92);
    assert!(left[..91].iter().all(Option::is_none), "{left:?}");
    assert_eq!(
        left[91].as_deref(),
        Some("just now"),
        "its sender may still repeat it"
    );
    assert_eq!(texts(&alice, &kept).await, [Some("kept".to_owned())]);
    assert_eq!(texts(&alice, &group).await, [Some("to all".to_owned())]);
    // No ciphertext is left anywhere.
    let count = "select count(*) from message where payload like '%secret%'";
    let left: i64 = connect(url)
        .await
        .query_one(count, &[])
        .await
        .expect("a count")
        .get(0);
    assert_eq!(left, 0);

    // The inbox keeps its numbers and says what is gone.
    let mut socket = alice.connect_from(Some(&start)).await;
    let (mut last, mut purged) = (None, 0);
    loop {
        let frame = socket.next().await.expect("a frame");
        if frame["type"] == "caught_up" {
            break;
        }
        let seq = frame["seq"].as_i64().expect("a number");
        assert!(
            last.is_none_or(|last| seq == last + 1),
            "{seq} after {last:?}"
        );
        last = Some(seq);
        if frame["event"] == "message.created" && frame["data"]["purged"] == true {
            assert_eq!(
                (&frame["data"]["payload"], &frame["conversation_id"]),
                (&Value::Null, &json!(conversation))
            );
            purged += 1;
        }
    }
    assert_eq!(purged, 91);
    // Messages written after the end go with a later turn.
    a.advance(DAY * 8).await;
    alice = alice.refreshed().await;
    purge(url).await;
    assert!(
        texts(&alice, &conversation)
            .await
            .iter()
            .all(Option::is_none)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relation_opened_again_in_time_keeps_everything() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let mut alice = a.user("alice").await;
    let agent = a.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    agent.say(&conversation, "one").await.expect(201);
    revoke(&alice, &agent).await;
    a.advance(DAY * 6).await;
    alice = alice.refreshed().await;
    let again = json!({ "type": "agent", "agent_id": agent.id });
    alice
        .post("/conversations", again.clone())
        .await
        .expect(200);
    a.advance(DAY * 2).await;
    alice = alice.refreshed().await;
    purge(&a.world.database).await;
    assert_eq!(texts(&alice, &conversation).await, [Some("one".to_owned())]);

    // Opened again too late, the old part goes and the new one stays.
    revoke(&alice, &agent).await;
    a.advance(DAY * 8).await;
    alice = alice.refreshed().await;
    alice.post("/conversations", again).await.expect(200);
    agent.say(&conversation, "two").await.expect(201);
    a.advance(DAY * 3).await;
    alice = alice.refreshed().await;
    purge(&a.world.database).await;
    assert_eq!(
        texts(&alice, &conversation).await,
        [None, Some("two".to_owned())]
    );
    // And the next end takes the rest.
    revoke(&alice, &agent).await;
    a.advance(DAY * 8).await;
    alice = alice.refreshed().await;
    purge(&a.world.database).await;
    assert_eq!(texts(&alice, &conversation).await, [None, None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn relations_are_listed_in_pages() {
    let [a, b] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let mut expected = Vec::new();
    for n in 0..5 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        alice.talk_to(&agent).await;
        expected.insert(0, json!(agent.id));
        a.advance(Duration::from_millis(5)).await;
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = alice
            .on(&b)
            .get(format!("/relations?limit=2{cursor}"))
            .await
            .expect(200);
        seen.extend(
            page.body["data"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|one| one["agent_id"].clone()),
        );
        let Some(next) = page.body["next_cursor"].as_str() else {
            break;
        };
        bob.get(format!("/relations?cursor={next}"))
            .await
            .refused(400, "VALIDATION_ERROR");
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, expected);
    alice
        .get(format!("/relations?cursor={}", ulid()))
        .await
        .refused(400, "VALIDATION_ERROR");
}

/// An ended relation with a message of a week ago. Its purge has been due for so many minutes.
async fn ended(client: &Client, minutes: i32) -> uuid::Uuid {
    let id = uuid::Uuid::from(ulid());
    let sql = format!(
        "insert into user_account (user_id, email, password_hash, display_name, device_locale)
         values ('{id}', '{id}', '', 'x', 'en');
         insert into agent (agent_id, owner_user_id, display_name) values ('{id}', '{id}', 'x');
         insert into relation (relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at, purge_due)
         select '{id}', '{id}', '{id}', 'revoked', due - interval '9 days', due - interval '7 days', due, due
         from (select app_now() - interval '{minutes} minutes' as due) ended;
         insert into conversation (conversation_id, kind, created_by, pair_low, pair_high, last_seq)
         values ('{id}', 'agent', '{id}', '{id}', '{id}', 1);
         insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
         values ('{id}', 1, '{id}', '{id}', 'user', 0, app_now() - interval '8 days', '{{}}')"
    );
    client.batch_execute(&sql).await.expect("a relation");
    id
}

async fn answered_tool_calls(client: &Client, relation: uuid::Uuid, n: u32) {
    let sql = format!(
        "insert into tool_call (call_id, agent_id, request_id, user_id, conversation_id, tool, scope, sensitivity,
             prompt_required, status, result, created_at, expires_at)
         select gen_random_uuid(), '{relation}', 'r' || n, '{relation}', '{relation}', 't', 's', 'low', false, 'executed',
             '{{}}', app_now() - interval '8 days', app_now() - interval '8 days'
         from generate_series(1, {n}) n"
    );
    client.batch_execute(&sql).await.expect("tool calls");
}

async fn confirmed_files(client: &Client, relation: uuid::Uuid, n: u32) {
    let sql = format!(
        "insert into object (object_key, size, sha256, created_at)
         select 'k' || n, 1, '', app_now() - interval '8 days' from generate_series(1, {n}) n;
         insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename, content_type,
             size, state, object_key, url_expires_at, confirmed_at, created_at)
         select gen_random_uuid(), '{relation}', '{relation}', 'agent', '{relation}', 'secret', 'x', 1, 'confirmed', 'k' || n,
             at, at, at
         from generate_series(1, {n}) n, (select app_now() - interval '8 days' as at) long_ago"
    );
    client.batch_execute(&sql).await.expect("files");
}

/// The remains of a relation after the purge: messages, answers of tool calls, files.
async fn left_of(client: &Client, relation: uuid::Uuid) -> [i64; 3] {
    let sql = "select
        (select count(*) from message where conversation_id = $1 and payload <> ''),
        (select count(*) from tool_call where user_id = $1 and result is not null),
        (select count(*) from upload join live_object using (object_key) where conversation_id = $1)";
    let row = client.query_one(sql, &[&relation]).await.expect("counts");
    [row.get(0), row.get(1), row.get(2)]
}

/// A pool with the deadlines of production.
fn hurried(url: &str) -> Db {
    let (url, wait) = (serving(url), Duration::from_secs(1));
    Db::new(&url.into(), "test", 4, Plans::Free, wait).expect("a pool")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heavy_relation_holds_up_no_other_and_is_purged_in_the_end() {
    a_relation_holds_up_no_other(30_000, 15_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the longest; `make test-full` runs it"]
async fn the_heaviest_relation_holds_up_no_other_and_is_purged_in_the_end() {
    a_relation_holds_up_no_other(200_000, 100_000).await;
}

async fn a_relation_holds_up_no_other(tool_calls: u32, files: u32) {
    let world = World::new(&[]).await;
    let client = connect(&world.database).await;
    let heavy = ended(&client, 60).await;
    answered_tool_calls(&client, heavy, tool_calls).await;
    confirmed_files(&client, heavy, files).await;
    let light = ended(&client, 30).await;
    answered_tool_calls(&client, light, 10).await;
    client.batch_execute("analyze").await.expect("analyzed");

    let db = hurried(&world.database);
    let began = Instant::now();
    while left_of(&client, light).await != [0, 0, 0] {
        retention::purge_relations(&db).await.expect("a turn");
        assert!(began.elapsed() < Duration::from_secs(10), "it waits");
    }
    let rest = left_of(&client, heavy).await;
    assert!(rest[1] > 0 && rest[2] > 0, "{rest:?} is left of it");
    // The nodes' metric still says since when it has been due.
    let due = "select count(*) from relation where purge_due < app_now() - interval '50 minutes'";
    let due: i64 = client.query_one(due, &[]).await.expect("a count").get(0);
    assert_eq!(due, 1);
    while retention::purge_relations(&db).await.expect("a turn") {}
    assert_eq!(left_of(&client, heavy).await, [0, 0, 0]);
    let named = "select count(*) from upload where filename <> ''";
    let named: i64 = client.query_one(named, &[]).await.expect("a count").get(0);
    assert_eq!(named, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relation_whose_purge_fails_steps_back_for_an_hour() {
    let world = World::new(&[]).await;
    let client = connect(&world.database).await;
    let bad = ended(&client, 60).await;
    answered_tool_calls(&client, bad, 10).await;
    let good = ended(&client, 30).await;
    answered_tool_calls(&client, good, 10).await;
    let refuse = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'broken'; end $$;
         create trigger refuse before update on tool_call for each row when (old.user_id = '{bad}')
         execute function refuse()"
    );
    client.batch_execute(&refuse).await.expect("a trigger");
    purge(&world.database).await;
    assert_eq!(left_of(&client, good).await, [0, 0, 0]);
    assert_eq!(left_of(&client, bad).await, [0, 10, 0]);
    // Within the hour it is not tried again.
    let mend = "drop trigger refuse on tool_call";
    client.batch_execute(mend).await.expect("no trigger");
    world.advance(Duration::from_secs(3500)).await;
    purge(&world.database).await;
    assert_eq!(left_of(&client, bad).await, [0, 10, 0]);
    world.advance(Duration::from_secs(200)).await;
    purge(&world.database).await;
    assert_eq!(left_of(&client, bad).await, [0, 0, 0]);
}
