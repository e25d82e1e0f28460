//! `history`: senders, readers and listeners on three nodes that are killed and restarted. Redis is
//! emptied now and then, and one member is repeatedly removed and added. The crate `history` judges
//! their observations.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use history::{Actor, Fault, History, Plan, Subscriber};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use ulid::Ulid;

use crate::{
    Options, Result,
    cluster::{Cluster, Node, Wire},
    crowd::{Crowd, Line, address},
    delivery::Faults,
    http::{Link, request},
    plain::Plain,
    report::{Report, say},
    socket::{agent_auth, user_auth},
};

const NODES: usize = 3;
const CONVERSATIONS: usize = 2;
/// The number of users. The first owns the conversations and has a relation with the agents. The
/// last is removed and added.
const USERS: usize = 6;
const AGENTS: usize = 2;
/// The time between kills, and for which a node stays down.
const LIFE: Duration = Duration::from_secs(2);
const DEATH: Duration = Duration::from_millis(500);
/// The number of kills before Redis loses everything.
const FLUSHED_AFTER: usize = 3;
/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The wait between two tries of a socket.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of faults that are shown in full.
const SHOWN: usize = 5;

/// The shared state of clients: the nodes' addresses, and the users whose tokens are made on
/// demand.
struct World {
    nodes: Vec<Node>,
    crowd: Crowd,
    operations: Cell<usize>,
}

/// The identity of a client.
#[derive(Clone)]
enum Name {
    User(usize),
    Agent(String),
}

impl World {
    fn bearer(&self, name: &Name) -> Option<String> {
        match name {
            Name::User(n) => self.crowd.token(*n, 0).ok(),
            Name::Agent(token) => Some(token.clone()),
        }
    }
}

/// A client of all nodes, with connections that stay open.
struct Player {
    world: Rc<World>,
    id: String,
    name: Name,
    address: String,
    idle: RefCell<[Vec<Link<Wire>>; NODES]>,
}

impl Player {
    fn new(world: &Rc<World>, id: String, name: Name) -> Self {
        Player {
            world: world.clone(),
            id,
            name,
            address: address(),
            idle: RefCell::default(),
        }
    }

    async fn ask(
        &self,
        node: usize,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Option<(u16, Value)> {
        let to = &self.world.nodes[node];
        let bearer = format!("Bearer {}", self.world.bearer(&self.name)?);
        let text = request(
            method,
            &to.address,
            path,
            &self.address,
            &[("authorization", &bearer)],
            body,
        );
        let kept = self.idle.borrow_mut()[node].pop();
        let mut link = match kept {
            Some(link) => link,
            None => to.link().await.ok()?,
        };
        let answer = link.ask(&text).await.ok()?;
        self.idle.borrow_mut()[node].push(link);
        Some((
            answer.status,
            serde_json::from_slice(&answer.body).unwrap_or_default(),
        ))
    }
}

impl Actor for Player {
    fn id(&self) -> &str {
        &self.id
    }

    fn is_agent(&self) -> bool {
        matches!(self.name, Name::Agent(_))
    }

    async fn call(
        &self,
        node: usize,
        method: &'static str,
        path: &str,
        body: Option<String>,
    ) -> Option<(u16, Value)> {
        self.world.operations.set(self.world.operations.get() + 1);
        let asked = tokio::time::timeout(TIMEOUT, self.ask(node, method, path, body.as_deref()));
        asked.await.ok().flatten()
    }

    fn fresh_id(&self) -> String {
        Ulid::generate().to_string()
    }
}

/// A socket that reconnects to the next node whenever it ends, from its last cursor.
struct Listener {
    world: Rc<World>,
    id: String,
    name: Name,
    node: usize,
    line: Option<Line>,
    cursor: Option<String>,
    opened: Rc<Cell<usize>>,
}

impl Listener {
    async fn open(&mut self) -> Result<()> {
        self.node = (self.node + 1) % NODES;
        let token = self.world.bearer(&self.name).ok_or("no token")?;
        let cursor = self.cursor.as_deref();
        let auth = match &self.name {
            Name::User(_) => user_auth(&token, cursor)?,
            Name::Agent(_) => agent_auth(&self.id, &token, cursor)?,
        };
        self.line = Some(Line::open(&self.world.nodes[self.node], auth).await?);
        self.opened.set(self.opened.get() + 1);
        Ok(())
    }

    async fn hear(&mut self) -> Result<Value> {
        if self.line.is_none() {
            tokio::time::timeout(TIMEOUT, self.open()).await??;
        }
        let line = self.line.as_mut().ok_or("no socket")?;
        let frame: Value = serde_json::from_str(&line.hear().await?)?;
        match frame["type"].as_str() {
            Some("auth.expiring") => {
                let token = self.world.bearer(&self.name).ok_or("no token")?;
                line.say(json!({ "type": "auth.renew", "access_token": token }).to_string())
                    .await?;
            }
            // The first socket's `ready` has the starting position.
            Some("ready" | "event") => {
                self.cursor = frame["cursor"]
                    .as_str()
                    .map(str::to_owned)
                    .or(self.cursor.take());
            }
            Some("resync_required") => return Err("told to start anew".into()),
            _ => {}
        }
        Ok(frame)
    }
}

impl Subscriber for Listener {
    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.hear().await {
                Ok(frame) => return Some(frame),
                Err(_) => {
                    self.line = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Makes agents with a relation to the first user: id and token.
async fn make_agents(owner: &Player) -> Result<Vec<(String, String)>> {
    let mut agents = Vec::new();
    for n in 0..AGENTS {
        let made = must(
            owner,
            "/agents",
            json!({ "display_name": format!("Agent {n}") }),
        )
        .await?;
        let text = |name: &str| made["data"][name].as_str().unwrap_or_default().to_owned();
        let id = text("agent_id");
        must(
            owner,
            "/conversations",
            json!({ "type": "agent", "agent_id": id }),
        )
        .await?;
        agents.push((id, text("token")));
    }
    Ok(agents)
}

async fn must(owner: &Player, path: &str, body: Value) -> Result<Value> {
    match owner.ask(0, "POST", path, Some(&body.to_string())).await {
        Some((200 | 201, answer)) => Ok(answer),
        other => Err(format!("POST {path}: {other:?}").into()),
    }
}

/// The counts of faults that were injected.
#[derive(Default)]
struct Harm {
    kills: usize,
    flushes: usize,
}

/// Kills and restarts one node after the other until `over`. All nodes run afterwards.
async fn harm(
    plain: &mut Plain,
    world: &World,
    over: &Cell<bool>,
    operations: usize,
) -> Result<Harm> {
    let mut harm = Harm::default();
    // The conversations are made before the first kill.
    while world.operations.get() < operations / 50 && !over.get() {
        tokio::time::sleep(PAUSE).await;
    }
    while !over.get() {
        let n = harm.kills % NODES;
        plain.kill(n);
        harm.kills += 1;
        tokio::time::sleep(DEATH).await;
        plain.restart(n).await?;
        if harm.kills % FLUSHED_AFTER == 0 {
            flush(&plain.cluster.redis_url).await?;
            harm.flushes += 1;
        }
        tokio::time::sleep(LIFE).await;
    }
    Ok(harm)
}

/// Empties a Redis: `redis://:password@host:port/0`.
async fn flush(url: &str) -> Result<()> {
    let rest = url.strip_prefix("redis://").ok_or("no URL of a Redis")?;
    let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let place = place.split('/').next().unwrap_or(place);
    let mut stream = TcpStream::connect(place).await?;
    let auth = login
        .rsplit_once(':')
        .map(|(_, password)| format!("AUTH {password}\r\n"));
    let lines = format!("{}FLUSHALL\r\nQUIT\r\n", auth.unwrap_or_default());
    stream.write_all(lines.as_bytes()).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    if said.contains('-') {
        Err(format!("Redis is not emptied: {said}").into())
    } else {
        Ok(())
    }
}

/// Runs the scenario once.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let mut plain = Plain::start(cluster, NODES).await?;
    let crowd = Crowd::make(cluster, USERS, 1).await?;
    let world = Rc::new(World {
        nodes: plain.cluster.nodes.clone(),
        crowd,
        operations: Cell::new(0),
    });
    let user = |n: usize| (world.crowd.id(n), Name::User(n));
    let agents = make_agents(&Player::new(&world, world.crowd.id(0), Name::User(0))).await?;
    let agents = agents
        .into_iter()
        .map(|(id, token)| (id, Name::Agent(token)));
    let everybody: Vec<(String, Name)> = (0..USERS - 1)
        .map(user)
        .chain(agents)
        .chain([user(USERS - 1)])
        .collect();
    let players: Vec<Player> = everybody
        .iter()
        .map(|(id, name)| Player::new(&world, id.clone(), name.clone()))
        .collect();
    let opened = Rc::new(Cell::new(0));
    let mut ears = Vec::new();
    for (n, (id, name)) in everybody.into_iter().enumerate() {
        let (world, opened) = (world.clone(), opened.clone());
        let mut one = Listener {
            world,
            id,
            name,
            node: n,
            line: None,
            cursor: None,
            opened,
        };
        while one.next().await.ok_or("no socket")?["type"] != "caught_up" {}
        ears.push(one);
    }
    let plan = Plan {
        nodes: NODES,
        conversations: CONVERSATIONS,
        operations: options.operations,
        workers: options.in_flight,
        seed: std::process::id().into(),
    };
    say(format!(
        "history: {} operations of {} clients, seed {}",
        plan.operations, plan.workers, plan.seed
    ));
    let (over, began) = (Cell::new(false), Instant::now());
    let acting = async {
        let history = history::drive(plan, &players, &mut ears).await;
        over.set(true);
        history
    };
    let (history, harm) = tokio::join!(acting, harm(&mut plain, &world, &over, options.operations));
    let (history, harm) = (history?, harm?);
    if harm.kills == 0 {
        return Err("it was over before a node was killed: more --operations".into());
    }
    let found = history::judge(&history);
    let numbers = Numbers::of(&history, &harm, opened.get(), began.elapsed());
    Ok(report(&numbers, &found))
}

/// The results besides faults.
struct Numbers(Vec<(&'static str, u64)>);

impl Numbers {
    fn of(history: &History, harm: &Harm, opened: usize, took: Duration) -> Self {
        let acked = history
            .sends
            .iter()
            .filter(|send| send.seq.is_some())
            .count();
        let refused = history.sends.iter().filter(|send| send.refused).count();
        let put_out = history
            .stays
            .iter()
            .filter(|stay| stay.left.is_some())
            .count();
        let heard: usize = history.heard.iter().map(Vec::len).sum();
        let counts = [
            ("sends", history.sends.len()),
            ("acked", acked),
            ("refused", refused),
            ("unknown", history.sends.len() - acked - refused),
            ("reads", history.reads.len()),
            ("events judged", heard),
            ("times that the guest was put out", put_out),
            ("nodes killed", harm.kills),
            ("times that Redis was emptied", harm.flushes),
            ("sockets opened", opened),
        ];
        let counts = counts.map(|(what, n)| (what, n as u64));
        Numbers(
            counts
                .into_iter()
                .chain([("seconds", took.as_secs())])
                .collect(),
        )
    }

    fn get(&self, what: &str) -> u64 {
        self.0
            .iter()
            .find(|(name, _)| *name == what)
            .map_or(0, |(_, n)| *n)
    }
}

fn report(numbers: &Numbers, found: &[Fault]) -> Report {
    let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
    for fault in found {
        *kinds.entry(fault.kind()).or_default() += 1;
    }
    let of = |names: &[&str]| names.iter().filter_map(|name| kinds.get(name)).sum();
    let faults = Faults {
        failed: 0,
        lost: of(&["lost", "unheard"]),
        duplicated: of(&["doubled", "ambiguous"]),
        reordered: of(&["order", "reordered"]),
        inbox_gaps: of(&["gap", "inbox"]),
        strange: of(&["phantom", "outsider"]),
    };
    let row = |what: &str, n: u64| vec![what.to_owned(), n.to_string()];
    let heading = vec!["history".to_owned(), String::new()];
    let rows = numbers
        .0
        .iter()
        .map(|(what, n)| row(what, *n))
        .chain([row("faults", found.len() as u64)]);
    Report {
        scenario: "history",
        tables: vec![[heading].into_iter().chain(rows).collect()],
        ratios: Vec::new(),
        notes: found
            .iter()
            .take(SHOWN)
            .map(|fault| format!("{fault:?}"))
            .collect(),
        details: json!({ "numbers": numbers.0.iter().copied().collect::<BTreeMap<_, _>>(), "faults": kinds }),
        faults,
        checked: numbers.get("acked"),
    }
}
