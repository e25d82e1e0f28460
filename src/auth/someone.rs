//! A user or an agent, for routes that both may call.

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};

use super::{
    agent::{self, Agent, AgentTokens},
    bearer,
    jwt::AccessTokens,
    user::User,
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
