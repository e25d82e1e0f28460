//! Wakes: from inboxes into rows, and from rows to the workers that push them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use uuid::Uuid;

use super::super::rules::{LIFE, URGENT_LIFE, WINDOW};
use crate::{
    db::Db,
    error::Result,
    ids::{ConversationId, EventId, SessionId, UserId},
};

/// The time for which a worker has a wake. It is longer than a window and than a call, so that a
/// dead worker's push is repeated in a window of its own.
const LEASE_SECONDS: f64 = 30.0;

/// The outcome of [`collect`].
#[derive(Clone, Copy, Debug)]
pub struct CollectOutcome {
    /// Rows that have something to push now.
    pub wakes: u64,
    /// Whether an inbox has more.
    pub is_more: bool,
}

/// The users among these with a subscription. Most have none, and a look for events costs far more
/// than this probe of an index.
pub async fn subscribed(db: &Db, users: &[UserId]) -> Result<Vec<UserId>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- push.subscribed
            select said.user_id from unnest($1::uuid[]) as said (user_id)
            where exists (select from push_subscription s where s.user_id = said.user_id)",
            &[&users],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("user_id")).collect())
}

/// Reads the inboxes of these users from where their subscriptions have read them to, and notes the
/// events that wake a device. Of a conversation only the newest is kept. A wake that waits keeps its
/// time.
///
/// Nodes take turns by the lock on the subscription, so each event is read once. After a change of
/// the epoch reading begins at the head.
pub async fn collect(db: &Db, users: &[UserId]) -> Result<CollectOutcome> {
    // As the data of events names them.
    let wire_ids: Vec<String> = users.iter().map(ToString::to_string).collect();
    let client = db.write().await?;
    let row = client
        .query_one(
            "-- push.collect
            with held as materialized (
                select s.session_id, s.user_id, said.wire_id, case when s.epoch = e.epoch then s.read_seq else i.head_seq end as read_seq,
                    i.head_seq, e.epoch
                from unnest($1::uuid[], $4::text[]) as said (user_id, wire_id)
                join push_subscription s on s.user_id = said.user_id
                join inbox i on i.principal_id = s.user_id
                cross join (select inbox_epoch() as epoch) e
                where (s.epoch <> e.epoch or s.read_seq < i.head_seq)
                order by s.session_id for no key update of s
            ), entry as materialized (
                select held.session_id, held.user_id, held.wire_id, one.seq, one.conversation_id, one.message_seq, one.event_id
                from held cross join lateral (
                    select part.seq - part.events + n as seq, part.event_ids[n] as event_id,
                        coalesce(part.conversation_id, part.conversation_ids[n]) as conversation_id,
                        coalesce(part.message_seq - part.events + n, part.message_seqs[n]) as message_seq
                    from (
                        select * from inbox_entry
                        where principal_id = held.user_id and seq > held.read_seq order by seq limit 500
                    ) part cross join generate_series(1, part.events) n
                    where part.seq - part.events + n > held.read_seq
                ) one
            ), told as materialized (
                select entry.session_id, entry.seq, coalesce(entry.event_id, m.message_id) as event_id,
                    coalesce(v.kind, 'message.created') as event,
                    coalesce(v.conversation_id, m.conversation_id) as conversation_id, v.data::json as data
                from entry
                left join lateral (
                    select message_id, conversation_id, sender_id, deleted_at from message
                    where conversation_id = entry.conversation_id and seq = entry.message_seq limit 1
                ) m on true
                left join lateral (
                    select kind, conversation_id, data from event where event_id = entry.event_id limit 1
                ) v on true
                where case v.kind
                    when 'approval.requested' then true
                    when 'artifact_request' then true
                    when 'grant.requested' then true
                    when 'key.backup_accessed' then true
                    when 'key.device_added' then v.data::json ->> 'user_id' = entry.wire_id
                    -- A request stands for its message.
                    else v.kind is null and m.sender_id <> entry.user_id and m.deleted_at is null
                        and not exists (select from approval_asked a
                            where a.approval_id = m.message_id and a.user_id = entry.user_id)
                end
            ), placed as (
                select told.*, case
                        when event in ('approval.requested', 'artifact_request', 'grant.requested') then event_id
                        else coalesce(conversation_id, '00000000-0000-0000-0000-000000000000')
                    end as slot,
                    event = 'artifact_request' and data ->> 'sensitivity' = 'high' as is_urgent
                from told
            ), newest as (
                select distinct on (session_id, slot) * from placed order by session_id, slot, seq desc
            ), noted as (
                insert into push_wake as w (session_id, slot, event, event_id, conversation_id, subject_id, seq, is_urgent, expires_at)
                select session_id, slot, event, event_id, conversation_id,
                    coalesce(data ->> 'approval_id', data ->> 'request_id', data ->> 'grant_id'), seq, is_urgent,
                    app_now() + make_interval(secs => case when is_urgent then $2::float8 else $3::float8 end)
                from newest order by session_id, slot
                on conflict (session_id, slot) do update set event = excluded.event, event_id = excluded.event_id,
                    conversation_id = excluded.conversation_id, subject_id = excluded.subject_id, seq = excluded.seq,
                    is_urgent = excluded.is_urgent, expires_at = excluded.expires_at
                returning 1
            ), moved as (
                update push_subscription s set epoch = held.epoch,
                    read_seq = coalesce((select max(entry.seq) from entry where entry.session_id = held.session_id), held.read_seq)
                from held where s.session_id = held.session_id
                returning s.read_seq < held.head_seq as is_more
            )
            select (select count(*) from noted) as wakes, coalesce((select bool_or(is_more) from moved), false) as is_more",
            &[
                &users,
                &URGENT_LIFE.as_secs_f64(),
                &LIFE.as_secs_f64(),
                &wire_ids,
            ],
        )
        .await?;
    Ok(CollectOutcome {
        wakes: row.get::<_, i64>("wakes").unsigned_abs(),
        is_more: row.get("is_more"),
    })
}

/// Makes wakes due that wait for a socket of these users to ack them.
pub async fn unpark(db: &Db, users: &[UserId]) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.unpark
            with held as materialized (
                select w.session_id, w.slot from push_subscription s join push_wake w on w.session_id = s.session_id
                where s.user_id = any($1) and w.is_parked order by w.session_id, w.slot for update of w
            )
            update push_wake w set due_at = least(w.due_at, app_now()), is_parked = false
            from held where w.session_id = held.session_id and w.slot = held.slot",
            &[&users],
        )
        .await?;
    Ok(())
}

/// A wake that a worker has claimed, with everything that it needs.
pub struct Claim {
    pub session: SessionId,
    pub slot: Uuid,
    /// The number of the claim, which fences off earlier ones.
    pub claim: i32,
    pub event: String,
    pub event_id: EventId,
    pub conversation: Option<ConversationId>,
    pub subject: Option<String>,
    pub seq: i64,
    pub is_urgent: bool,
    pub is_expired: bool,
    /// Failed attempts.
    pub attempts: i32,
    pub user: UserId,
    pub sealed_endpoint: Vec<u8>,
    pub server_key: i32,
    /// The number of the subscription's PUT.
    pub revision: i32,
    /// The failure that the subscription shows.
    pub last_error: Option<String>,
    /// The device with a live session; none if the session is over.
    pub device: Option<String>,
    /// The id that a socket of the device may have.
    pub renamed_from: Option<String>,
    /// The device's position.
    pub acked: i64,
    pub head: i64,
    /// The time of the oldest event that the device has not acked.
    pub waits_since: Option<DateTime<Utc>>,
    pub now: DateTime<Utc>,
}

fn claim_of(row: &Row) -> Claim {
    Claim {
        session: row.get("session_id"),
        slot: row.get("slot"),
        claim: row.get("claim"),
        event: row.get("event"),
        event_id: row.get("event_id"),
        conversation: row.get("conversation_id"),
        subject: row.get("subject_id"),
        seq: row.get("seq"),
        is_urgent: row.get("is_urgent"),
        is_expired: row.get("is_expired"),
        attempts: row.get("attempts"),
        user: row.get("user_id"),
        sealed_endpoint: row.get("sealed_endpoint"),
        server_key: row.get("server_key"),
        revision: row.get("revision"),
        last_error: row.get("last_error"),
        device: row.get("device_id"),
        renamed_from: row.get("renamed_from"),
        acked: row.get("acked_seq"),
        head: row.get("head_seq"),
        waits_since: row.get("waits_since"),
        now: row.get("now"),
    }
}

/// Claims at most `limit` wakes that are due, and removes windows that have passed without an event.
pub async fn claim(db: &Db, limit: i64) -> Result<Vec<Claim>> {
    let client = db.write().await?;
    let rows = client
        .query(
            "-- push.claim
            with due as materialized (
                select session_id, slot, event from push_wake where due_at <= app_now()
                order by due_at limit $1 for update skip locked
            ), passed as (
                delete from push_wake w using due
                where w.session_id = due.session_id and w.slot = due.slot and due.event is null
            ), claimed as (
                update push_wake w set claim = w.claim + 1, is_parked = false, due_at = app_now() + make_interval(secs => $2)
                from due where w.session_id = due.session_id and w.slot = due.slot and due.event is not null
                returning w.*
            )
            select c.session_id, c.slot, c.claim, c.event, c.event_id, c.conversation_id, c.subject_id, c.seq, c.is_urgent,
                c.expires_at <= app_now() as is_expired, c.attempts, s.user_id, s.sealed_endpoint, s.server_key, s.revision, s.last_error,
                l.device_id, d.renamed_from, coalesce(r.acked_seq, i.head_seq) as acked_seq, i.head_seq,
                (select min(e.created_at) from (
                    select created_at from inbox_entry
                    where principal_id = s.user_id and seq > coalesce(r.acked_seq, i.head_seq) order by seq limit 1
                ) e) as waits_since, app_now() as now
            from claimed c join push_subscription s on s.session_id = c.session_id
            join inbox i on i.principal_id = s.user_id
            left join live_session l on l.session_id = c.session_id and l.refresh_expires_at > app_now()
            left join device d on d.user_id = l.user_id and d.device_id = l.device_id
            left join inbox_reader r on r.principal_id = l.user_id and r.device_id = l.device_id",
            &[&limit, &LEASE_SECONDS],
        )
        .await?;
    Ok(rows.iter().map(claim_of).collect())
}

/// Records that a push was sent. Its window begins; an event that came meanwhile waits for its end.
pub async fn sent(db: &Db, claim: &Claim) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.sent
            with kept as materialized (
                select session_id, slot, seq > $4 as has_more from push_wake
                where session_id = $1 and slot = $2 and claim = $3 for update
            ), ended as (
                delete from push_wake w using kept
                where w.session_id = kept.session_id and w.slot = kept.slot and w.slot = $5
            )
            update push_wake w set due_at = app_now() + make_interval(secs => $6), attempts = 0,
                event = case when has_more then event end
            from kept where w.session_id = kept.session_id and w.slot = kept.slot and w.slot <> $5",
            &[
                &claim.session,
                &claim.slot,
                &claim.claim,
                &claim.seq,
                &claim.event_id,
                &WINDOW.as_secs_f64(),
            ],
        )
        .await?;
    Ok(())
}

/// Removes a wake that needs no push, unless another event came meanwhile, which is then due.
pub async fn drop_wake(db: &Db, claim: &Claim) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.drop
            with kept as materialized (
                select session_id, slot, seq > $4 as has_more from push_wake
                where session_id = $1 and slot = $2 and claim = $3 for update
            ), ended as (
                delete from push_wake w using kept
                where w.session_id = kept.session_id and w.slot = kept.slot and not has_more
            )
            update push_wake w set due_at = app_now(), attempts = 0
            from kept where w.session_id = kept.session_id and w.slot = kept.slot and has_more",
            &[&claim.session, &claim.slot, &claim.claim, &claim.seq],
        )
        .await?;
    Ok(())
}

/// Looks at a wake again at a time: a socket may still ack it, or the node had no place.
pub async fn park(db: &Db, claim: &Claim, at: DateTime<Utc>, is_parked: bool) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.park
            update push_wake set due_at = $4, is_parked = $5 where session_id = $1 and slot = $2 and claim = $3",
            &[&claim.session, &claim.slot, &claim.claim, &at, &is_parked],
        )
        .await?;
    Ok(())
}

/// Attempts a wake again after a wait.
pub async fn retry(db: &Db, claim: &Claim, wait: Duration) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.retry
            update push_wake set due_at = app_now() + make_interval(secs => $4), attempts = attempts + 1
            where session_id = $1 and slot = $2 and claim = $3",
            &[
                &claim.session,
                &claim.slot,
                &claim.claim,
                &wait.as_secs_f64(),
            ],
        )
        .await?;
    Ok(())
}

/// Sets the reason of the last failure that the subscription shows. A statement of its own, because
/// a subscription is locked before its wakes.
pub async fn set_error(db: &Db, claim: &Claim, error: Option<&str>) -> Result<()> {
    if claim.last_error.as_deref() == error {
        return Ok(());
    }
    let client = db.write().await?;
    client
        .execute(
            "-- push.set_error
            update push_subscription set last_error = $3 where session_id = $1 and revision = $2",
            &[&claim.session, &claim.revision, &error],
        )
        .await?;
    Ok(())
}

/// Ends a subscription, unless its device has subscribed anew meanwhile.
pub async fn end(db: &Db, claim: &Claim) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.end
            delete from push_subscription where session_id = $1 and revision = $2",
            &[&claim.session, &claim.revision],
        )
        .await?;
    Ok(())
}

/// Inbox entries of a piece of the sweep: some milliseconds of Postgres.
const MAX_SWEPT_ENTRIES: i64 = 10_000;

/// A piece of what the sweep looks at.
pub struct SweptPiece {
    /// Those with a subscription that has not read all of its inbox.
    pub users: Vec<UserId>,
    /// The time up to which the piece reaches.
    pub until: DateTime<Utc>,
    /// Whether more entries wait.
    pub is_more: bool,
}

/// The next piece of fresh inbox entries.
pub async fn piece(db: &Db) -> Result<SweptPiece> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- push.piece
            with piece as materialized (
                select principal_id, created_at from inbox_entry
                where created_at > (select swept_until from push_sweep)
                order by created_at fetch first $1 rows with ties
            )
            select array(
                    select distinct s.user_id from push_subscription s join inbox i on i.principal_id = s.user_id
                    where s.user_id = any(array(select distinct principal_id from piece)) and s.read_seq <> i.head_seq
                ) as users, count(*) >= $1 as is_more,
                case when count(*) >= $1 then max(created_at) else app_now() - interval '10 seconds' end as until
            from piece",
            &[&MAX_SWEPT_ENTRIES],
        )
        .await?;
    Ok(SweptPiece {
        users: row.get("users"),
        until: row.get("until"),
        is_more: row.get("is_more"),
    })
}

/// Records how far the sweep has come. Commits may be up to ten seconds late.
pub async fn swept(db: &Db, until: DateTime<Utc>) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- push.swept
            update push_sweep set swept_until = greatest(swept_until, $1)",
            &[&until],
        )
        .await?;
    Ok(())
}

/// The age of the oldest wake that is due and that no worker has, in seconds.
pub async fn backlog(db: &Db) -> Result<f64> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- push.backlog
            select coalesce(extract(epoch from app_now() - min(due_at)), 0)::float8 as age
            from push_wake where due_at <= app_now()",
            &[],
        )
        .await?;
    Ok(row.get("age"))
}
