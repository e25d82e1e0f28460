//! Retention: every rule with the clock moved, and a purge whose node is killed.
//!
//! Each rule has two rows in its table. When the jobs have run, the row that is just too old is
//! gone, and the row that is just young enough stays.

use std::{collections::BTreeSet, time::Duration};

use blindpipe::jobs::Upkeep;
use tokio_postgres::Client;

use crate::support::{ProcessNode, World, connect};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// The margin by which a row is too old, or young enough.
const MARGIN: i64 = HOUR;
/// The days from the first rows to the end.
const SPAN_DAYS: i64 = 45;

/// A rule: a table, and the age at which its rows go.
struct Rule {
    table: &'static str,
    /// Seconds that a row is kept after the time that its age counts from.
    kept: i64,
    /// Inserts a row: `$id` is a UUID, `$at` the time that its age counts from.
    insert: &'static str,
    /// Finds the row.
    find: &'static str,
}

const fn rule(table: &'static str, kept: i64, insert: &'static str, find: &'static str) -> Rule {
    Rule {
        table,
        kept,
        insert,
        find,
    }
}

const RULES: [Rule; 28] = [
    rule(
        "reconcile_log", HOUR,
        "insert into reconcile_log (principal_id, recorded_at) values ('$id', $at)", "principal_id = '$id'",
    ),
    rule("email_code", 0, "insert into email_code values ('$id', 'login', '$id', 5, $at)", "email = '$id'"),
    rule("email_change", 0, "insert into email_change values ('$id', '$id', '$id', '$id', 5, $at)", "user_id = '$id'"),
    rule("login_notice", DAY, "insert into login_notice values ('$id', 1, $at)", "user_id = '$id'"),
    rule("security_notice", DAY, "insert into security_notice values ('$id', 'password', $at)", "user_id = '$id'"),
    rule("login_guard", 900, "insert into login_guard values ('$id', 5, $at)", "email = '$id'"),
    rule("code_guard", HOUR, "insert into code_guard values ('$id', array[$at])", "email = '$id'"),
    rule(
        "session", 30 * DAY,
        "insert into session (session_id, user_id, device_id, refresh_expires_at, absolute_expires_at)
         values ('$id', '$id', 'none', $at, $at + interval '1 day')",
        "session_id = '$id'",
    ),
    rule(
        "device", 30 * DAY,
        "insert into device (user_id, device_id, provisional, created_at) values ('$id', 'unnamed', true, $at)",
        "user_id = '$id' and device_id = 'unnamed'",
    ),
    rule(
        "passkey_challenge", 0,
        "insert into passkey_challenge values ('$id', null, '', $at)", "challenge_id = '$id'",
    ),
    rule("idempotency", 25 * HOUR, "insert into idempotency values ('$id', '$id', '$id', 1, $at)", "key = '$id'"),
    rule(
        "inbox_entry", 30 * DAY,
        "insert into inbox_entry values ('$id', 1, $at, 1, '$id', 1)", "principal_id = '$id'",
    ),
    rule(
        "event", 31 * DAY,
        "insert into event (event_id, kind, created_at, data) values ('$id', 'member.added', $at, '{}')",
        "event_id = '$id'",
    ),
    rule(
        "job", 0,
        "insert into job (kind, payload, unique_key, failed_at, expires_at) values ('mail', '', '$id', app_now(), $at)",
        "unique_key = '$id'",
    ),
    // An upload that nobody confirms ends, and its row goes later.
    rule("upload", DAY, UPLOAD, "upload_id = '$id' and state = 'pending'"),
    rule("upload", 7 * DAY, REFUSED_UPLOAD, "content_type = '$id'"),
    rule("object", 0, "insert into object (object_key, delete_at) values ('x$id', $at)", "object_key = 'x$id'"),
    rule(
        "share", 0,
        "insert into share (share_hash, owner_id, kind, expires_at) values (decode(md5('$id'), 'hex'), '$id', 'contact', $at)",
        "owner_id = '$id'",
    ),
    rule(
        "tool_call", 30 * DAY,
        "insert into tool_call (call_id, agent_id, request_id, user_id, conversation_id, tool, scope, sensitivity,
             prompt_required, status, created_at, expires_at)
         values ('$id', '$id', 'r', '$id', '$id', 't', 's', 'low', false, 'executed', $at, $at)",
        "call_id = '$id'",
    ),
    rule("message_deletion", 30 * DAY, "insert into message_deletion values ('$id', $at)", "message_id = '$id'"),
    rule(
        "webhook_stop", 30 * DAY,
        "insert into webhook_stop (agent_id, event_id, is_taken, wait_until) values ('$id', '$id', true, $at)",
        "agent_id = '$id'",
    ),
    rule("tool_consent", DAY, "insert into tool_consent values ('$id', 'd', '$id', '$id', 's', $at)", "user_id = '$id'"),
    rule(
        "agent_key", 0,
        "insert into agent (agent_id, owner_user_id, display_name) values ('$id', '$id', 'old') on conflict do nothing;
         insert into agent_key (agent_id, key_id, public_key, signing_public_key, valid_until) values ('$id', 'k', '', '', $at)",
        "agent_id = '$id'",
    ),
    rule(
        "agent_group", 7 * DAY,
        "insert into agent (agent_id, owner_user_id, display_name) values ('$id', '$id', 'old') on conflict do nothing;
         insert into agent_group (agent_id, name, acked_seq, used_at) values ('$id', 'g', 0, $at)",
        "agent_id = '$id'",
    ),
    // The row of a token stays, and its hash goes.
    rule(
        "agent_token", 0,
        "insert into agent_token (token_id, agent_id, lookup, bcrypt_hash, valid_until) values ('$id', '$id', '$id', 'h', $at)",
        "token_id = '$id' and bcrypt_hash is not null",
    ),
    // The purge of a relation: payloads, search tokens, and objects.
    rule("relation", 0, ENDED_RELATION, "(select payload from message where message_id = '$id') <> ''"),
    rule("relation", 0, "", "exists (select from message_token where conversation_id = '$id')"),
    rule("relation", 0, "", "exists (select from object where object_key = 'y$id')"),
];

const UPLOAD: &str = "insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename,
        content_type, size, url_expires_at, created_at)
    values ('$id', '$id', '$id', 'user', '$id', 'f', 'x', 1, $at, $at)";
const REFUSED_UPLOAD: &str =
    "insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id,
        filename, content_type, size, state, url_expires_at, created_at)
    values (gen_random_uuid(), '$id', '$id', 'user', '$id', 'f', '$id', 1, 'rejected', $at, $at)";
const ENDED_RELATION: &str = "
    insert into relation (relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at, purge_due)
    values ('$id', '$id', '$id', 'revoked', $at - interval '9 days', $at - interval '7 days', $at, $at);
    insert into conversation (conversation_id, kind, created_by, pair_low, pair_high, last_seq)
    values ('$id', 'agent', '$id', '$id', '$id', 1);
    insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
    values ('$id', 1, '$id', '$id', 'user', 0, $at - interval '8 days', '{}');
    insert into message_token values ('$id', '0123456789abcdef', 1);
    insert into object (object_key, size, sha256) values ('y$id', 1, '');
    insert into upload (upload_id, conversation_id, uploader_id, uploader_kind, credential_id, filename, content_type, size,
        state, object_key, url_expires_at, confirmed_at, created_at)
    values (gen_random_uuid(), '$id', '$id', 'user', '$id', 'f', 'x', 1, 'confirmed', 'y$id', $at,
        $at - interval '8 days', $at - interval '8 days')";

/// Tables with times whose rows no age removes.
const KEPT: [(&str, &str); 25] = [
    ("access_log", "never deleted"),
    ("access_log_digest", "a row per day"),
    ("agent", "until its owner deletes it"),
    ("agent_group_member", "ten seconds after its socket"),
    ("approval", "goes with the messages of its conversation"),
    ("approval_asked", "goes with its approval"),
    (
        "agent_grant",
        "what a user has allowed stays visible to the user",
    ),
    ("block", "until the user ends it"),
    ("conversation", "lives with its members"),
    ("group_key", "members verify and read their history"),
    (
        "key_backup",
        "goes by rules of its own (`repository::grants`)",
    ),
    ("key_backup_erasure", "until `blindpipe erase` has run"),
    ("member", "until the member leaves"),
    (
        "message",
        "for the life of the relation; the purge empties it",
    ),
    ("public_key", "messages of years ago stay verifiable"),
    ("passkey", "until the user removes it"),
    ("push_subscription", "goes with its session, tested below"),
    ("push_sweep", "one row"),
    ("push_wake", "a day at most, tested in `push`"),
    ("upload_audit", "never deleted"),
    ("user_account", "until the user deletes it"),
    ("webhook", "until its owner removes it"),
    ("webhook_delivery", "daily partitions, tested below"),
    ("webhook_sweep", "one row"),
    ("webhook_turn", "a row per webhook"),
];

/// A database without foreign keys. A row is then there without the rows that it refers to.
const UNBOUND: &str = "do $$ declare r record; begin
    for r in select conrelid::regclass as name, conname from pg_constraint
        where contype = 'f' and connamespace = 'public'::regnamespace
    loop execute format('alter table %s drop constraint %I', r.name, r.conname); end loop; end $$";

/// The id of a rule's row that goes, or of the one that stays.
fn id(n: usize, stays: bool) -> String {
    // The three rules of a relation share their rows.
    let n = RULES[..=n]
        .iter()
        .rposition(|rule| !rule.insert.is_empty())
        .unwrap_or(n);
    format!("00000000-0000-4000-8000-{:012}", 2 * n + usize::from(stays))
}

/// Inserts the rows of all rules that go, or of all that stay, around a moment in the future.
async fn fill(client: &Client, days_ahead: i64, stays: bool) {
    let mut sql = String::new();
    for (n, rule) in RULES.iter().enumerate() {
        let age = match stays {
            true => rule.kept - MARGIN,
            false => rule.kept + MARGIN,
        };
        let at = format!("app_now() + interval '{} seconds'", days_ahead * DAY - age);
        let insert = rule
            .insert
            .replace("$id", &id(n, stays))
            .replace("$at", &format!("({at})"));
        sql.push_str(&format!("{insert};"));
    }
    let delivery = "insert into webhook_delivery (agent_id, delivery_id, event, status)
        values ('$id', (lpad(to_hex((extract(epoch from app_now()) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid,
            'x', 'success')";
    sql.push_str(&delivery.replace("$id", &id(0, stays)));
    client.batch_execute(&sql).await.expect("rows");
}

/// The rules whose row is there: those that go, or those that stay.
async fn present(client: &Client, stays: bool) -> Vec<String> {
    let mut found = Vec::new();
    for (n, rule) in RULES.iter().enumerate() {
        let condition = rule.find.replace("$id", &id(n, stays));
        let table = match rule.table {
            "relation" => "cluster",
            table => table,
        };
        let sql = format!("select 1 from {table} where {condition}");
        if !client.query(&sql, &[]).await.expect(&sql).is_empty() {
            found.push(format!("{} {n}", rule.table));
        }
    }
    let sql = format!(
        "select 1 from webhook_delivery where agent_id = '{}'",
        id(0, stays)
    );
    if !client.query(&sql, &[]).await.expect("rows").is_empty() {
        found.push("webhook_delivery".to_owned());
    }
    found
}

/// Lets the nodes do all upkeep once, and waits for its end.
async fn upkeep(client: &Client) {
    for upkeep in Upkeep::ALL {
        let name = upkeep.row().0;
        let sql = format!(
            "insert into job (kind, payload, unique_key) values ('upkeep', '{{\"upkeep\":\"{name}\"}}', '{name}')
             on conflict do nothing"
        );
        client.batch_execute(&sql).await.expect("asked");
    }
    let newest = "select max(job_id) from job";
    let newest: Option<i64> = client
        .query_one(newest, &[])
        .await
        .expect("a number")
        .get(0);
    for _ in 0..800 {
        let waiting = "select last_error from job where kind = 'upkeep' and job_id <= $1";
        let waiting = client.query(waiting, &[&newest]).await.expect("jobs");
        if waiting.is_empty() {
            return;
        }
        let failed = waiting
            .iter()
            .find_map(|row| row.get::<_, Option<String>>(0));
        assert_eq!(failed, None, "an upkeep fails");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the upkeep does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_takes_what_is_too_old_and_leaves_the_rest() {
    let world = World::new(&[]).await;
    let node = ProcessNode::start_in(&world).await;
    let client = connect(&world.database).await;
    client.batch_execute(UNBOUND).await.expect("no keys");
    let log = "insert into access_log (subject_id, agent_id, kind, items) values (gen_random_uuid(), gen_random_uuid(), 'keys', 1)";
    client.batch_execute(log).await.expect("a row");
    let advance = async |days: i64| {
        let by = Duration::from_secs((days * DAY).unsigned_abs());
        world.advance(by).await;
    };

    fill(&client, SPAN_DAYS, false).await;
    let all = present(&client, false).await;
    assert_eq!(all.len(), RULES.len() + 1, "{all:?}");
    advance(20).await;
    upkeep(&client).await;
    fill(&client, SPAN_DAYS - 20, true).await;
    advance(SPAN_DAYS - 20).await;
    // An object that ends is deleted by a later turn.
    upkeep(&client).await;
    upkeep(&client).await;
    assert_eq!(
        present(&client, false).await,
        Vec::<String>::new(),
        "too old"
    );
    assert_eq!(present(&client, true).await, all, "young enough");
    let kept: i64 = client
        .query_one("select count(*) from access_log", &[])
        .await
        .expect("a count")
        .get(0);
    assert_eq!(kept, 1, "the access log is never cleaned");

    // The oldest rows are those that stay.
    let text = node.metrics().await;
    let made = "select extract(epoch from app_now())::float8
        - (select ('x' || left(replace(delivery_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0 from webhook_delivery)";
    let made: f64 = client.query_one(made, &[]).await.expect("an age").get(0);
    let age = |table: &str| -> f64 {
        let start = format!("oldest_row_seconds{{table=\"{table}\"}} ");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(start.as_str()));
        line.expect(table).parse().expect("a number")
    };
    assert!((made - age("webhook_delivery")).abs() < 300.0, "of a row");
    for rule in &RULES {
        // Tokens keep their rows, and an object has no age before its end.
        if rule.table == "agent_token" {
            continue;
        }
        let expected = (rule.kept - MARGIN).max(0) as f64;
        let least = RULES.iter().filter(|other| other.table == rule.table);
        let most = least
            .map(|other| (other.kept - MARGIN).max(0))
            .max()
            .unwrap_or(0) as f64;
        let age = age(rule.table);
        assert!(
            (expected..most + 300.0).contains(&age),
            "{}: {age}",
            rule.table
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_table_with_a_time_has_a_rule_or_a_reason() {
    let world = World::new(&[]).await;
    let client = connect(&world.database).await;
    let sql = "select distinct c.relname::text as name from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and a.atttypid in ('timestamptz'::regtype, 'timestamptz[]'::regtype) and not a.attisdropped";
    let rows = client.query(sql, &[]).await.expect("a catalog");
    let tables: BTreeSet<String> = rows.iter().map(|row| row.get("name")).collect();
    let ruled = RULES.iter().map(|rule| rule.table);
    let known: BTreeSet<String> = ruled
        .chain(KEPT.map(|(table, _)| table))
        .map(str::to_owned)
        .collect();
    assert_eq!(tables, known);
}

/// The messages of the relation that a node purges when it is killed.
const MESSAGES: i64 = 10_000;

/// Messages and an object of an ended relation whose purge is due.
async fn an_ended_relation(world: &World, client: &Client) -> std::path::PathBuf {
    let sql = ENDED_RELATION
        .replace("$id", &id(0, false))
        .replace("$at", "app_now()");
    let more = format!(
        "insert into message (conversation_id, seq, message_id, sender_id, sender_kind, hop, created_at, payload)
         select conversation_id, n, gen_random_uuid(), sender_id, 'user', 0, created_at, '{{}}'
         from message, generate_series(2, {MESSAGES}) n;
         insert into message_token select conversation_id, token, n from message_token, generate_series(2, {MESSAGES}) n;
         update conversation set last_seq = {MESSAGES}"
    );
    let sql = format!("{sql}; {more}");
    client.batch_execute(&sql).await.expect("rows");
    let key = format!("y{}", id(0, false));
    let folder = world.objects_dir.join(&key[..2]);
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(key);
    std::fs::write(&file, "bytes").expect("a file");
    file
}

/// The number of purged messages.
async fn purged(client: &Client) -> i64 {
    let sql = "select purged_seq from conversation";
    client.query_one(sql, &[]).await.expect("a number").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_outlives_the_node_that_began_it() {
    let world = World::new(&[]).await;
    let mut first = ProcessNode::start_in(&world).await;
    let client = connect(&world.database).await;
    client.batch_execute(UNBOUND).await.expect("no keys");
    let file = an_ended_relation(&world, &client).await;
    // The purge waits at a message in the middle, however fast it is.
    let holder = connect(&world.database).await;
    let hold = format!(
        "begin; select from message where seq = {} for update",
        MESSAGES / 2
    );
    holder.batch_execute(&hold).await.expect("held");
    let ask = "insert into job (kind, payload, unique_key)
        values ('upkeep', '{\"upkeep\":\"purge_relations\"}', 'purge_relations') on conflict do nothing";
    client.batch_execute(ask).await.expect("asked");
    let mut done = 0;
    for _ in 0..1200 {
        done = purged(&client).await;
        if done > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    first.kill();
    holder.batch_execute("rollback").await.expect("let go");
    let done_then = purged(&client).await;
    assert!(
        done > 0 && done_then < MESSAGES,
        "killed in the middle: {done} to {done_then}"
    );
    // Each batch is whole: messages are emptied together with their tokens, and the rest is intact.
    let halves = "select count(*) filter (where (m.payload = '') <> (m.seq <= purged_seq)),
            count(*) filter (where (t.seq is null) <> (m.seq <= purged_seq))
        from conversation join message m using (conversation_id)
        left join message_token t on t.conversation_id = m.conversation_id and t.seq = m.seq";
    let row = client.query_one(halves, &[]).await.expect("counts");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 0));
    assert!(file.exists(), "objects end after the messages");

    let _second = ProcessNode::start_in(&world).await;
    // The dead node's lease ends.
    world.advance(Duration::from_secs(61)).await;
    for _ in 0..1200 {
        let sweep = ask.replace("purge_relations", "sweep_objects");
        client.batch_execute(&sweep).await.expect("asked");
        // The row goes after the file.
        let objects = client.query_one("select count(*) from object", &[]).await;
        if objects.expect("a count").get::<_, i64>(0) == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(!file.exists(), "the object stays");
    assert_eq!(purged(&client).await, MESSAGES);
    for left in ["message where payload <> ''", "message_token", "object"] {
        let sql = format!("select count(*) from {left}");
        let left_over: i64 = client.query_one(&sql, &[]).await.expect("a count").get(0);
        assert_eq!(left_over, 0, "{left}");
    }
}
