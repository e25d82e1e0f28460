//! Migrations beside nodes of the build before: they only add, and nothing that a node has prepared
//! notices.

use std::fs;

use blindpipe::db::migrate::{self, Migrations};

use super::sources::{root, statements};
use crate::support::{connect, empty_database, psql};

/// The last migration before the rule. No release is older.
const BASELINE_VERSION: u32 = 23;

/// The statements of a migration, in lower case, without comments and with single spaces.
fn clauses(sql: &str) -> Vec<String> {
    let lines = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join(" ").to_lowercase();
    let clauses = text.split(';');
    clauses
        .map(|clause| clause.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// The reason why a node of the build before may not run beside this statement; none if it may.
fn breaks(clause: &str) -> Option<&'static str> {
    let has = |words: &str| clause.contains(words);
    let adds_required = clause
        .split("add column ")
        .skip(1)
        .any(|column| column.contains("not null") && !column.contains("default"));
    let rows: [(bool, &'static str); 7] = [
        (
            has("drop table") || has("drop column"),
            "a table or column that it reads is gone",
        ),
        (
            has("replace view") || has("drop view"),
            "a statement that answers with all columns of the view ends",
        ),
        (has(" rename "), "a name that it uses is gone"),
        (
            has("alter column") && has(" type "),
            "a value has another type",
        ),
        (has("set not null"), "its rows are refused"),
        (adds_required, "its rows lack a required column"),
        (has("drop function"), "a function that it calls is gone"),
    ];
    rows.iter().find(|(holds, _)| *holds).map(|(_, why)| *why)
}

#[test]
fn migrations_after_the_baseline_only_add() {
    let mut seen = 0;
    for file in fs::read_dir(root().join("sql/migrations")).expect("a folder") {
        let path = file.expect("a file").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        let version = name[1..].split("__").next().expect("a version");
        if version.parse::<u32>().expect("a number") <= BASELINE_VERSION {
            continue;
        }
        seen += 1;
        let sql = fs::read_to_string(&path).expect("text");
        // A release after the last use a migration may take away, and says so.
        if sql.contains("-- contract: ") {
            continue;
        }
        for clause in clauses(&sql) {
            assert_eq!(breaks(&clause), None, "{name}: {clause}");
        }
    }
    assert!(seen > 0, "no migration after the baseline");
    for (clause, is_fine) in [
        ("alter table job add column trace text", true),
        ("alter table job add column n int not null default 0", true),
        ("alter table job add column n int not null", false),
        ("alter table job alter column kind type int", false),
        ("alter table job rename column kind to sort", false),
        ("drop table job", false),
        ("create or replace view live_session as select", false),
    ] {
        assert_eq!(breaks(clause).is_none(), is_fine, "{clause}");
    }
}

/// Postgres refuses a prepared statement whose answer has got another column: `cached plan must not
/// change result type`. A node keeps its statements prepared through a migration.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_a_statement_changes_when_every_table_gets_a_column() {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    let client = connect(&url).await;
    let mut before = Vec::new();
    for (file, sql) in statements() {
        let prepared = client.prepare(&sql).await.expect("a statement");
        before.push((file, sql, prepared.columns().len()));
    }
    let tables = "select c.oid::regclass::text as name from pg_class c
        where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace and not relispartition";
    for table in client.query(tables, &[]).await.expect("a catalog") {
        let name: String = table.get("name");
        psql(
            &url,
            &format!("alter table {name} add column of_a_later_build text"),
        )
        .await;
    }
    let mut changed = Vec::new();
    for (file, sql, columns) in before {
        let prepared = client.prepare(&sql).await.expect("a statement");
        if prepared.columns().len() != columns {
            changed.push((file, sql.lines().next().unwrap_or_default().to_owned()));
        }
    }
    assert_eq!(
        changed,
        [],
        "these statements answer with columns that they do not name"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_can_be_rolled_back_on_the_schema_of_its_successor() {
    let url = empty_database().await;
    let later = Migrations::own().and("V9999__later", "alter table job add column later text");
    let applied = later
        .expect("a name")
        .apply_at(&url)
        .await
        .expect("migrated");
    assert!(applied > 1, "{applied}");
    assert_eq!(migrate::run_at(&url).await.expect("nothing to do"), 0);
    // A gap is no later schema.
    psql(
        &url,
        "delete from refinery_schema_history where version = 1",
    )
    .await;
    let error = migrate::run_at(&url).await.expect_err("a gap").to_string();
    assert!(error.contains("missing"), "{error}");
}
