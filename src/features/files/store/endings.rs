//! The ends of uploads and of files.

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use tokio_postgres::Row;

use crate::{
    db::{Conn, Db, batches::BATCH_ROWS},
    error::Result,
    ids::{ConversationId, Principal},
    jobs::Upkeep,
    limits::quotas::UPLOAD_TTL,
    objects::{ObjectKey, registry},
    work::Tx,
};

/// Uploads that a round of the expiry takes.
const MAX_BATCH_UPLOADS: i64 = 200;

/// The keys in a column of rows.
fn keys<'a>(rows: &'a [Row], column: &'a str) -> impl Iterator<Item = String> + 'a {
    rows.iter().filter_map(move |row| row.get(column))
}

/// Ends uploads that nobody confirmed in time, and forgets old ones. True while there may be more.
pub async fn expire(db: &Db) -> Result<bool> {
    let expired = db.run("files.expire", async |tx| {
        let late = tx
            .query(
                "-- files.expire
                with late as materialized (
                    select upload_id, object_key, direct_key from upload
                    where state in ('pending', 'uploaded') and state <> 'confirmed'
                        and created_at <= app_now() - make_interval(secs => $2)
                    order by created_at limit $1 for update skip locked
                )
                update upload u set state = 'expired', object_key = null from late where u.upload_id = late.upload_id
                returning late.object_key as old_key, late.direct_key",
                &[&MAX_BATCH_UPLOADS, &UPLOAD_TTL.as_secs_f64()],
            )
            .await?;
        let ended: Vec<String> = keys(&late, "old_key").chain(keys(&late, "direct_key")).collect();
        registry::end_all(tx, &ended).await?;
        Ok(late.len())
    });
    let expired = expired.await?;
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
    Ok(expired > 0 || forgotten > 0)
}

/// Ends some of what an erased principal leaves in the store besides its files: uploads that are not
/// confirmed, and data of events. False if none was left. A key that a client may still write to
/// goes an hour after its address has ended: later bytes would otherwise be unknown.
pub async fn abandon(tx: &Tx, who: Principal) -> Result<bool> {
    let mine = tx
        .query(
            "-- files.abandon
            with mine as materialized (
                select upload_id, object_key, direct_key, url_expires_at from upload
                where uploader_id = $1 and state in ('pending', 'uploaded') order by upload_id limit $2 for update
            )
            update upload u set state = 'expired', object_key = null from mine where u.upload_id = mine.upload_id
            returning mine.object_key as old_key, mine.direct_key,
                greatest(app_now(), mine.url_expires_at + interval '1 hour') as written_until",
            &[&who.id(), &BATCH_ROWS],
        )
        .await?;
    registry::end_all(tx, &keys(&mine, "old_key").collect::<Vec<_>>()).await?;
    let direct: Vec<(String, DateTime<Utc>)> = mine
        .iter()
        .filter_map(|row| {
            Some((
                row.get::<_, Option<_>>("direct_key")?,
                row.get("written_until"),
            ))
        })
        .collect();
    registry::end_at(tx, &direct).await?;
    let has_events = match who {
        Principal::Agent(agent) => registry::end_events_of(tx, agent).await?,
        Principal::User(_) => false,
    };
    let any = !mine.is_empty() || has_events;
    if any {
        tx.enqueue(Upkeep::SweepObjects.job());
    }
    Ok(any)
}

/// Ends some objects of a conversation of two whose relation has ended, as their messages end: those
/// of before a renewed relation, else those that are older than a day. False if none was left.
///
/// Their rows stay and forget them at once, so the next batch finds others.
pub async fn purge(tx: &Conn, conversation: ConversationId) -> Result<bool> {
    let bound: DateTime<Utc> = tx
        .query_one(
            "-- files.purge_bound
            select coalesce(max(r.created_at), app_now() - interval '24 hours') as moment
            from conversation c join relation r on r.state = 'active'
                and ((r.user_id = c.pair_low and r.agent_id = c.pair_high)
                    or (r.user_id = c.pair_high and r.agent_id = c.pair_low))
            where c.conversation_id = $1",
            &[&conversation],
        )
        .await?
        .get("moment");
    let files = tx
        .query(
            "-- files.purge
            with files as materialized (
                select upload_id, object_key from upload
                where conversation_id = $1 and object_key is not null and state = 'confirmed' and confirmed_at < $2
                order by confirmed_at limit $3
            )
            update upload u set object_key = null, filename = '', content_type = '' from files
            where u.upload_id = files.upload_id
            returning files.object_key as old_key",
            &[&conversation, &bound, &BATCH_ROWS],
        )
        .await?;
    registry::end_all(tx, &keys(&files, "old_key").collect::<Vec<_>>()).await?;
    let has_events = registry::purge_events(tx, conversation, bound).await?;
    Ok(!files.is_empty() || has_events)
}

/// Ends some files of a conversation that no user is a member of any more. False if none was left.
///
/// Their rows stay and forget them at once, so the next batch finds others.
pub async fn end_unread(db: &Db, conversation: ConversationId) -> Result<bool> {
    let ending = db.run("files.end_unread", async |tx| {
        let files = tx
            .query(
                "-- files.end_unread
                with files as materialized (
                    select upload_id, object_key from upload
                    where conversation_id = $1 and object_key is not null and state = 'confirmed'
                        and not exists (select from member where conversation_id = $1 and principal_kind = 'user')
                    order by confirmed_at limit $2
                )
                update upload u set object_key = null, filename = '', content_type = '' from files
                where u.upload_id = files.upload_id
                returning files.object_key as old_key",
                &[&conversation, &BATCH_ROWS],
            )
            .await?;
        registry::end_all(tx, &keys(&files, "old_key").collect::<Vec<_>>()).await?;
        Ok(!files.is_empty())
    });
    ending.await
}

/// Takes the names from the file of an object that the sweep forgets.
pub fn forgetting<'a>(tx: &'a Conn, key: &'a ObjectKey) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        tx.execute(
            "-- files.forget_names
            update upload set filename = '', content_type = '' where object_key = $1 and state = 'confirmed'",
            &[&key.as_str()],
        )
        .await?;
        Ok(())
    })
}
