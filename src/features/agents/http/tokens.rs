//! `POST /agents/{agent_id}/token/regenerate`, `DELETE /agents/{agent_id}/token`.

use axum::extract::State as Handle;
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::{Agents, State, move_to, store};
use crate::{
    auth::owned::OwnedAgent,
    clock::iso,
    error::{Error, Result},
    events::EventKind,
    http::{Data, Json},
    limits::{Limiter, table::Limit},
};

#[derive(Deserialize)]
pub struct Regenerate {
    emergency: bool,
}

/// A new token, which is never shown again.
#[derive(Serialize)]
pub struct Regenerated {
    token: String,
    emergency: bool,
    /// Until when the token that it replaces is good.
    previous_valid_until: Option<String>,
    remaining_today: u32,
}

/// `POST /agents/{agent_id}/token/regenerate`: replaces an agent's token.
///
/// Caller: its owner. Limit: `agent_token_regenerate`, 5/24 h per agent; what fails on our side costs nothing. Body `{emergency}`. Without emergency, the
/// current token and key are good for 7 days more and sockets stay; with it, all earlier tokens and keys are dead at
/// once, their sockets get `session.invalidated` (`token_regenerated`), and the agent is `registered`. Answers 200 with
/// [`Regenerated`]. Tells the owner `agent.token_regenerated`, and `agent.state_changed` if it has.
/// Errors: `AGENT_NOT_REGISTERED`.
pub async fn regenerate_token(
    agent: OwnedAgent,
    limiter: Limiter,
    Handle(agents): Handle<Agents>,
    Json(Regenerate { emergency }): Json<Regenerate>,
) -> Result<Data<Regenerated>> {
    let reservation = limiter
        .reserve(Limit::AgentTokenRegenerate, agent.id)
        .await?;
    let remaining_today = reservation.remaining();
    let regenerated = replace_token(&agents, &agent, emergency, remaining_today).await;
    if regenerated.as_ref().is_err_and(Error::is_ours) {
        // One of five a day: our overload must not cost it.
        limiter.refund(reservation).await;
    }
    regenerated.map(Data)
}

async fn replace_token(
    agents: &Agents,
    agent: &OwnedAgent,
    emergency: bool,
    remaining_today: u32,
) -> Result<Regenerated> {
    let (token, hash) = agents.generate().await?;
    let replaced = agents.work.run("agents.regenerate", async |tx| {
        let locked = store::lock_owned(tx, agent).await?;
        let previous_valid_until = if emergency {
            store::end_keys(tx, agent.id).await?;
            store::revoke_tokens(tx, agent.id, "token_regenerated").await?;
            None
        } else {
            store::end_current_key(tx, agent.id, "").await?;
            store::end_current_token(tx, agent.id).await?.map(iso)
        };
        store::add_token(tx, agent.id, &token.lookup, &hash).await?;
        let data = json!({ "agent_id": agent.id, "emergency": emergency, "previous_valid_until": previous_valid_until });
        tx.emit(EventKind::AgentTokenRegenerated, None, &data, vec![agent.owner.0])?;
        if emergency || locked.state == State::TokenRevoked {
            move_to(tx, &locked, State::Registered).await?;
        }
        Ok(previous_valid_until)
    });
    let previous_valid_until = replaced.await?;
    let token = token.token.expose_secret().to_owned();
    Ok(Regenerated {
        token,
        emergency,
        previous_valid_until,
        remaining_today,
    })
}

/// What was revoked.
#[derive(Serialize)]
pub struct RevokedToken {
    #[serde(serialize_with = "crate::clock::as_iso")]
    revoked_at: DateTime<Utc>,
    connections_closed: usize,
}

/// `DELETE /agents/{agent_id}/token`: an agent has no token any more, and no key.
///
/// Caller: its owner. Never limited. Sockets get `session.invalidated` (`token_revoked`); the agent is `token_revoked`
/// until a token is regenerated. Answers 200 with [`RevokedToken`], a second time with the same moment. Tells the owner
/// `agent.state_changed`. Errors: `AGENT_NOT_REGISTERED`.
pub async fn revoke_token(
    agent: OwnedAgent,
    Handle(agents): Handle<Agents>,
) -> Result<Data<RevokedToken>> {
    // Before the revocation closes them.
    let sockets = agents.count_sockets(agent.id).await;
    let revoked = agents.work.run("agents.revoke_token", async |tx| {
        let locked = store::lock_owned(tx, &agent).await?;
        let had_token = store::revoke_tokens(tx, agent.id, "token_revoked").await?;
        store::end_keys(tx, agent.id).await?;
        move_to(tx, &locked, State::TokenRevoked).await?;
        Ok(RevokedToken {
            revoked_at: store::revoked_at(tx, agent.id).await?,
            connections_closed: if had_token { sockets } else { 0 },
        })
    });
    revoked.await.map(Data)
}
