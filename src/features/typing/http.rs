//! `POST /agents/{agent_id}/typing`.

use axum::extract::State;
use blindpipe_protocol::typing::{SetTyping, TypingAnswer};

use super::Typing;
use crate::{
    auth::agent::Agent,
    error::Result,
    http::{Data, Json},
    ids::Principal,
};

/// `POST /agents/{agent_id}/typing`: announces that an agent writes or has stopped.
///
/// Caller: agent. Limit: `agent_typing`, 10/s per agent, shared with its `typing` frames. Body
/// `{conversation_id, state:"started|stopped"}`. Answers 200 with [`TypingAnswer`]. Errors:
/// `NOT_FOUND`, `RELATION_REVOKED`. Publishes a `typing` frame to the members' sockets; no event.
pub async fn typing(
    agent: Agent,
    State(typing): State<Typing>,
    Json(body): Json<SetTyping>,
) -> Result<Data<TypingAnswer>> {
    let SetTyping {
        conversation_id,
        state,
    } = body;
    let sender = Principal::Agent(agent.id);
    let expires_at = typing
        .publish_state(sender, None, conversation_id, state, None)
        .await?;
    Ok(Data(TypingAnswer {
        conversation_id,
        state,
        expires_at: expires_at.into(),
    }))
}
