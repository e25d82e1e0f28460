//! SQLSTATEs that mean *not committed, try again*: 503 and `Retry-After`, then one message.

use std::time::Duration;

use serde_json::json;
use tokio_postgres::Client;

use crate::support::{connect, nodes_with, ulid};

/// Each state that Postgres raises in place of a commit. A node cannot mend any of them.
const NOT_COMMITTED: [&str; 25] = [
    "25P03", "25P04", "25006", // an idle or long transaction that Postgres ended; a standby
    "40000", "40001", "40P01", "40003", // rolled back: serialisation, deadlock, unknown end
    "53000", "53100", "53200", "53300", "53400", // disk, memory, connections
    "55000", "55006", "55P03", // a lock that is not to be had
    "57000", "57014", "57P01", "57P02", "57P03", "57P04", "57P05", // cancelled, shut down
    "08000", "08006", "58030", // a lost connection, an I/O error
];

/// Those of them that a lock can mean. The node tries such a send again while its caller waits, and
/// its last try may outlive the answer.
const WAITS: [&str; 2] = ["55P03", "57014"];
/// Looks without a try after which there is none. Tries follow one another without a pause.
const QUIET_LOOKS: u32 = 20;

/// States of a wrong statement: a fault of the server.
const WRONG: [&str; 3] = ["22012", "42P01", "XX000"];

/// Raises the state that the table names, at each message that is written.
const PLANTED: &str = "
    create table planted (state text not null);
    create function raise_planted() returns trigger language plpgsql security definer as $$
    declare planted_state text;
    begin
        select state into planted_state from planted;
        if found then
            raise exception using errcode = planted_state, message = 'planted';
        end if;
        return new;
    end $$;
    create trigger planted before insert on message for each row execute function raise_planted();";

/// Waits until no statement writes messages any more.
async fn no_send_is_tried(client: &Client) {
    let tries = "select count(*) from pg_locks where relation = 'message'::regclass
        and database = (select oid from pg_database where datname = current_database())
        and mode = 'RowExclusiveLock'";
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        let now: i64 = client.query_one(tries, &[]).await.expect("a count").get(0);
        quiet = if now == 0 { quiet + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_committed_is_503_and_its_repeat_makes_one_message() {
    let [a, b] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let agent = a.agent(&alice, "agent").await;
    let conversation = alice.talk_to(&agent).await;
    let client = connect(&a.world.database).await;
    client.batch_execute(PLANTED).await.expect("a trigger");
    let path = format!("/conversations/{conversation}/messages");
    let plant = async |state: &str| {
        let plant = format!("delete from planted; insert into planted values ('{state}')");
        client.batch_execute(&plant).await.expect("planted");
    };
    for state in NOT_COMMITTED {
        let body =
            json!({ "client_message_id": ulid().to_string(), "payload": { "type": "text" } });
        plant(state).await;
        for node in [&a, &b] {
            let answer = alice.on(node).post(&path, body.clone()).await;
            let seconds = answer.header("retry-after").map(str::parse::<u64>);
            assert!(matches!(seconds, Some(Ok(1..))), "{state}: {answer:?}");
            answer.refused(503, "SERVICE_UNAVAILABLE");
        }
        if WAITS.contains(&state) {
            no_send_is_tried(&client).await;
        }
        client
            .batch_execute("delete from planted")
            .await
            .expect("mended");
        let sent = alice.post(&path, body.clone()).await.expect(201);
        let again = alice.on(&b).post(&path, body).await.expect(200);
        assert_eq!(sent.data()["message_id"], again.data()["message_id"]);
    }
    for state in WRONG {
        let body =
            json!({ "client_message_id": ulid().to_string(), "payload": { "type": "text" } });
        plant(state).await;
        alice.post(&path, body).await.refused(500, "INTERNAL_ERROR");
    }
    let count = "select count(*) from message where client_message_id is not null";
    let count: i64 = client.query_one(count, &[]).await.expect("a count").get(0);
    assert_eq!(count, i64::try_from(NOT_COMMITTED.len()).expect("few"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_postgres_refuses_fails_alone() {
    let [a] = nodes_with(&[("LIMIT_OVERRIDES", "user_message_send=1000/s")]).await;
    let alice = a.user("alice").await;
    let mut paths = Vec::new();
    for n in 0..4 {
        let agent = a.agent(&alice, &format!("agent {n}")).await;
        let conversation = alice.talk_to(&agent).await;
        paths.push(format!("/conversations/{conversation}/messages"));
    }
    let client = connect(&a.world.database).await;
    let refusing = "
        create function refuse_poison() returns trigger language plpgsql as $$
        begin
            if new.payload like '%poison%' then raise division_by_zero; end if;
            return new;
        end $$;
        create trigger poison before insert on message for each row execute function refuse_poison();";
    client.batch_execute(refusing).await.expect("a trigger");
    let sends = (0..80).map(|n| {
        let text = if n % 20 == 7 { "poison" } else { "fine" };
        let body = json!({ "payload": { "type": "text", "text": text } });
        let (alice, path) = (&alice, &paths[n % paths.len()]);
        async move { (text, alice.post(path, body).await) }
    });
    for (text, answer) in futures_util::future::join_all(sends).await {
        if text == "poison" {
            answer.refused(500, "INTERNAL_ERROR");
        } else {
            answer.expect(201);
        }
    }
    let of_messages = "select count(*), count(distinct (conversation_id, seq)) from message where sender_kind = 'user'";
    let row = client.query_one(of_messages, &[]).await.expect("counts");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (76, 76));
}
