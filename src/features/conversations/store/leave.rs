use blindpipe_protocol::{conversations::Role, groups::MemberChange};

use super::{lock_row, member, recipients, updated};
use crate::{
    error::Result,
    events::Event,
    features::conversations::Member,
    ids::{ConversationId, Principal},
    jobs::{ConsentEnd, Job},
    work::Tx,
};

/// The conversations that a principal leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipScope {
    All,
    /// Only groups. The messages of a pair stay readable for its other member.
    Groups,
}

/// Removes a principal from its next conversation. False if it is in none.
pub async fn leave_next(
    tx: &Tx,
    who: Principal,
    by: Principal,
    scope: MembershipScope,
) -> Result<bool> {
    let next = tx
        .query_opt(
            "-- conversations.next_of
            select conversation_id from member join conversation using (conversation_id)
            where principal_id = $1 and ($2 or kind = 'group') limit 1",
            &[&who.id(), &(scope == MembershipScope::All)],
        )
        .await?;
    let Some(next) = next else { return Ok(false) };
    let id: ConversationId = next.get("conversation_id");
    lock_row(tx, id).await?;
    // Another transaction may have removed it meanwhile.
    if let Some(member) = member(tx, id, who).await? {
        remove_member(tx, id, &member, by).await?;
    }
    Ok(true)
}

/// Removes a member from a conversation, which is locked. A group then needs another key. If the
/// owner leaves, the oldest admin becomes the owner, else the oldest member.
pub async fn remove_member(
    tx: &Tx,
    id: ConversationId,
    member: &Member,
    by: Principal,
) -> Result<()> {
    let who = member.principal_id;
    let mut to = recipients(tx, id).await?;
    // An agent without a relation gets no events, but it gets its own removal.
    if !to.contains(&who) {
        to.push(who);
    }
    tx.execute(
        "-- conversations.remove_member
        delete from member where conversation_id = $1 and principal_id = $2",
        &[&id, &who.id()],
    )
    .await?;
    // A send that read the members before finds its conversation stale.
    tx.execute(
        "-- conversations.lose_member
        update conversation set rotation_required = rotation_required or kind = 'group', rules_version = rules_version + 1
        where conversation_id = $1",
        &[&id],
    )
    .await?;
    if let Principal::User(_) = who {
        tx.enqueue(Job::EndUnreadFiles { conversation: id });
    }
    let event = Event::MemberRemoved(MemberChange {
        conversation_id: id,
        member: member.clone(),
        by,
    });
    tx.emit(event, Some(id), to)?;
    tx.enqueue(Job::EndConsent(ConsentEnd::Member(id, who.id())));
    if member.role == Role::Owner && succeed(tx, id).await? {
        updated(tx, id).await?;
    }
    Ok(())
}

/// Makes the oldest admin the owner, else the oldest member. False if no user is left.
async fn succeed(tx: &Tx, id: ConversationId) -> Result<bool> {
    let heirs = tx
        .execute(
            "-- conversations.succeed
            update member set role = 'owner' where conversation_id = $1 and principal_id = (
                select principal_id from member where conversation_id = $1 and principal_kind = 'user'
                order by role = 'admin' desc, joined_at, principal_id limit 1
            )",
            &[&id],
        )
        .await?;
    Ok(heirs > 0)
}
