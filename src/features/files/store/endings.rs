//! The end of uploads that nobody confirms.

use crate::{
    db::{Db, batches::BATCH_ROWS},
    error::Result,
    ids::Principal,
    jobs::Upkeep,
    limits::quotas::UPLOAD_TTL,
    work::Tx,
};

/// Uploads that a round of the expiry takes.
const MAX_BATCH_UPLOADS: i64 = 200;

/// Ends uploads that nobody confirmed in time, and forgets old ones. True while there may be more.
pub async fn expire(db: &Db) -> Result<bool> {
    let expired = db
        .write()
        .await?
        .execute(
            "-- files.expire
            with late as materialized (
                select upload_id, object_key, direct_key from upload
                where state in ('pending', 'uploaded') and state <> 'confirmed'
                    and created_at <= app_now() - make_interval(secs => $2)
                order by created_at limit $1 for update skip locked
            ), ended as (
                update object set delete_at = app_now()
                where object_key in (select object_key from late union select direct_key from late) and not is_ending
            )
            update upload u set state = 'expired', object_key = null from late where u.upload_id = late.upload_id",
            &[&MAX_BATCH_UPLOADS, &UPLOAD_TTL.as_secs_f64()],
        )
        .await?;
    let forgotten = db
        .write()
        .await?
        .execute(
            "-- files.forget
            delete from upload where upload_id = any(array(
                select upload_id from upload
                where state in ('expired', 'rejected') and state <> 'confirmed'
                    and created_at <= app_now() - interval '7 days'
                order by created_at limit $1 for update skip locked))",
            &[&MAX_BATCH_UPLOADS],
        )
        .await?;
    Ok(expired + forgotten > 0)
}

/// Ends some of what an erased principal leaves in the store besides its files: uploads that are not
/// confirmed, and data of events. False if none was left. A key that a client may still write to
/// goes an hour after its address has ended: later bytes would otherwise be unknown.
pub async fn abandon(tx: &Tx, who: Principal) -> Result<bool> {
    let row = tx
        .query_one(
            "-- files.abandon
            with mine as materialized (
                select upload_id, object_key, direct_key, url_expires_at from upload
                where uploader_id = $1 and state in ('pending', 'uploaded') order by upload_id limit $2 for update
            ), data as materialized (
                select event_id, object_key from event_object
                where agent_id = $1 and exists (select from live_object o where o.object_key = event_object.object_key)
                limit $2
            ), keys as (
                select object_key, app_now() as moment from mine where object_key is not null
                union all
                select direct_key, greatest(app_now(), url_expires_at + interval '1 hour') from mine where direct_key is not null
                union all
                select object_key, app_now() from data
            ), ended as (
                update object o set delete_at = k.moment from keys k where o.object_key = k.object_key and not o.is_ending
            ), expired as (
                update upload u set state = 'expired', object_key = null from mine where u.upload_id = mine.upload_id
            )
            select exists (select from mine) or exists (select from data) as any",
            &[&who.id(), &BATCH_ROWS],
        )
        .await?;
    let any = row.get("any");
    if any {
        tx.enqueue(Upkeep::SweepObjects.job());
    }
    Ok(any)
}
