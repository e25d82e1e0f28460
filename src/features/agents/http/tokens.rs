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
    features::inbox,
    http::{Data, Json},
    ids::{EventId, TokenId},
    limits::{Limiter, table::Limit},
    vocabulary::RevocationReason,
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
    let charge = limiter
        .charge(Limit::AgentTokenRegenerate, agent.id)
        .await?;
    let remaining_today = charge.left();
    let regenerated = replace_token(&agents, &agent, emergency, remaining_today).await;
    if regenerated.as_ref().is_err_and(Error::is_ours) {
        // One of five a day: our overload must not cost it.
        limiter.refund(charge).await;
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
    let tx = agents.db.begin("agents.regenerate").await?;
    let locked = store::lock_owned(&tx, agent).await?;
    let (dead, previous_valid_until) = if emergency {
        store::end_keys(&tx, agent.id).await?;
        (
            store::revoke_tokens(&tx, agent.id, RevocationReason::TokenRegenerated).await?,
            None,
        )
    } else {
        store::end_current_key(&tx, agent.id, "").await?;
        (Vec::new(), store::end_current_token(&tx, agent.id).await?)
    };
    store::add_token(
        &tx,
        agent.id,
        TokenId::generate(&agents.random),
        &token.lookup,
        &hash,
    )
    .await?;
    let previous_valid_until = previous_valid_until.map(iso);
    let data = json!({ "agent_id": agent.id, "emergency": emergency, "previous_valid_until": previous_valid_until });
    let id = EventId::generate(&agents.random);
    let kind = EventKind::AgentTokenRegenerated;
    let mut told =
        vec![inbox::append(&tx, id, kind, None, &data.to_string(), &[agent.owner.0]).await?];
    if emergency || locked.state == State::TokenRevoked {
        told.extend(move_to(&tx, &agents.random, &locked, State::Registered).await?);
    }
    tx.commit().await?;

    agents.tell(told);
    agents
        .close(agent.id, dead, RevocationReason::TokenRegenerated)
        .await;
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
    let tx = agents.db.begin("agents.revoke_token").await?;
    let locked = store::lock_owned(&tx, &agent).await?;
    let dead = store::revoke_tokens(&tx, agent.id, RevocationReason::TokenRevoked).await?;
    store::end_keys(&tx, agent.id).await?;
    let told = move_to(&tx, &agents.random, &locked, State::TokenRevoked).await?;
    let revoked_at = store::revoked_at(&tx, agent.id).await?;
    tx.commit().await?;
    agents.tell(told);
    let connections_closed = agents
        .close(agent.id, dead, RevocationReason::TokenRevoked)
        .await;
    Ok(Data(RevokedToken {
        revoked_at,
        connections_closed,
    }))
}
