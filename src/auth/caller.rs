//! A user or an agent, for routes that both may call.

use std::sync::Arc;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};
use futures_util::future::BoxFuture;

use super::{
    agent::{self, Agent, AgentToken, AgentTokens},
    bearer,
    jwt::AccessTokens,
    revoked::RevokedCredentials,
    user::{User, UserToken},
};
use crate::{
    db::Db,
    error::{Code, Error, Result},
    ids::Principal,
    validation::Reverify,
};

/// A verified principal of either kind. The guard of a route attaches it to the request, so
/// extractors need not verify it again. Where the path names an agent, an agent's token must belong
/// to it. The handler decides what a user may do with that agent.
#[derive(Clone, Debug)]
pub enum Caller {
    /// A user whose session is live.
    User(User),
    /// An agent whose token is valid.
    Agent(Agent),
}

impl Caller {
    /// The caller as a principal.
    pub fn principal(&self) -> Principal {
        match self {
            Caller::User(user) => Principal::User(user.id),
            Caller::Agent(agent) => Principal::Agent(agent.id),
        }
    }
}

/// The credential of a verified caller, for a second check ([`Reverify`]).
#[derive(Clone)]
pub struct VerifiedCredential {
    claim: CallerToken,
    db: Db,
    revoked: RevokedCredentials,
}

#[derive(Clone)]
enum CallerToken {
    User(UserToken),
    Agent(AgentToken),
}

impl VerifiedCredential {
    /// Attaches the credential to a request.
    pub fn attach(self, parts: &mut Parts) {
        parts.extensions.insert::<Arc<dyn Reverify>>(Arc::new(self));
    }

    /// A user's session.
    pub fn user(claim: UserToken, db: Db, revoked: RevokedCredentials) -> Self {
        VerifiedCredential {
            claim: CallerToken::User(claim),
            db,
            revoked,
        }
    }

    /// An agent's token.
    pub fn agent(claim: AgentToken, db: Db, revoked: RevokedCredentials) -> Self {
        VerifiedCredential {
            claim: CallerToken::Agent(claim),
            db,
            revoked,
        }
    }
}

impl Reverify for VerifiedCredential {
    fn reverify(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            match &self.claim {
                CallerToken::User(claim) => claim.verify(&self.db, &self.revoked).await.map(drop),
                CallerToken::Agent(claim) => claim.verify(&self.db, &self.revoked).await.map(drop),
            }
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller
where
    AccessTokens: FromRef<S>,
    AgentTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let token = bearer(&parts.headers).ok_or(Code::Unauthorized)?;
        if token.starts_with(agent::PREFIX) {
            Agent::from_request_parts(parts, state)
                .await
                .map(Caller::Agent)
        } else {
            User::from_request_parts(parts, state)
                .await
                .map(Caller::User)
        }
    }
}
