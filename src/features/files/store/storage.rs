//! The bytes that accounts have in use. Triggers of `upload` keep them.

use super::super::StorageQuota;
use crate::{
    db::{Conn, Db},
    error::{Code, Error, Result},
    ids::{Principal, UserId},
    work::Tx,
};

/// Accounts that a statement sums up.
const MAX_BATCH_ACCOUNTS: i64 = 10_000;

/// The bytes that a principal's account has in use. An agent's account is its owner's.
pub async fn used_bytes(client: &Conn, who: Principal) -> Result<u64> {
    let row = client
        .query_opt(
            "-- files.used_bytes
            select used_bytes from account_storage
            where user_id = coalesce((select owner_user_id from agent where agent_id = $1), $1)",
            &[&who.id()],
        )
        .await?;
    let used = row.map_or(0, |row| row.get::<_, i64>("used_bytes"));
    Ok(u64::try_from(used).unwrap_or_default())
}

/// Refuses an upload of `size` bytes that this transaction has just inserted, if it takes its
/// account beyond the quota. The insertion holds the account's row, so parallel requests are judged
/// one after another.
pub async fn must_fit(tx: &Tx, quota: StorageQuota, owner: Principal, size: u64) -> Result<()> {
    let used = used_bytes(tx, owner).await?;
    if used <= quota.0 {
        return Ok(());
    }
    Err(Error::from(Code::StorageLimitExceeded)
        .with("limit_bytes", quota.0)
        .with("used_bytes", used.saturating_sub(size)))
}

/// The bytes that all accounts have in use.
pub async fn total_bytes(db: &Db) -> Result<u64> {
    let client = db.read().await?;
    let (mut total, mut last) = (0_i64, Some(UserId::NIL));
    while let Some(after) = last {
        let row = client
            .query_one(
                "-- files.total_bytes
                select coalesce(sum(used_bytes), 0)::bigint as bytes, (array_agg(user_id order by user_id desc))[1] as last
                from (select user_id, used_bytes from account_storage where user_id > $1 order by user_id limit $2) as batch",
                &[&after, &MAX_BATCH_ACCOUNTS],
            )
            .await?;
        total = total.saturating_add(row.get("bytes"));
        last = row.get("last");
    }
    Ok(u64::try_from(total).unwrap_or_default())
}
