//! Grants: an agent asks a user for permission scopes in a conversation, and the user decides.
//!
//! Promises: an agent asks only for scopes of its manifest and only a user with an active relation.
//! The first decision counts, whatever devices decide at once. A revoked grant allows nothing from
//! its commit on. It denies the tool calls that no device has answered. The end of a relation, and
//! the removal of the user or the agent from the conversation, end grants too.

pub(crate) mod http;
mod rules;
mod store;

pub(crate) use self::store::purge;
use crate::{
    error::Result,
    ids::{ConversationId, PrincipalId, RelationId},
    work::UnitOfWork,
};

/// Ends the grants of a relation that has ended.
pub(crate) async fn end_of_relation(work: &UnitOfWork, relation: RelationId) -> Result<()> {
    while work
        .run("grants.end_of_relation", async |tx| {
            store::end_of_relation(tx, relation).await
        })
        .await?
    {}
    Ok(())
}

/// Ends the grants in a conversation of a user or an agent that was removed from it.
pub(crate) async fn end_of_member(
    work: &UnitOfWork,
    conversation: ConversationId,
    principal: PrincipalId,
) -> Result<()> {
    while work
        .run("grants.end_of_member", async |tx| {
            store::end_of_member(tx, conversation, principal).await
        })
        .await?
    {}
    Ok(())
}
