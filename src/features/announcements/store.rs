use std::collections::HashSet;

use tokio_postgres::Row;

use super::{Audience, Stage};
use crate::{
    error::Result,
    ids::{AgentId, ConversationId, EventId, Principal, PrincipalId, PrincipalKind, UserId},
    inbox,
    work::Tx,
};

/// The most recipients of one transaction. At 20 µs each it holds their inboxes for some 10 ms.
const MAX_PIECE_RECIPIENTS: i64 = 500;
/// Rows of notified recipients that one transaction deletes at the end.
const MAX_FORGOTTEN_RECIPIENTS: i64 = 5_000;

/// Adds events to the walk that has not begun yet, or begins another one.
pub async fn add(tx: &Tx, audience: &Audience, events: &[EventId]) -> Result<()> {
    let (about, first) = (audience.about, &audience.first);
    // A locked row belongs to a job that is beginning it. This transaction does not wait for it.
    let joined = tx
        .execute(
            "-- announcements.join
            update announcement set event_ids = event_ids || $2,
                first_recipients = array(select distinct unnest(first_recipients || $3))
            where announcement_id = (
                select announcement_id from announcement where principal_id = $1 and stage = 'first'
                order by announcement_id desc limit 1 for update skip locked)",
            &[&about.id(), &events, &first],
        )
        .await?;
    if joined == 0 {
        tx.execute(
            "-- announcements.add
            insert into announcement (principal_id, principal_kind, event_ids, first_recipients) values ($1, $2, $3, $4)",
            &[&about.id(), &about.kind(), &events, &first],
        )
        .await?;
    }
    Ok(())
}

/// Tells the next recipients of a principal's oldest announcement. False once there is none.
pub async fn publish_next(tx: &Tx, principal: PrincipalId) -> Result<bool> {
    let Some(row) = oldest(tx, principal).await? else {
        return any(tx, principal).await;
    };
    let stage: &str = row.get("stage");
    match Stage::ALL.iter().find(|one| one.row() == stage) {
        Some(Stage::First) => publish_first(tx, &row).await?,
        Some(Stage::Relations) => publish_to_relations(tx, &row).await?,
        Some(Stage::Conversations) => publish_to_members(tx, &row).await?,
        Some(Stage::Done) | None => forget(tx, row.get("announcement_id")).await?,
    }
    Ok(true)
}

async fn publish_first(tx: &Tx, row: &Row) -> Result<()> {
    let id: i64 = row.get("announcement_id");
    let first: Vec<UserId> = row.get("first_recipients");
    let published = mark_published(tx, id, users(first)).await?;
    emit(tx, row, published).await?;
    let next = match row.get("principal_kind") {
        PrincipalKind::Agent => Stage::Relations,
        PrincipalKind::User => Stage::Conversations,
    };
    enter(tx, id, next).await
}

/// A principal's oldest announcement, locked. None also if it has just ended.
async fn oldest(tx: &Tx, principal: PrincipalId) -> Result<Option<Row>> {
    tx.query_opt(
        "-- announcements.oldest
        select announcement_id, principal_id, principal_kind, event_ids, first_recipients, stage,
               after_conversation, after_principal
        from announcement where principal_id = $1 order by announcement_id limit 1 for update",
        &[&principal],
    )
    .await
}

async fn any(tx: &Tx, principal: PrincipalId) -> Result<bool> {
    let found = tx
        .query_opt(
            "-- announcements.any
            select 1 from announcement where principal_id = $1 limit 1",
            &[&principal],
        )
        .await?;
    Ok(found.is_some())
}

/// Marks recipients as notified. Returns those that were not before.
async fn mark_published(
    tx: &Tx,
    id: i64,
    mut recipients: Vec<Principal>,
) -> Result<Vec<Principal>> {
    let ids: Vec<PrincipalId> = recipients.iter().map(|one| one.id()).collect();
    let rows = tx
        .query(
            "-- announcements.mark_told
            insert into announcement_recipient (announcement_id, principal_id) select $1, unnest($2::uuid[])
            on conflict do nothing returning principal_id",
            &[&id, &ids],
        )
        .await?;
    let mut marked: HashSet<PrincipalId> = rows.iter().map(|row| row.get("principal_id")).collect();
    recipients.retain(|one| marked.remove(&one.id()));
    Ok(recipients)
}

fn users(ids: Vec<UserId>) -> Vec<Principal> {
    ids.into_iter().map(Principal::User).collect()
}

async fn publish_to_relations(tx: &Tx, row: &Row) -> Result<()> {
    let id: i64 = row.get("announcement_id");
    let (agent, after): (AgentId, UserId) = (row.get("principal_id"), row.get("after_principal"));
    let rows = tx
        .query(
            "-- announcements.relations
            select user_id from relation where agent_id = $1 and state = 'active' and user_id > $2
            order by user_id limit $3",
            &[&agent, &after, &MAX_PIECE_RECIPIENTS],
        )
        .await?;
    let published: Vec<UserId> = rows.iter().map(|row| row.get("user_id")).collect();
    let Some(last) = published.last().copied() else {
        return enter(tx, id, Stage::Conversations).await;
    };
    let published = mark_published(tx, id, users(published)).await?;
    emit(tx, row, published).await?;
    resume(tx, id, ConversationId::NIL, last.into()).await
}

/// Tells members of the principal's conversations: of an agent's the users, of a user's all that
/// are active.
async fn publish_to_members(tx: &Tx, row: &Row) -> Result<()> {
    let id: i64 = row.get("announcement_id");
    let (about, kind): (PrincipalId, &str) = (row.get("principal_id"), row.get("principal_kind"));
    let (conversation, after): (ConversationId, PrincipalId) =
        (row.get("after_conversation"), row.get("after_principal"));
    // The order of two indexes, so that the statement ends with the last row of the piece. With a
    // sort it would read all members of all conversations.
    tx.batch_execute("set local enable_sort = off").await?;
    let rows = tx
        .query(
            "-- announcements.members
            select place.conversation_id, m.principal_kind, m.principal_id
            from (
                select conversation_id from active_member
                where principal_id = $1 and conversation_id >= $3 order by conversation_id
            ) place cross join lateral (
                select principal_kind, principal_id from active_member
                where conversation_id = place.conversation_id and ($2 = 'user' or principal_kind = 'user')
                    and principal_id > case when place.conversation_id = $3 then $4::uuid
                                            else '00000000-0000-0000-0000-000000000000' end
                order by principal_id limit $5
            ) m
            order by 1, 3 limit $5",
            &[&about, &kind, &conversation, &after, &MAX_PIECE_RECIPIENTS],
        )
        .await?;
    tx.batch_execute("set local enable_sort = on").await?;
    let Some(last) = rows.last() else {
        return enter(tx, id, Stage::Done).await;
    };
    let member =
        |row: &Row| Principal::from_row(row.get("principal_kind"), row.get("principal_id"));
    let published = mark_published(tx, id, rows.iter().map(member).collect()).await?;
    emit(tx, row, published).await?;
    resume(
        tx,
        id,
        last.get("conversation_id"),
        last.get("principal_id"),
    )
    .await
}

/// Emits the announcement's events to these recipients.
async fn emit(tx: &Tx, row: &Row, recipients: Vec<Principal>) -> Result<()> {
    let ids: Vec<EventId> = row.get("event_ids");
    for event in inbox::recorded(tx, &ids).await? {
        tx.emit_recorded(event, recipients.clone());
    }
    Ok(())
}

async fn enter(tx: &Tx, id: i64, stage: Stage) -> Result<()> {
    tx.execute(
        "-- announcements.enter
        update announcement set stage = $2, after_conversation = default, after_principal = default
        where announcement_id = $1",
        &[&id, &stage.row()],
    )
    .await?;
    Ok(())
}

async fn resume(
    tx: &Tx,
    id: i64,
    conversation: ConversationId,
    principal: PrincipalId,
) -> Result<()> {
    tx.execute(
        "-- announcements.go_on
        update announcement set after_conversation = $2, after_principal = $3 where announcement_id = $1",
        &[&id, &conversation, &principal],
    )
    .await?;
    Ok(())
}

/// Deletes the rows of recipients, some at a time, and then the announcement.
async fn forget(tx: &Tx, id: i64) -> Result<()> {
    let forgotten = tx
        .execute(
            "-- announcements.forget_recipients
            delete from announcement_recipient where announcement_id = $1 and principal_id = any(array(
                select principal_id from announcement_recipient where announcement_id = $1 limit $2))",
            &[&id, &MAX_FORGOTTEN_RECIPIENTS],
        )
        .await?;
    if forgotten == 0 {
        tx.execute(
            "-- announcements.forget
            delete from announcement where announcement_id = $1",
            &[&id],
        )
        .await?;
    }
    Ok(())
}
