//! The serving role: `sql/grants.sql` grants exactly the rights that the named statements need, and
//! nothing that is append-only can be changed with them.

use std::{collections::BTreeMap, fs, time::Duration};

use blindpipe::db::migrate;
use devcluster::services::SERVING_ROLE;
use tokio_postgres::Client;

use super::{
    operations::run,
    sources::{root, statements},
};
use crate::support::{connect, empty_database, erasing, nodes, serving};

const RIGHTS: [&str; 4] = ["select", "insert", "update", "delete"];
/// The right on a function.
const EXECUTE: &str = "execute";

/// A right on a table or view, and a statement that needs it.
type Needs = BTreeMap<String, BTreeMap<&'static str, String>>;

/// A statement as the test runs it.
struct Run {
    /// The statement's name.
    name: String,
    /// The text that mentions tables.
    text: String,
    /// SQL that checks the statement's rights. `explain` checks them without running the statement.
    check: String,
}

async fn migrated() -> String {
    let url = empty_database().await;
    migrate::run_at(&url).await.expect("migrated");
    migrate::grant_at(&url, SERVING_ROLE)
        .await
        .expect("granted");
    url
}

/// Prepares every statement on this connection.
async fn prepare_all(client: &Client) -> Vec<Run> {
    let mut runs = Vec::new();
    for (n, (_, sql)) in statements().into_iter().enumerate() {
        let name = sql.lines().next().expect("a name")[3..].to_owned();
        let statement = client.prepare(&sql).await.expect("a statement");
        let nulls = vec!["null"; statement.params().len()].join(", ");
        let arguments = if nulls.is_empty() {
            nulls
        } else {
            format!("({nulls})")
        };
        let prepare = format!("prepare s{n} as {sql}");
        client.batch_execute(&prepare).await.expect(&name);
        runs.push(Run {
            name,
            check: format!("explain execute s{n}{arguments}"),
            text: sql,
        });
    }
    // `explain` does not look into these functions, which run with the caller's rights.
    let functions = "select proname::text as name, prosrc as body from pg_proc p
        where pronamespace = 'public'::regnamespace and prokind = 'f' and pronargs = 0 and not prosecdef
            and prorettype <> 'trigger'::regtype
            and not exists (select from pg_depend where objid = p.oid and deptype = 'e')";
    for row in client.query(functions, &[]).await.expect("a catalog") {
        let name: String = row.get("name");
        runs.push(Run {
            check: format!("select {name}()"),
            text: row.get("body"),
            name,
        });
    }
    runs
}

/// Whether the serving role may do this, within an open transaction.
async fn may(client: &Client, sql: &str) -> bool {
    let attempt = format!("savepoint a; set local role {SERVING_ROLE}; {sql}; rollback to a");
    match client.batch_execute(&attempt).await {
        Ok(()) => true,
        Err(error) => {
            client.batch_execute("rollback to a").await.expect(sql);
            let state = error.code().expect("an answer of Postgres").code();
            assert_eq!(state, "42501", "{sql}: {error:?}");
            false
        }
    }
}

/// The tables and views of the schema.
async fn relations(client: &Client) -> Vec<String> {
    let sql = "select relname::text as name from pg_class
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v') and not relispartition
        order by relname";
    let rows = client.query(sql, &[]).await.expect("a catalog");
    rows.iter().map(|row| row.get("name")).collect()
}

/// The functions that not everybody may call.
async fn private_functions(client: &Client) -> Vec<String> {
    let sql = "select proname::text as name from pg_proc p
        where pronamespace = 'public'::regnamespace and not exists (
            select from aclexplode(coalesce(proacl, acldefault('f', proowner))) where grantee = 0)
        order by proname";
    let rows = client.query(sql, &[]).await.expect("a catalog");
    rows.iter().map(|row| row.get("name")).collect()
}

/// The rights without which a statement fails: it is tried with all rights but one.
async fn needs(client: &Client) -> Needs {
    let runs = prepare_all(client).await;
    let all = format!(
        "begin; grant select, insert, update, delete on all tables in schema public to {SERVING_ROLE}"
    );
    client.batch_execute(&all).await.expect("granted");
    let mut needs = Needs::new();
    for function in private_functions(client).await {
        let grant = format!("grant execute on function {function} to {SERVING_ROLE}");
        client.batch_execute(&grant).await.expect("granted");
        if let Some(run) = runs.iter().find(|run| run.text.contains(&function)) {
            let execute = BTreeMap::from([(EXECUTE, run.name.clone())]);
            needs.insert(format!("function {function}"), execute);
        }
    }
    for relation in relations(client).await {
        for right in RIGHTS {
            let revoke = format!("savepoint r; revoke {right} on {relation} from {SERVING_ROLE}");
            client.batch_execute(&revoke).await.expect("revoked");
            for run in runs.iter().filter(|run| run.text.contains(&relation)) {
                if !may(client, &run.check).await {
                    let rights = needs.entry(relation.clone()).or_default();
                    rights.insert(right, run.name.clone());
                    break;
                }
            }
            client
                .batch_execute("rollback to r")
                .await
                .expect("as before");
        }
    }
    client.batch_execute("rollback").await.expect("as before");
    needs
}

fn line(relation: &str, rights: &BTreeMap<&'static str, String>) -> String {
    let words = RIGHTS
        .iter()
        .chain([&EXECUTE])
        .filter(|right| rights.contains_key(*right));
    let words: Vec<&str> = words.copied().collect();
    format!(
        "grant {} on {relation} to :\"serving_role\";",
        words.join(", ")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_serving_role_has_the_rights_that_its_statements_need_and_no_others() {
    let url = migrated().await;
    let client = connect(&url).await;
    let file = fs::read_to_string(root().join("sql/grants.sql")).expect("the grants");
    let is_derived = |line: &&str| line.starts_with("grant ") && !line.contains(" on schema ");
    let granted: Vec<&str> = file.lines().filter(is_derived).collect();
    let needs = needs(&client).await;
    let mut wrong = Vec::new();
    for (relation, rights) in &needs {
        let line = line(relation, rights);
        if !granted.contains(&line.as_str()) {
            wrong.push(format!("needed: {line}   because of {rights:?}"));
        }
    }
    for granted in &granted {
        let needed = needs
            .iter()
            .any(|(name, rights)| line(name, rights) == **granted);
        if !needed {
            wrong.push(format!("not needed: {granted}"));
        }
    }
    assert!(wrong.is_empty(), "sql/grants.sql:\n{}", wrong.join("\n"));

    // The catalog says the same: no right comes from elsewhere.
    let sql = "select relname || ' ' || string_agg(lower(privilege_type), ', ' order by lower(privilege_type)) as line
        from pg_class, aclexplode(relacl)
        where relnamespace = 'public'::regnamespace and grantee in (0, $1::text::regrole)
        group by relname order by relname";
    let rows = client
        .query(sql, &[&SERVING_ROLE])
        .await
        .expect("a catalog");
    let held: Vec<String> = rows.iter().map(|row| row.get("line")).collect();
    let tables = needs
        .iter()
        .filter(|(_, rights)| !rights.contains_key(EXECUTE));
    let expected = tables.map(|(relation, rights)| {
        let mut words: Vec<&str> = rights.keys().copied().collect();
        words.sort_unstable();
        format!("{relation} {}", words.join(", "))
    });
    let mut expected: Vec<String> = expected.collect();
    expected.sort();
    assert_eq!(held, expected);
    // Every statement passes as the role itself, functions and all.
    let own = connect(&serving(&url)).await;
    for run in prepare_all(&own).await {
        let checked = own.batch_execute(&run.check).await;
        checked.unwrap_or_else(|error| panic!("{}: {error:?}", run.name));
    }
}

/// Tables whose rows nobody changes, and a column of each.
const APPEND_ONLY: [(&str, &str); 3] = [
    ("access_log", "items"),
    ("key_backup", "version"),
    ("upload_audit", "size"),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_serving_role_changes_nothing_that_is_append_only() {
    let url = migrated().await;
    let owner = connect(&url).await;
    let own = connect(&serving(&url)).await;
    let tables = relations(&owner).await;
    let of_all = tables.iter().flat_map(|table| {
        [
            format!("truncate {table} cascade"),
            format!("drop table {table} cascade"),
            format!("drop view {table} cascade"),
            format!("alter table {table} add column x integer"),
            format!("alter table {table} disable trigger all"),
            format!("alter table {table} owner to {SERVING_ROLE}"),
            format!("create rule r as on update to {table} do instead nothing"),
            format!("create index x on {table} ((1))"),
        ]
    });
    let of_append_only = APPEND_ONLY.iter().flat_map(|(table, column)| {
        [
            format!("update {table} set {column} = {column}"),
            format!("delete from {table}"),
            format!("select 1 from {table} for update"),
            format!("drop trigger {table}_rows on {table}"),
            format!("merge into {table} t using (select 1) s on true when matched then delete"),
        ]
    });
    let others = [
        "create table x ()",
        "create function x() returns integer language sql as 'select 1'",
        "create schema x",
        "drop function erase_accounts",
        "alter function erase_accounts owner to blindpipe_serve",
        "create or replace function key_backup_is_append_only() returns trigger language plpgsql as
            'begin return old; end'",
        "set session_replication_role = replica",
        "set role blindpipe",
        "set session authorization blindpipe",
        "alter role blindpipe_serve superuser",
        "grant blindpipe to blindpipe_serve",
        "drop extension pg_trgm",
        "update refinery_schema_history set version = 1",
        "update cluster set restores = 1",
        "select pg_read_file('/etc/passwd')",
        "copy key_backup to program 'cat'",
    ];
    let others = others.map(str::to_owned);
    for sql in of_all.chain(of_append_only).chain(others) {
        let refused = own.batch_execute(&sql).await.expect_err(&sql);
        let state = refused.code().expect("an answer of Postgres").code();
        // The second: `drop view` of a table, and the like.
        assert!(["42501", "42809"].contains(&state), "{sql}: {refused:?}");
    }
    // Postgres only warns of a grant without effect.
    own.batch_execute("grant delete on key_backup to blindpipe_serve")
        .await
        .ok();
    own.batch_execute("delete from key_backup")
        .await
        .expect_err("no right");
}

/// Appends `versions` to the newest backup of everybody's device `phone`, as the serving role.
async fn append(own: &Client, versions: i32) {
    let insert = format!(
        "insert into key_backup
            (user_id, device_id, version, session_id, key_id, public_key, signing_public_key, backup_a, backup_b,
             argon2_salt, argon2_m, argon2_t, argon2_p, created_at)
         select user_id, 'phone', n + coalesce((select max(version) from key_backup b where b.user_id = u.user_id), 0),
             user_id, 'k', '', '', '', '', '', 1, 1, 1, '2000-01-01'
         from user_account u, generate_series(1, {versions}) n"
    );
    own.batch_execute(&insert).await.expect("appended");
}

async fn count(client: &Client, table: &str) -> i64 {
    let sql = format!("select count(*) from {table}");
    client.query_one(&sql, &[]).await.expect("a count").get(0)
}

/// The versions of the only device, oldest first.
async fn versions(client: &Client) -> Vec<i32> {
    let sql = "select array_agg(version order by version) from key_backup";
    client.query_one(sql, &[]).await.expect("an array").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_go_only_by_their_rules() {
    let [a] = nodes().await;
    a.user("alice").await;
    let own = connect(&serving(&a.world.database)).await;
    let day = Duration::from_secs(86_400);
    // A version a day for three days, and then a day with a dozen of junk.
    for _ in 0..3 {
        append(&own, 1).await;
        a.advance(day).await;
    }
    append(&own, 12).await;
    let forget = "select forget_key_backups(user_id, 'phone', 1000) from user_account";
    own.batch_execute(forget).await.expect("a call");
    // Only the junk between its first and its last ten is gone.
    let kept: Vec<i32> = (1..=4).chain(6..=15).collect();
    assert_eq!(versions(&own).await, kept);
    // What a month has passed over goes, and ten stay for ever.
    a.advance(40 * day).await;
    own.batch_execute(forget).await.expect("a call");
    assert_eq!(versions(&own).await, (6..=15).collect::<Vec<i32>>());
    // No version is skipped, so none is the last for ever.
    let skips = "insert into key_backup select user_id, device_id, 2147483647, session_id, key_id, public_key,
        signing_public_key, backup_a, backup_b, argon2_salt, 1, 1, 1 from key_backup where version = 15";
    let refused = own.batch_execute(skips).await.expect_err("refused");
    assert_eq!(refused.code().expect("an answer").code(), "42501");
}

/// The statements by which a thief of the serving role's password would end backups, logs and
/// accounts' deletions, or invent reads.
#[tokio::test(flavor = "multi_thread")]
async fn attack_56_the_serving_role_ends_no_backup_no_log_and_no_deletion() {
    let [a] = nodes().await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let agent = a.agent(&alice, "helper").await;
    let of_nobody = a.agent(&bob, "stranger").await;
    let conversation = alice.talk_to(&agent).await;
    agent
        .get(format!("/conversations/{conversation}"))
        .await
        .expect(200);
    let own = connect(&serving(&a.world.database)).await;
    let owner = connect(&a.world.database).await;
    append(&own, 12).await;
    let tables = ["key_backup", "access_log", "upload_audit"];
    let counts = async || {
        let mut counts = Vec::new();
        for table in tables {
            counts.push(count(&owner, table).await);
        }
        let days = "pg_inherits where inhparent = 'webhook_delivery'::regclass";
        counts.push(count(&owner, days).await);
        counts
    };
    let before = counts().await;
    let id = uuid::Uuid::from(conversation.parse::<ulid::Ulid>().expect("a ULID"));
    let user = uuid::Uuid::from(bob.id.parse::<ulid::Ulid>().expect("a ULID"));
    let (agent, stranger) = (&agent.id, &of_nobody.id);
    let log = |agent: &str, kind: &str, conversation: &str, user: &str| {
        format!(
            "select log_access(array['{agent}'::uuid], array['{kind}'], array[{conversation}::uuid], array[{user}::uuid],
                array[1], array[1000], array[1000])"
        )
    };
    let conversation = format!("'{id}'");
    for (sql, state) in [
        ("select erase_accounts()".to_owned(), "42501"),
        ("delete from key_backup_erasure".to_owned(), "42501"),
        ("insert into key_backup_erasure select user_id, '2000-01-01' from user_account".to_owned(), "42501"),
        (
            "insert into access_log (subject_id, agent_id, kind, items) select user_id, user_id, 'keys', 1 from user_account"
                .to_owned(),
            "42501",
        ),
        // Reads by agents that are not there: of a conversation, of an inbox, of a user's keys.
        (log(stranger, "history", &conversation, "null"), "40001"),
        (log(stranger, "push", &conversation, "null"), "40001"),
        (log(agent, "push", &conversation, "null"), "40001"),
        (log(stranger, "tool_call", &conversation, "null"), "40001"),
        (log(agent, "keys", "null", &format!("'{user}'")), "40001"),
        (log(agent, "history", "null", &format!("'{user}'")), "40001"),
        (log(agent, "history", "gen_random_uuid()", "null"), "40001"),
    ] {
        let refused = own.batch_execute(&sql).await.expect_err(&sql);
        assert_eq!(refused.code().expect("an answer").code(), state, "{sql}");
    }
    for sql in [
        "select rotate_webhook_deliveries(-100)",
        "select rotate_webhook_deliveries(-2147483648)",
        "select forget_key_backups(user_id, 'phone', 2) from user_account",
        // The mark alone opens nothing, and has the database's time.
        "update user_account set deleted_at = '2000-01-01'",
        "select forget_key_backups(user_id, 'phone', 2147483647) from user_account",
    ] {
        own.batch_execute(sql).await.expect(sql);
    }
    let marked = "user_account where deleted_at > app_now() - interval '1 hour'";
    assert_eq!(count(&own, marked).await, 2);
    for sql in [
        "update user_account set deleted_at = null",
        "update user_account set deleted_at = '2000-01-01'",
    ] {
        let refused = own.batch_execute(sql).await.expect_err(sql);
        assert_eq!(refused.code().expect("an answer").code(), "42501", "{sql}");
    }
    let mut expected = before.clone();
    // Version 2 of each account stands between the first and the last of its day, with ten newer ones.
    expected[0] -= 2;
    assert_eq!(counts().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_that_erases_does_nothing_else() {
    let [a] = nodes().await;
    let [alice, _bob] = [a.user("alice").await, a.user("bob").await];
    let own = connect(&serving(&a.world.database)).await;
    append(&own, 3).await;
    alice.delete("/users/me").await.expect(200);
    let url = erasing(&a.world.database);
    let erase = || {
        let url = url.clone();
        async move {
            let settings = [("ERASE_DATABASE_URL", url.as_str())];
            tokio::task::block_in_place(|| run("erase", &settings))
        }
    };
    let six_days = Duration::from_secs(6 * 86_400);
    a.advance(six_days).await;
    let (code, said) = erase().await;
    assert_eq!(
        (code, count(&own, "key_backup").await),
        (Some(0), 6),
        "{said}"
    );
    a.advance(six_days).await;
    let (code, said) = erase().await;
    assert_eq!(
        (code, count(&own, "key_backup").await),
        (Some(0), 3),
        "{said}"
    );
    assert_eq!(count(&own, "key_backup_erasure").await, 0);

    let eraser = connect(&url).await;
    let owner = connect(&a.world.database).await;
    for table in relations(&owner).await {
        let sql = format!("select from {table}");
        let refused = eraser.batch_execute(&sql).await.expect_err(&sql);
        assert_eq!(refused.code().expect("an answer").code(), "42501", "{sql}");
    }
    let (code, said) = tokio::task::block_in_place(|| run("erase", &[]));
    assert_eq!(code, Some(1));
    assert!(said.contains("ERASE_DATABASE_URL"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_makes_the_schema_as_its_owner_and_grants_to_the_role_of_nodes() {
    let owner = empty_database().await;
    let own = serving(&owner);
    let migrate = |settings: [(&'static str, String); 2]| async move {
        let settings = settings
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        tokio::task::block_in_place(|| run("migrate", &settings))
    };
    let urls = || {
        [
            ("MIGRATE_DATABASE_URL", owner.clone()),
            ("DATABASE_URL", own.clone()),
        ]
    };
    // The role of nodes makes nothing.
    let (code, _) = migrate([
        ("MIGRATE_DATABASE_URL", own.clone()),
        ("DATABASE_URL", own.clone()),
    ])
    .await;
    assert_eq!(code, Some(1));
    let (code, said) = migrate(urls()).await;
    assert_eq!(code, Some(0), "{said}");
    let client = connect(&own).await;
    let held = async || -> bool {
        let sql = "select has_table_privilege('message', 'select') as held";
        client
            .query_one(sql, &[])
            .await
            .expect("an answer")
            .get("held")
    };
    assert!(held().await);
    // Once more, after somebody has granted too much.
    let too_much = format!("grant all on all tables in schema public to {SERVING_ROLE}");
    connect(&owner)
        .await
        .batch_execute(&too_much)
        .await
        .expect("granted");
    let (code, said) = migrate(urls()).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(held().await);
    client
        .batch_execute("truncate message")
        .await
        .expect_err("taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_refuses_to_serve_as_the_owner() {
    let [a] = nodes().await;
    let settings: Vec<(&str, &str)> = a
        .world
        .environment()
        .filter(|(name, _)| *name != "DATABASE_URL")
        .chain([("DATABASE_URL", a.world.database.as_str())])
        .collect();
    let (code, said) = tokio::task::block_in_place(|| run("serve", &settings));
    assert_eq!(code, Some(1));
    assert!(said.contains("DATABASE_REQUIRE_SEPARATE_ROLE"), "{said}");
}
