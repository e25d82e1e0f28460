//! A user or an agent, for routes that both may call.

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};

use super::{
    agent::{self, Agent, AgentClaim, AgentTokens},
    bearer,
    dead::Dead,
    jwt::AccessTokens,
    user::{User, UserClaim},
};
use crate::{
    db::Db,
    error::{Code, Error, Result},
    ids::Principal,
};

/// Either principal, proven. Where the path names an agent, an agent's token must be that one's; what a user may do
/// with it is for the handler to say.
#[derive(Clone, Debug)]
pub enum Someone {
    /// A user whose session lives.
    User(User),
    /// An agent whose token counts.
    Agent(Agent),
}

impl Someone {
    /// Who it is.
    pub fn principal(&self) -> Principal {
        match self {
            Someone::User(user) => Principal::User(user.id),
            Someone::Agent(agent) => Principal::Agent(agent.id),
        }
    }
}

/// By what a caller was proven. Left with a request by the extractors that prove: whoever waits for the rest of the
/// request asks again afterwards, or a caller that was revoked meanwhile would be heard to the end.
#[derive(Clone)]
pub struct Proven {
    claim: Claim,
    db: Db,
    dead: Dead,
}

#[derive(Clone)]
enum Claim {
    User(UserClaim),
    Agent(AgentClaim),
}

impl Proven {
    /// By a session.
    pub fn user(claim: UserClaim, db: Db, dead: Dead) -> Self {
        Proven { claim: Claim::User(claim), db, dead }
    }

    /// By an agent's token.
    pub fn agent(claim: AgentClaim, db: Db, dead: Dead) -> Self {
        Proven { claim: Claim::Agent(claim), db, dead }
    }

    /// Asks Postgres once more.
    pub async fn again(&self) -> Result<()> {
        match &self.claim {
            Claim::User(claim) => claim.prove(&self.db, &self.dead).await.map(drop),
            Claim::Agent(claim) => claim.prove(&self.db, &self.dead).await.map(drop),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Someone
where
    AccessTokens: FromRef<S>,
    AgentTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let token = bearer(&parts.headers).ok_or(Code::Unauthorized)?;
        if token.starts_with(agent::PREFIX) {
            Agent::from_request_parts(parts, state).await.map(Someone::Agent)
        } else {
            User::from_request_parts(parts, state).await.map(Someone::User)
        }
    }
}
