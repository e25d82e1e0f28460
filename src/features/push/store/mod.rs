//! The rows of subscriptions and of wakes.

pub mod wakes;

use blindpipe_protocol::push::PushKind;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use crate::{
    auth::user::{User, lock_live_session},
    db::{Db, batches::BATCH_ROWS},
    error::{Code, Result},
    ids::{CredentialId, SessionId, UserId},
    work::Tx,
};

/// Most rows that are sealed anew at once.
const MAX_RESEALED: i64 = 500;

/// A subscription, without its address.
pub struct SubscriptionRow {
    pub kind: PushKind,
    pub last_error: Option<String>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

fn subscription(row: &Row) -> SubscriptionRow {
    SubscriptionRow {
        kind: row.get("kind"),
        last_error: row.get("last_error"),
        created_at: row.get("created_at"),
        updated_at: row.get("updated_at"),
    }
}

/// Locks the caller's live session, and finds the live session of a device of the same user.
pub async fn session_of(tx: &Tx, user: &User, device: &str) -> Result<SessionId> {
    lock_live_session(tx, user.id, user.session).await?;
    let row = tx
        .query_opt(
            "-- push.session
            select session_id from live_session where user_id = $1 and device_id = $2 for share",
            &[&user.id, &device],
        )
        .await?;
    Ok(row.ok_or(Code::NotFound)?.get("session_id"))
}

/// Sets the subscription of a session. It begins with the events after this moment.
pub async fn put(
    tx: &Tx,
    user: UserId,
    session: SessionId,
    kind: PushKind,
    sealed: &[u8],
    server_key: i32,
) -> Result<SubscriptionRow> {
    let row = tx
        .query_one(
            "-- push.put
            insert into push_subscription as s (session_id, user_id, kind, sealed_endpoint, server_key, epoch, read_seq)
            select $1, principal_id, $3, $4, $5, inbox_epoch(), head_seq from inbox where principal_id = $2
            on conflict (session_id) do update set kind = $3, sealed_endpoint = $4, server_key = $5,
                revision = s.revision + 1, last_error = null, updated_at = app_now()
            returning kind, last_error, created_at, updated_at",
            &[&session, &user, &kind, &sealed, &server_key],
        )
        .await?;
    Ok(subscription(&row))
}

/// Reads the subscription of a user's device; none if it has none.
pub async fn find(db: &Db, user: UserId, device: &str) -> Result<Option<SubscriptionRow>> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- push.find
            select s.kind, s.last_error, s.created_at, s.updated_at
            from live_session l join push_subscription s on s.session_id = l.session_id
            where l.user_id = $1 and l.device_id = $2",
            &[&user, &device],
        )
        .await?;
    Ok(row.as_ref().map(subscription))
}

/// Removes the subscription of a user's device; none if it has none. Returns the time.
pub async fn delete(tx: &Tx, user: &User, device: &str) -> Result<Option<DateTime<Utc>>> {
    lock_live_session(tx, user.id, user.session).await?;
    let row = tx
        .query_opt(
            "-- push.delete
            delete from push_subscription where session_id in (
                select session_id from live_session where user_id = $1 and device_id = $2)
            returning app_now() as deleted_at",
            &[&user.id, &device],
        )
        .await?;
    Ok(row.map(|row| row.get("deleted_at")))
}

/// Removes the subscriptions of a user.
pub async fn delete_of(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- push.delete_of
        with gone as materialized (
            select session_id from push_subscription where user_id = $1 order by session_id for update
        )
        delete from push_subscription s using gone where s.session_id = gone.session_id",
        &[&user],
    )
    .await?;
    Ok(())
}

/// Removes the subscriptions of sessions that have ended. A session that goes on keeps its own.
pub async fn delete_ended(db: &Db, credentials: &[CredentialId]) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.delete_ended
            with gone as materialized (
                select s.session_id from push_subscription s where s.session_id = any($1)
                    and not exists (select from live_session l where l.session_id = s.session_id)
                order by s.session_id for update
            )
            delete from push_subscription s using gone where s.session_id = gone.session_id",
            &[&credentials],
        )
        .await?;
    Ok(())
}

/// Looks at a batch of subscriptions after a session, in order, and removes those whose session is
/// over. Returns the last session of the batch; none after the end.
pub async fn forget(db: &Db, after: SessionId) -> Result<Option<SessionId>> {
    let client = db.write().await?;
    let row = client
        .query_one(
            "-- push.forget
            with piece as materialized (
                select session_id from push_subscription where session_id > $1 order by session_id limit $2
            ), held as materialized (
                select s.session_id from push_subscription s where s.session_id = any(array(select session_id from piece))
                    and not exists (select from live_session l
                        where l.session_id = s.session_id and l.refresh_expires_at > app_now())
                order by s.session_id for update skip locked
            ), gone as (
                delete from push_subscription s using held where s.session_id = held.session_id
            )
            select (array_agg(session_id order by session_id desc))[1] as last from piece",
            &[&after, &BATCH_ROWS],
        )
        .await?;
    Ok(row.get("last"))
}

/// A sealed endpoint.
pub struct SealedEndpoint {
    pub session: SessionId,
    pub sealed: Vec<u8>,
}

/// A batch of endpoints that are sealed under one of these keys, after a session and in order.
pub async fn sealed_under(
    db: &Db,
    keys: &[Vec<u8>],
    after: SessionId,
) -> Result<Vec<SealedEndpoint>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- push.sealed_under
            select session_id, sealed_endpoint from push_subscription
            where substring(sealed_endpoint from 1 for 4) = any($1) and session_id > $2
            order by session_id limit $3",
            &[&keys, &after, &MAX_RESEALED],
        )
        .await?;
    let sealed = rows.iter().map(|row| SealedEndpoint {
        session: row.get("session_id"),
        sealed: row.get("sealed_endpoint"),
    });
    Ok(sealed.collect())
}

/// Stores an endpoint that is sealed anew, unless it has changed.
pub async fn replace(db: &Db, before: &SealedEndpoint, sealed: &[u8]) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.reseal
            update push_subscription set sealed_endpoint = $3 where session_id = $1 and sealed_endpoint = $2",
            &[&before.session, &before.sealed, &sealed],
        )
        .await?;
    Ok(())
}

/// The numbers of endpoints by the key that they are sealed under.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSeals {
    /// Under a key of the ring that is not the first.
    pub old: i64,
    /// Under a key that is not in the ring.
    pub unreadable: i64,
}

/// Counts the endpoints that are not under the first key.
pub async fn count_seals(db: &Db, current: &[u8], others: &[Vec<u8>]) -> Result<EndpointSeals> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- push.count_seals
            select count(*) filter (where name = any($2)) as old, count(*) filter (where name <> all($2)) as unreadable
            from (
                select substring(sealed_endpoint from 1 for 4) as name from push_subscription
                where substring(sealed_endpoint from 1 for 4) < $1
                union all
                select substring(sealed_endpoint from 1 for 4) from push_subscription
                where substring(sealed_endpoint from 1 for 4) > $1
            ) sealed",
            &[&current, &others],
        )
        .await?;
    Ok(EndpointSeals {
        old: row.get("old"),
        unreadable: row.get("unreadable"),
    })
}
