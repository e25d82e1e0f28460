//! The rows of objects: which keys may be in the store, and until when.
//!
//! A row's `delete_at` is the writer's lease while bytes are written, then the time at which they
//! go. A sweep deletes the bytes first and the row afterwards. A writer that has lost its row
//! cannot complete its object.

use std::time::Duration;

use tokio::time::Instant;

use super::{Content, ObjectKey, backend::Backend};
use crate::{
    db::{Conn, Db, batches::BATCH_ROWS},
    error::Result,
    ids::{ConversationId, EventId, PrincipalId},
};

/// The time that a write is alive without a renewal.
pub const WRITE_LEASE: Duration = Duration::from_secs(180);
/// Objects that a round of the sweep deletes.
const MAX_BATCH_OBJECTS: i64 = 50;
/// Time that a claimed row waits before another sweep tries it.
const SWEEP_LEASE: Duration = Duration::from_secs(60);
/// Longest wait of an object that the store refuses to delete.
const MAX_SWEEP_WAIT: Duration = Duration::from_secs(86_400);

/// Records a key that is about to be written. It is swept after `lease` unless it is completed.
pub async fn begin(
    client: &Conn,
    key: &ObjectKey,
    writer: Option<PrincipalId>,
    lease: Duration,
) -> Result<()> {
    client
        .execute(
            "-- objects.begin
            insert into object (object_key, writer_id, delete_at) values ($1, $2, app_now() + make_interval(secs => $3))",
            &[&key.as_str(), &writer, &lease.as_secs_f64()],
        )
        .await?;
    Ok(())
}

/// Records the multipart upload that writes an object; false if the sweep has taken the row.
pub(super) async fn record_multipart(db: &Db, key: &ObjectKey, multipart: &str) -> Result<bool> {
    let recorded = db
        .write()
        .await?
        .execute(
            "-- objects.record_multipart
            update object set multipart_id = $2
            where object_key = $1 and sha256 is null and not is_ending and delete_at > app_now()",
            &[&key.as_str(), &multipart],
        )
        .await?;
    Ok(recorded > 0)
}

/// The number of objects that are being written for `writer`.
pub async fn count_writes(client: &Conn, writer: PrincipalId) -> Result<i64> {
    let row = client
        .query_one(
            "-- objects.count_writes
            select count(*) as n from live_object where writer_id = $1 and sha256 is null",
            &[&writer],
        )
        .await?;
    Ok(row.get("n"))
}

/// Renews a writer's lease; false if the sweep has taken the row.
pub async fn renew(db: &Db, key: &ObjectKey) -> Result<bool> {
    let renewed = db
        .write()
        .await?
        .execute(
            "-- objects.renew
            update object set delete_at = app_now() + make_interval(secs => $2)
            where object_key = $1 and sha256 is null and not is_ending and delete_at > app_now()",
            &[&key.as_str(), &WRITE_LEASE.as_secs_f64()],
        )
        .await?;
    Ok(renewed > 0)
}

/// Completes an object, which is then kept for `life`, or for ever; false if its lease has ended.
pub async fn complete(
    client: &Conn,
    key: &ObjectKey,
    content: Content,
    life: Option<Duration>,
) -> Result<bool> {
    let size = i64::try_from(content.size).unwrap_or(i64::MAX);
    let completed = client
        .execute(
            "-- objects.complete
            update object set size = $2, sha256 = $3, writer_id = null, multipart_id = null,
                delete_at = app_now() + make_interval(secs => $4)
            where object_key = $1 and sha256 is null and not is_ending and delete_at > app_now()",
            &[
                &key.as_str(),
                &size,
                &content.sha256.0.as_slice(),
                &life.map(|life| life.as_secs_f64()),
            ],
        )
        .await?;
    Ok(completed > 0)
}

/// Keeps an object for ever; false if it is gone.
pub async fn keep(client: &Conn, key: &ObjectKey) -> Result<bool> {
    let kept = client
        .execute(
            "-- objects.keep
            update object set delete_at = null
            where object_key = $1 and sha256 is not null
                and not is_ending and (delete_at is null or delete_at > app_now())",
            &[&key.as_str()],
        )
        .await?;
    Ok(kept > 0)
}

/// Lets the next sweep delete an object. Its readers miss it from now on.
pub async fn end(client: &Conn, key: &ObjectKey) -> Result<()> {
    client
        .execute(
            "-- objects.end
            update object set delete_at = app_now() where object_key = $1 and not is_ending",
            &[&key.as_str()],
        )
        .await?;
    Ok(())
}

/// Ends the data of an event that workers have stored for webhooks.
pub async fn end_event(client: &Conn, conversation: ConversationId, event: EventId) -> Result<()> {
    client
        .execute(
            "-- objects.end_event
            update object o set delete_at = app_now() from event_object e
            where e.conversation_id = $1 and e.event_id = $2 and o.object_key = e.object_key and not o.is_ending",
            &[&conversation, &event],
        )
        .await?;
    Ok(())
}

/// Ends some objects of a conversation of two whose relation has ended, as their messages end: those
/// of before a renewed relation, else those that are older than a day. False if none was left.
///
/// Their rows stay and forget them at once, so the next batch finds others.
pub async fn purge(client: &Conn, conversation: ConversationId) -> Result<bool> {
    let row = client
        .query_one(
            "-- objects.purge
            with bound as materialized (
                select coalesce(max(r.created_at), app_now() - interval '24 hours') as moment
                from conversation c join relation r on r.state = 'active'
                    and ((r.user_id = c.pair_low and r.agent_id = c.pair_high)
                        or (r.user_id = c.pair_high and r.agent_id = c.pair_low))
                where c.conversation_id = $1
            ), files as materialized (
                select upload_id, object_key from upload
                where conversation_id = $1 and object_key is not null and state = 'confirmed'
                    and confirmed_at < (select moment from bound)
                order by confirmed_at limit $2
            ), nameless as (
                update upload u set object_key = null, filename = '', content_type = '' from files
                where u.upload_id = files.upload_id
            ), data as materialized (
                select e.agent_id, e.event_id, e.object_key from event_object e left join object o using (object_key)
                where e.conversation_id = $1 and coalesce(o.created_at < (select moment from bound), true)
                limit $2
            ), apart as (
                update event_object e set conversation_id = null from data
                where e.agent_id = data.agent_id and e.event_id = data.event_id
            ), ended as (
                update object o set delete_at = app_now()
                from (select object_key from files union all select object_key from data) gone
                where o.object_key = gone.object_key
                    and not o.is_ending and (o.delete_at is null or o.delete_at > app_now())
            )
            select exists (select from files) or exists (select from data) as any",
            &[&conversation, &BATCH_ROWS],
        )
        .await?;
    Ok(row.get("any"))
}

/// Ends some files of a conversation that no user is a member of any more. False if none was left.
///
/// Their rows stay and forget them at once, so the next batch finds others.
pub async fn end_unread(db: &Db, conversation: ConversationId) -> Result<bool> {
    let client = db.write().await?;
    let row = client
        .query_one(
            "-- objects.end_unread
            with files as materialized (
                select upload_id, object_key from upload
                where conversation_id = $1 and object_key is not null and state = 'confirmed'
                    and not exists (select from member where conversation_id = $1 and principal_kind = 'user')
                order by confirmed_at limit $2
            ), nameless as (
                update upload u set object_key = null, filename = '', content_type = '' from files
                where u.upload_id = files.upload_id
            ), ended as (
                update object o set delete_at = app_now() from files
                where o.object_key = files.object_key
                    and not o.is_ending and (o.delete_at is null or o.delete_at > app_now())
            )
            select exists (select from files) as any",
            &[&conversation, &BATCH_ROWS],
        )
        .await?;
    Ok(row.get("any"))
}

/// Deletes some objects whose end has come. True while there may be more. One that the store
/// refuses to delete waits ever longer, so that others go on.
pub(super) async fn sweep(db: &Db, backend: &Backend) -> Result<bool> {
    let began = Instant::now();
    let claimed = db
        .write()
        .await?
        .query(
            "-- objects.claim_ended
            update object set delete_at = app_now() + make_interval(secs => $2), is_ending = true
            where object_key = any(array(
                select object_key from object where delete_at <= app_now()
                order by delete_at limit $1 for update skip locked))
            returning object_key, multipart_id",
            &[&MAX_BATCH_OBJECTS, &SWEEP_LEASE.as_secs_f64()],
        )
        .await?;
    for row in &claimed {
        // With a store that hangs, another sweep takes the rest after its lease.
        if began.elapsed() > SWEEP_LEASE / 2 {
            break;
        }
        let key = ObjectKey::from_stored(row.get("object_key"));
        match delete(backend, &key, row.get("multipart_id")).await {
            Ok(()) => forget(db, &key).await?,
            Err(error) => {
                error.log_in(
                    "objects.sweep",
                    "the object is tried again after a longer wait",
                );
                step_back(db, &key).await?;
            }
        }
    }
    Ok(!claimed.is_empty())
}

async fn delete(backend: &Backend, key: &ObjectKey, multipart: Option<&str>) -> Result<()> {
    if let Some(multipart) = multipart {
        backend.abort(key, multipart).await?;
    }
    backend.delete(key).await
}

async fn forget(db: &Db, key: &ObjectKey) -> Result<()> {
    db.write()
        .await?
        .execute(
            "-- objects.forget
            with nameless as (
                update upload set filename = '', content_type = '' where object_key = $1 and state = 'confirmed'
            )
            delete from object where object_key = $1",
            &[&key.as_str()],
        )
        .await?;
    Ok(())
}

async fn step_back(db: &Db, key: &ObjectKey) -> Result<()> {
    db.write()
        .await?
        .execute(
            "-- objects.step_back
            update object set sweep_failures = sweep_failures + 1,
                delete_at = app_now() + make_interval(secs => least($2 * 4 ^ least(sweep_failures, 10), $3))
            where object_key = $1",
            &[
                &key.as_str(),
                &SWEEP_LEASE.as_secs_f64(),
                &MAX_SWEEP_WAIT.as_secs_f64(),
            ],
        )
        .await?;
    Ok(())
}
