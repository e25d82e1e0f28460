//! The cost of retention is what it deletes, in tables whose pages were emptied and filled again.
//!
//! An index whose entries cover ranges of pages would match any age after that, and would read all
//! refilled pages.

use blindpipe::db::migrate;
use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::sources::statements;
use crate::support::{connect, empty_database};

/// Rows of each table, before the vacuum and after it.
const ROWS: u64 = 40_000;
/// Rows that are too old after the table was refilled.
const OLD_ROWS: u64 = 20;
/// Pages that the deletion of one row may touch: heap, and each index from its root to its leaf.
const MAX_PAGES_PER_ROW: u64 = 8;
/// Pages of a deletion that finds nothing.
const MAX_PAGES_OF_NOTHING: u64 = 24;

/// A table with a rule by age: its statement with arguments, and an insert of row `n` of `$rows` at
/// the time `$at`.
const TABLES: [(&str, &str, &str, &str); 3] = [
    (
        "inbox_entry",
        "inbox.expire_entries",
        "(30, 1000)",
        "insert into inbox_entry (principal_id, seq, created_at, events, conversation_id, message_seq)
         select md5((n % 100)::text)::uuid, (extract(epoch from $at) * 1000)::int8 * 100000 + n, $at, 1, gen_random_uuid(), 1
         from generate_series(1, $rows) n",
    ),
    (
        "event",
        "inbox.expire_events",
        "(31, 1000)",
        "insert into event (event_id, kind, created_at, data)
         select gen_random_uuid(), 'member.added', $at, repeat('x', 60) from generate_series(1, $rows) n",
    ),
    (
        "idempotency",
        "messages.forget_keys",
        "(1000)",
        "insert into idempotency (key, sender_id, conversation_id, seq, created_at)
         select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, $at from generate_series(1, $rows) n",
    ),
];

pub(super) fn statement(name: &str) -> String {
    let named = format!("-- {name}\n");
    let all = statements();
    let found = all.into_iter().find(|(_, sql)| sql.starts_with(&named));
    found.expect(name).1
}

async fn insert(client: &Client, sql: &str, rows: u64, at: &str) {
    let sql = sql.replace("$rows", &rows.to_string()).replace("$at", at);
    client.batch_execute(&sql).await.expect(&sql);
}

/// Runs a prepared statement. Returns the pages that it touched, in memory or not.
pub(super) async fn pages(client: &Client, execute: &str) -> u64 {
    let explain = format!("explain (analyze, buffers, format json) {execute}");
    let answer = client.simple_query(&explain).await.expect(execute);
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: Value = serde_json::from_str(text.expect("a plan")).expect("JSON");
    let count = |field: &str| plan[0]["Plan"][field].as_u64().expect(field);
    count("Shared Hit Blocks") + count("Shared Read Blocks")
}

async fn count(client: &Client, table: &str) -> u64 {
    let sql = format!("select count(*) from {table}");
    let rows: i64 = client.query_one(&sql, &[]).await.expect("a count").get(0);
    rows.unsigned_abs()
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_reads_what_it_deletes_in_a_refilled_table() {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    let client = connect(&url).await;
    for (table, name, arguments, fill) in TABLES {
        let prepare = format!("prepare retention as {}", statement(name));
        client.batch_execute(&prepare).await.expect(name);
        let execute = format!("execute retention{arguments}");
        insert(
            &client,
            fill,
            ROWS,
            "(app_now() - interval '40 days' + n * interval '1 second')",
        )
        .await;
        let vacuum = format!("vacuum (analyze) {table}");
        client.batch_execute(&vacuum).await.expect("vacuumed");
        while client.execute(&execute, &[]).await.expect("deleted") > 0 {}
        assert_eq!(count(&client, table).await, 0, "{table}");
        client.batch_execute(&vacuum).await.expect("vacuumed");
        insert(&client, fill, ROWS, "(app_now() - n * interval '1 ms')").await;
        insert(
            &client,
            fill,
            OLD_ROWS,
            "(app_now() - interval '39 days' + n * interval '1 second')",
        )
        .await;
        client.batch_execute(&vacuum).await.expect("vacuumed");

        let sql = format!("select pg_relation_size('{table}') / 8192");
        let all: i64 = client.query_one(&sql, &[]).await.expect("a size").get(0);
        let bound = OLD_ROWS * MAX_PAGES_PER_ROW + MAX_PAGES_OF_NOTHING;
        assert!(
            all.unsigned_abs() > 2 * bound,
            "{table} has {all} pages only"
        );
        let touched = pages(&client, &execute).await;
        assert_eq!(count(&client, table).await, ROWS, "{table}");
        assert!(touched <= bound, "{table}: {touched} of {all} pages");
        let touched = pages(&client, &execute).await;
        assert!(
            touched <= MAX_PAGES_OF_NOTHING,
            "{table}: {touched} pages for nothing"
        );
        client
            .batch_execute("deallocate retention")
            .await
            .expect("gone");
    }
}
