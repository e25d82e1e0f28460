//! `POST /conversations`.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use super::store;
use crate::{
    auth::user::User,
    backplane::Backplane,
    db::Db,
    error::{Code, Error, Result},
    http::{Data, Json},
    ids::{AgentId, ConversationId, EventId, RelationId, UserId},
    limits::{Limiter, table::Limit},
    random::Random,
};

/// With whom.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OpenConversation {
    /// An agent; makes the relation too.
    Agent { agent_id: AgentId },
    /// Another user.
    Direct { user_id: UserId },
}

/// `POST /conversations`: opens a conversation with an agent or another user.
///
/// Caller: user. Limit: `default_user`, 120/min. Body `{type:"agent", agent_id}` or `{type:"direct", user_id}`. Answers
/// 201 with the [`Conversation`](super::Conversation), or 200 with the one that the two have already. Tells both `relation.created` (agents)
/// and `conversation.created`. Errors: `AGENT_NOT_REGISTERED`, `NOT_FOUND`.
pub async fn open(
    user: User,
    limiter: Limiter,
    State(db): State<Db>,
    State(random): State<Random>,
    State(backplane): State<Backplane>,
    Json(body): Json<OpenConversation>,
) -> Result<Response> {
    limiter.take_here(Limit::DefaultUser, user.id).await?;
    let id = ConversationId::mint(&random);
    let ids = store::NewIds {
        conversation: id,
        relation: RelationId::mint(&random),
        events: [EventId::mint(&random), EventId::mint(&random)],
    };
    let tx = db.begin("conversations.open").await?;
    let opened = match body {
        OpenConversation::Direct { user_id } if user_id == user.id => {
            return Err(Error::field("user_id", "self", "a conversation needs two"));
        }
        OpenConversation::Direct { user_id } => store::open_direct(&tx, &ids, user.id, user_id).await?,
        OpenConversation::Agent { agent_id } => store::open_agent(&tx, &ids, user.id, agent_id).await?,
    };
    tx.commit().await?;
    opened.told.iter().for_each(|told| backplane.tell(told));
    let conversation = opened.conversation.ok_or(Code::NotFound)?;
    let status = if conversation.conversation_id == id { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Data(conversation)).into_response())
}
