//! The undo of what a session has added, by the functions that serve the owner's own calls.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use blindpipe_protocol::{revocation::RevocationReason, sessions::SessionChange};

use super::store::{self, Change};
use crate::{
    auth::user::{User, lock_live_session},
    error::{Code, Error, Result},
    features::{agents, groups, passkeys, relations, shares},
    ids::{AgentId, SessionId, UserId},
    work::Tx,
};

/// The most changes that one unit of work undoes.
pub const MAX_BATCH_CHANGES: usize = 100;

/// Undoes some of what a session has added; of the named things, if there are names. A passkey needs
/// the same recent login as its removal. Errors: `NOT_FOUND`, `REAUTH_REQUIRED`.
pub async fn undo_some(
    tx: &Tx,
    user: &User,
    session: SessionId,
    ids: Option<&HashSet<String>>,
) -> Result<Vec<SessionChange>> {
    store::lock_user(tx, user.id).await?;
    lock_live_session(tx, user.id, user.session).await?;
    store::must_be_of(tx, user.id, session).await?;
    let mut changes = store::changes(tx, user.id, session).await?;
    changes.retain(|(_, shown)| ids.is_none_or(|ids| ids.contains(&shown.id)));
    changes.truncate(MAX_BATCH_CHANGES);
    if changes
        .iter()
        .any(|(it, _)| matches!(it, Change::Passkey(_)))
    {
        user.must_be_recent()?;
    }
    let is_of_agent = |(it, _): &(Change, _)| {
        matches!(
            it,
            Change::Agent(_) | Change::Token(..) | Change::Webhook(_)
        )
    };
    // Agents come before conversations in the order of locks.
    let (of_agents, others) = changes.into_iter().partition::<Vec<_>, _>(is_of_agent);
    let agents = lock_agents(tx, &of_agents).await?;
    let mut undone = Vec::new();
    for (change, shown) in of_agents {
        if undo_of_agent(tx, &agents, &change).await? {
            undone.push(shown);
        }
    }
    lock_conversations(tx, &others).await?;
    for (change, shown) in others {
        if undo_other(tx, user.id, &change).await? {
            undone.push(shown);
        }
    }
    Ok(undone)
}

/// Locks the agents in the order of ids. Returns those that are there.
async fn lock_agents(
    tx: &Tx,
    changes: &[(Change, SessionChange)],
) -> Result<BTreeMap<AgentId, agents::LockedAgent>> {
    let named = changes.iter().filter_map(|(change, _)| match change {
        Change::Agent(agent) | Change::Token(_, agent) | Change::Webhook(agent) => Some(*agent),
        _ => None,
    });
    let mut locked = BTreeMap::new();
    for agent in named.collect::<BTreeSet<_>>() {
        if let Some(row) = agents::lock(tx, agent).await? {
            locked.insert(agent, row);
        }
    }
    Ok(locked)
}

async fn lock_conversations(tx: &Tx, changes: &[(Change, SessionChange)]) -> Result<()> {
    let (mut groups, mut relations) = (Vec::new(), Vec::new());
    for (change, _) in changes {
        match change {
            Change::Instance(group, _) => groups.push(*group),
            Change::Relation(relation) => relations.push(*relation),
            _ => {}
        }
    }
    store::lock_conversations(tx, &groups, &relations).await
}

/// False if it was gone meanwhile.
async fn undo_of_agent(
    tx: &Tx,
    agents: &BTreeMap<AgentId, agents::LockedAgent>,
    change: &Change,
) -> Result<bool> {
    match change {
        Change::Agent(agent) => {
            if let Some(locked) = agents.get(agent) {
                agents::delete(tx, locked).await?;
                return Ok(true);
            }
        }
        Change::Token(token, agent) => return agents::revoke_token(tx, *token, *agent).await,
        Change::Webhook(agent) => {
            agents::suspend_webhooks(tx, &[*agent], RevocationReason::TokenRevoked).await?;
            return Ok(true);
        }
        _ => {}
    }
    Ok(false)
}

/// False if it was gone meanwhile, or is no longer the user's to undo.
async fn undo_other(tx: &Tx, user: UserId, change: &Change) -> Result<bool> {
    match change {
        Change::Relation(id) => {
            relations::revoke(tx, user, *id).await?;
            Ok(true)
        }
        Change::Instance(group, id) => match groups::remove_instance(tx, *group, user, *id).await {
            Err(error) if is_lost(&error) => Ok(false),
            removed => removed.map(|_| true),
        },
        Change::Passkey(id) => passkeys::remove(tx, user, *id).await,
        Change::Share(hash) => shares::delete(tx, hash, user).await,
        _ => Ok(false),
    }
}

/// The user no longer administers the group, or somebody else has removed the agent.
fn is_lost(error: &Error) -> bool {
    matches!(error.code(), Code::NotFound | Code::Forbidden)
}
