use uuid::Uuid;

use super::{lock, updated, whole};
use crate::{
    db::Tx,
    error::{Code, Result},
    events::EventKind,
    features::{
        conversations::Conversation,
        inbox::{self, NewEvent, Told},
    },
    ids::{ConversationId, EventId, MessageId, Principal, UserId},
    limits::quotas::MAX_READ_MARK_RECIPIENTS,
    vocabulary::ConversationKind,
};

/// What may be changed of a conversation.
pub struct Change {
    /// One way: it cannot be taken back.
    pub encryption_required: bool,
    /// Of a group.
    pub title: Option<String>,
}

/// Changes what is asked for; nobody is told if that changes nothing.
pub async fn change(
    tx: &Tx,
    id: ConversationId,
    by: UserId,
    change: &Change,
    event: EventId,
) -> Result<(Conversation, Vec<Told>)> {
    let by = Principal::User(by);
    let place = lock(tx, id, by).await?;
    if !place.is_admin() || (change.title.is_some() && place.kind != ConversationKind::Group) {
        return Err(Code::Forbidden.into());
    }
    let stmt = tx
        .prepare_cached(
            "-- conversations.change
            update conversation set encryption = case when $2 then 'required' else encryption end, title = coalesce($3, title)
            where conversation_id = $1 and ($2 and encryption <> 'required' or $3 is distinct from title and $3 is not null)",
        )
        .await?;
    let changed = tx
        .execute(&stmt, &[&id, &change.encryption_required, &change.title])
        .await?
        > 0;
    let told = if changed {
        updated(tx, id, event).await?
    } else {
        Vec::new()
    };
    Ok((whole(tx, by, id).await?.ok_or(Code::NotFound)?, told))
}

/// How far someone has read.
pub struct ReadMark {
    pub message: MessageId,
    pub unread_count: i64,
    /// To be told after commit; nothing if the mark did not move.
    pub told: Vec<Told>,
}

/// Moves a read mark forward to a message that the reader can see, never back.
///
/// Takes no lock on the conversation, since all who read a message would wait for each other there, and its senders for
/// them. The reader's own row says whether the mark moved.
pub async fn read_up_to(
    tx: &Tx,
    id: ConversationId,
    reader: Principal,
    message: MessageId,
    event: EventId,
) -> Result<ReadMark> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.read
            select m.seq, me.read_seq < m.seq as is_ahead from message m join active_member me using (conversation_id)
            where m.message_id = $3 and m.conversation_id = $1 and me.principal_id = $2 and m.seq > me.from_seq
                and (me.visibility = 'all' or $2::text = any(m.recipients))",
        )
        .await?;
    let row = tx
        .query_opt(&stmt, &[&id, &reader.id(), &message])
        .await?
        .ok_or(Code::NotFound)?;
    let (seq, is_ahead): (i64, bool) = (row.get("seq"), row.get("is_ahead"));
    let mut told = Vec::new();
    if is_ahead {
        // Before the reader's own row: who puts another one out may want that, too, to make its reader the owner.
        let to = told_of_marks(tx, id, reader).await?;
        let stmt = tx
            .prepare_cached(
                "-- conversations.mark
                update member set read_seq = $3 where conversation_id = $1 and principal_id = $2 and read_seq < $3",
            )
            .await?;
        let moved = tx.execute(&stmt, &[&id, &reader.id(), &seq]).await? > 0;
        if moved && !to.is_empty() {
            let data = serde_json::json!({ "principal_id": reader, "message_id": message });
            let event = NewEvent::new(event, EventKind::MessageRead, Some(id), &data, to)?;
            told = inbox::append_all(tx, &[event]).await?;
        }
    }
    let seen = super::view(tx, Some(reader), &[id])
        .await?
        .pop()
        .and_then(|one| one.mine);
    Ok(ReadMark {
        message,
        unread_count: seen.ok_or(Code::NotFound)?.unread_count,
        told,
    })
}

/// Who is told how far someone has read: all users there, who then do not leave before the transaction ends; where they
/// are many, the reader's own devices.
async fn told_of_marks(tx: &Tx, id: ConversationId, reader: Principal) -> Result<Vec<Uuid>> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.has_many
            select count(*) > $2::bigint as are_many from (
                select from member where conversation_id = $1 and principal_kind = 'user' limit $2::bigint + 1
            ) few",
        )
        .await?;
    if tx
        .query_one(&stmt, &[&id, &MAX_READ_MARK_RECIPIENTS])
        .await?
        .get("are_many")
    {
        return Ok(matches!(reader, Principal::User(_))
            .then_some(reader.id())
            .into_iter()
            .collect());
    }
    let stmt = tx
        .prepare_cached(
            "-- conversations.hold_users
            select principal_id from member where conversation_id = $1 and principal_kind = 'user'
            order by principal_id for key share",
        )
        .await?;
    Ok(tx
        .query(&stmt, &[&id])
        .await?
        .iter()
        .map(|row| row.get("principal_id"))
        .collect())
}
