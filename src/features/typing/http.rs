//! `POST /agents/{agent_id}/typing`.

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Typing, TypingState};
use crate::{
    auth::agent::Agent,
    error::Result,
    http::{Data, Json},
    ids::{ConversationId, Principal},
    limits::{Limiter, table::Limit},
};

/// The body of a typing call.
#[derive(Deserialize)]
pub struct TypingBody {
    conversation_id: ConversationId,
    state: TypingState,
}

/// The answer to a typing call.
#[derive(Serialize)]
pub struct TypingStatus {
    conversation_id: ConversationId,
    state: TypingState,
    #[serde(serialize_with = "crate::clock::as_iso")]
    expires_at: DateTime<Utc>,
}

/// `POST /agents/{agent_id}/typing`: says that an agent writes, or has stopped to.
///
/// Caller: agent. Limit: `agent_typing`, 10/s per agent, shared with its `typing` frames. Body `{conversation_id,
/// state:"started|stopped"}`. Answers 200 with [`TypingStatus`]. Sends the members' sockets a `typing` frame; no event.
/// Errors: `NOT_FOUND`, `RELATION_REVOKED`.
pub async fn typing(
    agent: Agent,
    limiter: Limiter,
    State(typing): State<Typing>,
    Json(body): Json<TypingBody>,
) -> Result<Data<TypingStatus>> {
    limiter.check(Limit::AgentTyping, agent.id).await?;
    let TypingBody {
        conversation_id,
        state,
    } = body;
    let sender = Principal::Agent(agent.id);
    let expires_at = typing
        .publish(sender, None, conversation_id, state, None)
        .await?;
    Ok(Data(TypingStatus {
        conversation_id,
        state,
        expires_at,
    }))
}
