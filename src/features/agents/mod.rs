//! Agents: who they are, their tokens and keys, their manifest, their state.
//!
//! Promises: a user never has more agents than allowed, however many requests race; a token is shown once; what was
//! revoked, replaced in an emergency or deleted is dead when the answer is given; the owner is told of every change of
//! state.

pub mod http;
mod manifest;
mod proof;
mod reachability;
mod store;

use std::time::Duration;

use secrecy::ExposeSecret;
use serde_json::json;
use uuid::Uuid;

pub use self::reachability::ReachabilityTracker;
use crate::{
    auth::{agent::NewToken, secret::Hasher},
    clock::{Clock, iso},
    db::{Db, Tx},
    delivery::Backplane,
    error::Result,
    events::EventKind,
    ids::{AgentId, EventId, UserId},
    inbox::{self, Told},
    limits::slots::{Kind, Slots},
    random::Random,
};

/// What the handlers of this feature work with.
#[derive(Clone)]
pub struct Agents {
    pub db: Db,
    pub clock: Clock,
    pub random: Random,
    pub hasher: Hasher,
    pub slots: Slots,
    pub backplane: Backplane,
    pub reachability: ReachabilityTracker,
    pub quotas: Quotas,
}

/// Quotas that the operator sets.
#[derive(Clone, Copy)]
pub struct Quotas {
    /// Agents a user may have.
    pub agents_per_user: u32,
}

impl Agents {
    /// A token and what is stored of it.
    async fn generate(&self) -> Result<(NewToken, String)> {
        let token = NewToken::generate(&self.random);
        let hash = self
            .hasher
            .hash_token(token.token.expose_secret().to_owned())
            .await?;
        Ok((token, hash))
    }

    /// Tells what was appended, once it is committed.
    fn tell(&self, told: impl IntoIterator<Item = Told>) {
        told.into_iter().for_each(|told| self.backplane.tell(&told));
    }

    /// Closes an agent's sockets everywhere, all of whose tokens died; returns how many there were.
    async fn close(&self, agent: AgentId, dead: Vec<Uuid>, reason: &'static str) -> usize {
        if dead.is_empty() {
            return 0;
        }
        let connections = self.slots.connections(&[agent.0]).await.concat();
        self.backplane.invalidate(dead, reason);
        connections
            .iter()
            .filter(|connection| connection.kind == Kind::Websocket)
            .count()
    }
}

/// An agent as a conversation shows it.
pub struct AgentSummary {
    /// The agent.
    pub id: AgentId,
    /// Its name.
    pub display_name: String,
    /// Whose it is.
    pub owner: UserId,
}

/// The agent, if it exists. It is not deleted before the transaction ends.
pub async fn find(tx: &Tx, id: AgentId) -> Result<Option<AgentSummary>> {
    store::find(tx, id).await
}

/// An agent's row, locked to the end of the transaction.
struct Locked {
    id: AgentId,
    owner: UserId,
    state: State,
}

/// What an agent is. Whether it is online is not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no key yet.
    Registered,
    Active,
    /// Its webhook failed too often; an ack of any kind brings it back.
    Unreachable,
    TokenRevoked,
    /// Kept for those who talked with it; answers as if it were not there.
    Deleted,
}

impl State {
    const ALL: [State; 5] = [
        State::Registered,
        State::Active,
        State::Unreachable,
        State::TokenRevoked,
        State::Deleted,
    ];

    fn name(self) -> &'static str {
        match self {
            State::Registered => "registered",
            State::Active => "active",
            State::Unreachable => "unreachable",
            State::TokenRevoked => "token_revoked",
            State::Deleted => "deleted",
        }
    }

    fn from_name(name: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|state| state.name() == name)
            .unwrap_or(State::Registered)
    }
}

/// Moves an agent to another state and tells its owner; nothing if it is there already.
async fn move_to(tx: &Tx, random: &Random, agent: &Locked, state: State) -> Result<Option<Told>> {
    if agent.state == state {
        return Ok(None);
    }
    let at = store::set_state(tx, agent.id, state).await?;
    let previous = agent.state.name();
    let data = json!({ "agent_id": agent.id, "state": state.name(), "previous_state": previous, "at": iso(at) });
    let (id, kind) = (EventId::generate(random), EventKind::AgentStateChanged);
    inbox::append(tx, id, kind, None, &data.to_string(), &[agent.owner.0])
        .await
        .map(Some)
}

/// Buries what has outlived its grace: tokens and keys. An agent whose last key it was is `registered` again.
pub async fn retire(db: &Db, random: &Random, backplane: &Backplane) -> Result<()> {
    while store::retire_tokens(db).await? {}
    for agent in store::with_ended_keys(db).await? {
        let tx = db.begin("agents.retire_keys").await?;
        let Some(locked) = store::lock(&tx, agent).await? else {
            continue;
        };
        let has_key = store::retire_keys(&tx, agent).await?;
        let told = match locked.state {
            State::Active if !has_key => move_to(&tx, random, &locked, State::Registered).await?,
            _ => None,
        };
        tx.commit().await?;
        told.iter().for_each(|told| backplane.tell(told));
    }
    Ok(())
}

/// Ends the relations of deleted agents and takes them out of their groups, each in a transaction: an agent may have
/// talked with a great many.
pub async fn leave(db: &Db, random: &Random, backplane: &Backplane) -> Result<()> {
    loop {
        let tx = db.begin("agents.leave").await?;
        let Some(told) = store::leave_next(&tx, random).await? else {
            return Ok(());
        };
        tx.commit().await?;
        told.iter().for_each(|told| backplane.tell(told));
    }
}

/// Seconds of a span, as statements take them.
fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
