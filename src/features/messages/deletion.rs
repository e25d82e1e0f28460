//! `DELETE /conversations/{conversation_id}/messages/{message_id}`, `DELETE
//! /agents/{agent_id}/conversations/{conversation_id}/messages/{message_id}`.

use axum::extract::State;
use blindpipe_protocol::messages::MessageDeletion;

use super::store;
use crate::{
    auth::{
        agent::{Agent, lock_live_token},
        user::{User, lock_live_session},
    },
    error::Result,
    http::{Data, Path},
    ids::{AgentId, ConversationId, MessageId, Principal},
    work::UnitOfWork,
};

/// `DELETE /conversations/{conversation_id}/messages/{message_id}`: deletes a message. Its payload
/// becomes null everywhere, its search tokens go, and its number stays.
///
/// Caller: its author, or an owner or admin of the group. Answers 200 with the [`MessageDeletion`],
/// and the same for a message that is deleted already. Publishes `message.deleted` to the members
/// that can see the message. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn by_user(
    user: User,
    State(work): State<UnitOfWork>,
    Path((conversation, message)): Path<(ConversationId, MessageId)>,
) -> Result<Data<MessageDeletion>> {
    let deleted = work.run("messages.delete", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        store::delete(tx, conversation, message, Principal::User(user.id)).await
    });
    Ok(Data(deleted.await?))
}

/// `DELETE /agents/{agent_id}/conversations/{conversation_id}/messages/{message_id}`: deletes a
/// message of the agent's own. The rest is as for users.
///
/// Caller: agent who is a member by an active relation.
pub async fn by_agent(
    agent: Agent,
    State(work): State<UnitOfWork>,
    Path((_, conversation, message)): Path<(AgentId, ConversationId, MessageId)>,
) -> Result<Data<MessageDeletion>> {
    let deleted = work.run("messages.delete_as_agent", async |tx| {
        lock_live_token(tx, agent.id, agent.token).await?;
        store::delete(tx, conversation, message, Principal::Agent(agent.id)).await
    });
    Ok(Data(deleted.await?))
}
