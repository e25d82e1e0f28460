//! The chains: they stay whole, refuse every change, and show what a superuser has changed.

use std::time::{Duration, Instant};

use blindpipe::{
    features::access_log::verify::{self, Fault, FaultKind},
    ids::SubjectId,
};
use uuid::Uuid;

use super::{super::Stage, log, uuid};
use crate::support::{Agent, User, blocked, connect, psql};

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
    let report = verify::verify(&client, None).await.expect("a report");
    assert_eq!((report.rows, report.chains, report.faults), (60, 1, vec![]));
}

/// An agent that has acked what `first` said, while nobody has logged that, and has not read yet
/// what `second` said. The cursor of its next poll.
async fn between(database: &str, agent: &Agent, first: &User, second: &User) -> String {
    let conversation = first.talk_to(agent).await;
    first.say(&conversation, "x").await.expect(201);
    let page = agent.poll("").await.expect(200);
    let next = page.body["next_cursor"].as_str().expect("a cursor");
    let cursor = format!("cursor={next}");
    agent.poll(&cursor).await.expect(200);
    // As if their node had died before it logged them.
    let sql = format!(
        "update inbox_reader set logged_seq = 0 where principal_id = '{}'",
        agent.id
    );
    psql(database, &sql).await;
    let conversation = second.talk_to(agent).await;
    second.say(&conversation, "y").await.expect(201);
    cursor
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_of_the_same_users_take_their_chains_in_one_order() {
    let stage = Stage::new().await;
    let [a, b] = &stage.nodes;
    let (alice, bob) = (&stage.alice, &b.user("bob").await);
    let (helper, other) = (&a.agent(alice, "one").await, &b.agent(bob, "other").await);
    let database = &a.world.database;
    let helper_cursor = between(database, helper, alice, bob).await;
    let other_cursor = between(database, other, bob, alice).await;

    let mut client = connect(database).await;
    let holds = client.transaction().await.expect("a transaction");
    let sql = "select from access_log_head for update";
    holds.batch_execute(sql).await.expect("both chains");
    let other = other.on(b);
    let polls = async { tokio::join!(helper.poll(&helper_cursor), other.poll(&other_cursor)) };
    let release = async {
        blocked(&holds, 2).await;
        holds.commit().await.expect("a commit");
    };
    let ((of_helper, of_other), ()) = tokio::join!(polls, release);
    of_helper.expect(200);
    of_other.expect(200);
    for (user, acked, unread) in [(alice, helper, &other), (bob, &other, helper)] {
        let newest = log(user, "limit=2").await;
        for (kind, agent) in [("push", acked), ("poll", unread)] {
            let is_it =
                |row: &serde_json::Value| row["kind"] == kind && row["agent_id"] == agent.id;
            assert!(newest.iter().any(is_it), "{kind}: {newest:?}");
        }
    }
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
        "insert into access_log (subject_id, agent_id, kind, items)
            values (gen_random_uuid(), gen_random_uuid(), 'keys', 1)",
    ] {
        let refused = serving.batch_execute(sql).await.expect_err(sql);
        assert_eq!(
            refused.code().expect("an answer").code(),
            "42501",
            "{sql}: {refused:?}"
        );
    }
    // The trigger overwrites a row's own claims.
    let forged = format!(
        "insert into access_log (subject_id, seq, access_id, agent_id, kind, items, at, hash)
         values ('{}', 3, gen_random_uuid(), gen_random_uuid(), 'keys', 1, '2000-01-01', '')",
        uuid(&stage.alice.id)
    );
    client.batch_execute(&forged).await.expect("a row");
    let report = verify::verify(&client, None).await.expect("a report");
    assert_eq!((report.rows, report.faults), (6, vec![]));

    // A superuser without the triggers is found out.
    let alice = uuid(&stage.alice.id);
    let fault = |seq: i64, kind: FaultKind| Fault {
        subject: SubjectId(alice),
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
        (
            // Two rows change places.
            "update access_log set seq = -seq where seq in (2, 3);
             update access_log set seq = case seq when -2 then 3 else 2 end where seq < 0"
                .to_owned(),
            vec![fault(2, FaultKind::Changed), fault(3, FaultKind::Changed), fault(4, FaultKind::Changed)],
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
                Fault { subject: SubjectId(ghost), seq: 1, kind: FaultKind::Changed },
                Fault { subject: SubjectId(ghost), seq: 1, kind: FaultKind::Unexpected },
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
        let mut found = verify::verify(&client, None).await.expect("a report").faults;
        found.sort_by_key(|fault| (fault.subject.0 != ghost, fault.seq));
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
    let report = verify::verify(&client, None).await.expect("a report");
    assert_eq!((report.rows, report.faults.len()), (6, 0));
}

/// `LOG_ROWS=1000000` is the size of the promise; the suite takes 30,000.
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
    // Half of them are hers, of two agents; the rest belongs to fifty others. A transaction with
    // many rows of one chain would be slow: it sees every version of the chain's end.
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
    let report = verify::verify(&client, None).await.expect("a report");
    let took = since.elapsed();
    tracing::info!(rows, ?took, "verified");
    assert_eq!(
        (report.rows, report.chains, report.faults.len()),
        (rows.unsigned_abs(), 51, 0)
    );
    let per_row = Duration::from_micros(30) * u32::try_from(rows).expect("few");
    assert!(took < per_row.max(Duration::from_secs(5)), "{took:?}");
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
