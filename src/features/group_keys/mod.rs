//! The shared keys of a conversation's members. A user rotates a key by wrapping the new one for
//! everybody's devices.
//!
//! Promises: epochs rise by one, however many rotations race. A rotation covers exactly the devices
//! of the members at that moment. Nobody gets a key that was wrapped for another. A key that a
//! revoked device holds must be replaced.
//!
//! `store.rs` has the rotations, the keys and the requests for other keys. `rules.rs` compares a
//! rotation with its required recipients. `holders.rs` shows the members' public keys.

mod holders;
pub(crate) mod http;
mod rules;
mod store;

use crate::{
    error::Result,
    ids::{AgentId, ConversationId, UserId},
    work::UnitOfWork,
};

/// Requires other keys in conversations whose current key a revoked device holds. Each conversation
/// has its own transaction, because there may be thousands.
pub async fn replace_held(work: &UnitOfWork, user: UserId, device: &str) -> Result<()> {
    let mut after = ConversationId::NIL;
    while let Some(next) = work
        .run("group_keys.replace_next", async |tx| {
            store::replace_next(tx, user, device, after).await
        })
        .await?
    {
        after = next;
    }
    Ok(())
}

/// Requires other keys in conversations whose current key was not wrapped for an agent's current
/// one.
pub async fn replace_for_agent(work: &UnitOfWork, agent: AgentId) -> Result<()> {
    let mut after = ConversationId::NIL;
    while let Some(next) = work
        .run("group_keys.replace_next_of_agent", async |tx| {
            store::replace_next_of_agent(tx, agent, after).await
        })
        .await?
    {
        after = next;
    }
    Ok(())
}
