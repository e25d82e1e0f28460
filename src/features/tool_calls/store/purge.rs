use crate::{
    db::{Conn, batches::BATCH_ROWS},
    error::Result,
    ids::RelationId,
};

/// Bytes of the answers that a batch empties.
const MAX_BATCH_BYTES: i64 = 16 << 20;

/// Empties the answers to some tool calls of an ended relation; false if none was left.
pub async fn purge(tx: &Conn, relation: RelationId) -> Result<bool> {
    let emptied = tx
        .execute(
            "-- tool_calls.purge
            update tool_call set result = null where call_id = any(array(
                select call_id from (
                    select call_id, bytes, sum(bytes) over (order by created_at, call_id) as bytes_so_far from (
                        select t.call_id, t.created_at, octet_length(t.result) as bytes from relation r
                        join tool_call t on t.user_id = r.user_id and t.agent_id = r.agent_id and t.created_at <= r.revoked_at
                        where r.relation_id = $1 and r.state <> 'active' and t.result is not null
                        order by t.created_at limit $2
                    ) next
                ) sized where bytes_so_far - bytes < $3))",
            &[&relation, &BATCH_ROWS, &MAX_BATCH_BYTES],
        )
        .await?;
    Ok(emptied > 0)
}
