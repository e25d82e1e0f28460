use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::super::DeliveryStatus;
use crate::{
    db::Db,
    error::Result,
    ids::{AgentId, DeliveryId},
    work::Tx,
};

/// Rows that one statement of [`forget`] deletes.
const MAX_BATCH_ROWS: i64 = 1000;

/// A delivery's row.
pub struct DeliveryRow {
    pub id: DeliveryId,
    /// The event's number in the inbox; none for `webhook.test`.
    pub seq: Option<i64>,
    /// The event's name.
    pub event: String,
    pub status: DeliveryStatus,
    /// Begun attempts.
    pub attempts: i32,
    /// Finished attempts, as JSON.
    pub log: Vec<String>,
    pub next_attempt_at: Option<DateTime<Utc>>,
    /// Whether it was asked for by hand.
    pub is_replay: bool,
    /// Seconds until the next attempt, in the list of open deliveries.
    pub wait_seconds: Option<f64>,
}

fn delivery(row: &Row) -> DeliveryRow {
    DeliveryRow {
        id: row.get("delivery_id"),
        seq: row.get("seq"),
        event: row.get("event"),
        status: row.get("status"),
        attempts: row.get("attempts"),
        log: row.get("log"),
        next_attempt_at: row.get("next_attempt_at"),
        is_replay: row.get("is_replay"),
        wait_seconds: row.try_get("wait_seconds").unwrap_or_default(),
    }
}

/// Whether the log has this delivery.
pub async fn knows(db: &Db, agent: AgentId, id: DeliveryId) -> Result<bool> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- webhooks.knows_delivery
            select 1 from webhook_delivery where agent_id = $1 and delivery_id = $2",
            &[&agent, &id],
        )
        .await?;
    Ok(row.is_some())
}

/// The deliveries before `cursor`, newest first. The two statements read one index range each.
pub async fn list(
    db: &Db,
    agent: AgentId,
    status: Option<DeliveryStatus>,
    cursor: Option<DeliveryId>,
    rows: i64,
) -> Result<Vec<DeliveryRow>> {
    let client = db.read().await?;
    let before = cursor.unwrap_or(DeliveryId::from_bytes([0xff; 16]));
    let found = match status {
        None => {
            client
                .query(
                    "-- webhooks.deliveries
                    select delivery_id, seq, event, status, attempts, log, next_attempt_at, is_replay
                    from webhook_delivery where agent_id = $1 and delivery_id < $2
                    order by delivery_id desc limit $3",
                    &[&agent, &before, &rows],
                )
                .await?
        }
        Some(status) => {
            client
                .query(
                    "-- webhooks.deliveries_of_status
                    select delivery_id, seq, event, status, attempts, log, next_attempt_at, is_replay
                    from webhook_delivery where agent_id = $1 and status = $4 and delivery_id < $2
                    order by delivery_id desc limit $3",
                    &[&agent, &before, &rows, &status],
                )
                .await?
        }
    };
    Ok(found.iter().map(delivery).collect())
}

/// The open deliveries of an agent. There are few: those beyond its cursor, and replays.
pub async fn open(db: &Db, agent: AgentId) -> Result<Vec<DeliveryRow>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- webhooks.open_deliveries
            select delivery_id, seq, event, status, attempts, log, next_attempt_at, is_replay,
                extract(epoch from next_attempt_at - app_now())::float8 as wait_seconds
            from webhook_delivery where agent_id = $1 and status in ('pending', 'failed')
            order by delivery_id",
            &[&agent],
        )
        .await?;
    Ok(rows.iter().map(delivery).collect())
}

/// Ends open deliveries whose events the agent has acked in another way.
pub async fn overtake(db: &Db, agent: AgentId, acked: i64) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.overtake
            update webhook_delivery set status = 'exhausted', next_attempt_at = null
            where agent_id = $1 and status in ('pending', 'failed') and not is_replay and seq <= $2",
            &[&agent, &acked],
        )
        .await?;
    Ok(())
}

/// Asks for one more attempt at once: an open delivery is hastened, another one is replayed. None
/// if the log does not have it.
pub async fn replay(tx: &Tx, agent: AgentId, id: DeliveryId) -> Result<Option<DeliveryRow>> {
    let row = tx
        .query_opt(
            "-- webhooks.replay
            update webhook_delivery set next_attempt_at = app_now(),
                is_replay = is_replay or status in ('success', 'exhausted'),
                status = case when status = 'failed' then 'failed' else 'pending' end
            where agent_id = $1 and delivery_id = $2
            returning delivery_id, seq, event, status, attempts, log, next_attempt_at, is_replay",
            &[&agent, &id],
        )
        .await?;
    Ok(row.as_ref().map(delivery))
}

/// Makes retries due at once, after the address has changed or was verified.
pub async fn hasten(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- webhooks.hasten
        update webhook_delivery set next_attempt_at = app_now()
        where agent_id = $1 and status = 'failed' and next_attempt_at > app_now()",
        &[&agent],
    )
    .await?;
    Ok(())
}

/// Records a test in the log.
pub async fn insert_test(
    db: &Db,
    agent: AgentId,
    id: DeliveryId,
    event: &str,
    status: DeliveryStatus,
    attempt: &str,
) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.insert_test
            insert into webhook_delivery (agent_id, delivery_id, event, status, attempts, log)
            values ($1, $2, $3, $4, 1, array[$5])",
            &[&agent, &id, &event, &status, &attempt],
        )
        .await?;
    Ok(())
}

/// Makes and drops daily partitions.
pub async fn rotate(db: &Db, retained_days: i32) -> Result<()> {
    let client = db.write().await?;
    client
        .query_one(
            "-- webhooks.rotate_partitions
            select rotate_webhook_deliveries($1)",
            &[&retained_days],
        )
        .await?;
    Ok(())
}

/// Deletes some of the log of a deleted agent. True while there may be more.
pub async fn forget(db: &Db, agent: AgentId) -> Result<bool> {
    let client = db.write().await?;
    let deleted = client
        .execute(
            "-- webhooks.forget_deliveries
            delete from webhook_delivery d using (
                select agent_id, delivery_id from webhook_delivery where agent_id = $1 order by delivery_id limit $2
            ) old
            where d.agent_id = old.agent_id and d.delivery_id = old.delivery_id",
            &[&agent, &MAX_BATCH_ROWS],
        )
        .await?;
    Ok(deleted == MAX_BATCH_ROWS.unsigned_abs())
}
