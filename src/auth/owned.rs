//! The agent that a path names, called by its owner or by itself.

use axum::{
    extract::{FromRef, FromRequestParts, RawPathParams},
    http::request::Parts,
};

use super::{agent::AgentTokens, caller::Caller, jwt::AccessTokens, user::User};
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
    pub by: ActingAs,
}

/// Who acts for an agent.
#[derive(Clone, Copy, Debug)]
pub enum ActingAs {
    /// Itself, with this token.
    Itself(TokenId),
    /// Its owner, in this session.
    Owner(UserId, SessionId),
}

/// A principal and the agent that the path names, which need not have anything to do with each other.
#[derive(Clone, Debug)]
pub struct AgentView {
    /// Who asks.
    pub who: Caller,
    /// About whom.
    pub agent: AgentId,
}

impl AgentView {
    /// Charges the budget of calls that have no row of their own.
    pub async fn charge(&self, limiter: &Limiter) -> Result<()> {
        match &self.who {
            Caller::User(user) => limiter.check_route(Limit::DefaultUser, user.id).await,
            Caller::Agent(agent) => limiter.check_agent_route(agent.id).await,
        }
    }
}

impl NamedAgent {
    /// Charges the budget of calls that have no row of their own.
    pub async fn charge(&self, limiter: &Limiter) -> Result<()> {
        match self.by {
            ActingAs::Owner(user, _) => limiter.check_route(Limit::DefaultUser, user).await,
            ActingAs::Itself(_) => limiter.check_agent_route(self.id).await,
        }
    }
}

/// What is no agent's id names no agent.
async fn named<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<AgentId> {
    let path = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| Code::AgentNotRegistered)?;
    let named = path
        .iter()
        .find(|(name, _)| *name == "agent_id")
        .and_then(|(_, value)| value.parse().ok());
    named.ok_or_else(|| Code::AgentNotRegistered.into())
}

async fn must_own(db: &Db, owner: UserId, agent: AgentId) -> Result<()> {
    let client = db.read().await?;
    client
        .query_opt(
            "-- auth.owned_agent
            select 1 from agent where agent_id = $1 and owner_user_id = $2 and state <> 'deleted'",
            &[&agent, &owner],
        )
        .await?
        .ok_or(Code::AgentNotRegistered)?;
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
        Ok(OwnedAgent {
            owner: user.id,
            session: user.session,
            id,
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AgentView
where
    AccessTokens: FromRef<S>,
    AgentTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let who = Caller::from_request_parts(parts, state).await?;
        Ok(AgentView {
            who,
            agent: named(parts, state).await?,
        })
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
        let AgentView { who, agent } = AgentView::from_request_parts(parts, state).await?;
        match who {
            Caller::Agent(itself) => Ok(NamedAgent {
                id: itself.id,
                by: ActingAs::Itself(itself.token),
            }),
            Caller::User(user) => {
                must_own(&Db::from_ref(state), user.id, agent).await?;
                Ok(NamedAgent {
                    id: agent,
                    by: ActingAs::Owner(user.id, user.session),
                })
            }
        }
    }
}
