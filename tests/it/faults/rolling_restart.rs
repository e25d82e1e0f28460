//! Three nodes behind a load balancer are replaced one after the other, under load. Before the first
//! is replaced, the schema becomes that of a later build, while a long transaction is open.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use blindpipe::db::migrate::Migrations;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{
    Agent, Caller, ProcessNode, Socket, User, World, connect, empty_database, serving, spawn, ulid,
};

/// Time between two looks of the load balancer at a node's readiness. A draining node goes on
/// serving for [`DRAIN_LAG_SECONDS`].
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Thirty looks of the load balancer, because a busy machine delays them.
const DRAIN_LAG_SECONDS: &str = "3";
/// The longest time without a frame for a client whose node is replaced. A client that only the
/// heartbeat told, every 25 s, would be silent for longer.
const MAX_SILENCE: Duration = Duration::from_secs(20);
/// The longest drain.
const MAX_DRAIN: Duration = Duration::from_secs(30);
/// Users that send, each to its own agent.
const LINES: usize = 6;
/// Tries of a send whose node was killed.
const MAX_TRIES: usize = 20;
/// Every form of addition to a table which sends use.
const LATER_SCHEMA: &str = "
    alter table conversation add column later_note text;
    alter table member add column later_rank integer not null default 0;
    alter table message add column later_mark text;
    alter table inbox_entry add column later_mark text;
    alter table job add column later_note text;
    create table later_note (
        note_id uuid primary key,
        conversation_id uuid not null references conversation,
        user_id uuid not null references user_account
    );
    create index later_note_of_conversation on later_note (conversation_id);
    create index later_note_of_user on later_note (user_id);";
/// How long the transaction stays open that the migration has to wait for: several of its tries.
const LONG_TRANSACTION: Duration = Duration::from_millis(1500);
/// The time that all clients have to read what was sent.
const CATCH_UP: Duration = Duration::from_secs(20);

/// A load balancer of layer 4: new connections go to ready nodes in turn.
struct LoadBalancer {
    base: String,
    /// The nodes, with their readiness.
    nodes: Arc<Mutex<Vec<(ProcessNode, bool)>>>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl LoadBalancer {
    async fn before(nodes: Vec<ProcessNode>) -> Self {
        let nodes: Vec<_> = nodes.into_iter().map(|node| (node, true)).collect();
        let nodes = Arc::new(Mutex::new(nodes));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let tasks = [
            spawn(check(nodes.clone())),
            spawn(accept(listener, nodes.clone())),
        ];
        LoadBalancer {
            base,
            nodes,
            _tasks: tasks.map(AbortOnDropHandle::new),
        }
    }

    /// Ends the oldest node, and forgets it when its process has ended.
    async fn end_oldest(&self, end: End) -> End {
        match end {
            End::InOrder => self.nodes.lock()[0].0.terminate(),
            End::Killed => self.nodes.lock()[0].0.kill(),
        }
        let deadline = Instant::now() + MAX_DRAIN;
        let code = loop {
            if let Some(status) = self.nodes.lock()[0].0.exit_status() {
                break status.code();
            }
            assert!(Instant::now() < deadline, "the node does not end");
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        self.nodes.lock().remove(0);
        if code == Some(0) {
            End::InOrder
        } else {
            End::Killed
        }
    }

    fn add(&self, node: ProcessNode) {
        self.nodes.lock().push((node, true));
    }
}

async fn check(nodes: Arc<Mutex<Vec<(ProcessNode, bool)>>>) {
    let client = reqwest::Client::builder().no_proxy().build();
    let client = client.expect("a client");
    loop {
        let urls: Vec<String> = nodes.lock().iter().map(|(node, _)| node.ready()).collect();
        let answers = join_all(urls.iter().map(|url| client.get(url).send())).await;
        for (url, answer) in urls.iter().zip(answers) {
            let is_ready = answer.is_ok_and(|answer| answer.status().is_success());
            if let Some(node) = nodes
                .lock()
                .iter_mut()
                .find(|(node, _)| node.ready() == *url)
            {
                node.1 = is_ready;
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn accept(listener: TcpListener, nodes: Arc<Mutex<Vec<(ProcessNode, bool)>>>) {
    for turn in 0.. {
        let (mut client, _) = listener.accept().await.expect("a connection");
        client.set_nodelay(true).ok();
        let ready: Vec<String> = {
            let nodes = nodes.lock();
            let ready = nodes.iter().filter(|(_, is_ready)| *is_ready);
            ready.map(|(node, _)| node.base.clone()).collect()
        };
        spawn(async move {
            for n in 0..ready.len() {
                let address = ready[(turn + n) % ready.len()].trim_start_matches("http://");
                if let Ok(mut node) = TcpStream::connect(address).await {
                    node.set_nodelay(true).ok();
                    copy_bidirectional(&mut client, &mut node).await.ok();
                    return;
                }
            }
        });
    }
}

/// A user that sends all the time, and its agent that listens.
struct Line {
    user: User,
    agent: Agent,
    conversation: String,
    /// The sends that were acked so far.
    acked: AtomicUsize,
    /// The agent has got its first frame.
    listens: AtomicBool,
}

/// The ids of the messages that were acked, in order, and the most tries of a message.
type Sent = (Vec<String>, usize);
/// The ids of the messages that arrived, in order, and the longest time between two frames.
type Heard = (Vec<String>, Duration);

impl Line {
    /// Sends until told to stop. A message keeps its id through all tries.
    async fn send(self: Arc<Self>, stop: Arc<AtomicBool>, max_tries: usize) -> Sent {
        let (mut acked, mut most_tries) = (Vec::new(), 0);
        let path = format!("/conversations/{}/messages", self.conversation);
        while !stop.load(SeqCst) {
            let body = json!({
                "client_message_id": ulid().to_string(),
                "payload": { "type": "text", "text": "rolling" },
            });
            let mut faults = Vec::new();
            let answer = loop {
                let request = self.user.request(reqwest::Method::POST, &path).json(&body);
                match self.user.try_send(request).await {
                    Ok(answer) if answer.status == 201 => break answer,
                    // The node that was killed had stored it, and could not say so.
                    Ok(answer) if answer.status == 200 && !faults.is_empty() => break answer,
                    Ok(answer) => faults.push(format!("{}: {}", answer.status, answer.body)),
                    Err(fault) => faults.push(format!("{fault:?}")),
                }
                assert!(faults.len() < max_tries, "{faults:#?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            most_tries = most_tries.max(faults.len() + 1);
            self.acked.fetch_add(1, SeqCst);
            acked.push(
                answer.data()["message_id"]
                    .as_str()
                    .expect("an id")
                    .to_owned(),
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (acked, most_tries)
    }

    /// Reads until the last message has come. A closed socket resumes elsewhere.
    async fn hear(self: Arc<Self>, last: Arc<Mutex<Option<String>>>) -> Heard {
        let (mut ids, mut cursor, mut longest) = (Vec::new(), None, Duration::ZERO);
        // The first proof of a token is a hash, and a busy machine queues those. No node goes before.
        let mut last_frame: Option<Instant> = None;
        while !is_last(&ids, &last) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let Some(mut socket) = self.authenticated(cursor.as_deref()).await else {
                continue;
            };
            while let Some(frame) = next(&mut socket, &ids, &last).await {
                let silence = last_frame.map_or(Duration::ZERO, |last| last.elapsed());
                longest = longest.max(silence);
                last_frame = Some(Instant::now());
                self.listens.store(true, SeqCst);
                assert_ne!(frame["type"], "resync_required", "{frame}");
                if frame["event"] == "message.created" {
                    let id = frame["data"]["message_id"].as_str().expect("an id");
                    ids.push(id.to_owned());
                }
            }
            if !socket.cursor.is_empty() {
                cursor = Some(socket.cursor.clone());
            }
        }
        (ids, longest)
    }

    async fn authenticated(&self, resume: Option<&str>) -> Option<Socket> {
        let mut socket = Socket::try_open(&self.agent.caller).await?;
        let auth = json!({
            "type": "auth", "agent_id": self.agent.id, "token": self.agent.token, "resume": resume,
        });
        socket.say(auth).await;
        Some(socket)
    }
}

fn is_last(ids: &[String], last: &Mutex<Option<String>>) -> bool {
    last.lock()
        .as_ref()
        .is_some_and(|last| ids.last() == Some(last))
}

/// The next frame; none when the socket has closed or the last message has come.
async fn next(socket: &mut Socket, ids: &[String], last: &Mutex<Option<String>>) -> Option<Value> {
    loop {
        if is_last(ids, last) {
            return None;
        }
        let wait = Duration::from_millis(100);
        if let Ok(frame) = tokio::time::timeout(wait, socket.next()).await {
            return frame.ok();
        }
    }
}

/// The end of the second node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    InOrder,
    Killed,
}

/// The program of an earlier build, whose nodes this build's replace; this build itself unless the
/// variable `OLD_BUILD` has its path.
fn old_build() -> Option<PathBuf> {
    std::env::var_os("OLD_BUILD").map(PathBuf::from)
}

/// A world on the schema of the old build, and the URL of its database.
async fn world_of(old: Option<&Path>) -> (Arc<World>, String) {
    let settings = [
        ("LIMITS_OFF", "true"),
        ("DRAIN_LAG_SECONDS", DRAIN_LAG_SECONDS),
    ];
    let Some(old) = old else {
        let world = World::new(&settings).await;
        let url = world.database.clone();
        return (world, url);
    };
    let url = empty_database().await;
    let (program, owner, role) = (old.to_owned(), url.clone(), serving(&url));
    let migrate = move || {
        Command::new(program)
            .arg("migrate")
            .env("MIGRATE_DATABASE_URL", owner)
            .env("DATABASE_URL", role)
            .status()
    };
    let status = tokio::task::spawn_blocking(migrate).await;
    assert!(status.expect("no panic").expect("a program").success());
    let role = serving(&url);
    let own = [("DATABASE_URL", &*role), ("DATABASE_TIMEOUT_MS", "10000")];
    (World::new(&[&settings[..], &own].concat()).await, url)
}

/// Brings the schema to that of a later build, in spite of a long transaction. The sends go on.
async fn migrate_under_load(url: &str, lines: &[Arc<Line>]) {
    let mut client = connect(url).await;
    let long = client.transaction().await.expect("begun");
    let read = "select count(*) from conversation c join member m using (conversation_id)";
    long.execute(read, &[]).await.expect("a count");
    let later = Migrations::own().and("V9999__later", LATER_SCHEMA);
    let later = later.expect("a name");
    let url = url.to_owned();
    let migration = spawn(async move { later.apply_at(&url).await });
    let acked = || Vec::from_iter(lines.iter().map(|line| line.acked.load(SeqCst)));
    tokio::time::sleep(LONG_TRANSACTION / 3).await;
    let early = acked();
    tokio::time::sleep(LONG_TRANSACTION * 2 / 3).await;
    let late = acked();
    assert!(!migration.is_finished(), "the transaction holds it up");
    long.commit().await.expect("committed");
    let goes_on = early.iter().zip(&late).all(|(early, late)| late > early);
    assert!(
        goes_on,
        "the migration holds up the sends: {early:?}, then {late:?}"
    );
    let applied = migration.await.expect("no panic").expect("migrated");
    assert!(applied > 0);
}

/// Replaces three nodes in turn under load. Returns the most tries of a message.
async fn roll(second: End, max_tries: usize) -> usize {
    let old = old_build();
    let (world, database) = world_of(old.as_deref()).await;
    let start_old = || ProcessNode::start_build(&world, old.as_deref());
    let nodes = vec![start_old().await, start_old().await, start_old().await];
    let first = Caller::to(&world, &nodes[0].base);
    let balancer = LoadBalancer::before(nodes).await;
    let mut lines = Vec::new();
    for n in 0..LINES {
        let mut user = User::register_by(first.clone(), &format!("user{n}")).await;
        let agent = Agent::create_by(first.stranger(), &user, "listener").await;
        let conversation = user.talk_to(&agent).await;
        user.caller = user.caller.at(&balancer.base);
        let agent = agent.at(&balancer.base);
        lines.push(Arc::new(Line {
            user,
            agent,
            conversation,
            acked: AtomicUsize::new(0),
            listens: AtomicBool::new(false),
        }));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut works = Vec::new();
    for line in &lines {
        let last = Arc::new(Mutex::new(None));
        let send = spawn(line.clone().send(stop.clone(), max_tries));
        works.push((send, spawn(line.clone().hear(last.clone())), last));
    }
    while !lines.iter().all(|line| line.listens.load(SeqCst)) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    migrate_under_load(&database, &lines).await;
    for n in 0..3 {
        // As an orchestrator does: the new node serves before the old one goes.
        balancer.add(ProcessNode::start_in(&world).await);
        let end = if n == 1 { second } else { End::InOrder };
        assert_eq!(balancer.end_oldest(end).await, end);
    }
    stop.store(true, SeqCst);
    let mut most_tries = 0;
    for (send, hear, last) in works {
        let (acked, tries) = send.await.expect("no panic");
        most_tries = most_tries.max(tries);
        assert!(acked.len() > 20, "{} sends", acked.len());
        *last.lock() = acked.last().cloned();
        let heard = tokio::time::timeout(CATCH_UP, hear).await;
        let (ids, silence) = heard.expect("the last message").expect("no panic");
        assert_eq!(ids, acked, "each once and in order");
        assert!(silence < MAX_SILENCE, "{silence:?}");
    }
    most_tries
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_request_and_loses_no_event() {
    assert_eq!(roll(End::InOrder, 1).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_killed_in_a_rolling_restart_costs_a_retry_and_loses_no_event() {
    assert!(roll(End::Killed, MAX_TRIES).await <= MAX_TRIES);
}
