//! `POST /agents/{agent_id}/token/regenerate`, `DELETE /agents/{agent_id}/token`.

use axum::{
    extract::{FromRef, FromRequestParts, State as Handle},
    http::request::Parts,
};
use blindpipe_protocol::{
    agents::{RegenerateToken, RegeneratedToken, RevokedToken, TokenRegeneration},
    revocation::RevocationReason,
    time::Timestamp,
};
use secrecy::ExposeSecret;

use super::super::{AgentState, Agents, move_to, store};
use crate::{
    auth::{jwt::AccessTokens, owned::OwnedAgent, user::UserToken},
    error::{Error, Result},
    events::Event,
    features::accounts::{self, SecurityChange},
    http::{Data, Json},
    limits::{Limiter, Limits, Reservation, table::Limit},
};

/// `POST /agents/{agent_id}/token/regenerate`: replaces an agent's token.
///
/// Caller: its owner. Limit: `agent_token_regenerate`, 5/24 h per agent; a failure of the server is
/// refunded. Body `{emergency}`. Without emergency, the current token and key stay valid for 7 days
/// and sockets stay. With it, all earlier tokens and keys are revoked at once and the agent is
/// `registered`. Their sockets get `session.invalidated` (`token_regenerated`). Answers 200 with
/// [`RegeneratedToken`]. Publishes `agent.token_regenerated` to the owner, and
/// `agent.state_changed` if it has. Errors: `AGENT_NOT_REGISTERED`.
pub async fn regenerate_token(
    agent: OwnedAgent,
    limiter: Limiter,
    Handle(agents): Handle<Agents>,
    Json(RegenerateToken { emergency }): Json<RegenerateToken>,
) -> Result<Data<RegeneratedToken>> {
    let reservation = limiter
        .reserve(Limit::AgentTokenRegenerate, agent.id)
        .await?;
    let remaining_today = reservation.remaining();
    let regenerated = replace_token(&agents, &agent, emergency, remaining_today).await;
    if regenerated.as_ref().is_err_and(Error::is_ours) {
        // An agent has five a day. An overload of the server must not cost one.
        limiter.refund(reservation).await;
    }
    regenerated.map(Data)
}

async fn replace_token(
    agents: &Agents,
    agent: &OwnedAgent,
    emergency: bool,
    remaining_today: u32,
) -> Result<RegeneratedToken> {
    let (token, hash) = agents.generate().await?;
    let replaced = agents.work.run("agents.regenerate", async |tx| {
        let locked = store::lock_owned(tx, agent).await?;
        let previous_valid_until = if emergency {
            store::end_keys(tx, agent.id).await?;
            store::revoke_tokens(tx, agent.id, RevocationReason::TokenRegenerated).await?;
            store::suspend_webhooks(tx, &[agent.id], RevocationReason::TokenRegenerated).await?;
            None
        } else {
            store::end_current_key(tx, agent.id, "").await?;
            store::end_current_token(tx, agent.id).await?.map(Timestamp)
        };
        store::add_token(tx, agent.id, (&token.lookup, &hash), agent.session).await?;
        let event = Event::AgentTokenRegenerated(TokenRegeneration {
            agent_id: agent.id,
            emergency,
            previous_valid_until,
        });
        tx.emit(event, None, vec![agent.owner.into()])?;
        if emergency || locked.state == AgentState::TokenRevoked {
            move_to(tx, &locked, AgentState::Registered).await?;
        }
        accounts::notify(tx, agent.owner, SecurityChange::TokenRegenerated).await?;
        Ok(previous_valid_until)
    });
    let previous_valid_until = replaced.await?;
    let token = token.token.expose_secret().into();
    Ok(RegeneratedToken {
        token,
        emergency,
        previous_valid_until,
        remaining_today,
    })
}

/// `DELETE /agents/{agent_id}/token`: revokes all tokens and keys of an agent.
///
/// Caller: its owner, who is never limited. Limit: `agent_token_revoke`, 300/min per session, for
/// calls that revoke nothing. Sockets get `session.invalidated` (`token_revoked`). The agent
/// is `token_revoked` until a token is regenerated. Answers 200 with [`RevokedToken`]; a repeat has
/// the first time stamp. Publishes `agent.state_changed` to the owner. Errors:
/// `AGENT_NOT_REGISTERED`.
pub async fn revoke_token(
    attempt: RevocationAttempt,
    agent: OwnedAgent,
    Handle(agents): Handle<Agents>,
) -> Result<Data<RevokedToken>> {
    // The count comes before the revocation closes them.
    let sockets = agents.count_sockets(agent.id).await;
    let revoked = agents.work.run("agents.revoke_token", async |tx| {
        let locked = store::lock_owned(tx, &agent).await?;
        let had_token = store::revoke_tokens(tx, agent.id, RevocationReason::TokenRevoked).await?;
        store::end_keys(tx, agent.id).await?;
        store::suspend_webhooks(tx, &[agent.id], RevocationReason::TokenRevoked).await?;
        move_to(tx, &locked, AgentState::TokenRevoked).await?;
        Ok(RevokedToken {
            revoked_at: store::revoked_at(tx, agent.id).await?.into(),
            connections_closed: if had_token { sockets } else { 0 },
        })
    });
    let revoked = revoked.await?;
    attempt.limiter.refund(attempt.reservation).await;
    Ok(Data(revoked))
}

/// A call that may name an agent of others. It is charged before Postgres is asked for its caller,
/// and given back if it revokes something. A thief's session has a budget of its own.
pub struct RevocationAttempt {
    limiter: Limiter,
    reservation: Reservation,
}

impl<S: Send + Sync> FromRequestParts<S> for RevocationAttempt
where
    AccessTokens: FromRef<S>,
    Limits: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let token = UserToken::from_request_parts(parts, state).await?;
        let limiter = Limiter::from_request_parts(parts, state).await?;
        let limit = Limit::AgentTokenRevoke;
        let reservation = limiter.reserve(limit, token.session).await?;
        Ok(RevocationAttempt {
            limiter,
            reservation,
        })
    }
}
