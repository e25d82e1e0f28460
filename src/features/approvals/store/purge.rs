use crate::{db::Conn, error::Result, ids::ConversationId};

/// Deletes the approvals of messages with numbers after `below` and up to `top`.
pub async fn purge(
    tx: &Conn,
    conversation: ConversationId,
    (below, top): (i64, i64),
) -> Result<()> {
    tx.execute(
        "-- approvals.purge
        delete from approval where conversation_id = $1 and seq > $2 and seq <= $3",
        &[&conversation, &below, &top],
    )
    .await?;
    Ok(())
}
