//! The owners of tables. A feature calls the owner's function for a change, as the map of modules
//! wants it, and writes no table of another one.

use std::collections::{BTreeMap, BTreeSet};

use blindpipe::db::migrate;

use super::sources::{root, statements};
use crate::support::{connect, empty_database};

/// The writes of a room into another one's table, and why they are there. The list only becomes
/// shorter.
const FOREIGN_WRITES: [(&str, &str, &str); 8] = [
    (
        "features/messages",
        "conversation",
        "a send numbers its messages in the statement that stores them",
    ),
    (
        "features/messages",
        "inbox",
        "a send delivers in the statement that stores",
    ),
    (
        "features/messages",
        "inbox_entry",
        "a send delivers in the statement that stores",
    ),
    (
        "features/webhooks",
        "inbox_reader",
        "a finished delivery is an ack, in the statement that records it",
    ),
    (
        "features/agents",
        "webhook",
        "the end of a token suspends the webhook; webhooks stand behind agents",
    ),
    (
        "features/agents",
        "webhook_turn",
        "an agent's state stops and resumes its turn; webhooks stand behind agents",
    ),
    (
        "features/relations",
        "conversation",
        "a send must find its rules changed; conversations stand behind relations",
    ),
    (
        "features/devices",
        "user_account",
        "the version of a user's list of keys; accounts stand behind devices",
    ),
];

/// The folder or file below `src/` that a file belongs to.
fn room(file: &str) -> String {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("features"), Some(feature)) => format!("features/{feature}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

/// The tables that a statement writes.
fn written(sql: &str) -> BTreeSet<String> {
    let lines = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join(" ");
    let words: Vec<&str> = text
        .split(|sign: char| sign.is_whitespace() || "(),;".contains(sign))
        .filter(|word| !word.is_empty())
        .collect();
    let mut tables = BTreeSet::new();
    for (n, pair) in words.windows(2).enumerate() {
        let before = n.checked_sub(1).map_or("", |n| words[n]);
        let is_write = match pair[0] {
            "into" => before == "insert",
            "from" => before == "delete",
            // `for update`, `for no key update` and `do update` lock or go on.
            "update" => !["for", "key", "do"].contains(&before),
            _ => false,
        };
        if is_write {
            tables.insert(pair[1].to_owned());
        }
    }
    tables
}

#[test]
fn writes_are_found_and_locks_are_none() {
    let sql = "-- x.y\n with gone as (delete from a where b) insert into c select * from d for update of d; \
               update e set f = 1 -- update g";
    let tables: Vec<String> = written(sql).into_iter().collect();
    assert_eq!(tables, ["a", "c", "e"]);
}

/// The owner of each table, as its comment says.
async fn owners() -> BTreeMap<String, Option<String>> {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    let rows = connect(&url)
        .await
        .query(
            "select relname::text, substr(obj_description(oid, 'pg_class'), 8) from pg_class
            where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition
                and relname <> 'refinery_schema_history'",
            &[],
        )
        .await
        .expect("a catalog");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_written_by_its_owner_alone() {
    let owners = owners().await;
    for (table, owner) in &owners {
        let owner = owner
            .as_ref()
            .unwrap_or_else(|| panic!("{table} has no owner"));
        let src = root().join("src");
        let is_there = src.join(owner).is_dir() || src.join(format!("{owner}.rs")).is_file();
        assert!(is_there, "{table}: {owner} is no folder or file below src/");
    }
    let mut found = BTreeSet::new();
    for (file, sql) in statements() {
        for table in written(&sql) {
            let owner = owners.get(&table).cloned().flatten();
            if owner.is_some_and(|owner| owner != room(&file)) {
                found.insert((room(&file), table));
            }
        }
    }
    let listed = FOREIGN_WRITES.map(|(room, table, _)| (room.to_owned(), table.to_owned()));
    let listed = BTreeSet::from(listed);
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(
        new.is_empty(),
        "call a function of the table's owner: {new:?}"
    );
    let old: Vec<_> = listed.difference(&found).collect();
    assert!(old.is_empty(), "strike these from the list: {old:?}");
}
