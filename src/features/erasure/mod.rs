//! The removal of what deleted accounts and agents leave behind: keys in directories, relations,
//! memberships, webhooks with their logs. The deletion itself revokes credentials before its
//! answer. Events to others follow from here, within seconds.
//!
//! Promises: each step is a repeatable transaction of its own, so an interrupted erasure continues
//! where it was. An erased principal keeps no conversation alive. A group whose owner is erased
//! gets another one, and an event about it.
//!
//! The order matters. Everybody who still shares a conversation is told of a removed key first. The
//! devices of its messages are forgotten before it leaves. An agent whose relation has ended gets no
//! event of the conversation. The ids of devices elsewhere go with the key backups, after the grace.
//!
//! Why: ADR 20.

pub(crate) mod account;

use crate::{
    error::Result,
    features::{
        agents, announcements,
        conversations::{self, MembershipScope},
        devices, files, messages, push, relations, shares, webhooks,
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
    push::erase(work, user).await?;
    announcements::publish(work, user.into()).await?;
    messages::forget_devices(work.db(), user).await?;
    let agents = agents::of_owner(work.db(), user).await?;
    for agent in &agents {
        webhooks::erase(work, *agent).await?;
    }
    let agents = agents.into_iter().map(Principal::Agent);
    for who in [Principal::User(user)].into_iter().chain(agents) {
        abandon(work, who).await?;
        end_relations(work, who).await?;
        leave(work, who, who, MembershipScope::All).await?;
    }
    Ok(())
}

/// Erases an agent that its owner has deleted. Its conversations stay readable for their users.
pub async fn agent(work: &UnitOfWork, agent: AgentId, owner: UserId) -> Result<()> {
    webhooks::erase(work, agent).await?;
    let who = Principal::Agent(agent);
    abandon(work, who).await?;
    end_relations(work, who).await?;
    leave(work, who, Principal::User(owner), MembershipScope::Groups).await
}

/// Ends shares, uploads that are not confirmed and data of events. Files stay as long as the
/// messages that name them.
async fn abandon(work: &UnitOfWork, who: Principal) -> Result<()> {
    while work
        .run("erasure.abandon", async |tx| {
            Ok(shares::end_some(tx, who).await? | files::abandon(tx, who).await?)
        })
        .await?
    {}
    Ok(())
}

/// No new relation appears meanwhile, because opening one requires both principals.
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
