//! What others than the operator can check: each user the own chain, and everybody the daily digest.

use std::time::Duration;

use blindpipe::features::access_log::verify;
use serde_json::Value;
use sha2::{Digest, Sha256};
use ulid::Ulid;
use uuid::Uuid;

use super::{super::Stage, log};
use crate::support::{User, connect, lines_since, nodes_with, request_upkeep};

/// All rows of a user, by pages.
async fn all(user: &User) -> Vec<Value> {
    let (mut rows, mut query) = (Vec::new(), "limit=3".to_owned());
    loop {
        let path = format!("/grants/access-log?{query}");
        let page = user.get(path).await.expect(200);
        rows.extend(page.data().as_array().expect("a list").iter().cloned());
        let Some(next) = page.body["next_cursor"].as_str() else {
            return rows;
        };
        query = format!("limit=3&cursor={next}");
    }
}

/// A field as the hash has it: an id as a UUID, a number, or `-`.
fn field(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => match text.parse::<Ulid>() {
            Ok(id) => Uuid::from(id).to_string(),
            Err(_) => text.clone(),
        },
        other => panic!("{other}"),
    }
}

/// The hash of a row by the algorithm of `docs/api/access-log.md`.
fn hash(previous: &[u8], row: &Value) -> Vec<u8> {
    let names = [
        "subject_id",
        "seq",
        "access_id",
        "agent_id",
        "conversation_id",
        "kind",
        "items",
        "from_seq",
        "to_seq",
        "at_us",
    ];
    let fields: Vec<String> = names.iter().map(|name| field(&row[*name])).collect();
    let text = fields.join("|");
    Sha256::new()
        .chain_update(previous)
        .chain_update(text)
        .finalize()
        .to_vec()
}

/// The rows of a chain that do not fit.
fn unfit(mut rows: Vec<Value>) -> Vec<i64> {
    rows.sort_by_key(|row| row["seq"].as_i64());
    let (mut previous, mut unfit) = (vec![0; 32], Vec::new());
    for row in rows {
        previous = hash(&previous, &row);
        let shown = base16ct::lower::encode_string(&previous);
        if row["hash"] != shown.as_str() {
            unfit.push(row["seq"].as_i64().expect("a number"));
        }
    }
    unfit
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_recomputes_the_own_chain_from_the_api_alone() {
    let stage = Stage::new().await;
    let agent = &stage.agent;
    for _ in 0..4 {
        let path = format!("/conversations/{}", stage.conversation);
        agent.on(&stage.nodes[1]).get(path).await.expect(200);
    }
    stage
        .alice
        .say(&stage.conversation, "hello")
        .await
        .expect(201);
    let path = format!(
        "/agents/{}/conversations/{}/messages",
        agent.id, stage.conversation
    );
    agent.get(path).await.expect(200);
    let path = format!("/keys/users/{}/devices", stage.alice.id);
    agent.get(path).await.expect(200);
    agent.poll("").await.expect(200);
    let rows = all(&stage.alice).await;
    let kinds: Vec<&str> = rows
        .iter()
        .map(|row| row["kind"].as_str().expect("a kind"))
        .collect();
    for kind in ["conversation", "history", "keys", "poll"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert_eq!(unfit(rows.clone()), Vec::<i64>::new());
    // Each change of a row shows.
    for (name, value) in [
        ("items", Value::from(9)),
        ("at_us", Value::from(1)),
        ("kind", Value::from("push")),
    ] {
        let mut changed = rows.clone();
        let third = changed
            .iter_mut()
            .find(|row| row["seq"] == 3)
            .expect("a row");
        third[name] = value;
        assert!(unfit(changed).contains(&3), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_over_all_chains_is_published_each_day() {
    let [a, b] = nodes_with(&[("ACCESS_LOG_OBJECTS", "true")]).await;
    let database = &a.world.database;
    let alice = a.user("alice").await;
    let agent = b.agent(&alice, "helper").await;
    let conversation = alice.talk_to(&agent).await;
    let read = async || {
        let path = format!("/conversations/{conversation}");
        agent.get(path).await.expect(200);
    };
    read().await;
    let client = connect(database).await;
    let today: chrono::NaiveDate = {
        let sql = "select (app_now() at time zone 'utc')::date";
        client.query_one(sql, &[]).await.expect("a day").get(0)
    };
    // A digest waits for ten minutes.
    a.advance(Duration::from_secs(86_400 + 660)).await;
    let alice = alice.refreshed().await;
    // A row of the next day is not in it.
    read().await;
    let sql = "select digest, chains from access_log_digest where day = $1";
    let mut published = None;
    for _ in 0..400 {
        request_upkeep(database, "publish_access_log_digest").await;
        published = client.query_opt(sql, &[&today]).await.expect("a row");
        if published.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let published = published.expect("a digest");
    let (digest, chains): (String, i64) = (published.get(0), published.get(1));
    assert_eq!(chains, 1);

    // The log and the store say the same, and so does whoever has the rows.
    let line = format!("{today} {digest} 1\n");
    let file = a.world.objects_dir.join(format!("access-log/{today}.txt"));
    assert_eq!(std::fs::read_to_string(&file).expect("an object"), line);
    let is_it =
        |line: &String| line.contains("the digest of the access log") && line.contains(&digest);
    assert!(lines_since(0).iter().any(is_it), "{digest}");
    let of_day = async || {
        let report = verify::verify(&client, Some(today))
            .await
            .expect("a report");
        report.of_day.expect("a digest").1
    };
    assert_eq!(of_day().await, digest);
    let row = log(&alice, "limit=100")
        .await
        .pop()
        .expect("the oldest row");
    let end = format!(
        "{}|1|{}\n",
        field(&row["subject_id"]),
        row["hash"].as_str().expect("a hash")
    );
    let expected = base16ct::lower::encode_string(&Sha256::digest(end));
    assert_eq!(digest, expected);

    // Rows of later change nothing. A superuser who rewrites the chain and its end is found out.
    read().await;
    assert_eq!(of_day().await, digest);
    client
        .batch_execute(
            "alter table access_log disable trigger user; alter table access_log_head disable trigger user;
             create table kept as select * from access_log order by seq;
             delete from access_log; delete from access_log_head;
             alter table access_log enable trigger user; alter table access_log_head enable trigger user;
             insert into access_log (subject_id, agent_id, conversation_id, kind, items)
                 select subject_id, gen_random_uuid(), conversation_id, kind, items from kept order by seq",
        )
        .await
        .expect("rewritten");
    let report = verify::verify(&client, Some(today))
        .await
        .expect("a report");
    assert_eq!(report.faults, [], "the chain alone shows nothing");
    assert_ne!(report.of_day.expect("a digest").1, digest);
}
