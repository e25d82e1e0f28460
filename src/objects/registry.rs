//! The rows of objects: which keys may be in the store, and until when.
//!
//! A row's `delete_at` is the writer's lease while bytes are written, then the time at which they
//! go. A sweep deletes the bytes first and the row afterwards. A writer that has lost its row
//! cannot complete its object.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{Content, ObjectKey, backend::Backend};
use crate::{
    db::{Conn, Db, batches::BATCH_ROWS},
    error::Result,
    ids::{AgentId, ConversationId, EventId, PrincipalId},
};

/// The time that a write is alive without a renewal.
pub const WRITE_LEASE: Duration = Duration::from_secs(180);
/// Objects that a round of the sweep deletes.
const MAX_BATCH_OBJECTS: i64 = 50;
/// Time that a claimed row waits before another sweep tries it.
const SWEEP_LEASE: Duration = Duration::from_secs(60);
/// Longest wait of an object that the store refuses to delete.
const MAX_SWEEP_WAIT: Duration = Duration::from_secs(86_400);

/// Called in the transaction that forgets an object.
pub type Forgetting = for<'a> fn(&'a Conn, &'a ObjectKey) -> BoxFuture<'a, Result<()>>;

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

/// Lets the next sweep delete these objects, unless it may already.
pub async fn end_all(client: &Conn, keys: &[String]) -> Result<()> {
    client
        .execute(
            "-- objects.end_all
            update object set delete_at = app_now()
            where object_key = any($1) and not is_ending and (delete_at is null or delete_at > app_now())",
            &[&keys],
        )
        .await?;
    Ok(())
}

/// Lets the sweep delete each of these objects at its moment.
pub async fn end_at(client: &Conn, ends: &[(String, DateTime<Utc>)]) -> Result<()> {
    let (keys, moments): (Vec<&str>, Vec<DateTime<Utc>>) =
        ends.iter().map(|(key, at)| (key.as_str(), *at)).unzip();
    client
        .execute(
            "-- objects.end_at
            update object o set delete_at = k.moment from unnest($1::text[], $2::timestamptz[]) as k (object_key, moment)
            where o.object_key = k.object_key and not o.is_ending",
            &[&keys, &moments],
        )
        .await?;
    Ok(())
}

/// Lets the sweep delete an object by `end`, unless it may earlier.
pub async fn end_by(client: &Conn, key: &str, end: DateTime<Utc>) -> Result<()> {
    client
        .execute(
            "-- objects.end_by
            update object set delete_at = least(delete_at, $2) where object_key = $1 and not is_ending",
            &[&key, &end],
        )
        .await?;
    Ok(())
}

/// Takes some data of events apart from a conversation, that was stored before `bound`, and ends it.
/// False if none was left.
pub async fn purge_events(
    client: &Conn,
    conversation: ConversationId,
    bound: DateTime<Utc>,
) -> Result<bool> {
    let row = client
        .query_one(
            "-- objects.purge_events
            with data as materialized (
                select e.agent_id, e.event_id, e.object_key from event_object e left join object o using (object_key)
                where e.conversation_id = $1 and coalesce(o.created_at < $2, true)
                limit $3
            ), apart as (
                update event_object e set conversation_id = null from data
                where e.agent_id = data.agent_id and e.event_id = data.event_id
            ), ended as (
                update object o set delete_at = app_now() from data
                where o.object_key = data.object_key
                    and not o.is_ending and (o.delete_at is null or o.delete_at > app_now())
            )
            select exists (select from data) as any",
            &[&conversation, &bound, &BATCH_ROWS],
        )
        .await?;
    Ok(row.get("any"))
}

/// Ends some of the data of events that was stored for an agent. False if none was left.
pub async fn end_events_of(client: &Conn, agent: AgentId) -> Result<bool> {
    let row = client
        .query_one(
            "-- objects.end_events_of
            with data as materialized (
                select object_key from event_object
                where agent_id = $1 and exists (select from live_object o where o.object_key = event_object.object_key)
                limit $2
            ), ended as (
                update object o set delete_at = app_now() from data where o.object_key = data.object_key and not o.is_ending
            )
            select exists (select from data) as any",
            &[&agent, &BATCH_ROWS],
        )
        .await?;
    Ok(row.get("any"))
}

/// Deletes some objects whose end has come. True while there may be more. One that the store
/// refuses to delete waits ever longer, so that others go on.
pub(super) async fn sweep(db: &Db, backend: &Backend, forgetting: Forgetting) -> Result<bool> {
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
            Ok(()) => forget(db, &key, forgetting).await?,
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

async fn forget(db: &Db, key: &ObjectKey, forgetting: Forgetting) -> Result<()> {
    db.run("objects.forget", async |tx| {
        forgetting(tx, key).await?;
        tx.execute(
            "-- objects.forget
            delete from object where object_key = $1",
            &[&key.as_str()],
        )
        .await?;
        Ok(())
    })
    .await
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
