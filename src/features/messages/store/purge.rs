//! The end of the contents of messages whose relation has ended.

use crate::{
    db::Conn,
    error::Result,
    ids::{ConversationId, RelationId},
};

/// Messages that a batch empties. Each may have a megabyte.
const MAX_BATCH_MESSAGES: i64 = 100;

/// Empties some messages of a conversation, which is locked, and removes their search tokens.
/// Returns the numbers before the first and of the last of them; none if none was left.
pub async fn purge(
    tx: &Conn,
    relation: RelationId,
    conversation: ConversationId,
) -> Result<Option<(i64, i64)>> {
    let row = tx
        .query_opt(
            "-- messages.purge
            with before as materialized (
                select purged_seq from conversation where conversation_id = $1
            ), span as (
                select max(seq) as top from (
                    select m.seq, m.created_at from conversation c
                    join message m on m.conversation_id = c.conversation_id and m.seq > c.purged_seq
                    join relation r on r.relation_id = $2
                    where c.conversation_id = $1 and (r.purge_through is null or m.seq <= r.purge_through)
                    order by m.seq limit $3
                ) next where created_at < app_now() - interval '24 hours'
            ), searchable as (
                -- A message that was emptied is found no more.
                delete from message_token t using span, conversation c
                where c.conversation_id = $1 and t.conversation_id = $1 and t.seq > c.purged_seq and t.seq <= span.top
            ), emptied as (
                update message m set payload = '' from span, conversation c
                where c.conversation_id = $1 and m.conversation_id = $1 and m.seq > c.purged_seq and m.seq <= span.top
            )
            update conversation set purged_seq = span.top from span, before
            where conversation_id = $1 and span.top is not null
            returning before.purged_seq as below, span.top",
            &[&conversation, &relation, &MAX_BATCH_MESSAGES],
        )
        .await?;
    Ok(row.map(|row| (row.get("below"), row.get("top"))))
}
