//! The access log: which reads have rows, who sees them, and that nobody changes them unnoticed.

use std::time::{Duration, Instant};

use blindpipe::{
    features::access_log::verify::{self, Fault, FaultKind},
    routes::{self, Access},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Stage, call, group_with, respond, text};
use crate::{
    files,
    support::{Agent, Answer, User, connect, ulid},
};

async fn log(user: &User, query: &str) -> Vec<Value> {
    let list = user
        .get(format!("/grants/access-log?{query}"))
        .await
        .expect(200);
    list.body["data"].as_array().expect("a list").clone()
}

/// Waits until the newest row of the user's is of this kind.
async fn newest(user: &User, kind: &str) -> Value {
    for _ in 0..200 {
        if let Some(row) = log(user, "limit=1")
            .await
            .pop()
            .filter(|row| row["kind"] == *kind)
        {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("no row of {kind}: {:?}", log(user, "").await);
}

fn uuid(id: &str) -> Uuid {
    id.parse::<ulid::Ulid>().expect("a ULID").into()
}

/// One call of a route as an agent, with everything in its place; none for a route that this test
/// does not know.
async fn visit(stage: &Stage, method: &str, path: &str, repeated: &Value) -> Option<Answer> {
    let agent = &stage.agent;
    let (own, conversation) = (format!("/agents/{}", agent.id), &stage.conversation);
    let payload = json!({ "payload": { "type": "text" } });
    Some(match (method, path) {
        ("GET", "/conversations/{conversation_id}") => {
            agent.get(format!("/conversations/{conversation}")).await
        }
        ("GET", "/keys/users/{user_id}/devices") => {
            agent
                .get(format!("/keys/users/{}/devices", stage.alice.id))
                .await
        }
        ("GET", "/keys/groups/{conversation_id}") => {
            agent.get(format!("/keys/groups/{conversation}")).await
        }
        ("GET", "/agents/{agent_id}/conversations") => {
            agent.get(format!("{own}/conversations")).await
        }
        ("GET", "/agents/{agent_id}/conversations/{conversation_id}/messages") => {
            agent
                .get(format!("{own}/conversations/{conversation}/messages"))
                .await
        }
        ("GET", "/agents/{agent_id}/messages/poll") => agent.poll("").await,
        ("POST", "/agents/{agent_id}/ack") => {
            let head = agent.get(&own).await.expect(200).data()["inbox"]["head_seq"].clone();
            agent
                .post(format!("{own}/ack"), json!({ "up_to_seq": head }))
                .await
        }
        ("POST", "/agents/{agent_id}/artifact-requests") => call(agent, repeated.clone()).await,
        ("GET", "/objects/{object_key}") => {
            let files = format!("{own}/files");
            let upload = files::request(agent, &files, conversation, 5).await;
            files::bring(agent, &upload, "bytes").await.expect(200);
            let file = files::confirm(agent, &upload, b"bytes").await.expect(200);
            agent
                .get(format!("/objects/{}", text(file.data(), "object_key")))
                .await
        }
        ("GET", "/ws") => {
            let mut socket = agent.connect().await;
            let event = socket.event("message.created").await;
            socket
                .say(json!({ "type": "ack", "cursor": event["cursor"] }))
                .await;
            socket.say(json!({ "type": "ping" })).await;
            socket.expect("pong").await;
            return Some(agent.get("/limits").await);
        }
        // These answer nothing of a user's, whatever they answer.
        ("POST", "/conversations/{conversation_id}/read") => {
            let body = json!({ "message_id": ulid().to_string() });
            agent
                .post(format!("/conversations/{conversation}/read"), body)
                .await
        }
        ("POST", "/agents/{agent_id}/messages") => agent.say(conversation, "x").await,
        ("POST", "/agents/{agent_id}/conversations/{conversation_id}/messages") => {
            agent
                .post(
                    format!("{own}/conversations/{conversation}/messages"),
                    payload,
                )
                .await
        }
        ("GET", "/limits") => agent.get("/limits").await,
        ("GET", "/agents/{agent_id}") => agent.get(own).await,
        ("GET", "/agents/{agent_id}/keys") => agent.get(format!("{own}/keys")).await,
        _ => return None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_that_agents_call_says_what_it_reads_and_logs_it() {
    let stage = Stage::new().await;
    stage.grant(&["notification:send"]).await;
    // A call whose result its repeat answers.
    let repeated = stage.request("notification:send");
    call(&stage.agent, repeated.clone()).await.expect(201);
    let done = json!({ "status": "executed", "payload": { "result": 1 } });
    respond(&stage.alice, &text(&repeated, "request_id"), done)
        .await
        .expect(200);
    for route in routes::table() {
        let (method, path) = (route.method.as_str(), route.path);
        let agents_call = matches!(route.caller, Access::Agent | Access::Either) || path == "/ws";
        let name = format!("{method} {path}");
        let Some(reads) = route.reads else {
            assert!(!agents_call, "{name} does not say what agents read");
            continue;
        };
        stage
            .alice
            .say(&stage.conversation, "to be read")
            .await
            .expect(201);
        // What earlier routes have left to be acked is logged before.
        let head = stage
            .agent
            .get(format!("/agents/{}", stage.agent.id))
            .await
            .expect(200);
        if path != "/agents/{agent_id}/ack"
            && path != "/agents/{agent_id}/messages/poll"
            && path != "/ws"
        {
            let up_to = json!({ "up_to_seq": head.data()["inbox"]["head_seq"] });
            stage
                .agent
                .post(format!("/agents/{}/ack", stage.agent.id), up_to)
                .await
                .expect(200);
        }
        let before = log(&stage.alice, "limit=1")
            .await
            .first()
            .map_or(0, |row| row["seq"].as_i64().expect("a number"));
        match visit(&stage, method, path, &repeated).await {
            Some(_) if reads.is_empty() => {
                let rows = log(&stage.alice, "limit=1").await;
                let after = rows
                    .first()
                    .map_or(0, |row| row["seq"].as_i64().expect("a number"));
                assert_eq!(after, before, "{name} logs what it does not read");
            }
            Some(answer) => {
                assert!(answer.status < 300, "{name}: {answer:?}");
                let row = newest(&stage.alice, reads[0].as_str()).await;
                assert_eq!(row["seq"].as_i64(), Some(before + 1), "{name}: {row}");
                assert_eq!(row["agent_id"], json!(stage.agent.id));
                let conversation = match reads[0].as_str() {
                    "keys" => Value::Null,
                    _ => json!(stage.conversation),
                };
                assert_eq!(row["conversation_id"], conversation, "{name}");
            }
            None => assert!(reads.is_empty(), "{name} is to be called by this test"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_is_logged_once_whatever_brings_it() {
    let stage = Stage::new().await;
    let [a, b] = &stage.nodes;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let say = async |n: usize| {
        for _ in 0..n {
            alice.say(&stage.conversation, "x").await.expect(201);
        }
    };
    // The events that made the conversation, and three messages, by socket and one ack.
    say(3).await;
    let mut socket = agent.on(a).connect().await;
    for _ in 0..3 {
        socket.event("message.created").await;
    }
    socket
        .say(json!({ "type": "ack", "cursor": socket.cursor }))
        .await;
    let row = newest(alice, "push").await;
    let acked = row["to_seq"].as_i64().expect("a number");
    assert_eq!(
        row["items"].as_i64(),
        Some(acked - row["from_seq"].as_i64().expect("a number") + 1)
    );
    // Two more over the socket without an ack; a poll elsewhere acks them by its cursor.
    say(2).await;
    for _ in 0..2 {
        socket.event("message.created").await;
    }
    let polled = agent
        .on(b)
        .poll(&format!("cursor={}", socket.cursor))
        .await
        .expect(200);
    assert_eq!(polled.body["data"], json!([]));
    let row = newest(alice, "push").await;
    assert_eq!(
        (row["from_seq"].as_i64(), row["to_seq"].as_i64()),
        (Some(acked + 1), Some(acked + 2))
    );
    // By poll; its ack logs nothing again.
    say(2).await;
    let page = agent.on(b).poll("").await.expect(200);
    let row = newest(alice, "poll").await;
    assert_eq!(
        (row["from_seq"].as_i64(), row["to_seq"].as_i64()),
        (Some(acked + 3), Some(acked + 4))
    );
    let cursor = text(&page.body, "next_cursor");
    agent
        .on(a)
        .poll(&format!("cursor={cursor}"))
        .await
        .expect(200);
    assert_eq!(log(alice, "limit=1").await[0]["seq"], row["seq"]);
    // An agent that reads by socket and never acks is logged when it goes.
    say(1).await;
    let mut reader = agent.on(b).connect().await;
    reader.event("message.created").await;
    drop((socket, reader));
    let row = newest(alice, "push").await;
    assert_eq!(
        (row["from_seq"].as_i64(), row["to_seq"].as_i64()),
        (Some(acked + 5), Some(acked + 5))
    );
    // Nobody else sees any of it.
    let bob = a.user("bob").await;
    assert_eq!(log(&bob, "").await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_paged_and_filtered_and_a_group_s_is_its_members() {
    let stage = Stage::new().await;
    let (alice, agent) = (&stage.alice, &stage.agent);
    let bob = stage.nodes[1].user("bob").await;
    let other: Agent = stage.nodes[0].agent(&bob, "other").await;
    let pair = alice.talk_to(&other).await;
    let group = group_with(alice, &[], agent).await;
    for conversation in [&stage.conversation, &group] {
        alice.say(conversation, "x").await.expect(201);
    }
    let read = async |by: &Agent, conversation: &str| {
        by.get(format!("/conversations/{conversation}"))
            .await
            .expect(200);
    };
    read(agent, &group).await;
    // Who joins later sees what is read from then on.
    stage.advance(1).await;
    let members = json!({ "user_ids": [bob.id] });
    alice
        .post(format!("/groups/{group}/members"), members)
        .await
        .expect(201);
    stage.advance(1).await;
    let middle = stage.nodes[0].world.clock.now();
    for _ in 0..2 {
        read(agent, &group).await;
        read(agent, &stage.conversation).await;
        read(&other, &pair).await;
    }
    assert_eq!(log(&bob, "").await.len(), 2);
    let mut walked = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = alice
            .get(format!("/grants/access-log?limit=3{cursor}"))
            .await
            .expect(200);
        walked.extend(page.body["data"].as_array().expect("a list").clone());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(walked, log(alice, "limit=100").await);
    let ids: Vec<String> = walked.iter().map(|row| text(row, "access_id")).collect();
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "{ids:?}");
    let middle = middle.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    for (query, expected) in [
        (String::new(), 7),
        (format!("agent_id={}", agent.id), 5),
        (format!("agent_id={}", other.id), 2),
        (format!("conversation_id={group}"), 3),
        (format!("conversation_id={}", stage.conversation), 2),
        (format!("conversation_id={group}&agent_id={}", other.id), 0),
        (format!("conversation_id={}", ulid()), 0),
        (format!("from={middle}"), 6),
        (format!("to={middle}"), 1),
        (format!("from={middle}&to={middle}"), 0),
    ] {
        assert_eq!(log(alice, &query).await.len(), expected, "{query}");
    }
    alice
        .get("/grants/access-log?from=yesterday")
        .await
        .refused(400, "VALIDATION_ERROR");
    alice
        .get("/grants/access-log?cursor=x")
        .await
        .refused(400, "VALIDATION_ERROR");
}

/// Many readers of one user at once: the chain stays whole.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_reads_of_one_user_make_one_chain() {
    let stage = Stage::new().await;
    let path = format!("/conversations/{}", stage.conversation);
    let reads = (0..60).map(|n| {
        let agent = stage.agent.on(&stage.nodes[n % 2]);
        let path = &path;
        async move { agent.get(path).await.expect(200) }
    });
    futures_util::future::join_all(reads).await;
    let seqs: Vec<i64> = log(&stage.alice, "limit=100")
        .await
        .iter()
        .map(|row| row["seq"].as_i64().expect("a number"))
        .collect();
    let mut sorted = seqs.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=60).collect::<Vec<i64>>());
    let client = connect(&stage.nodes[0].world.database).await;
    let report = verify::verify(&client).await.expect("a report");
    assert_eq!((report.rows, report.chains, report.faults), (60, 1, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_54_every_change_of_the_log_is_refused_or_found() {
    let stage = Stage::new().await;
    for _ in 0..5 {
        stage
            .agent
            .get(format!("/conversations/{}", stage.conversation))
            .await
            .expect(200);
    }
    let database = &stage.nodes[0].world.database;
    let client = connect(database).await;
    // The owner of the tables is refused by the triggers; the nodes' role has not even the rights.
    for sql in [
        "update access_log set items = 9",
        "delete from access_log where seq = 5",
        "truncate access_log",
        "update access_log_head set seq = 4",
        "insert into access_log_head values (gen_random_uuid(), 1, '')",
        "delete from access_log_head",
        "truncate access_log_head",
    ] {
        let refused = client.batch_execute(sql).await.expect_err(sql);
        let code = refused.code().expect("an answer of Postgres").code();
        assert_eq!(code, "42501", "{sql}: {refused:?}");
    }
    let serving = crate::support::serving(database);
    let serving = connect(&serving).await;
    for sql in [
        "update access_log set items = 9",
        "delete from access_log",
        "truncate access_log",
        "alter table access_log disable trigger all",
        "drop trigger access_log_rows on access_log",
        "drop table access_log",
        "update access_log_head set seq = 4",
        "insert into access_log_head values (gen_random_uuid(), 1, '')",
    ] {
        let refused = serving.batch_execute(sql).await.expect_err(sql);
        assert_eq!(
            refused.code().expect("an answer").code(),
            "42501",
            "{sql}: {refused:?}"
        );
    }
    // What a row claims about itself is overwritten.
    let forged = format!(
        "insert into access_log (subject_id, seq, access_id, agent_id, kind, items, at, hash)
         values ('{}', 3, gen_random_uuid(), gen_random_uuid(), 'keys', 1, '2000-01-01', '')",
        uuid(&stage.alice.id)
    );
    serving.batch_execute(&forged).await.expect("a row");
    let report = verify::verify(&client).await.expect("a report");
    assert_eq!((report.rows, report.faults), (6, vec![]));

    // A superuser without the triggers is found out.
    let alice = uuid(&stage.alice.id);
    let fault = |seq: i64, kind: FaultKind| Fault {
        subject: alice,
        seq,
        kind,
    };
    let ghost = Uuid::from_u128(7);
    for (sql, faults) in [
        ("update access_log set items = 9 where seq = 2".to_owned(), vec![fault(2, FaultKind::Changed)]),
        ("update access_log set agent_id = gen_random_uuid() where seq = 6".to_owned(), vec![fault(6, FaultKind::Changed)]),
        (
            "update access_log set hash = sha256('x') where seq = 3".to_owned(),
            vec![fault(3, FaultKind::Changed), fault(4, FaultKind::Changed)],
        ),
        ("delete from access_log where seq in (3, 4)".to_owned(), vec![fault(3, FaultKind::Missing)]),
        ("delete from access_log where seq > 4".to_owned(), vec![fault(5, FaultKind::Missing)]),
        ("delete from access_log".to_owned(), vec![fault(1, FaultKind::Missing)]),
        (
            "insert into access_log select subject_id, 7, gen_random_uuid(), agent_id, conversation_id, kind, items,
                 from_seq, to_seq, at, sha256('x') from access_log where seq = 6"
                .to_owned(),
            vec![fault(7, FaultKind::Changed), fault(7, FaultKind::Unexpected)],
        ),
        (
            "update access_log set seq = seq + 1 where seq > 5;
             insert into access_log select subject_id, 6, gen_random_uuid(), agent_id, conversation_id, kind, items,
                 from_seq, to_seq, at, sha256('x') from access_log where seq = 5"
                .to_owned(),
            vec![fault(6, FaultKind::Changed), fault(7, FaultKind::Changed), fault(7, FaultKind::Unexpected)],
        ),
        (
            format!(
                "insert into access_log select '{ghost}', 1, gen_random_uuid(), agent_id, null, kind, items,
                     null, null, at, sha256('x') from access_log where seq = 1"
            ),
            vec![
                Fault { subject: ghost, seq: 1, kind: FaultKind::Changed },
                Fault { subject: ghost, seq: 1, kind: FaultKind::Unexpected },
            ],
        ),
        (
            // A tail that was cut off together with its end.
            "delete from access_log where seq > 4; update access_log_head set seq = 4".to_owned(),
            vec![fault(4, FaultKind::End)],
        ),
        ("delete from access_log_head".to_owned(), vec![fault(6, FaultKind::Unexpected)]),
    ] {
        client
            .batch_execute(
                "alter table access_log disable trigger user; alter table access_log_head disable trigger user;
                 create table kept as table access_log; create table kept_head as table access_log_head",
            )
            .await
            .expect("no triggers");
        client.batch_execute(&sql).await.expect(&sql);
        let mut found = verify::verify(&client).await.expect("a report").faults;
        found.sort_by_key(|fault| (fault.subject != ghost, fault.seq));
        assert_eq!(found, faults, "{sql}");
        client
            .batch_execute(
                "truncate access_log, access_log_head; insert into access_log table kept;
                 insert into access_log_head table kept_head; drop table kept, kept_head;
                 alter table access_log enable trigger user; alter table access_log_head enable trigger user",
            )
            .await
            .expect("as before");
    }
    let report = verify::verify(&client).await.expect("a report");
    assert_eq!((report.rows, report.faults.len()), (6, 0));
}

/// `LOG_ROWS=1000000` is the size of the promise; the suite takes a tenth of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_log_is_verified_in_seconds() {
    let stage = Stage::new().await;
    let rows: i64 = std::env::var("LOG_ROWS")
        .ok()
        .and_then(|rows| rows.parse().ok())
        .unwrap_or(30_000);
    let client = connect(&stage.nodes[0].world.database).await;
    let alice = uuid(&stage.alice.id);
    let agent: Uuid = stage.agent.id.parse().expect("a UUID");
    // Half of them are hers, of two agents; the rest belongs to fifty others. A transaction with many
    // rows of one chain would be slow: it sees every version of the chain's end.
    for first in (1..=rows).step_by(500) {
        let fill = format!(
            "insert into access_log (subject_id, agent_id, kind, items)
             select case when n % 2 = 0 then '{alice}' else md5((n % 100)::text)::uuid end,
                    case when n % 10000 = 0 then '{agent}' else md5('other')::uuid end, 'keys', 1
             from generate_series({first}, {first} + 499) n"
        );
        client.batch_execute(&fill).await.expect("rows");
    }
    client
        .batch_execute("analyze access_log")
        .await
        .expect("analyzed");
    let since = Instant::now();
    let report = verify::verify(&client).await.expect("a report");
    let took = since.elapsed();
    tracing::info!(rows, ?took, "verified");
    assert_eq!(
        (report.rows, report.chains, report.faults.len()),
        (rows.unsigned_abs(), 51, 0)
    );
    assert!(took < Duration::from_secs(30), "{took:?}");
    for (query, expected) in [
        ("limit=50".to_owned(), 50),
        (
            format!("limit=50&agent_id={}", stage.agent.id),
            rows / 10_000,
        ),
    ] {
        let found = log(&stage.alice, &query).await.len();
        assert_eq!(i64::try_from(found), Ok(expected.min(50)), "{query}");
    }
}
