//! Approvals: an agent's question to people, which waits for days and ends once. Each decision is
//! signed by a device's key, so anybody can check it without the service.
//!
//! Promises: an approval and its message are committed together, and so are a decision and its
//! message. An approval leaves `open` once, whatever decisions, withdrawals and deadlines meet on
//! whichever nodes. A person has one decision. No decision counts without a signature by a current
//! key of the person who was asked, over this question in this conversation.
//!
//! An approval is a row beside its message. Every change locks the conversation, then the approval.
//! Every node looks for overdue rows each second, so no lease has to run out when a node dies. The
//! end of a relation or a membership enqueues a job, which reviews the approvals that it concerns.
//!
//! `store/requests.rs` makes approvals, `store/decisions.rs` takes decisions, `store/review.rs`
//! brings an approval up to date with its people and the time, and `store/lists.rs` reads.

pub(crate) mod http;
mod rules;
mod store;

use std::time::Duration;

pub(crate) use self::store::purge;
use crate::{
    error::Result,
    features::messages,
    ids::{ConversationId, MessageId, PrincipalId, RelationId},
    work::UnitOfWork,
};

/// Interval at which a node looks for overdue approvals.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Number of times that a change may meet a conflict before it fails.
const MAX_CONFLICTS: u32 = 3;

/// Counts how often a change was tried.
#[derive(Default)]
struct Tries(u32);

impl Tries {
    /// Whether a change has met another transaction and is to be tried again.
    fn again<T>(&mut self, outcome: &Result<T>) -> bool {
        self.0 += 1;
        let conflict = |error| messages::is_conflict(error);
        self.0 <= MAX_CONFLICTS && outcome.as_ref().is_err_and(conflict)
    }
}

/// Closes overdue approvals.
pub(crate) async fn expire(work: &UnitOfWork) -> Result<()> {
    loop {
        let overdue = store::overdue(work.db()).await?;
        let is_all = overdue.len() < store::MAX_BATCH_APPROVALS;
        review(work, "approvals.expire", overdue).await?;
        if is_all {
            return Ok(());
        }
    }
}

/// Ends what a relation that has ended allowed: the agent's approvals with the user, and those
/// where the relation admitted the agent.
pub(crate) async fn end_of_relation(work: &UnitOfWork, relation: RelationId) -> Result<()> {
    let concerned = store::of_relation(work.db(), relation).await?;
    review(work, "approvals.end_of_relation", concerned).await
}

/// Asks a user no longer who was removed from a conversation, and withdraws the approvals of an
/// agent that was.
pub(crate) async fn end_of_member(
    work: &UnitOfWork,
    conversation: ConversationId,
    principal: PrincipalId,
) -> Result<()> {
    let concerned = store::of_member(work.db(), conversation, principal).await?;
    review(work, "approvals.end_of_member", concerned).await
}

/// Brings approvals up to date, each in a transaction of its own. One that fails holds up no other.
async fn review(
    work: &UnitOfWork,
    name: &'static str,
    approvals: Vec<(MessageId, ConversationId)>,
) -> Result<()> {
    let mut outcome = Ok(());
    for (approval, conversation) in approvals {
        let mut tries = Tries::default();
        let reviewed = loop {
            let reviewed = work.run(name, async |tx| {
                store::review(tx, approval, conversation).await
            });
            let reviewed = reviewed.await;
            if !tries.again(&reviewed) {
                break reviewed;
            }
        };
        outcome = outcome.and(reviewed);
    }
    outcome
}
