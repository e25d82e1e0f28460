use blindpipe_protocol::conversations::{ConversationKind, Encryption};

use crate::{
    error::{Code, Error, Result},
    features::relations,
    ids::{AgentId, ConversationId, RelationId, UserId},
    work::Tx,
};

/// A user whom an agent asks for something in a conversation.
pub struct AskedUser {
    pub user: UserId,
    /// Their active relation. It cannot end before the transaction does.
    pub relation: RelationId,
    /// The payloads that the conversation accepts.
    pub encryption: Encryption,
}

/// The user whom an agent asks: the other one of a pair, or the named member of a group. Errors:
/// `NOT_FOUND` for a conversation that is not the agent's, `RELATION_REQUIRED`.
pub async fn asked_user(
    tx: &Tx,
    id: ConversationId,
    agent: AgentId,
    named: Option<UserId>,
) -> Result<AskedUser> {
    // The end of a relation locks its conversations first, so this lock comes before the
    // relation's.
    let row = tx
        .query_opt(
            "-- conversations.of_asking_agent
            select c.kind, c.encryption, c.created_by from member m join conversation c using (conversation_id)
            where m.conversation_id = $1 and m.principal_id = $2
                and (c.kind = 'agent' or exists (select from active_member a
                                                 where a.conversation_id = $1 and a.principal_id = $2))
            for key share of c",
            &[&id, &agent],
        )
        .await?
        .ok_or(Code::NotFound)?;
    let user = match row.get("kind") {
        ConversationKind::Group => named
            .ok_or_else(|| Error::field("user_id", "required", "a group has more than one user"))?,
        // Only the user opens a conversation with an agent.
        _ => row.get("created_by"),
    };
    let is_other = named.is_some_and(|named| named != user);
    if is_other || !has_user(tx, id, user).await? {
        return Err(Code::RelationRequired.into());
    }
    let relation = relations::active(tx, user, agent).await?;
    Ok(AskedUser {
        user,
        relation: relation.ok_or(Code::RelationRequired)?,
        encryption: row.get("encryption"),
    })
}

async fn has_user(tx: &Tx, id: ConversationId, user: UserId) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- conversations.has_user
            select 1 from member where conversation_id = $1 and principal_id = $2 and principal_kind = 'user'",
            &[&id, &user],
        )
        .await?;
    Ok(row.is_some())
}
