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
};

/// A user and the agent that the user owns. An agent of another owner is refused like an unknown
/// one.
#[derive(Clone, Debug)]
pub struct OwnedAgent {
    pub owner: UserId,
    /// The owner's session.
    pub session: SessionId,
    pub id: AgentId,
}

/// An agent, called by itself or by its owner.
#[derive(Clone, Copy, Debug)]
pub struct NamedAgent {
    pub id: AgentId,
    /// The principal that acts for the agent.
    pub by: ActingAs,
}

/// The principal that acts for an agent.
#[derive(Clone, Copy, Debug)]
pub enum ActingAs {
    /// The agent itself, with this token.
    Itself(TokenId),
    /// The owner, in this session.
    Owner(UserId, SessionId),
}

/// A caller and the agent that the path names. The two need not be related.
#[derive(Clone, Debug)]
pub struct AgentView {
    /// The caller.
    pub who: Caller,
    /// The agent that the path names.
    pub agent: AgentId,
}

/// A text that is no agent's id names no agent.
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

impl ActingAs {
    /// The owner's session; none if the agent acts for itself.
    pub fn session(self) -> Option<SessionId> {
        match self {
            ActingAs::Itself(_) => None,
            ActingAs::Owner(_, session) => Some(session),
        }
    }
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
