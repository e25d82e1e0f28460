//! The named statements' needs of Postgres. A pooler in transaction mode, a managed Postgres or
//! a compatible engine must have what stands here, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use blindpipe::db::migrate;

use super::sources::statements;
use crate::support::{connect, empty_database};

/// Words that no statement and no function of the schema may use, each with the reason.
const ABSENT: [(&str, &[&str]); 4] = [
    (
        "Columns of Postgres's own row format. Rows have keys, conversations have `rules_version`.",
        &["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"],
    ),
    (
        "State of a session. A pooler gives each transaction another connection.",
        &[
            "pg_advisory_lock",
            "pg_advisory_lock_shared",
            "pg_try_advisory_lock",
            "pg_try_advisory_lock_shared",
            "pg_advisory_unlock",
            "listen",
            "unlisten",
            "notify",
            "pg_notify",
            "temp",
            "temporary",
            "currval",
            "lastval",
            "setval",
        ],
    ),
    (
        "Transactions that outlive their connection.",
        &["prepared", "hold"],
    ),
    (
        "Data outside of the database.",
        &["pg_read_file", "lo_import", "lo_export", "dblink", "copy"],
    ),
];

/// Rare features and the statements or functions that use each. An engine without it needs another body there.
const RARE: [(&str, &[&str]); 17] = [
    // Arrays are concatenated by an aggregate of the schema.
    ("array_concat", &["messages.send"]),
    ("hashtextextended", &["files.count_in_turn"]),
    // The turn of a webhook and a consumer group keep their finished numbers as ranges.
    (
        "int8multirange",
        &["inbox.group_advance", "webhooks.finish"],
    ),
    // Locks that end with their transaction.
    (
        "pg_advisory_xact_lock",
        &["files.count_in_turn", "rotate_webhook_deliveries()"],
    ),
    (
        "pg_class",
        &[
            "inspection.server",
            "node.owns",
            "oldest_webhook_delivery()",
            "rotate_webhook_deliveries()",
        ],
    ),
    // The log of revocations is read from a safe position.
    ("pg_current_snapshot", &["log_cursor()", "messages.locks"]),
    // The epoch reads the timeline that the server writes.
    ("pg_current_wal_lsn", &["inbox_epoch()"]),
    ("pg_current_xact_id", &["log_position()"]),
    ("pg_has_role", &["inspection.server", "node.owns"]),
    (
        "pg_inherits",
        &["oldest_webhook_delivery()", "rotate_webhook_deliveries()"],
    ),
    (
        "pg_is_in_recovery",
        &["db.check_primary", "db.check_server", "inspection.server"],
    ),
    // A replay writes something, so that its commit waits for the standby.
    ("pg_logical_emit_message", &["messages.priors"]),
    ("pg_settings", &["inspection.timeouts"]),
    ("pg_snapshot_xip", &["log_cursor()", "messages.locks"]),
    ("pg_snapshot_xmax", &["log_cursor()"]),
    ("pg_trigger_depth", &["access_log_is_append_only()"]),
    ("pg_walfile_name", &["inbox_epoch()"]),
];

/// Statements that use what an engine may lack. If one fails, only precision is lost.
const OPTIONAL: [(&str, &str); 1] = [("messages.locks", "xmax")];

/// The words of a text without its comments.
fn words(sql: &str) -> BTreeSet<String> {
    let code = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default());
    let code = code.collect::<Vec<_>>().join("\n").to_lowercase();
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map(str::to_owned)
        .collect()
}

/// The named statements, and the functions of the schema as `name()`.
async fn texts() -> Vec<(String, String)> {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    let functions = "select proname::text as name, prosrc as body from pg_proc p
        where pronamespace = 'public'::regnamespace and prokind = 'f'
            and not exists (select from pg_depend where objid = p.oid and deptype = 'e')";
    let rows = connect(&url).await.query(functions, &[]).await;
    let functions = rows.expect("a catalog").into_iter().map(|row| {
        let name: String = row.get("name");
        (format!("{name}()"), row.get("body"))
    });
    let named = statements().into_iter().map(|(_, sql)| {
        let name = sql.lines().next().expect("a name")[3..].to_owned();
        (name, sql)
    });
    functions.chain(named).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_use_what_a_pooler_and_a_compatible_engine_have() {
    let texts = texts().await;
    assert!(texts.len() > 300, "{} texts", texts.len());
    let mut rare: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (name, sql) in &texts {
        let words = words(sql);
        for (reason, absent) in ABSENT {
            let used = absent.iter().find(|word| {
                words.contains(**word) && !OPTIONAL.contains(&(name.as_str(), **word))
            });
            assert_eq!(used, None, "{name}: {reason}");
        }
        for word in words {
            let listed = RARE.iter().any(|(rare, _)| *rare == word);
            // Whatever else the catalog and the server offer needs a line above.
            if listed || word.starts_with("pg_") {
                rare.entry(word).or_default().insert(name);
            }
        }
    }
    let listed: BTreeMap<String, BTreeSet<&str>> = RARE
        .iter()
        .map(|(word, names)| ((*word).to_owned(), names.iter().copied().collect()))
        .collect();
    assert_eq!(rare, listed);
}
