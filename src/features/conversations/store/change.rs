use blindpipe_protocol::{conversations::ConversationKind, conversations::ReadReceipt};
use uuid::Uuid;

use super::{lock, updated, whole};
use crate::{
    error::{Code, Result},
    events::Event,
    features::conversations::Conversation,
    ids::{ConversationId, MessageId, Principal, UserId},
    limits::quotas::MAX_READ_MARK_RECIPIENTS,
    work::Tx,
};

/// The requested change of a conversation.
pub struct Change {
    /// It cannot be taken back.
    pub encryption_required: bool,
    /// Only a group has a title.
    pub title: Option<String>,
}

/// Applies the requested change. Publishes nothing if nothing changes.
pub async fn change(
    tx: &Tx,
    id: ConversationId,
    by: UserId,
    change: &Change,
) -> Result<Conversation> {
    let by = Principal::User(by);
    let place = lock(tx, id, by).await?;
    if !place.is_admin() || (change.title.is_some() && place.kind != ConversationKind::Group) {
        return Err(Code::Forbidden.into());
    }
    let changed = tx
        .execute(
            "-- conversations.change
            update conversation set encryption = case when $2 then 'required' else encryption end, title = coalesce($3, title),
                rules_version = rules_version + 1
            where conversation_id = $1 and ($2 and encryption <> 'required' or $3 is distinct from title and $3 is not null)",
            &[&id, &change.encryption_required, &change.title],
        )
        .await?
        > 0;
    if changed {
        updated(tx, id).await?;
    }
    whole(tx, by, id)
        .await?
        .ok_or_else(|| Code::NotFound.into())
}

/// The position up to which a member has read.
pub struct ReadMark {
    pub message: MessageId,
    pub unread_count: i64,
}

/// Moves a read mark forward to a message that the reader can see, never back.
///
/// It takes no lock on the conversation: all readers of a message would wait for each other, and
/// its senders for them. The reader's own row says whether the mark moved.
pub async fn read_up_to(
    tx: &Tx,
    id: ConversationId,
    reader: Principal,
    message: MessageId,
) -> Result<ReadMark> {
    let row = tx
        .query_opt(
            "-- conversations.read
            select m.seq, me.read_seq < m.seq as is_ahead from message m join active_member me using (conversation_id)
            where m.message_id = $3 and m.conversation_id = $1 and me.principal_id = $2 and m.seq > me.from_seq
                and (me.visibility = 'all' and m.seq > me.all_from_seq or m.sender_id = $2 or $2::text = any(m.recipients))",
            &[&id, &reader.id(), &message],
        )
        .await?
        .ok_or(Code::NotFound)?;
    let (seq, is_ahead): (i64, bool) = (row.get("seq"), row.get("is_ahead"));
    if is_ahead {
        // This lock comes before the reader's own row: a removal of an owner may need that row too,
        // to promote the reader.
        let to = told_of_marks(tx, id, reader).await?;
        let moved = tx
            .execute(
                "-- conversations.mark
                update member set read_seq = $3 where conversation_id = $1 and principal_id = $2 and read_seq < $3",
                &[&id, &reader.id(), &seq],
            )
            .await?
            > 0;
        if moved {
            let event = Event::MessageRead(ReadReceipt {
                principal_id: reader,
                message_id: message,
            });
            tx.emit(event, Some(id), to)?;
        }
    }
    let seen = super::view(tx, Some(reader), &[id])
        .await?
        .pop()
        .and_then(|one| one.unread_count);
    Ok(ReadMark {
        message,
        unread_count: seen.ok_or(Code::NotFound)?,
    })
}

/// The recipients of a read mark: all users of the conversation, who cannot leave before the
/// transaction ends. In a large conversation, only the reader's own devices.
async fn told_of_marks(tx: &Tx, id: ConversationId, reader: Principal) -> Result<Vec<Uuid>> {
    if tx
        .query_one(
            "-- conversations.has_many
            select count(*) > $2::bigint as are_many from (
                select from member where conversation_id = $1 and principal_kind = 'user' limit $2::bigint + 1
            ) few",
            &[&id, &MAX_READ_MARK_RECIPIENTS],
        )
        .await?
        .get("are_many")
    {
        return Ok(matches!(reader, Principal::User(_))
            .then_some(reader.id())
            .into_iter()
            .collect());
    }
    Ok(tx
        .query(
            "-- conversations.hold_users
            select principal_id from member where conversation_id = $1 and principal_kind = 'user'
            order by principal_id for key share",
            &[&id],
        )
        .await?
        .iter()
        .map(|row| row.get("principal_id"))
        .collect())
}
