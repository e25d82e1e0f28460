use super::{lock, recipients, updated, whole};
use crate::{
    db::Tx,
    error::{Code, Result},
    events::EventKind,
    features::{
        conversations::Conversation,
        inbox::{self, NewEvent, Told},
    },
    ids::{ConversationId, EventId, MessageId, Principal, UserId},
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
    if !place.is_admin() || (change.title.is_some() && place.kind != "group") {
        return Err(Code::Forbidden.into());
    }
    let stmt = tx
        .prepare_cached(
            "-- conversations.change
            update conversation set encryption = case when $2 then 'required' else encryption end, title = coalesce($3, title)
            where conversation_id = $1 and ($2 and encryption <> 'required' or $3 is distinct from title and $3 is not null)",
        )
        .await?;
    let changed = tx.execute(&stmt, &[&id, &change.encryption_required, &change.title]).await? > 0;
    let told = if changed { updated(tx, id, event).await? } else { Vec::new() };
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
pub async fn read_up_to(
    tx: &Tx,
    id: ConversationId,
    reader: Principal,
    message: MessageId,
    event: EventId,
) -> Result<ReadMark> {
    lock(tx, id, reader).await?;
    let stmt = tx
        .prepare_cached(
            "-- conversations.read
            with named as (
                select m.seq from message m join member me using (conversation_id)
                where m.message_id = $3 and m.conversation_id = $1 and me.principal_id = $2 and m.seq > me.from_seq
                    and (me.visibility = 'all' or $2::text = any(m.recipients))
            ), moved as (
                update member set read_seq = named.seq from named
                where conversation_id = $1 and principal_id = $2 and read_seq < named.seq
                returning 1
            )
            select exists (select from moved) from named",
        )
        .await?;
    let row = tx.query_opt(&stmt, &[&id, &reader.id(), &message]).await?.ok_or(Code::NotFound)?;
    let mut told = Vec::new();
    if row.get(0) {
        let users = recipients(tx, id).await?.into_iter().filter(|who| matches!(who, Principal::User(_)));
        let data = serde_json::json!({ "principal_id": reader, "message_id": message });
        let event = NewEvent::new(
            event,
            EventKind::MessageRead,
            Some(id),
            &data,
            users.map(Principal::id).collect(),
        )?;
        told = inbox::append_all(tx, &[event]).await?;
    }
    let seen = super::view(tx, Some(reader), &[id]).await?.pop().and_then(|one| one.mine);
    Ok(ReadMark { message, unread_count: seen.map_or(0, |mine| mine.unread_count), told })
}
