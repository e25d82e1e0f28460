//! The agent that a path names, called by its owner or by itself.

use axum::{
    extract::{FromRef, FromRequestParts, RawPathParams},
    http::request::Parts,
};

use super::{agent::AgentTokens, jwt::AccessTokens, someone::Someone, user::User};
use crate::{
    db::Db,
    error::{Code, Error, Result},
    ids::{AgentId, SessionId, TokenId, UserId},
    limits::{Limiter, table::Limit},
};

/// A user and an agent of theirs. An agent of someone else is refused like one that does not exist.
#[derive(Clone, Debug)]
pub struct OwnedAgent {
    /// The owner.
    pub owner: UserId,
    /// The owner's session.
    pub session: SessionId,
    /// The agent.
    pub id: AgentId,
}

/// An agent, called by itself or by its owner.
#[derive(Clone, Copy, Debug)]
pub struct NamedAgent {
    /// The agent.
    pub id: AgentId,
    /// Who calls.
    pub by: By,
}

/// Who acts for an agent.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// Itself, with this token.
    Itself(TokenId),
    /// Its owner, in this session.
    Owner(UserId, SessionId),
}

/// A principal and the agent that the path names, which need not have anything to do with each other.
#[derive(Clone, Debug)]
pub struct About {
    /// Who asks.
    pub who: Someone,
    /// About whom.
    pub agent: AgentId,
}

impl About {
    /// Charges the budget of calls that have no row of their own.
    pub async fn charge(&self, limiter: &Limiter) -> Result<()> {
        match &self.who {
            Someone::User(user) => limiter.take_here(Limit::DefaultUser, user.id).await,
            Someone::Agent(agent) => limiter.take_as_agent(agent.id).await,
        }
    }
}

impl NamedAgent {
    /// Charges the budget of calls that have no row of their own.
    pub async fn charge(&self, limiter: &Limiter) -> Result<()> {
        match self.by {
            By::Owner(user, _) => limiter.take_here(Limit::DefaultUser, user).await,
            By::Itself(_) => limiter.take_as_agent(self.id).await,
        }
    }
}

/// What is no agent's id names no agent.
async fn named<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<AgentId> {
    let path = RawPathParams::from_request_parts(parts, state).await.map_err(|_| Code::AgentNotRegistered)?;
    let named = path.iter().find(|(name, _)| *name == "agent_id").and_then(|(_, value)| value.parse().ok());
    named.ok_or_else(|| Code::AgentNotRegistered.into())
}

async fn must_own(db: &Db, owner: UserId, agent: AgentId) -> Result<()> {
    let client = db.read().await?;
    let stmt = client
        .prepare_cached(
            "-- auth.owned_agent
            select 1 from agent where agent_id = $1 and owner_user_id = $2 and state <> 'deleted'",
        )
        .await?;
    client.query_opt(&stmt, &[&agent, &owner]).await?.ok_or(Code::AgentNotRegistered)?;
    Ok(())
}

impl<S: Send + Sync> FromRequestParts<S> for OwnedAgent
where
    AccessTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let user = User::from_request_parts(parts, state).await?;
        let id = named(parts, state).await?;
        must_own(&Db::from_ref(state), user.id, id).await?;
        Ok(OwnedAgent { owner: user.id, session: user.session, id })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for About
where
    AccessTokens: FromRef<S>,
    AgentTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let who = Someone::from_request_parts(parts, state).await?;
        Ok(About { who, agent: named(parts, state).await? })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NamedAgent
where
    AccessTokens: FromRef<S>,
    AgentTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let About { who, agent } = About::from_request_parts(parts, state).await?;
        match who {
            Someone::Agent(itself) => Ok(NamedAgent { id: itself.id, by: By::Itself(itself.token) }),
            Someone::User(user) => {
                must_own(&Db::from_ref(state), user.id, agent).await?;
                Ok(NamedAgent { id: agent, by: By::Owner(user.id, user.session) })
            }
        }
    }
}
