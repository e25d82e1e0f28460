//! The plans of all named statements over tables of a million rows: none reads a table that grows
//! from its beginning to its end, and those of the hot paths are planned once.

use std::collections::BTreeSet;

use blindpipe::db::migrate;
use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::sources::statements;
use crate::support::{connect, empty_database, services};

/// The statements that read whole tables, and why they may.
const MAY_SCAN: [(&str, &[&str]); 6] = [
    // The operator's check of all chains reads everything, by design.
    ("access_log.heads", &["access_log_head"]),
    ("access_log.rows", &["access_log"]),
    // The operator's command looks for the accounts of load tests, twice in its life.
    ("accounts.load_accounts", &["user_account"]),
    // A single row.
    ("webhooks.sweep", &["webhook_sweep"]),
    ("push.piece", &["push_sweep"]),
    ("push.swept", &["push_sweep"]),
];

/// The statement before every call of a receiver.
const PROBED: &str = "webhooks.begin";

/// After five plans for the values at hand Postgres may settle on one for all values.
const PLANS_BEFORE_THE_CHOICE: usize = 7;

/// The statements of every connect, poll, send and ack. A plan takes longer than they do.
const PLANNED_ONCE: [&str; 12] = [
    "auth.agent",
    "auth.agent_token",
    "auth.user",
    "inbox.ack",
    "inbox.ack_by_token",
    "inbox.append",
    "inbox.bounds",
    "inbox.heads",
    "inbox.log_reads",
    "inbox.read",
    "messages.priors",
    "messages.send",
];

/// A superuser's connection to a database whose tables have a million rows each, as far as the
/// planner knows.
async fn grown() -> Client {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    let (_, database) = url.rsplit_once('/').expect("a database");
    let admin = services().postgres.admin_url();
    let (server, _) = admin.rsplit_once('/').expect("a database");
    let client = connect(&format!("{server}/{database}")).await;
    let fill = include_str!("plans_fill.sql");
    client.batch_execute(fill).await.expect("filled");
    client
}

/// A literal of a type, which occurs in the rows where it can.
fn value(kind: &str) -> String {
    if let Some(element) = kind.strip_suffix("[]") {
        return format!("array_fill({}, array[20])", value(element));
    }
    let literal = match kind {
        "uuid" => "md5('700')",
        "text" => "'x'",
        "bytea" => "decode(md5('700'), 'hex')",
        "boolean" => "true",
        "timestamp with time zone" => "app_now()",
        "integer" | "bigint" | "smallint" | "double precision" => "100",
        _ => "null",
    };
    format!("({literal})::{kind}")
}

async fn plan(client: &Client, execute: &str) -> Value {
    let explain = format!("explain (format json) {execute}");
    let answer = client.simple_query(&explain).await.expect(execute);
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plans: Value = serde_json::from_str(text.expect("a plan")).expect("JSON");
    plans[0]["Plan"].clone()
}

/// The tables that a plan reads whole: by a sequential scan, or over an index without a condition.
fn scanned(plan: &Value, tables: &mut BTreeSet<String>) {
    let text = |field: &str| plan[field].as_str().unwrap_or_default();
    let reads_all = match text("Node Type") {
        "Seq Scan" | "Sample Scan" => true,
        "Index Scan" | "Index Only Scan" | "Bitmap Index Scan" => plan["Index Cond"].is_null(),
        _ => false,
    };
    if reads_all {
        let table = text("Relation Name");
        tables.insert(
            if table.is_empty() {
                text("Index Name")
            } else {
                table
            }
            .to_owned(),
        );
    }
    for part in plan["Plans"].as_array().into_iter().flatten() {
        scanned(part, tables);
    }
}

/// Whether Postgres expects so much of the plan for all values that it plans for each execution.
async fn is_planned_each_time(client: &Client, n: usize, execute: &str) -> bool {
    client
        .batch_execute("set plan_cache_mode = auto")
        .await
        .expect("set");
    for _ in 0..PLANS_BEFORE_THE_CHOICE {
        plan(client, execute).await;
    }
    let sql = "select generic_plans from pg_prepared_statements where name = $1";
    let row = client.query_one(sql, &[&format!("s{n}")]).await;
    row.expect("a statement").get::<_, i64>(0) == 0
}

/// Scans that a review found once, and one of a column without an index, are seen.
async fn assert_scans_are_seen(client: &Client) {
    for (sql, table) in [
        (
            "select from relation r join conversation c on least(r.user_id, r.agent_id) = c.pair_low
                where c.conversation_id = md5('700')::uuid and r.state = 'active'",
            "relation",
        ),
        (
            "select from member m where m.principal_id = md5('700')::uuid or m.principal_id in (
                select agent_id from agent where owner_user_id = md5('700')::uuid) limit 1",
            "member",
        ),
        ("select from session where generation = 7", "session"),
    ] {
        let mut tables = BTreeSet::new();
        scanned(&plan(client, sql).await, &mut tables);
        assert_eq!(Vec::from_iter(tables), [table], "{sql}");
    }
}

/// Over a thousand webhooks a scan looks cheap to Postgres, and every attempt would pay for it.
async fn assert_a_small_table_is_probed(client: &Client, execute: &str) {
    for sql in [
        "delete from webhook where agent_id not in (select agent_id from webhook limit 1000)",
        "vacuum full webhook",
        "analyze webhook",
        "set plan_cache_mode = force_generic_plan",
    ] {
        client.batch_execute(sql).await.expect(sql);
    }
    let mut tables = BTreeSet::new();
    scanned(&plan(client, execute).await, &mut tables);
    assert!(
        !tables.contains("webhook"),
        "{PROBED} scans a small {tables:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plan_of_a_named_statement_scans_a_table_that_grows() {
    let client = grown().await;
    assert_scans_are_seen(&client).await;
    let mut failures = Vec::new();
    let mut tagged = BTreeSet::new();
    let mut probed = None;
    for (n, (_, sql)) in statements().into_iter().enumerate() {
        let name = sql.lines().next().expect("a name")[3..].to_owned();
        let prepare = format!("prepare s{n} as {sql}");
        client.batch_execute(&prepare).await.expect(&name);
        let types =
            "select parameter_types::text[] as types from pg_prepared_statements where name = $1";
        let row = client
            .query_one(types, &[&format!("s{n}")])
            .await
            .expect(&name);
        let types: Vec<String> = row.get("types");
        let values: Vec<String> = types.iter().map(|kind| value(kind)).collect();
        let arguments = if values.is_empty() {
            String::new()
        } else {
            format!("({})", values.join(", "))
        };
        let execute = format!("execute s{n}{arguments}");
        if PLANNED_ONCE.contains(&&*name) && is_planned_each_time(&client, n, &execute).await {
            failures.push(format!("{name} is planned for each execution"));
        }
        // A plan for all values is the strictest. Only where it scans is Postgres asked which of
        // the two it would take.
        let mut tables = BTreeSet::new();
        client
            .batch_execute("set plan_cache_mode = force_generic_plan")
            .await
            .expect("set");
        scanned(&plan(&client, &execute).await, &mut tables);
        if !tables.is_empty() {
            client
                .batch_execute("set plan_cache_mode = auto")
                .await
                .expect("set");
            let mut last = Value::Null;
            for _ in 0..PLANS_BEFORE_THE_CHOICE {
                last = plan(&client, &execute).await;
            }
            tables.clear();
            scanned(&last, &mut tables);
        }
        let allowed = MAY_SCAN
            .iter()
            .find(|(tag, _)| *tag == name)
            .map_or(&[][..], |(_, tables)| tables);
        if !tables
            .iter()
            .map(String::as_str)
            .eq(allowed.iter().copied())
        {
            failures.push(format!("{name} scans {tables:?}, and may scan {allowed:?}"));
        }
        if name == "limits.largest_group" {
            // A popular agent has many conversations and few groups.
            let plan = plan(&client, &execute).await.to_string();
            assert!(plan.contains("member_instance"), "{plan}");
        }
        if name == PROBED {
            probed = Some(execute);
        }
        tagged.insert(name);
    }
    assert_a_small_table_is_probed(&client, &probed.expect(PROBED)).await;
    assert!(tagged.len() > 300, "{} statements", tagged.len());
    assert!(PLANNED_ONCE.iter().all(|name| tagged.contains(*name)));
    assert!(MAY_SCAN.iter().all(|(name, _)| tagged.contains(*name)));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
