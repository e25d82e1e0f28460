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

use axum::extract::FromRef;
use secrecy::ExposeSecret;
use serde_json::json;
use uuid::Uuid;

pub use self::reachability::ReachabilityTracker;
use crate::{
    app::{App, Quotas},
    auth::{agent::NewToken, secret::Hasher},
    backplane::Backplane,
    clock::{Clock, iso},
    db::text_enum::text_enum,
    db::{Db, Tx},
    error::Result,
    events::EventKind,
    features::inbox::{self, Told},
    ids::{AgentId, EventId, UserId},
    limits::slots::{Kind, Slots},
    random::Random,
    vocabulary::RevocationReason,
};

/// What the handlers of this feature work with.
#[derive(Clone)]
pub struct Agents {
    db: Db,
    clock: Clock,
    random: Random,
    hasher: Hasher,
    slots: Slots,
    backplane: Backplane,
    reachability: ReachabilityTracker,
    quotas: Quotas,
}

impl FromRef<App> for Agents {
    fn from_ref(app: &App) -> Self {
        Agents {
            db: app.db.clone(),
            clock: app.clock.clone(),
            random: app.random.clone(),
            hasher: app.hasher.clone(),
            slots: app.slots.clone(),
            backplane: app.backplane.clone(),
            reachability: app.reachability.clone(),
            quotas: app.quotas,
        }
    }
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
    async fn close(&self, agent: AgentId, dead: Vec<Uuid>, reason: RevocationReason) -> usize {
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

text_enum! {
    /// What an agent is. Whether it is online is not a state.
    State {
        /// It has no key yet.
        Registered = "registered",
        Active = "active",
        /// Its webhook failed too often; an ack of any kind brings it back.
        Unreachable = "unreachable",
        TokenRevoked = "token_revoked",
        /// Kept for those who talked with it; answers as if it were not there.
        Deleted = "deleted",
    }
}

text_enum! {
    /// How an agent gets its events.
    DeliveryMode {
        /// It reads its inbox by socket or poll.
        Pull = "pull",
        /// It is called.
        Webhook = "webhook",
    }
}

/// Moves an agent to another state and tells its owner; nothing if it is there already.
async fn move_to(tx: &Tx, random: &Random, agent: &Locked, state: State) -> Result<Option<Told>> {
    if agent.state == state {
        return Ok(None);
    }
    let at = store::set_state(tx, agent.id, state).await?;
    let previous = agent.state;
    let data =
        json!({ "agent_id": agent.id, "state": state, "previous_state": previous, "at": iso(at) });
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
