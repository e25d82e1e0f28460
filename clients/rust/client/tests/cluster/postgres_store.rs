//! The store in Postgres, which processes on several machines share.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use blindpipe_client::{
    Entries, Handled, News, POSTGRES_TABLES, PostgresStore, Result, Saved, SharedStore, e2ee,
    protocol::ids::ConversationId,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::support::{cluster, root};

/// A database with the tables of the stores.
pub struct Database {
    pub url: String,
    client: Client,
    /// It drives the connection.
    _connection: JoinSet<()>,
}

async fn connect(url: &str) -> (Client, JoinSet<()>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a connection");
    let mut driver = JoinSet::new();
    driver.spawn(async { connection.await.expect("its end") });
    (client, driver)
}

impl Database {
    pub async fn new(postgres_url: &str, name: &str) -> Self {
        let (admin, _connection) = connect(postgres_url).await;
        for statement in [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name}"),
        ] {
            admin.batch_execute(&statement).await.expect("done");
        }
        let (server, _) = postgres_url.rsplit_once('/').expect("an address");
        let url = format!("{server}/{name}");
        let (client, connection) = connect(&url).await;
        for statement in POSTGRES_TABLES {
            client.batch_execute(statement).await.expect("a table");
        }
        Self {
            url,
            client,
            _connection: connection,
        }
    }

    /// The store as another process has it.
    fn store(&self) -> PostgresStore {
        store(&self.url)
    }

    async fn run(&self, statement: &str) {
        self.client.batch_execute(statement).await.expect("done");
    }
}

fn store(url: &str) -> PostgresStore {
    let config = url.parse().expect("an address");
    PostgresStore::new(config, NoTls, "replies").expect("a thread")
}

fn pins(names: &[&str]) -> Entries {
    let entry = |name: &&str| ((*name).to_owned(), json!({ "speaks": true }));
    Entries {
        pins: names.iter().map(entry).collect(),
        ..Entries::default()
    }
}

fn marks(of: ConversationId) -> Entries {
    Entries {
        marks: [(of, json!({ "epoch": 1, "time": 7 }))].into(),
        ..Entries::default()
    }
}

fn message(at: u64, of: ConversationId) -> Handled {
    Handled {
        at,
        conversation_id: of,
        sender: e2ee::Principal::User([1; 16]),
        client_message_id: u128::from(at).to_be_bytes(),
    }
}

fn names(news: &News) -> BTreeSet<&str> {
    news.entries.pins.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn processes_learn_from_each_other_and_none_overwrites_what_it_has_not_read() -> Result<()> {
    let database = Database::new(&cluster().await.postgres_url()?, "stores").await;
    let python = "clients/python/src/blindpipe/stores/postgres_store.py";
    let python = fs::read_to_string(root().join(python)).expect("a file");
    assert!(POSTGRES_TABLES.iter().all(|table| python.contains(table)));

    let talk = ConversationId(Uuid::from_u128(7));
    let (one, other) = (database.store(), database.store());
    assert_eq!(one.load(0).expect("rows"), News::default());
    other.load(0).expect("rows");
    let mut first = pins(&["ada", "bob"]);
    first.marks = marks(talk).marks;
    assert_eq!(one.save(&first).expect("saved"), Saved::Kept);
    let later = pins(&["bob", "eve"]);
    assert_eq!(other.save(&later).expect("refused"), Saved::Changed);
    let news = other.news(None).expect("news");
    assert_eq!(names(&news), ["ada", "bob"].into());
    assert!(news.entries.marks.is_empty());
    assert_eq!(other.save(&later).expect("saved"), Saved::Kept);
    assert_eq!(names(&one.news(None).expect("news")), ["bob", "eve"].into());
    assert!(names(&one.news(None).expect("news")).is_empty());

    let (old, fresh) = (message(3, talk), message(9, talk));
    one.add_handled(&[fresh.clone(), fresh.clone(), old.clone()])
        .expect("added");
    assert_eq!(other.save(&marks(talk)).expect("refused"), Saved::Changed);
    let mut news = other.news(Some(talk)).expect("news");
    news.handled.sort_by_key(|each| each.at);
    assert!(news.came_back);
    assert_eq!(news.entries, marks(talk));
    assert_eq!(news.handled, [old, fresh.clone()]);
    assert_eq!(other.save(&marks(talk)).expect("saved"), Saved::Kept);
    assert!(!other.news(Some(talk)).expect("news").came_back);
    assert!(one.news(Some(talk)).expect("news").came_back);

    let third = database.store();
    let loaded = third.load(5).expect("rows");
    assert_eq!(names(&loaded), ["ada", "bob", "eve"].into());
    assert_eq!(loaded.handled, [fresh]);
    Ok(())
}

#[tokio::test]
async fn a_commit_that_comes_late_is_news() -> Result<()> {
    let database = Database::new(&cluster().await.postgres_url()?, "late_stores").await;
    let (one, other) = (database.store(), database.store());
    one.load(0).expect("rows");
    other.load(0).expect("rows");
    database
        .run(
            "begin; insert into blindpipe_entry (store, section, name, entry, changes, by_process)
             values ('replies', 'pins', 'zoe', '{}', 1, 'slow')",
        )
        .await;
    other.save(&pins(&["tim"])).expect("saved");
    assert_eq!(names(&one.news(None).expect("news")), ["tim"].into());
    database.run("commit").await;
    assert_eq!(names(&one.news(None).expect("news")), ["zoe"].into());
    Ok(())
}

/// Postgres keeps what a process saves, and the answer is lost with the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_whose_answer_is_lost_holds_nothing_up() -> Result<()> {
    let database = Database::new(&cluster().await.postgres_url()?, "lost_stores").await;
    let config: Config = database.url.parse().expect("an address");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut through = url_parts(&database.url);
    let there = std::mem::replace(
        &mut through.1,
        listener.local_addr().expect("bound").to_string(),
    );
    assert_eq!(there, format!("127.0.0.1:{}", config.get_ports()[0]));
    let deaf = Arc::new(AtomicBool::new(false));
    let mut proxy = JoinSet::new();
    proxy.spawn(forward(listener, there, deaf.clone()));

    let one = store(&[through.0, through.1, through.2].concat());
    one.load(0).expect("rows");
    one.save(&pins(&["ada"])).expect("saved");
    deaf.store(true, Ordering::Relaxed);
    one.save(&pins(&["ada"])).expect_err("no answer");
    deaf.store(false, Ordering::Relaxed);
    // The process cannot know that it was its own change.
    assert_eq!(one.save(&pins(&["ada"])).expect("refused"), Saved::Changed);
    assert_eq!(names(&one.news(None).expect("news")), ["ada"].into());
    assert_eq!(one.save(&pins(&["ada"])).expect("saved"), Saved::Kept);
    assert!(names(&one.news(None).expect("news")).is_empty());
    Ok(())
}

/// What comes before the address in a URL, the address, and the rest.
fn url_parts(url: &str) -> (String, String, String) {
    let (server, name) = url.rsplit_once('/').expect("a database");
    let (head, address) = server.rsplit_once('@').expect("a user");
    (format!("{head}@"), address.to_owned(), format!("/{name}"))
}

/// Forwards connections. While it is deaf, an answer ends its connection.
async fn forward(listener: TcpListener, to: String, deaf: Arc<AtomicBool>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("a client");
        let server = TcpStream::connect(&to).await.expect("a server");
        let deaf = deaf.clone();
        connections.spawn(async move {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let asks = tokio::io::copy(&mut from_client, &mut to_server);
            let answers = async {
                let mut bytes = [0; 4096];
                loop {
                    let read = from_server.read(&mut bytes).await.unwrap_or(0);
                    if read == 0 || deaf.load(Ordering::Relaxed) {
                        return;
                    }
                    if to_client.write_all(&bytes[..read]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                _ = asks => {}
                () = answers => {}
            }
        });
    }
}
