//! The deletion of a message: the payload goes, and the number stays.

use blindpipe_protocol::messages::MessageDeletion;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use crate::{
    db::{Db, batches::BATCH_ROWS},
    error::{Code, Error, Result},
    events::Event,
    ids::{ConversationId, EventId, MessageId, Principal},
    objects::registry,
    planted::PlantedBug,
    work::Tx,
};

/// Deletes a message that `by` can see and may delete: its own one, or one of a group that it owns or
/// administrates. A deleted message answers its first deletion. Errors: `NOT_FOUND`, `FORBIDDEN`, and `APPROVAL_OPEN` for
/// the question of an open approval and for its answers.
pub async fn delete(
    tx: &Tx,
    conversation: ConversationId,
    message: MessageId,
    by: Principal,
) -> Result<MessageDeletion> {
    // Members neither come nor go until the commit, and nobody else deletes.
    lock(tx, conversation).await?;
    let found = find(tx, conversation, message, by).await?;
    let deletion = |by, at: DateTime<Utc>| MessageDeletion {
        message_id: message,
        conversation_id: conversation,
        by,
        at: at.into(),
    };
    let deleted_by: Option<String> = found.get("deleted_by");
    if let Some(first) = deleted_by.and_then(|id| id.parse().ok()) {
        return Ok(deletion(first, found.get("deleted_at")));
    }
    // Approvals change under the lock of their conversation.
    if found.get("is_of_open_approval") {
        return Err(Code::ApprovalOpen.into());
    }
    let seq: i64 = found.get("seq");
    let deletion = deletion(by, empty(tx, conversation, seq, by).await?);
    // A later statement than the one that waited for the message: a worker that was storing the
    // event meanwhile has stored it by now.
    registry::end_event(tx, conversation, EventId(message.0)).await?;
    let audience = audience(tx, conversation, seq).await?;
    tx.emit(
        Event::MessageDeleted(deletion.clone()),
        Some(conversation),
        audience,
    )?;
    Ok(deletion)
}

async fn lock(tx: &Tx, conversation: ConversationId) -> Result<()> {
    tx.execute(
        "-- messages.lock_conversation
        select from conversation where conversation_id = $1 for no key update",
        &[&conversation],
    )
    .await?;
    Ok(())
}

async fn find(
    tx: &Tx,
    conversation: ConversationId,
    message: MessageId,
    by: Principal,
) -> Result<Row> {
    let found = tx
        .query_opt(
            "-- messages.deletable
            select m.seq, m.deleted_at, m.deleted_by,
                m.sender_id = $2 or (c.kind = 'group' and me.role in ('owner', 'admin')) as may_delete,
                exists (
                    select from approval a left join approval_asked q using (approval_id)
                    where a.conversation_id = $1 and a.state = 'open' and $3 in (a.approval_id, q.message_id)
                ) as is_of_open_approval
            from active_member me join conversation c using (conversation_id) join message m using (conversation_id)
            where me.conversation_id = $1 and me.principal_id = $2 and m.message_id = $3 and m.seq > me.from_seq
                and (me.visibility = 'all' and m.seq > me.all_from_seq or m.sender_id = $2 or $2::text = any(m.recipients))",
            &[&conversation, &by.id(), &message],
        )
        .await?;
    let found = found.ok_or(Code::NotFound)?;
    if found.get("may_delete") {
        Ok(found)
    } else {
        Err(Error::from(Code::Forbidden))
    }
}

const DELETE: &str = "-- messages.delete
with searchable as (
    delete from message_token where conversation_id = $1 and seq = $2
), deletion as (
    update message set payload = '', deleted_at = app_now(), deleted_by = $3
    where conversation_id = $1 and seq = $2
    returning message_id, deleted_at
), noted as (
    insert into message_deletion (message_id, deleted_at) select message_id, deleted_at from deletion
)
select deleted_at from deletion";

/// Takes the payload and the search tokens away.
async fn empty(
    tx: &Tx,
    conversation: ConversationId,
    seq: i64,
    by: Principal,
) -> Result<DateTime<Utc>> {
    let statement: &str = match PlantedBug::DeletionKeepsPayload.is_planted() {
        true => &DELETE.replace("payload = '', ", ""),
        false => DELETE,
    };
    let row = tx
        .query_one(statement, &[&conversation, &seq, &by.wire_id()])
        .await?;
    Ok(row.get("deleted_at"))
}

/// The members that can see the message, its author too.
async fn audience(tx: &Tx, conversation: ConversationId, seq: i64) -> Result<Vec<Principal>> {
    let rows = tx
        .query(
            "-- messages.audience_of_deletion
            select me.principal_kind, me.principal_id from active_member me join message m using (conversation_id)
            where me.conversation_id = $1 and m.seq = $2 and m.seq > me.from_seq
                and (me.visibility = 'all' and m.seq > me.all_from_seq
                    or m.sender_id = me.principal_id or me.principal_id::text = any(m.recipients))",
            &[&conversation, &seq],
        )
        .await?;
    let member =
        |row: &Row| Principal::from_row(row.get("principal_kind"), row.get("principal_id"));
    Ok(rows.iter().map(member).collect())
}

/// Forgets some deletions that are older than `days`. True while there may be more.
pub async fn forget_deletions(db: &Db, days: i32) -> Result<bool> {
    let client = db.write().await?;
    let deleted = client
        .execute(
            "-- messages.forget_deletions
            delete from message_deletion where message_id = any(array(
                select message_id from message_deletion where deleted_at < app_now() - make_interval(days => $1)
                order by deleted_at limit $2
            ))",
            &[&days, &BATCH_ROWS],
        )
        .await?;
    Ok(deleted > 0)
}
