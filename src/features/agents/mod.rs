//! Agents: who they are, their tokens and keys, their manifest, their state.
//!
//! Promises: a user never has more agents than allowed, however many requests race; a token is shown once; what was
//! revoked, replaced in an emergency or deleted is dead when the answer is given; the owner is told of every change of
//! state.

pub(crate) mod http;
mod manifest;
mod proof;
mod reachability;
mod store;

use std::time::Duration;

use axum::extract::FromRef;
use secrecy::ExposeSecret;
use serde_json::json;

pub use self::reachability::ReachabilityTracker;
use crate::{
    app::{App, Quotas},
    auth::{agent::NewToken, secret::Hasher},
    clock::{Clock, iso},
    db::Db,
    error::Result,
    events::EventKind,
    ids::{AgentId, UserId},
    limits::slots::{Kind, Slots},
    work::{Tx, UnitOfWork},
};

/// What the handlers of this feature work with.
#[derive(Clone)]
pub struct Agents {
    work: UnitOfWork,
    db: Db,
    clock: Clock,
    hasher: Hasher,
    slots: Slots,
    reachability: ReachabilityTracker,
    quotas: Quotas,
}

impl FromRef<App> for Agents {
    fn from_ref(app: &App) -> Self {
        Agents {
            work: app.work.clone(),
            db: app.db.clone(),
            clock: app.clock.clone(),
            hasher: app.hasher.clone(),
            slots: app.slots.clone(),
            reachability: app.reachability.clone(),
            quotas: app.quotas,
        }
    }
}

impl Agents {
    /// A token and what is stored of it.
    async fn generate(&self) -> Result<(NewToken, String)> {
        let token = NewToken::generate(self.work.random());
        let hash = self
            .hasher
            .hash_token(token.token.expose_secret().to_owned())
            .await?;
        Ok((token, hash))
    }

    /// How many sockets an agent has on all nodes.
    async fn count_sockets(&self, agent: AgentId) -> usize {
        let connections = self.slots.connections(&[agent.0]).await.concat();
        connections
            .iter()
            .filter(|connection| connection.kind == Kind::Websocket)
            .count()
    }
}

/// The agent, if it exists. Nothing deletes it before the transaction ends.
pub async fn find(tx: &Tx, id: AgentId) -> Result<Option<AgentId>> {
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
async fn move_to(tx: &Tx, agent: &Locked, state: State) -> Result<()> {
    if agent.state == state {
        return Ok(());
    }
    let at = store::set_state(tx, agent.id, state).await?;
    let previous = agent.state.name();
    let data = json!({ "agent_id": agent.id, "state": state.name(), "previous_state": previous, "at": iso(at) });
    tx.emit(
        EventKind::AgentStateChanged,
        None,
        &data,
        vec![agent.owner.0],
    )
}

/// Buries what has outlived its grace: tokens and keys. An agent whose last key it was is `registered` again.
pub async fn retire(work: &UnitOfWork) -> Result<()> {
    while store::retire_tokens(work.db()).await? {}
    for agent in store::with_ended_keys(work.db()).await? {
        let retired = work.run("agents.retire_keys", async |tx| {
            let Some(locked) = store::lock(tx, agent).await? else {
                return Ok(());
            };
            let has_key = store::retire_keys(tx, agent).await?;
            match locked.state {
                State::Active if !has_key => move_to(tx, &locked, State::Registered).await,
                _ => Ok(()),
            }
        });
        retired.await?;
    }
    Ok(())
}

/// All agents of a user, deleted ones too.
pub async fn of_owner(db: &Db, owner: UserId) -> Result<Vec<AgentId>> {
    store::of_owner(db, owner).await
}

/// Seconds of a span, as statements take them.
fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
