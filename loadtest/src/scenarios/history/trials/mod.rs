//! Trials beside the conversations: a node must not take a thing after its end, no bound may be
//! exceeded, and no question may be answered twice.
//!
//! Most trials run while the cluster is harmed. Those of bounds need a calm cluster, because a node
//! without Redis admits calls and sockets by its own count.

mod bounds;
mod decisions;
mod ends;
mod quiet;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use history::{Actor, Ending, Moment, Span, Thing, Trials};
use serde_json::{Value, json};

use self::decisions::Keys;
use super::{
    NODES, PAUSE,
    clients::{Name, Player, World},
};
use crate::{
    Result,
    cluster::{Cluster, Node},
    crowd::Crowd,
};

/// The users of the trials. The first owns the agents, and decides and answers. The second is its
/// peer. The third speaks and the fourth listens in a quiet conversation.
const USERS: usize = 4;
/// The devices of each user. Those of the first are revoked, one after the other.
const DEVICES: usize = 40;
/// The time between two judgements of a round's trials.
const JUDGE_EACH: Duration = Duration::from_secs(1);
/// The longest time until a call succeeds, however often it is repeated.
const PATIENCE: Duration = Duration::from_secs(60);

/// The persons, agents and conversations of the trials of a round, and their records.
pub(super) struct Stage {
    world: Rc<World>,
    began: Instant,
    next_id: Cell<usize>,
    found: RefCell<Trials>,
    users: Vec<Player>,
    keys: Keys,
    /// The agent whose token is replaced again and again.
    replaced: RefCell<(String, String)>,
    /// The agent that asks for approvals and calls tools.
    asking: Player,
    /// Its conversation with the first user.
    talk: String,
    /// A group of the first two users and the asking agent.
    group: String,
    /// A conversation of the last two users.
    quiet: String,
}

impl Stage {
    /// Makes everything that the trials need, on nodes that nothing harms.
    pub(super) async fn set(cluster: &Cluster, nodes: &[Node]) -> Result<Self> {
        let world = Rc::new(World {
            nodes: nodes.to_vec(),
            crowd: Crowd::make(cluster, USERS, DEVICES).await?,
            operations: Cell::new(0),
        });
        let player = |n| Player::new(&world, world.crowd.id(n), Name::User(n, 0));
        let users: Vec<Player> = (0..USERS).map(player).collect();
        let quiet = world.crowd.group(2..4).await?;
        let asking = Player::new(&world, String::new(), Name::Agent(String::new()));
        let mut stage = Stage {
            world,
            began: Instant::now(),
            next_id: Cell::new(0),
            found: RefCell::default(),
            users,
            keys: Keys::new()?,
            replaced: RefCell::default(),
            asking,
            talk: String::new(),
            group: String::new(),
            quiet,
        };
        *stage.replaced.borrow_mut() = stage.make_agent("Replaced").await?;
        let (id, token) = stage.make_agent("Asking").await?;
        stage.asking = Player::new(&stage.world, id, Name::Agent(token));
        stage.join().await?;
        stage.grant().await?;
        Ok(stage)
    }

    /// Runs the trials that need no calm, until `over`.
    pub(super) async fn play(&self, over: &Cell<bool>) -> Result<()> {
        tokio::try_join!(
            self.end_sessions(over),
            self.end_tokens(over),
            self.delete_messages(over),
            self.forge_epochs(over),
            self.decide_approvals(over),
            self.answer_calls(over),
            self.speak_quietly(over),
        )?;
        Ok(())
    }

    /// Runs the trials of bounds. Nothing may be harmed meanwhile.
    pub(super) async fn calm(&self) -> Result<()> {
        tokio::time::sleep(bounds::RECOVERY).await;
        tokio::join!(self.crowd_sockets(), self.flood_calls());
        Ok(())
    }

    /// Returns when a record shows a fault.
    pub(super) async fn broken(&self) {
        while history::judge_trials(&self.found.borrow()).is_empty() {
            tokio::time::sleep(JUDGE_EACH).await;
        }
    }

    /// The records.
    pub(super) fn trials(self) -> Trials {
        self.found.into_inner()
    }

    fn now(&self) -> Moment {
        Moment::try_from(self.began.elapsed().as_nanos()).unwrap_or(Moment::MAX)
    }

    fn id(&self) -> usize {
        self.next_id.replace(self.next_id.get() + 1)
    }

    fn end(&self, thing: Thing, id: usize, span: Span) {
        let ending = Ending { thing, id, span };
        self.found.borrow_mut().endings.push(ending);
    }

    /// A call that is repeated at one node after the other until it is answered with one of `done`.
    /// It took effect at some moment since the first try.
    async fn must(
        &self,
        who: &Player,
        method: &'static str,
        path: &str,
        body: Value,
        done: &[u16],
    ) -> Result<(Value, Span)> {
        let (began, since) = (self.now(), Instant::now());
        for node in (self.next_id.get()..).map(|n| n % NODES) {
            match who.call(node, method, path, Some(body.to_string())).await {
                Some((status, answer)) if done.contains(&status) => {
                    let ended = Some(self.now());
                    return Ok((answer, Span { began, ended }));
                }
                None | Some((500.., _)) if since.elapsed() < PATIENCE => {
                    tokio::time::sleep(PAUSE).await;
                }
                other => return Err(format!("{method} {path}: {other:?}").into()),
            }
        }
        Err("no node".into())
    }

    /// A call of the first user that makes something: the answer's data.
    async fn make(&self, path: &str, body: Value) -> Result<Value> {
        let made = self.must(&self.users[0], "POST", path, body, &[200, 201]);
        Ok(made.await?.0["data"].clone())
    }

    /// Makes an agent: its id and its token.
    async fn make_agent(&self, name: &str) -> Result<(String, String)> {
        let made = self
            .make("/agents", json!({ "display_name": name }))
            .await?;
        Ok((text(&made, "agent_id")?, text(&made, "token")?))
    }

    /// Brings the first two users and the asking agent together.
    async fn join(&mut self) -> Result<()> {
        let agent = self.asking.id();
        let talk = json!({ "type": "agent", "agent_id": agent });
        let talk = self.make("/conversations", talk).await?;
        let members = [self.users[0].id(), self.users[1].id()];
        let group = json!({ "title": "Trials", "member_ids": members });
        let group = text(&self.make("/groups", group).await?, "conversation_id")?;
        let instance = json!({ "agent_id": agent, "visibility": "all" });
        self.make(&format!("/groups/{group}/agent-instances"), instance)
            .await?;
        (self.talk, self.group) = (text(&talk, "conversation_id")?, group);
        Ok(())
    }
}

fn text(of: &Value, name: &str) -> Result<String> {
    let text = of[name].as_str().map(str::to_owned);
    text.ok_or_else(|| format!("no {name} in {of}").into())
}
