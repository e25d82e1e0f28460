//! What deleted accounts and agents leave behind: keys in directories, relations, places in conversations. What must be
//! dead at once is dead when the deletion is answered; what others hear of it happens here, within seconds.
//!
//! Promises: each step is a transaction of its own and can be repeated, so an erasure that was cut short goes on where it
//! was; nobody keeps a conversation alive; a group whose owner is erased has another one, and hears of it.
//!
//! The order matters. Of a key hears everybody who still shares a conversation; an agent whose relation has ended is told
//! of no conversation.

use crate::{
    error::Result,
    features::{
        agents,
        conversations::{self, MembershipScope},
        devices, relations,
    },
    ids::{AgentId, Principal, UserId},
    work::UnitOfWork,
};

/// Erases a deleted account and its agents.
pub async fn account(work: &UnitOfWork, user: UserId) -> Result<()> {
    while work
        .run("erasure.remove_key", async |tx| {
            devices::remove_key(tx, user).await
        })
        .await?
    {}
    let agents = agents::of_owner(work.db(), user).await?;
    let agents = agents.into_iter().map(Principal::Agent);
    for who in [Principal::User(user)].into_iter().chain(agents) {
        end_relations(work, who).await?;
        leave(work, who, who, MembershipScope::All).await?;
    }
    Ok(())
}

/// Erases an agent that its owner has deleted. Its conversations stay readable for their users.
pub async fn agent(work: &UnitOfWork, agent: AgentId, owner: UserId) -> Result<()> {
    let who = Principal::Agent(agent);
    end_relations(work, who).await?;
    leave(work, who, Principal::User(owner), MembershipScope::Groups).await
}

/// Nobody opens another one meanwhile: to open one, both must exist.
async fn end_relations(work: &UnitOfWork, who: Principal) -> Result<()> {
    while work
        .run("erasure.end_relation", async |tx| {
            relations::end_next(tx, who).await
        })
        .await?
    {}
    Ok(())
}

async fn leave(
    work: &UnitOfWork,
    who: Principal,
    by: Principal,
    scope: MembershipScope,
) -> Result<()> {
    while work
        .run("erasure.leave", async |tx| {
            conversations::leave_next(tx, who, by, scope).await
        })
        .await?
    {}
    Ok(())
}
