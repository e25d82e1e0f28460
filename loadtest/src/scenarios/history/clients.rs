//! The clients of a round: users and agents that act at any node, and their sockets.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
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
    socket::{agent_auth, user_auth},
};

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
pub(super) struct Player {
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
pub(super) struct Listener {
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

/// Makes the clients of a round: players, and their sockets, which have caught up.
pub(super) async fn make_clients(
    world: &Rc<World>,
    opened: &Rc<Cell<usize>>,
) -> Result<(Vec<Player>, Vec<Listener>)> {
    let user = |n: usize| (world.crowd.id(n), Name::User(n));
    let agents = make_agents(&Player::new(world, world.crowd.id(0), Name::User(0))).await?;
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
        let mut one = Listener {
            world: world.clone(),
            id,
            name,
            node: n,
            line: None,
            cursor: None,
            opened: opened.clone(),
        };
        while one.next().await.ok_or("no socket")?["type"] != "caught_up" {}
        ears.push(one);
    }
    Ok((players, ears))
}
