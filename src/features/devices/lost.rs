//! Devices that were revoked with keys in their hands, until every conversation that shares one of them has been seen to.

use uuid::Uuid;

use crate::{
    error::Result,
    ids::{ConversationId, UserId},
    work::Tx,
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
    tx.execute(
        "-- devices.note_lost
        insert into lost_device (user_id, device_id) values ($1, $2)",
        &[&user, &device],
    )
    .await?;
    Ok(())
}

/// One that something is to be done for, unless others are at all of them.
pub async fn next_lost(tx: &Tx) -> Result<Option<Lost>> {
    let lost = |row: tokio_postgres::Row| Lost {
        loss: row.get(0),
        user: row.get(1),
        device_id: row.get(2),
        seen_through: row.get(3),
    };
    Ok(tx
        .query_opt(
            "-- devices.next_lost
            select loss, user_id, device_id, seen_through from lost_device where due_at <= app_now()
            order by due_at limit 1 for update skip locked",
            &[],
        )
        .await?
        .map(lost))
}

/// The next turn goes on after this conversation.
pub async fn lost_seen(tx: &Tx, lost: &Lost, through: ConversationId) -> Result<()> {
    tx.execute(
        "-- devices.lost_seen
        update lost_device set seen_through = $2 where loss = $1",
        &[&lost.loss, &through],
    )
    .await?;
    Ok(())
}

/// A round is over. There are two: the second one finds what was under way during the first.
pub async fn lost_round(tx: &Tx, lost: &Lost) -> Result<()> {
    if tx
        .execute(
            "-- devices.lost_done
            delete from lost_device where loss = $1 and due_at > lost_at",
            &[&lost.loss],
        )
        .await?
        > 0
    {
        return Ok(());
    }
    tx.execute(
        "-- devices.lost_again
        update lost_device set due_at = lost_at + make_interval(secs => $2), seen_through = default where loss = $1",
        &[&lost.loss, &LEASE_SECONDS],
    )
    .await?;
    Ok(())
}
