//! A user or an agent, for routes that both may call.

use std::sync::Arc;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};
use futures_util::future::BoxFuture;

use super::Reverify;
use super::{
    agent::{self, Agent, AgentToken, AgentTokens},
    bearer,
    jwt::AccessTokens,
    revoked::RevokedCredentials,
    user::{self, User, UserToken},
};
use crate::{
    db::{Db, Tx},
    error::{Code, Error, Result},
    ids::Principal,
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
    /// Refuses a credential that has ended since it was verified, and locks it until the
    /// transaction ends. This lock comes before all others.
    pub async fn lock_live(&self, tx: &Tx) -> Result<()> {
        match self {
            Caller::User(user) => user::lock_live_session(tx, user.id, user.session).await,
            Caller::Agent(agent) => agent::lock_live_token(tx, agent.id, agent.token).await,
        }
    }

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
    token: CallerToken,
    db: Db,
    revoked: RevokedCredentials,
}

/// A genuine token of either kind. It may have been revoked since, so its holder must ask Postgres.
#[derive(Clone)]
pub enum CallerToken {
    /// The access token of a user.
    User(UserToken),
    /// The token of an agent.
    Agent(AgentToken),
}

impl CallerToken {
    /// The principal that the token names.
    pub fn principal(&self) -> Principal {
        match self {
            CallerToken::User(token) => Principal::User(token.user),
            CallerToken::Agent(token) => Principal::Agent(token.agent),
        }
    }

    /// Attaches the token to a request, so that its extractors need not read it again.
    pub fn attach(self, parts: &mut Parts) {
        match self {
            CallerToken::User(token) => drop(parts.extensions.insert(token)),
            CallerToken::Agent(token) => drop(parts.extensions.insert(token)),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallerToken
where
    AccessTokens: FromRef<S>,
    AgentTokens: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let token = bearer(&parts.headers).ok_or(Code::Unauthorized)?;
        if token.starts_with(agent::PREFIX) {
            let token = AgentToken::from_request_parts(parts, state).await?;
            Ok(CallerToken::Agent(token))
        } else {
            let token = UserToken::from_request_parts(parts, state).await?;
            Ok(CallerToken::User(token))
        }
    }
}

impl VerifiedCredential {
    /// Attaches the credential to a request.
    pub fn attach(self, parts: &mut Parts) {
        parts.extensions.insert::<Arc<dyn Reverify>>(Arc::new(self));
    }

    /// A user's session.
    pub fn user(token: UserToken, db: Db, revoked: RevokedCredentials) -> Self {
        VerifiedCredential {
            token: CallerToken::User(token),
            db,
            revoked,
        }
    }

    /// An agent's token.
    pub fn agent(token: AgentToken, db: Db, revoked: RevokedCredentials) -> Self {
        VerifiedCredential {
            token: CallerToken::Agent(token),
            db,
            revoked,
        }
    }
}

impl Reverify for VerifiedCredential {
    fn reverify(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            match &self.token {
                CallerToken::User(token) => {
                    token.check_live(&self.db, &self.revoked).await.map(drop)
                }
                CallerToken::Agent(token) => {
                    token.check_live(&self.db, &self.revoked).await.map(drop)
                }
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
        match CallerToken::from_request_parts(parts, state).await? {
            CallerToken::Agent(_) => Agent::from_request_parts(parts, state)
                .await
                .map(Caller::Agent),
            CallerToken::User(_) => User::from_request_parts(parts, state)
                .await
                .map(Caller::User),
        }
    }
}
