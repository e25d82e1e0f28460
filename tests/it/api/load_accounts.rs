//! `blindpipe loadtest-accounts`: the accounts work, and leave no rows.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{TestNode, World, connect, nodes};

/// Tables that keep what they have: the log of accesses, which nobody may change, with its heads;
/// the log of the sweep, which lives for minutes; the work of the nodes by themselves.
const KEPT: [&str; 5] = [
    "access_log",
    "access_log_head",
    "reconcile_log",
    "job",
    "webhook_delivery",
];

/// Runs the command with the environment of a node and the owner's address.
fn load_accounts(world: &World, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blindpipe"))
        .arg("loadtest-accounts")
        .args(arguments)
        .env_clear()
        .envs(world.environment())
        .env("MIGRATE_DATABASE_URL", &world.database)
        .output()
        .expect("a process")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A file that is not there yet, in the folder of the world's mails.
fn new_file(world: &World, name: &str) -> PathBuf {
    fs::create_dir_all(&world.mail_dir).expect("a folder");
    world.mail_dir.join(name)
}

/// The rows of each table.
async fn rows(database: &str) -> BTreeMap<String, i64> {
    let client = connect(database).await;
    let tables = "select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition";
    let mut all = BTreeMap::new();
    for table in client.query(tables, &[]).await.expect("a catalog") {
        let table: String = table.get(0);
        if KEPT.contains(&table.as_str()) {
            continue;
        }
        let sql = format!("select count(*) from {table}");
        let row = client.query_one(&sql, &[]).await.expect(&sql);
        all.insert(table, row.get(0));
    }
    all
}

/// Refreshes the user's session, sends a message, and polls it as the agent.
async fn use_account(node: &TestNode, account: &Value) {
    let text = |name: &str| account[name].as_str().expect(name).to_owned();
    let anon = node.anon();
    let request = anon
        .request(reqwest::Method::POST, "/auth/refresh")
        .header("cookie", text("refresh_cookie"));
    let refreshed = anon.send(request).await.expect(200);
    let token = refreshed.data()["access_token"].as_str().expect("a token");
    let user = anon.with_token(token);
    let path = format!("/conversations/{}/messages", text("conversation_id"));
    let message = json!({ "payload": { "type": "text", "text": "hello" } });
    user.post(path, message).await.expect(201);
    let agent = anon.with_token(&text("agent_token"));
    let path = format!("/agents/{}/messages/poll", text("agent_id"));
    let polled = agent.get(path).await.expect(200);
    assert!(polled.data().to_string().contains("hello"), "{polled:?}");
}

fn read(file: &PathBuf) -> Vec<Value> {
    serde_json::from_slice(&fs::read(file).expect("a file")).expect("a list")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accounts_of_a_load_test_work_and_leave_no_rows() {
    let [a, b] = nodes().await;
    let world = &a.world;
    let [alice, bob] = [a.user("alice").await, b.user("bob").await];
    let direct = alice.direct_with(&bob).await;
    alice.say(&direct, "stays").await.expect(201);
    let before = rows(&world.database).await;

    let file = new_file(world, "accounts.json");
    let path = file.to_str().expect("a path");
    let made = load_accounts(world, &["--count", "3", "--file", path]);
    assert!(made.status.success(), "{}", said(&made));
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let accounts = read(&file);
    assert_eq!(accounts.len(), 3);
    for account in &accounts {
        use_account(&b, account).await;
    }

    let removed = load_accounts(world, &["--remove"]);
    assert!(
        said(&removed).contains("3 accounts are removed\n"),
        "{}",
        said(&removed)
    );
    assert_eq!(rows(&world.database).await, before);
    let token = accounts[0]["agent_token"].as_str().expect("a token");
    let agent = a.anon().with_token(token);
    let path = format!(
        "/agents/{}/messages/poll",
        accounts[0]["agent_id"].as_str().expect("an id")
    );
    agent.get(path).await.refused(401, "AGENT_TOKEN_INVALID");
    let history = bob.get(format!("/conversations/{direct}/messages")).await;
    assert!(history.expect(200).data().to_string().contains("stays"));
    let again = load_accounts(world, &["--remove"]);
    assert!(
        said(&again).contains("0 accounts are removed\n"),
        "{}",
        said(&again)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_load_accounts_are_not_given_twice_and_files_not_overwritten() {
    let [a] = nodes().await;
    let world = &a.world;
    let [first, second] = [new_file(world, "one.json"), new_file(world, "two.json")];
    let [first_path, second_path] = [&first, &second].map(|file| file.to_str().expect("a path"));
    let make = |name: &str, file: &str| {
        load_accounts(world, &["--count", "1", "--name", name, "--file", file])
    };
    assert!(make("one", first_path).status.success());
    let twice = make("one", second_path);
    assert!(
        said(&twice).contains("accounts with the name one exist"),
        "{}",
        said(&twice)
    );
    assert!(!twice.status.success() && !second.exists());
    let overwriting = make("two", first_path);
    assert!(
        !overwriting.status.success() && read(&first).len() == 1,
        "{}",
        said(&overwriting)
    );
    assert!(make("two", second_path).status.success());
    for (arguments, fault) in [
        (vec!["--count", "0", "--file", "/nowhere"], "between 1 and"),
        (
            vec!["--count", "1", "--name", "A.b", "--file", "/nowhere"],
            "--name has",
        ),
        (vec!["--count", "1"], "--file"),
        (vec!["--remove", "--count", "1"], "--count"),
        (vec![], "--count"),
    ] {
        let refused = load_accounts(world, &arguments);
        assert!(
            !refused.status.success() && said(&refused).contains(fault),
            "{arguments:?}: {}",
            said(&refused)
        );
    }
    // The other name's accounts go on.
    let removed = load_accounts(world, &["--remove", "--name", "one"]);
    assert!(
        said(&removed).contains("1 accounts are removed\n"),
        "{}",
        said(&removed)
    );
    use_account(&a, &read(&second)[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_account_that_shares_with_others_stays_as_a_deleted_one() {
    let [a] = nodes().await;
    let world = &a.world;
    let alice = a.user("alice").await;
    let file = new_file(world, "accounts.json");
    let path = file.to_str().expect("a path");
    let made = load_accounts(world, &["--count", "1", "--file", path]);
    assert!(made.status.success(), "{}", said(&made));
    let cookie = read(&file)[0]["refresh_cookie"]
        .as_str()
        .expect("a cookie")
        .to_owned();
    let anon = a.anon();
    let request = anon
        .request(reqwest::Method::POST, "/auth/refresh")
        .header("cookie", cookie);
    let refreshed = anon.send(request).await.expect(200);
    let user = anon.with_token(refreshed.data()["access_token"].as_str().expect("a token"));
    let group = json!({ "type": "group", "title": "ours", "member_ids": [alice.id] });
    let group = user.post("/conversations", group).await.expect(201);
    let group = group.data()["conversation_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let path = format!("/conversations/{group}/messages");
    user.post(
        &path,
        json!({ "payload": { "type": "text", "text": "kept" } }),
    )
    .await
    .expect(201);

    let removed = load_accounts(world, &["--remove"]);
    assert!(
        said(&removed).contains("0 accounts are removed; 1 share"),
        "{}",
        said(&removed)
    );
    let history = alice.get(&path).await.expect(200);
    assert!(history.data().to_string().contains("kept"), "{history:?}");
    a.advance(Duration::from_secs(1)).await;
    let again = load_accounts(world, &["--remove"]);
    assert!(
        said(&again).contains("0 accounts are removed\n"),
        "{}",
        said(&again)
    );
}
