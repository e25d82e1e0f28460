//! Agents: their identity, tokens, keys, manifest and state.
//!
//! Promises: a user never has more agents than allowed, however many requests race. A token is
//! shown once. Revoked, replaced (in an emergency) or deleted credentials stop working before the
//! answer. The owner gets an event for every change of state.

pub(crate) mod http;
mod manifest;
mod proof;
mod reachability;
mod store;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use blindpipe_protocol::{agents::AgentStateChange, revocation::RevocationReason, time::Timestamp};
use secrecy::ExposeSecret;

use self::manifest::Manifest;
pub use self::{
    reachability::ReachabilityTracker,
    store::{
        end_all, end_works_of, lock, lock_named, mark_revoked, mark_webhooks_revoked,
        set_delivery_mode, suspend_webhooks,
    },
};
pub use blindpipe_protocol::agents::{AgentState, DeliveryMode, Sensitivity};

use crate::{
    auth::{agent::NewToken, secret::Hasher, usage::WriteUses, user::User},
    clock::Clock,
    db::Db,
    error::Result,
    events::Event,
    ids::{AgentId, TokenId, UserId},
    jobs::Job,
    limits::slots::{ConnectionKind, Slots},
    work::{Tx, UnitOfWork},
};

/// The state of the handlers of this feature.
#[derive(Clone)]
pub struct Agents {
    pub work: UnitOfWork,
    pub clock: Clock,
    pub hasher: Hasher,
    pub slots: Slots,
    pub reachability: ReachabilityTracker,
    pub quotas: Quotas,
}

/// Quotas that the operator sets.
#[derive(Clone, Copy)]
pub struct Quotas {
    /// The most agents of a user.
    pub agents_per_user: u32,
}

impl Agents {
    /// Generates a token with its stored form.
    async fn generate(&self) -> Result<(NewToken, String)> {
        let token = NewToken::generate(self.work.random());
        let hash = self
            .hasher
            .hash_token(token.token.expose_secret().to_owned())
            .await?;
        Ok((token, hash))
    }

    /// The number of an agent's sockets on all nodes.
    async fn count_sockets(&self, agent: AgentId) -> usize {
        let connections = self.slots.connections(&[agent.into()]).await.concat();
        connections
            .iter()
            .filter(|connection| connection.kind == ConnectionKind::Websocket)
            .count()
    }
}

/// Finds the agent if it exists. Nothing deletes it before the transaction ends.
pub async fn find(tx: &Tx, id: AgentId) -> Result<Option<AgentId>> {
    store::find(tx, id).await
}

/// An agent that an operator makes for its owner.
pub struct MadeAgent<'a> {
    pub id: AgentId,
    pub display_name: &'a str,
    pub token: &'a NewToken,
    /// The stored form of the token.
    pub hash: &'a str,
}

/// Makes an agent with its token. No mail tells the owner.
pub async fn make(tx: &Tx, owner: &User, made: &MadeAgent<'_>) -> Result<()> {
    let new = store::NewAgent {
        id: made.id,
        owner: owner.id,
        display_name: made.display_name,
        description: None,
        manifest: None,
    };
    store::reserve(tx, &new, owner.session, 1).await?;
    store::add_token(tx, made.id, (&made.token.lookup, made.hash), owner.session).await?;
    store::open(tx, made.id).await?;
    Ok(())
}

/// The present declarations of an agent's manifest.
#[derive(Default)]
pub struct Declarations {
    pub scopes: BTreeMap<String, Sensitivity>,
    /// The tools, each with the scope that its entry names.
    pub tools: BTreeMap<String, Option<String>>,
}

/// The scopes and tools that the agent's manifest declares now.
pub async fn declared(tx: &Tx, agent: AgentId) -> Result<Declarations> {
    let (Some(text), _) = store::manifest(tx, agent).await? else {
        return Ok(Declarations::default());
    };
    Ok(Declarations {
        scopes: Manifest::scopes_of(&text)?,
        tools: Manifest::tools_of(&text)?,
    })
}

/// An agent's row, locked to the end of the transaction.
pub struct LockedAgent {
    id: AgentId,
    owner: UserId,
    state: AgentState,
}

/// Moves an agent to another state and notifies its owner. Does nothing if the agent is there
/// already.
async fn move_to(tx: &Tx, agent: &LockedAgent, state: AgentState) -> Result<()> {
    if agent.state == state {
        return Ok(());
    }
    let at = store::set_state(tx, agent.id, state).await?;
    let previous = agent.state;
    let event = Event::AgentStateChanged(AgentStateChange {
        agent_id: agent.id,
        state,
        previous_state: previous,
        at: Timestamp(at),
    });
    tx.emit(event, None, vec![agent.owner.into()])
}

/// Marks the agent unreachable and notifies its owner, if its webhook failed too often. The
/// agent's events stay in its inbox. Without a token the agent could never ack, so its webhook is
/// suspended instead.
pub async fn mark_unreachable(tx: &Tx, agent: &LockedAgent) -> Result<()> {
    if agent.state == AgentState::TokenRevoked {
        return suspend_webhooks(tx, &[agent.id], RevocationReason::TokenRevoked).await;
    }
    move_to(tx, agent, AgentState::Unreachable).await
}

/// Makes an unreachable agent active and notifies its owner. Deliveries go on at once.
pub async fn mark_reachable(tx: &Tx, agent: &LockedAgent) -> Result<()> {
    if agent.state != AgentState::Unreachable {
        return Ok(());
    }
    store::resume_webhook(tx, agent.id).await?;
    move_to(tx, agent, AgentState::Active).await
}

/// Marks tokens and keys revoked after their grace. An agent that loses its last key is
/// `registered` again.
pub async fn retire(work: &UnitOfWork) -> Result<()> {
    while store::retire_tokens(work.db()).await? {}
    let mut after = None;
    loop {
        let ended = store::with_ended_keys(work.db(), after).await?;
        for (_, agent) in &ended {
            if let Err(error) = retire_keys(work, *agent).await {
                error.log_in("agents.retire_keys", "the next round tries it again");
            }
        }
        after = ended.last().copied();
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Tells agents and owners of keys whose grace ends within three days, and again within a day.
pub async fn publish_ending_keys(work: &UnitOfWork) -> Result<()> {
    let mut is_more = true;
    while is_more {
        let published = work.run("agents.tell_ending_keys", store::publish_ending_keys);
        is_more = published.await?;
    }
    Ok(())
}

async fn retire_keys(work: &UnitOfWork, agent: AgentId) -> Result<()> {
    let retired = work.run("agents.retire_keys", async |tx| {
        let Some(locked) = store::lock(tx, agent).await? else {
            return Ok(());
        };
        let has_key = store::retire_keys(tx, agent).await?;
        match locked.state {
            AgentState::Active if !has_key => move_to(tx, &locked, AgentState::Registered).await,
            _ => Ok(()),
        }
    });
    retired.await
}

/// Deletes an agent. Its tokens, keys and webhook are dead with the commit; within seconds its
/// relations end and it leaves its groups. True if it had a token.
pub async fn delete(tx: &Tx, agent: &LockedAgent) -> Result<bool> {
    let reason = RevocationReason::TokenRevoked;
    let had_token = store::revoke_tokens(tx, agent.id, reason).await?;
    store::end_keys(tx, agent.id).await?;
    suspend_webhooks(tx, &[agent.id], reason).await?;
    move_to(tx, agent, AgentState::Deleted).await?;
    tx.enqueue(Job::EraseAgent {
        agent: agent.id,
        owner: agent.owner,
    });
    Ok(had_token)
}

/// Revokes one token of a locked agent and suspends its webhook, which the token may have set. The
/// agent settles within seconds. False if the token was over.
pub async fn revoke_token(tx: &Tx, token: TokenId, agent: AgentId) -> Result<bool> {
    let reason = RevocationReason::TokenRevoked;
    if !store::revoke_token(tx, token, reason).await? {
        return Ok(false);
    }
    suspend_webhooks(tx, &[agent], reason).await?;
    tx.enqueue(Job::SettleAgentTokens { agent });
    Ok(true)
}

/// Settles an agent that lost a token with a stolen session. The token that the thief had replaced
/// counts again. Without one, the agent is `token_revoked`.
pub async fn settle_tokens(work: &UnitOfWork, agent: AgentId) -> Result<()> {
    let settled = work.run("agents.settle_tokens", async |tx| {
        let Some(locked) = store::lock(tx, agent).await? else {
            return Ok(());
        };
        if store::restore_token(tx, agent).await? {
            return Ok(());
        }
        store::end_keys(tx, agent).await?;
        move_to(tx, &locked, AgentState::TokenRevoked).await
    });
    settled.await
}

/// The writer of the times at which tokens were last used.
pub fn writing_uses(db: Db) -> WriteUses {
    Arc::new(move |tokens| {
        let db = db.clone();
        Box::pin(async move { store::note_uses(&db, &tokens).await })
    })
}

/// All agents of a user, including deleted ones.
pub async fn of_owner(db: &Db, owner: UserId) -> Result<Vec<AgentId>> {
    store::of_owner(db, owner).await
}

/// A duration in seconds, as SQL parameters need it.
fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
