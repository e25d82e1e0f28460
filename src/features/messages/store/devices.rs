//! The devices that deleted users sent from.

use crate::{
    db::{
        Db,
        batches::{BATCH_ROWS, paced},
    },
    error::Result,
    ids::{ConversationId, UserId},
};

/// Takes the ids of a deleted user's devices from its messages, in the conversations that it is
/// still in. Repeatable.
pub async fn forget_devices(db: &Db, user: UserId) -> Result<()> {
    let rows = db
        .read()
        .await?
        .query(
            "-- messages.conversations_of
            select c.conversation_id, c.last_seq from member m join conversation c using (conversation_id)
            where m.principal_id = $1 order by c.conversation_id",
            &[&user],
        )
        .await?;
    for row in rows {
        let (conversation, last): (ConversationId, i64) =
            (row.get("conversation_id"), row.get("last_seq"));
        let mut from = 1;
        while paced(forget_some(db, conversation, user, from, last)).await? {
            from += BATCH_ROWS;
        }
    }
    Ok(())
}

/// Forgets the devices of a batch of messages. True if there are more.
async fn forget_some(
    db: &Db,
    conversation: ConversationId,
    user: UserId,
    from: i64,
    last: i64,
) -> Result<bool> {
    let to = from + BATCH_ROWS;
    db.write()
        .await?
        .execute(
            "-- messages.forget_devices
            update message set sender_device = null
            where conversation_id = $1 and seq >= $2 and seq < $3 and sender_id = $4 and sender_device is not null",
            &[&conversation, &from, &to, &user],
        )
        .await?;
    Ok(to <= last)
}
