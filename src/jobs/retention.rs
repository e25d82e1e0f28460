//! THE RETENTION: the tables that lose rows by age, and the age of their oldest rows.
//!
//! Each feature deletes its own rows. This module only measures, so that an operator sees a rule
//! that no longer works before the disk is full.

use crate::{db::Db, error::Result, metrics};

/// Measures every table that retention cleans. A table without rows has the age 0.
///
/// An age counts from the time from which the table's rule counts: the creation of a row, or the
/// end of its validity. Each subquery reads a single entry of an index. The age of deliveries is that
/// of a row of their oldest day.
pub async fn measure(db: &Db) -> Result<()> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- retention.measure
            select name, coalesce(greatest(extract(epoch from app_now() - nullif(oldest, '-infinity')), 0), 0)::float8 as age
            from (values
                ('agent_group', (select min(used_at) from agent_group)),
                ('agent_key', (select valid_until from agent_key where valid_until <= app_now() order by valid_until limit 1)),
                ('code_guard', (select min(coalesce(failures[array_upper(failures, 1)], '-infinity')) from code_guard)),
                ('device', (select min(created_at) from device where provisional)),
                ('email_change', (select min(expires_at) from email_change)),
                ('email_code', (select min(expires_at) from email_code)),
                ('event', (select min(created_at) from event)),
                ('idempotency', (select min(created_at) from idempotency)),
                ('inbox_entry', (select min(created_at) from inbox_entry)),
                ('job', (select expires_at from job where expires_at <= app_now() order by expires_at limit 1)),
                ('key_backup_erasure', (select due_at from key_backup_erasure where due_at <= app_now() order by due_at limit 1)),
                ('login_guard', (select min(last_failure_at) from login_guard)),
                ('login_notice', (select min(noticed_at) from login_notice)),
                ('message_deletion', (select min(deleted_at) from message_deletion)),
                ('object', (select delete_at from object where delete_at <= app_now() order by delete_at limit 1)),
                ('passkey_challenge', (select min(expires_at) from passkey_challenge)),
                ('reconcile_log', (select min(recorded_at) from reconcile_log)),
                ('relation', (select purge_due from relation where purge_due <= app_now() order by purge_due limit 1)),
                ('security_notice', (select min(noticed_at) from security_notice)),
                ('session', (select min(least(revoked_at, refresh_expires_at, absolute_expires_at)) from session)),
                ('share', (select min(expires_at) from share)),
                ('tool_call', (select min(created_at) from tool_call)),
                ('tool_consent', (select min(used_at) from tool_consent)),
                ('upload', (select min(created_at) from upload where state <> 'confirmed')),
                ('webhook_delivery', oldest_webhook_delivery()),
                ('webhook_stop', (select min(wait_until) from webhook_stop))
            ) as measured (name, oldest)",
            &[],
        )
        .await?;
    let ages = rows.iter().map(|row| (row.get("name"), row.get("age")));
    metrics::oldest_rows(ages.collect());
    Ok(())
}
