//! The clients of a round: users and agents that act at any node, and their sockets.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use history::{Actor, Subscriber};
use serde_json::{Value, json};
use ulid::Ulid;

use super::{AGENTS, NODES, PAUSE, TIMEOUT, USERS};
use crate::{
    Result,
    cluster::{Node, Wire},
    crowd::{Crowd, Line, address},
    http::{Link, request},
    report::say,
    socket::{agent_auth, user_auth},
};

/// The silence after which a listener says so.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(12);
/// Failures of a listener in turn after which it says so.
const TOLD_EACH: usize = 50;
/// A listener acks each event whose number is a multiple of this.
const ACK_EACH: u64 = 8;

/// The shared state of clients: the nodes' addresses, and the users whose tokens are made on
/// demand.
pub(super) struct World {
    pub(super) nodes: Vec<Node>,
    pub(super) crowd: Crowd,
    pub(super) operations: Cell<usize>,
}

/// The identity of a client.
#[derive(Clone)]
pub(super) enum Name {
    /// A user of the crowd, on a device.
    User(usize, usize),
    /// An agent, by its token.
    Agent(String),
}

impl Name {
    /// The first frame of a socket.
    fn auth(&self, id: &str, token: &str, cursor: Option<&str>) -> Result<String> {
        match self {
            Name::User(..) => user_auth(token, cursor),
            Name::Agent(_) => agent_auth(id, token, cursor),
        }
    }
}

impl World {
    fn bearer(&self, name: &Name) -> Option<String> {
        match name {
            Name::User(n, device) => self.crowd.token(*n, *device).ok(),
            Name::Agent(token) => Some(token.clone()),
        }
    }
}

/// A client of all nodes, with connections that stay open.
pub(super) struct Player {
    world: Rc<World>,
    id: String,
    name: Name,
    address: String,
    idle: RefCell<[Vec<Link<Wire>>; NODES]>,
}

impl Player {
    pub(super) fn new(world: &Rc<World>, id: String, name: Name) -> Self {
        Player {
            world: world.clone(),
            id,
            name,
            address: address(),
            idle: RefCell::default(),
        }
    }

    /// Opens a socket at a node.
    pub(super) async fn line(&self, node: usize, cursor: Option<&str>) -> Result<Line> {
        let token = self.world.bearer(&self.name).ok_or("no token")?;
        let auth = self.name.auth(&self.id, &token, cursor)?;
        let opened = Line::open(&self.world.nodes[node], auth);
        tokio::time::timeout(TIMEOUT, opened).await?
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

/// A socket that reconnects to the next node whenever it ends. It goes on from its last cursor and
/// from its last ack in turns.
pub(super) struct Listener {
    world: Rc<World>,
    id: String,
    name: Name,
    node: usize,
    line: Option<Line>,
    cursor: Option<String>,
    /// The last event that was heard, by its number.
    number: Option<u64>,
    /// The last event of the present socket.
    last: Option<u64>,
    /// Whether the socket began at an ack, and repeats what was heard before.
    repeats: bool,
    /// Sockets that it has opened.
    openings: usize,
    /// Tries without a frame in turn.
    failures: usize,
    opened: Rc<Cell<usize>>,
}

impl Listener {
    /// A listener without a socket, which opens its first one at the node after `node`.
    pub(super) fn new(
        world: &Rc<World>,
        id: String,
        name: Name,
        node: usize,
        opened: &Rc<Cell<usize>>,
    ) -> Self {
        Listener {
            world: world.clone(),
            id,
            name,
            node,
            line: None,
            cursor: None,
            number: None,
            last: None,
            repeats: false,
            openings: 0,
            failures: 0,
            opened: opened.clone(),
        }
    }

    async fn open(&mut self) -> Result<()> {
        self.node = (self.node + 1) % NODES;
        self.openings += 1;
        let token = self.world.bearer(&self.name).ok_or("no token")?;
        let by_ack = self.openings.is_multiple_of(2);
        let cursor = self.cursor.as_deref().filter(|_| !by_ack);
        let auth = self.name.auth(&self.id, &token, cursor)?;
        self.line = Some(Line::open(&self.world.nodes[self.node], auth).await?);
        (self.last, self.repeats) = (None, self.repeats || by_ack);
        self.opened.set(self.opened.get() + 1);
        Ok(())
    }

    /// Whether an event repeats an earlier one after an ack. A gap or a repeat within a socket is the
    /// judge's.
    fn is_repeat(&mut self, number: u64) -> bool {
        let in_order = self.last.is_none_or(|last| number == last + 1);
        self.last = Some(number);
        let is_old = self.number.is_some_and(|heard| number <= heard);
        if in_order && self.repeats && is_old {
            return true;
        }
        self.repeats = false;
        self.number = Some(number);
        false
    }

    async fn hear(&mut self) -> Result<Value> {
        if self.line.is_none() {
            tokio::time::timeout(TIMEOUT, self.open()).await??;
        }
        let line = self.line.as_mut().ok_or("no socket")?;
        let text = loop {
            match tokio::time::timeout(SILENCE_TIMEOUT, line.hear()).await {
                Ok(text) => break text?,
                // A real client would connect again. This one waits, so that the silence is judged.
                Err(_) => say(format!(
                    "a socket of {} hears nothing from node {} after number {:?}",
                    self.id,
                    self.node + 1,
                    self.number
                )),
            }
        };
        let frame: Value = serde_json::from_str(&text)?;
        match frame["type"].as_str() {
            Some("auth.expiring") => {
                let token = self.world.bearer(&self.name).ok_or("no token")?;
                line.say(json!({ "type": "auth.renew", "access_token": token }).to_string())
                    .await?;
            }
            // The first socket's `ready` has the starting position.
            Some("ready" | "event") => {
                let cursor = frame["cursor"].as_str().map(str::to_owned);
                if let Some(number) = frame["seq"].as_u64() {
                    if number.is_multiple_of(ACK_EACH) {
                        let ack = json!({ "type": "ack", "cursor": cursor });
                        line.say(ack.to_string()).await?;
                    }
                    if self.is_repeat(number) {
                        return Ok(Value::Null);
                    }
                }
                self.cursor = cursor.or(self.cursor.take());
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
                Ok(frame) => {
                    self.failures = 0;
                    return Some(frame);
                }
                Err(error) => {
                    self.line = None;
                    self.failures += 1;
                    if self.failures.is_multiple_of(TOLD_EACH) {
                        let (n, id) = (self.failures, &self.id);
                        say(format!("a socket of {id} fails {n} times in turn: {error}"));
                    }
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

/// Makes the clients of a round: players, and their sockets, which have caught up.
pub(super) async fn make_clients(
    world: &Rc<World>,
    opened: &Rc<Cell<usize>>,
) -> Result<(Vec<Player>, Vec<Listener>)> {
    let user = |n: usize| (world.crowd.id(n), Name::User(n, 0));
    let agents = make_agents(&Player::new(world, world.crowd.id(0), Name::User(0, 0))).await?;
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
        .map(|(id, name)| Player::new(world, id.clone(), name.clone()))
        .collect();
    let mut ears = Vec::new();
    for (n, (id, name)) in everybody.into_iter().enumerate() {
        let mut one = Listener::new(world, id, name, n, opened);
        while one.next().await.ok_or("no socket")?["type"] != "caught_up" {}
        ears.push(one);
    }
    Ok((players, ears))
}
