//! Read marks: they move at once, and are told at once or together.

use std::collections::HashMap;

use blindpipe_protocol::conversations::ReadReceipt;

use tokio_postgres::Row;

use crate::{
    db::Db,
    error::{Code, Result},
    events::Event,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::{MAX_PROMPT_READ_MARK_RECIPIENTS, MAX_READ_MARK_RECIPIENTS},
    work::Tx,
};

/// The position up to which a member has read.
pub struct ReadMark {
    pub message: MessageId,
    pub unread_count: i64,
    /// Whether the members are told later, by [`tell_marks`].
    pub is_gathered: bool,
}

/// Those who are told of a read mark, by the number of users in the conversation.
enum Audience {
    /// All users, at once.
    Users,
    /// All users, with the marks of others.
    GatheredUsers,
    /// The reader's own devices.
    Reader,
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
    let is_gathered = is_ahead && move_mark(tx, id, reader, seq, message).await?;
    let seen = super::view(tx, Some(reader), &[id])
        .await?
        .pop()
        .and_then(|one| one.unread_count);
    Ok(ReadMark {
        message,
        unread_count: seen.ok_or(Code::NotFound)?,
        is_gathered,
    })
}

/// Moves a mark unless it is there already; true if its members are told later.
async fn move_mark(
    tx: &Tx,
    id: ConversationId,
    reader: Principal,
    seq: i64,
    message: MessageId,
) -> Result<bool> {
    let audience = audience(tx, id).await?;
    let is_gathered = matches!(audience, Audience::GatheredUsers);
    // These locks come before the reader's own row: a removal of an owner may need that row too,
    // to promote the reader.
    let to = match audience {
        Audience::Users => hold_users(tx, id).await?,
        Audience::GatheredUsers => Vec::new(),
        Audience::Reader => own_devices(reader),
    };
    let moved = tx
        .execute(
            "-- conversations.mark
            update member set read_seq = $3,
                mark_untold_since = case when $4 then coalesce(mark_untold_since, app_now()) end
            where conversation_id = $1 and principal_id = $2 and read_seq < $3",
            &[&id, &reader.id(), &seq, &is_gathered],
        )
        .await?
        > 0;
    if moved {
        tx.emit(receipt(reader, message), Some(id), to)?;
    }
    Ok(moved && is_gathered)
}

async fn audience(tx: &Tx, id: ConversationId) -> Result<Audience> {
    let users: i64 = tx
        .query_one(
            "-- conversations.count_users
            select count(*) as users from (
                select from member where conversation_id = $1 and principal_kind = 'user' limit $2::bigint + 1
            ) few",
            &[&id, &MAX_READ_MARK_RECIPIENTS],
        )
        .await?
        .get("users");
    Ok(if users <= MAX_PROMPT_READ_MARK_RECIPIENTS {
        Audience::Users
    } else if users <= MAX_READ_MARK_RECIPIENTS {
        Audience::GatheredUsers
    } else {
        Audience::Reader
    })
}

fn receipt(reader: Principal, message: MessageId) -> Event {
    Event::MessageRead(ReadReceipt {
        principal_id: reader,
        message_id: message,
    })
}

fn own_devices(reader: Principal) -> Vec<Principal> {
    let is_user = matches!(reader, Principal::User(_));
    is_user.then_some(reader).into_iter().collect()
}

/// The users of a conversation, who cannot leave before the transaction ends.
async fn hold_users(tx: &Tx, id: ConversationId) -> Result<Vec<Principal>> {
    let rows = tx
        .query(
            "-- conversations.hold_users
            select principal_id from member where conversation_id = $1 and principal_kind = 'user'
            order by principal_id for key share",
            &[&id],
        )
        .await?;
    let user = |row: &Row| Principal::User(row.get("principal_id"));
    Ok(rows.iter().map(user).collect())
}

/// Conversations with read marks that should have been published already, after the last one seen.
/// The node that gathered them has died, or Postgres was away.
pub async fn conversations_with_untold_marks(
    db: &Db,
    after: Option<ConversationId>,
) -> Result<Vec<ConversationId>> {
    let client = db.read().await?;
    let stmt = client
        .prepare_cached(
            "-- conversations.with_untold_marks
            select distinct conversation_id from member
            where mark_untold_since < app_now() - interval '5 seconds'
                and conversation_id > coalesce($1, '00000000-0000-0000-0000-000000000000'::uuid)
            order by conversation_id limit 200",
        )
        .await?;
    let rows = client.query(&stmt, &[&after]).await?;
    Ok(rows.iter().map(|row| row.get("conversation_id")).collect())
}

/// Tells the users of a conversation all marks that wait, each reader's newest. A mark that moves
/// at this moment is left to the node that moves it.
pub async fn tell_marks(tx: &Tx, id: ConversationId) -> Result<()> {
    let audience = audience(tx, id).await?;
    let users = hold_users(tx, id).await?;
    let marks = tx
        .query(
            "-- conversations.tell_marks
            with untold as materialized (
                select principal_id from member where conversation_id = $1 and mark_untold_since is not null
                order by principal_id for no key update skip locked
            )
            update member m set mark_untold_since = null from untold
            where m.conversation_id = $1 and m.principal_id = untold.principal_id
            returning m.principal_id, m.principal_kind, m.read_seq",
            &[&id],
        )
        .await?;
    let seqs: Vec<i64> = marks.iter().map(|row| row.get("read_seq")).collect();
    let messages = tx
        .query(
            "-- conversations.marked_messages
            select seq, message_id from message where conversation_id = $1 and seq = any($2)",
            &[&id, &seqs],
        )
        .await?;
    let messages: HashMap<i64, MessageId> = messages
        .iter()
        .map(|row| (row.get("seq"), row.get("message_id")))
        .collect();
    for (mark, seq) in marks.iter().zip(seqs) {
        let reader = Principal::from_row(mark.get("principal_kind"), mark.get("principal_id"));
        // The message may be purged by now, and nobody can see it then.
        if let Some(message) = messages.get(&seq) {
            let to = match audience {
                Audience::Reader => own_devices(reader),
                _ => users.clone(),
            };
            tx.emit(receipt(reader, *message), Some(id), to)?;
        }
    }
    Ok(())
}
