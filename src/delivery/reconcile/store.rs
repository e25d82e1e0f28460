//! The sweep's reads in Postgres, and its log.

use std::time::Duration;

use blindpipe_protocol::revocation::RevocationReason;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::super::backplane::messages::reason_of;
use crate::{
    db::{Db, batches::BATCH_ROWS},
    error::Result,
    ids::{CredentialId, PrincipalId},
    inbox::{self, InboxHead},
};

/// Most rows of the log in a reading. A reader that finds more looks at everything.
const MAX_LOG_ROWS: i64 = 10_000;
/// Fresh entries in a reading: some milliseconds of Postgres.
const MAX_FRESH_ENTRIES: i64 = 10_000;
/// Life of a row. A node that has not read for half of it looks at everything.
pub const LOG_RETENTION_SECONDS: i32 = 3_600;

/// The part of the log that a reader has seen.
///
/// Transactions commit in another order than their positions. So a cursor also names the positions
/// below its end that were not committed when it was read.
#[derive(Clone, Debug)]
pub struct LogCursor {
    /// The first position that was never seen.
    end: i64,
    /// The positions before the end whose transactions ran.
    open: Vec<i64>,
}

impl LogCursor {
    /// The cursor of a reader that begins now.
    pub fn latest() -> Self {
        LogCursor {
            end: i64::MAX,
            open: Vec::new(),
        }
    }

    /// Whether the reader has not begun.
    pub fn is_latest(&self) -> bool {
        self.end == i64::MAX
    }

    /// The first position that was never seen.
    #[cfg(test)]
    pub fn end(&self) -> i64 {
        self.end
    }

    /// From the answer of `log_cursor`: the end, then the open positions.
    pub fn from_column(mut numbers: Vec<i64>) -> Self {
        let open = numbers.split_off(1.min(numbers.len()));
        let end = numbers.first().copied().unwrap_or(i64::MAX);
        LogCursor { end, open }
    }
}

/// Everything that the log gained since a cursor.
pub struct LogChanges {
    /// The epoch of the inboxes.
    pub epoch: u64,
    /// The cursor of the next reading.
    pub cursor: LogCursor,
    /// Revoked credentials, and tokens whose grace has ended.
    pub credentials: Vec<CredentialId>,
    /// The owners of inboxes whose hints their nodes could not publish.
    pub inboxes: Vec<PrincipalId>,
    /// Whether a node lost hints and cannot name the inboxes.
    pub any_inbox: bool,
    /// Whether there is more than a reading holds.
    pub is_cut: bool,
}

/// Reads the log after a cursor. The statement and its cursor are of a single snapshot.
pub async fn changes(db: &Db, after: &LogCursor) -> Result<LogChanges> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- reconcile.news
            with news as materialized (
                (select credential_id, principal_id from reconcile_log
                 where log_position >= $1 order by log_position limit $3)
                union all
                select credential_id, principal_id from reconcile_log where log_position = any($2::bigint[])
            )
            select inbox_epoch() as epoch, log_cursor() as cursor, (select count(*) from news) as found,
                array(select credential_id from news where credential_id is not null
                      union
                      (select token_id from agent_token where valid_until <= app_now() and revoked_at is null
                       order by valid_until limit 1000)) as credentials,
                array(select distinct principal_id from news where principal_id is not null) as inboxes,
                exists (select from news where credential_id is null and principal_id is null) as any_inbox",
            &[&after.end, &after.open, &MAX_LOG_ROWS],
        )
        .await?;
    Ok(LogChanges {
        epoch: inbox::epoch_of_column(row.get("epoch")),
        cursor: LogCursor::from_column(row.get("cursor")),
        credentials: row.get("credentials"),
        inboxes: row.get("inboxes"),
        any_inbox: row.get("any_inbox"),
        is_cut: row.get::<_, i64>("found") >= MAX_LOG_ROWS,
    })
}

/// The heads of those inboxes that are beyond the given numbers.
pub async fn heads_beyond(db: &Db, known: &[InboxHead]) -> Result<Vec<InboxHead>> {
    let (principals, seqs): (Vec<PrincipalId>, Vec<i64>) =
        known.iter().map(|one| (one.principal, one.seq)).unzip();
    let client = db.read().await?;
    let rows = client
        .query(
            "-- reconcile.heads_beyond
            select i.principal_id, i.head_seq
            from unnest($1::uuid[], $2::bigint[]) as known (principal_id, seq) join inbox i using (principal_id)
            where i.head_seq > known.seq",
            &[&principals, &seqs],
        )
        .await?;
    let head = |row: &Row| InboxHead {
        principal: row.get("principal_id"),
        seq: row.get("head_seq"),
    };
    Ok(rows.iter().map(head).collect())
}

/// Inboxes with fresh entries.
pub struct FreshHeads {
    /// The inboxes, each with the highest number among its fresh entries.
    pub reached: Vec<InboxHead>,
    /// The time of the youngest entry.
    pub last: Option<DateTime<Utc>>,
    /// Whether there are more.
    pub is_more: bool,
}

/// A piece of the inboxes with entries between two ages, the oldest entries first; those up to the
/// time `after` are left out.
pub async fn fresh_heads(
    db: &Db,
    after: Option<DateTime<Utc>>,
    (max_age, min_age): (Duration, Duration),
) -> Result<FreshHeads> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- reconcile.fresh_heads
            with piece as materialized (
                -- In this order Postgres reads the fresh entries by their age, and no others.
                select principal_id, seq, created_at from inbox_entry
                where created_at > coalesce($1, app_now() - make_interval(secs => $2))
                    and created_at <= app_now() - make_interval(secs => $3)
                order by created_at fetch first $4 rows with ties
            )
            select principal_id, max(seq) as seq, count(*) as entries, max(created_at) as last
            from piece group by principal_id",
            &[
                &after,
                &max_age.as_secs_f64(),
                &min_age.as_secs_f64(),
                &MAX_FRESH_ENTRIES,
            ],
        )
        .await?;
    let reached = |row: &Row| InboxHead {
        principal: row.get("principal_id"),
        seq: row.get("seq"),
    };
    let entries: i64 = rows.iter().map(|row| row.get::<_, i64>("entries")).sum();
    Ok(FreshHeads {
        reached: rows.iter().map(reached).collect(),
        last: rows.iter().map(|row| row.get("last")).max(),
        is_more: entries >= MAX_FRESH_ENTRIES,
    })
}

/// Those of `credentials` that are no live session and no valid token, each with its reason.
pub async fn revoked_credentials(
    db: &Db,
    credentials: &[CredentialId],
) -> Result<Vec<(RevocationReason, CredentialId)>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- reconcile.dead_credentials
            select c.id, s.session_id is not null as is_session,
                   coalesce(s.revoke_reason, t.revoke_reason, case when t.valid_until is not null then 'token_regenerated' end, '') as reason
            from unnest($1::uuid[]) as c (id)
            left join session s on s.session_id = c.id
            left join agent_token t on t.token_id = case when s.session_id is null then c.id end
            where not coalesce(s.revoked_at is null and s.absolute_expires_at > app_now(), false)
              and not coalesce(t.token_id is not null and t.revoked_at is null and (t.valid_until is null or t.valid_until > app_now()), false)",
            &[&credentials],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| {
            (
                reason_of(row.get("is_session"), row.get("reason")),
                row.get("id"),
            )
        })
        .collect())
}

/// Records inboxes whose hints were not published; none stands for unknown ones.
pub async fn record_unpublished(db: &Db, inboxes: &[Option<PrincipalId>]) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- reconcile.record_losses
            insert into reconcile_log (principal_id) select * from unnest($1::uuid[])",
            &[&inboxes],
        )
        .await?;
    Ok(())
}

/// Deletes a piece of what every reader has seen; false once there is no more.
pub async fn forget_log(db: &Db) -> Result<bool> {
    let client = db.write().await?;
    let deleted = client
        .execute(
            "-- reconcile.forget_log
            delete from reconcile_log where log_id = any(array(
                select log_id from reconcile_log where recorded_at < app_now() - make_interval(secs => $1)
                order by recorded_at limit $2
            ))",
            &[&f64::from(LOG_RETENTION_SECONDS), &BATCH_ROWS],
        )
        .await?;
    Ok(deleted > 0)
}
