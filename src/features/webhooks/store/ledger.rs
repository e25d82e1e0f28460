//! The two statements around an attempt, each for many deliveries of many agents. Both check that
//! the turn still counts, so a worker that was overtaken changes nothing.

use chrono::{DateTime, Utc};

use super::super::DeliveryStatus;
use crate::{
    db::Db,
    error::Result,
    ids::{AgentId, DeliveryId, EventId},
    work::Tx,
};

/// An attempt that is about to begin.
pub struct Begin {
    pub agent: AgentId,
    pub turn: i32,
    pub delivery: DeliveryId,
    pub seq: i64,
    /// The event's name.
    pub event: String,
    /// The event's id, which is that of its message or of its stop.
    pub id: Option<EventId>,
    /// Whether the log does not have the delivery yet.
    pub is_new: bool,
}

/// An attempt that may be made.
#[derive(Clone, Copy, Debug)]
pub struct BegunAttempt {
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The time of the last change of the webhook.
    pub updated_at: DateTime<Utc>,
    /// Whether the event's message is deleted, possibly since the turn has read it.
    pub is_deleted: bool,
    pub stop: StopState,
}

/// The state of a call that brings the event of a stop beside the deliveries. Unless there is none,
/// no attempt was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopState {
    None,
    UnderWay,
    Answered,
}

/// Records that attempts begin. None for those whose turn is lost.
pub async fn begin(db: &Db, items: &[&Begin]) -> Result<Vec<Option<BegunAttempt>>> {
    let agents: Vec<AgentId> = items.iter().map(|item| item.agent).collect();
    let turns: Vec<i32> = items.iter().map(|item| item.turn).collect();
    let ids: Vec<DeliveryId> = items.iter().map(|item| item.delivery).collect();
    let seqs: Vec<i64> = items.iter().map(|item| item.seq).collect();
    let events: Vec<&str> = items.iter().map(|item| item.event.as_str()).collect();
    let event_ids: Vec<Option<EventId>> = items.iter().map(|item| item.id).collect();
    let are_new: Vec<bool> = items.iter().map(|item| item.is_new).collect();
    let (low, high) = (ids.iter().min(), ids.iter().max());
    let client = db.write().await?;
    let rows = client
        .query(
            "-- webhooks.begin
            with item as materialized (
                select * from unnest($1::uuid[], $2::int4[], $3::uuid[], $4::bigint[], $5::text[], $6::bool[], $9::uuid[])
                    with ordinality as item (agent_id, turn, delivery_id, seq, event, is_new, event_id, n)
            ), live as materialized (
                -- The laterals are probes of indexes: without them Postgres reads all webhooks for a few items.
                select item.*, w.updated_at,
                    exists (select from message_deletion d where d.message_id = item.event_id) as is_deleted,
                    item.is_new and coalesce(s.is_answered, false) as is_answered,
                    item.is_new and coalesce(not s.is_answered and s.wait_until > app_now(), false) as is_awaited
                from item
                cross join lateral (
                    select from webhook_turn t where t.agent_id = item.agent_id and t.turn = item.turn
                        and t.is_leased and t.is_open and t.epoch = (select inbox_epoch()) offset 0
                ) t
                cross join lateral (select updated_at from webhook w where w.agent_id = item.agent_id offset 0) w
                left join webhook_stop s on s.agent_id = item.agent_id and s.event_id = item.event_id
            ), made as (
                insert into webhook_delivery (agent_id, delivery_id, seq, event, status, attempts)
                select agent_id, delivery_id, seq, event, 'pending', 1 from live
                where is_new and not is_answered and not is_awaited
            ), repeated as (
                update webhook_delivery d set status = 'pending', attempts = d.attempts + 1, next_attempt_at = null
                from live
                where not live.is_new and d.agent_id = live.agent_id and d.delivery_id = live.delivery_id
                    and d.delivery_id between $7 and $8
                returning d.delivery_id, d.attempts
            )
            select n, updated_at, is_deleted, is_answered, is_awaited, 1 as attempt from live where is_new
            union all
            select live.n, live.updated_at, live.is_deleted, false, false, r.attempts from live join repeated r on r.delivery_id = live.delivery_id",
            &[
                &agents, &turns, &ids, &seqs, &events, &are_new, &low, &high, &event_ids,
            ],
        )
        .await?;
    let mut begun = vec![None; items.len()];
    for row in rows {
        let n = usize::try_from(row.get::<_, i64>("n") - 1).ok();
        if let Some(place) = n.and_then(|n| begun.get_mut(n)) {
            *place = Some(BegunAttempt {
                attempt: row.get("attempt"),
                updated_at: row.get("updated_at"),
                is_deleted: row.get("is_deleted"),
                stop: if row.get("is_answered") {
                    StopState::Answered
                } else if row.get("is_awaited") {
                    StopState::UnderWay
                } else {
                    StopState::None
                },
            });
        }
    }
    Ok(begun)
}

/// An attempt that is over.
pub struct Finish {
    pub delivery: DeliveryId,
    pub status: DeliveryStatus,
    /// The attempts to add to the log, as JSON.
    pub entries: Vec<String>,
    /// Seconds until the next attempt.
    pub retry_in: Option<f64>,
    /// Nothing was sent, so it was no attempt.
    pub is_uncounted: bool,
}

/// The state of an agent's turn after an attempt.
#[derive(Clone)]
pub struct Progress {
    pub agent: AgentId,
    pub turn: i32,
    /// The epoch of the numbers.
    pub epoch: i64,
    /// Finished numbers beyond the cursor, as a multirange.
    pub done: String,
    /// All events up to this number are finished.
    pub acked: i64,
    /// Failed attempts since the last success.
    pub failures: i32,
    /// Seconds for which the receiver asked for a pause.
    pub pause: Option<f64>,
}

/// Records the outcomes of attempts, possibly of none, and moves the agents' cursors. `progress` has
/// an item per agent. Answers the present cursor of each agent whose turn still counts.
pub async fn finish(
    db: &Db,
    items: &[(AgentId, &Finish)],
    progress: &[&Progress],
) -> Result<Vec<(AgentId, i64)>> {
    let owners: Vec<AgentId> = items.iter().map(|(agent, _)| *agent).collect();
    let ids: Vec<DeliveryId> = items.iter().map(|(_, item)| item.delivery).collect();
    let statuses: Vec<DeliveryStatus> = items.iter().map(|(_, item)| item.status).collect();
    let entries: Vec<String> = items
        .iter()
        .map(|(_, item)| item.entries.join("\n"))
        .collect();
    let retries: Vec<Option<f64>> = items.iter().map(|(_, item)| item.retry_in).collect();
    let uncounted: Vec<bool> = items.iter().map(|(_, item)| item.is_uncounted).collect();
    let (low, high) = (ids.iter().min(), ids.iter().max());
    let agents: Vec<AgentId> = progress.iter().map(|one| one.agent).collect();
    let turns: Vec<i32> = progress.iter().map(|one| one.turn).collect();
    let epochs: Vec<i64> = progress.iter().map(|one| one.epoch).collect();
    let done: Vec<&str> = progress.iter().map(|one| one.done.as_str()).collect();
    let acked: Vec<i64> = progress.iter().map(|one| one.acked).collect();
    let failures: Vec<i32> = progress.iter().map(|one| one.failures).collect();
    let pauses: Vec<Option<f64>> = progress.iter().map(|one| one.pause).collect();
    let client = db.write().await?;
    let rows = client
        .query(
            "-- webhooks.finish
            with item as materialized (
                select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::float8[], $6::bool[])
                    as item (agent_id, delivery_id, status, entries, retry_in, is_uncounted)
            ), held as materialized (
                select said.* from unnest($9::uuid[], $10::int4[], $11::bigint[], $12::text[], $13::bigint[], $14::int4[],
                        $15::float8[])
                    as said (agent_id, turn, epoch, done, acked, failures, pause)
                join webhook_turn t on t.agent_id = said.agent_id and t.turn = said.turn
                where t.is_leased and t.epoch = said.epoch and t.epoch = (select inbox_epoch())
                order by t.agent_id for update of t
            ), logged as (
                update webhook_delivery d set status = item.status, attempts = d.attempts - item.is_uncounted::int,
                    log = d.log || string_to_array(nullif(item.entries, ''), E'\\n'),
                    next_attempt_at = app_now() + make_interval(secs => item.retry_in),
                    is_replay = d.is_replay and item.status in ('pending', 'failed')
                from item join held on held.agent_id = item.agent_id
                where d.agent_id = item.agent_id and d.delivery_id = item.delivery_id
                    and d.delivery_id between $7 and $8
            ), turned as (
                update webhook_turn t set done = held.done::int8multirange, failures = held.failures,
                    not_before = case when held.pause is null then t.not_before
                        else app_now() + make_interval(secs => held.pause) end
                from held where t.agent_id = held.agent_id
            ), reader as materialized (
                select r.principal_id, held.acked from inbox_reader r join held on held.agent_id = r.principal_id
                where r.device_id = '' and r.acked_seq < held.acked
                order by r.principal_id for update of r
            ), moved as (
                update inbox_reader r set acked_seq = greatest(r.acked_seq, reader.acked)
                from reader where r.principal_id = reader.principal_id and r.device_id = ''
            )
            select held.agent_id, greatest(held.acked, r.acked_seq) as acked_seq
            from held join inbox_reader r on r.principal_id = held.agent_id and r.device_id = ''",
            &[
                &owners, &ids, &statuses, &entries, &retries, &uncounted, &low, &high, &agents,
                &turns, &epochs, &done, &acked, &failures, &pauses,
            ],
        )
        .await?;
    let cursor = |row: &tokio_postgres::Row| (row.get("agent_id"), row.get("acked_seq"));
    Ok(rows.iter().map(cursor).collect())
}

/// Ends a delivery for good, in the transaction that makes its agent unreachable.
pub async fn exhaust(
    tx: &Tx,
    agent: AgentId,
    delivery: DeliveryId,
    entries: &[String],
) -> Result<()> {
    tx.execute(
        "-- webhooks.exhaust
        update webhook_delivery set status = 'exhausted', next_attempt_at = null, log = log || $3::text[], is_replay = false
        where agent_id = $1 and delivery_id = $2",
        &[&agent, &delivery, &entries],
    )
    .await?;
    Ok(())
}

/// Sets the reason of the last failure that the webhook shows.
pub async fn set_last_error(db: &Db, agent: AgentId, error: Option<&str>) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.set_last_error
            update webhook set last_error = $2 where agent_id = $1 and last_error is distinct from $2",
            &[&agent, &error],
        )
        .await?;
    Ok(())
}
