//! Devices that were revoked with keys in their hands, until every conversation that shares one of them has been seen to.

use uuid::Uuid;

use crate::{
    db::Tx,
    error::Result,
    ids::{ConversationId, UserId},
};

/// Seconds after which a transaction that was under way at the loss is over, however slow its statements were.
const LEASE_SECONDS: f64 = 30.0;

/// A device that was lost, locked, and how far its user's conversations have been seen to.
pub struct Lost {
    loss: i64,
    pub user: UserId,
    pub device_id: String,
    pub seen_through: Uuid,
}

/// Notes a loss, in the transaction that revokes the device.
pub(super) async fn note(tx: &Tx, user: UserId, device: &str) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- devices.note_lost
            insert into lost_device (user_id, device_id) values ($1, $2)",
        )
        .await?;
    tx.execute(&stmt, &[&user, &device]).await?;
    Ok(())
}

/// One that something is to be done for, unless others are at all of them.
pub async fn next_lost(tx: &Tx) -> Result<Option<Lost>> {
    let stmt = tx
        .prepare_cached(
            "-- devices.next_lost
            select loss, user_id, device_id, seen_through from lost_device where due_at <= app_now()
            order by due_at limit 1 for update skip locked",
        )
        .await?;
    let lost = |row: tokio_postgres::Row| Lost {
        loss: row.get("loss"),
        user: row.get("user_id"),
        device_id: row.get("device_id"),
        seen_through: row.get("seen_through"),
    };
    Ok(tx.query_opt(&stmt, &[]).await?.map(lost))
}

/// The next turn goes on after this conversation.
pub async fn lost_seen(tx: &Tx, lost: &Lost, through: ConversationId) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- devices.lost_seen
            update lost_device set seen_through = $2 where loss = $1",
        )
        .await?;
    tx.execute(&stmt, &[&lost.loss, &through]).await?;
    Ok(())
}

/// A round is over. There are two: the second one finds what was under way during the first.
pub async fn lost_round(tx: &Tx, lost: &Lost) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- devices.lost_done
            delete from lost_device where loss = $1 and due_at > lost_at",
        )
        .await?;
    if tx.execute(&stmt, &[&lost.loss]).await? > 0 {
        return Ok(());
    }
    let stmt = tx
        .prepare_cached(
            "-- devices.lost_again
            update lost_device set due_at = lost_at + make_interval(secs => $2), seen_through = default where loss = $1",
        )
        .await?;
    tx.execute(&stmt, &[&lost.loss, &LEASE_SECONDS]).await?;
    Ok(())
}
