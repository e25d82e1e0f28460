//! An approval is brought up to date with its people, its decisions and the time, and closes.

use blindpipe_protocol::approvals::{Approval, ApprovalReason, ApprovalState};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::{super::rules, lock, read_one, users};
use crate::{
    db::Db,
    error::Result,
    events::Event,
    ids::{ConversationId, MessageId, Principal, PrincipalId, RelationId, UserId},
    work::Tx,
};

/// Most approvals that a round of the sweep looks at.
pub const MAX_BATCH_APPROVALS: usize = 100;

/// An approval, by its id and its conversation.
type ApprovalKey = (MessageId, ConversationId);

fn approval_keys(rows: &[Row]) -> Vec<ApprovalKey> {
    let key = |row: &Row| (row.get("approval_id"), row.get("conversation_id"));
    rows.iter().map(key).collect()
}

/// Open approvals whose deadline has passed.
pub async fn overdue(db: &Db) -> Result<Vec<ApprovalKey>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- approvals.overdue
            select approval_id, conversation_id from approval where state = 'open' and expires_at <= app_now()
            order by expires_at limit $1",
            &[&(MAX_BATCH_APPROVALS as i64)],
        )
        .await?;
    Ok(approval_keys(&rows))
}

/// Open approvals that the end of a relation concerns.
pub async fn of_relation(db: &Db, relation: RelationId) -> Result<Vec<ApprovalKey>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- approvals.of_relation
            select a.approval_id, a.conversation_id from relation r
            join approval_asked q on q.agent_id = r.agent_id and q.user_id = r.user_id and q.is_open
            join approval a using (approval_id)
            where r.relation_id = $1
            union
            select a.approval_id, a.conversation_id from member m
            join approval a on a.conversation_id = m.conversation_id and a.agent_id = m.principal_id and a.state = 'open'
            where m.relation_id = $1
            order by 1",
            &[&relation],
        )
        .await?;
    Ok(approval_keys(&rows))
}

/// Open approvals of a conversation that ask this user, or are this agent's.
pub async fn of_member(
    db: &Db,
    conversation: ConversationId,
    principal: PrincipalId,
) -> Result<Vec<ApprovalKey>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- approvals.of_member
            select approval_id, conversation_id from approval a
            where conversation_id = $1 and state = 'open' and (agent_id = $2
                or exists (select from approval_asked q where q.approval_id = a.approval_id and q.user_id = $2))
            order by 1",
            &[&conversation, &principal],
        )
        .await?;
    Ok(approval_keys(&rows))
}

/// Brings an approval up to date.
pub async fn review(tx: &Tx, id: MessageId, conversation: ConversationId) -> Result<()> {
    let mut approval = lock(tx, id, conversation).await?;
    bring_up_to_date(tx, &mut approval).await?;
    Ok(())
}

/// Brings a locked approval up to date, and closes it if it has ended. Returns the database's time.
///
/// Whether a member was there when the approval was made is a matter of numbers, not of times: one
/// that came back sees only messages after its return.
pub async fn bring_up_to_date(tx: &Tx, approval: &mut Approval) -> Result<DateTime<Utc>> {
    let row = tx
        .query_one(
            "-- approvals.standing
            select app_now() as now,
                case when m.principal_id is null or m.from_seq >= a.seq then 'agent_removed'
                     when r.state = 'revoked' or c.kind = 'agent' and exists (
                         select from approval_asked q join relation x on x.user_id = q.user_id and x.agent_id = a.agent_id
                         where q.approval_id = a.approval_id and x.revoked_at >= a.created_at) then 'relation_revoked'
                end as withdrawn_by,
                array(
                    select q.user_id from approval_asked q
                    where q.approval_id = a.approval_id and q.decision is null and (
                        not exists (select from member u where u.conversation_id = a.conversation_id
                            and u.principal_id = q.user_id and u.from_seq < a.seq)
                        or exists (select from relation x where x.user_id = q.user_id and x.agent_id = a.agent_id
                            and x.revoked_at >= a.created_at))
                ) as gone
            from approval a join conversation c using (conversation_id)
            left join member m on m.conversation_id = a.conversation_id and m.principal_id = a.agent_id
            left join relation r on r.relation_id = m.relation_id
            where a.approval_id = $1",
            &[&approval.approval_id],
        )
        .await?;
    let now: DateTime<Utc> = row.get("now");
    if approval.state != ApprovalState::Open {
        return Ok(now);
    }
    let withdrawn_by = row.get::<_, Option<ApprovalReason>>("withdrawn_by");
    let ended = match withdrawn_by {
        Some(reason) => Some((ApprovalState::Withdrawn, Some(reason))),
        None if approval.expires_at.0 <= now => {
            Some((ApprovalState::Expired, Some(ApprovalReason::Deadline)))
        }
        None => {
            ask_no_longer(tx, approval, row.get("gone")).await?;
            rules::outcome(approval)
        }
    };
    if let Some((state, reason)) = ended {
        *approval = close(tx, approval, state, reason).await?;
    }
    Ok(now)
}

/// Asks users no longer who have not decided.
async fn ask_no_longer(tx: &Tx, approval: &mut Approval, users: Vec<UserId>) -> Result<()> {
    if users.is_empty() {
        return Ok(());
    }
    tx.execute(
        "-- approvals.ask_no_longer
        delete from approval_asked where approval_id = $1 and user_id = any($2) and decision is null",
        &[&approval.approval_id, &users],
    )
    .await?;
    approval.asked.retain(|user| !users.contains(user));
    Ok(())
}

/// Publishes a new decision, and closes the approval if that was the last one it needed.
pub async fn conclude(tx: &Tx, id: MessageId) -> Result<Approval> {
    let approval = read_one(tx, id).await?;
    let to = recipients(tx, &approval).await?;
    let event = Event::ApprovalDecided(Box::new(approval.clone()));
    tx.emit(event, Some(approval.conversation_id), to)?;
    match rules::outcome(&approval) {
        Some((state, reason)) => close(tx, &approval, state, reason).await,
        None => Ok(approval),
    }
}

/// Closes an open approval, which is locked, and publishes it.
pub async fn close(
    tx: &Tx,
    approval: &Approval,
    state: ApprovalState,
    reason: Option<ApprovalReason>,
) -> Result<Approval> {
    let id = approval.approval_id;
    tx.execute(
        "-- approvals.close
        update approval set state = $2, reason = $3, closed_at = app_now() where approval_id = $1 and state = 'open'",
        &[&id, &state, &reason],
    )
    .await?;
    tx.execute(
        "-- approvals.close_asked
        update approval_asked set is_open = false where approval_id = $1",
        &[&id],
    )
    .await?;
    let closed = read_one(tx, id).await?;
    let to = recipients(tx, &closed).await?;
    let event = Event::ApprovalClosed(Box::new(closed.clone()));
    tx.emit(event, Some(closed.conversation_id), to)?;
    Ok(closed)
}

/// The recipients of an approval's events: its agent, and the members who are users. The agent gets
/// them without its place too, because it waits for the end.
async fn recipients(tx: &Tx, approval: &Approval) -> Result<Vec<Principal>> {
    let users = users(tx, approval.conversation_id).await?;
    let users = users.into_iter().map(Principal::User);
    Ok(users.chain([approval.agent_id.into()]).collect())
}
