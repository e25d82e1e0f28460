//! Stops that a receiver gets by a call of their own.

use tokio_postgres::Row;

use super::{
    super::DeliveryStatus,
    turns::{EndpointRow, endpoint},
};
use crate::{
    db::{Db, batches::BATCH_ROWS},
    error::Result,
    ids::{AgentId, DeliveryId, EventId},
    work::Tx,
};

/// Seconds for which the deliveries wait for the answer to a stop: until a worker has taken it, and
/// for the longest call.
const ANSWER_SECONDS: f64 = 15.0;
/// Calls for stops that an agent has at once. Further ones wait.
const MAX_AGENT_CALLS: i64 = 2;
/// The event is among so many of the newest numbers of the inbox. An older one is not looked for.
const MAX_EVENTS_BEHIND: i64 = 4096;

/// Notes a stop for those of `agents` whose webhooks deliver. Its event is in the same transaction.
pub async fn announce(tx: &Tx, agents: &[AgentId], event: EventId) -> Result<()> {
    tx.execute(
        "-- webhooks.announce_stop
        insert into webhook_stop (agent_id, event_id, wait_until)
        select agent_id, $2, app_now() + make_interval(secs => $3) from webhook_turn
        where agent_id = any($1) and is_open",
        &[&agents, &event, &ANSWER_SECONDS],
    )
    .await?;
    Ok(())
}

/// A stop that a worker has taken, with everything that its call needs.
pub struct TakenStop {
    pub agent: AgentId,
    pub event: EventId,
    /// The number before its entry in the inbox.
    pub after: i64,
    /// The events of that entry.
    pub events: i64,
    pub epoch: i64,
    pub endpoint: EndpointRow,
}

/// Takes some stops that wait for their calls.
pub async fn take(db: &Db, max: i64) -> Result<Vec<TakenStop>> {
    let client = db.write().await?;
    let rows = client
        .query(
            "-- webhooks.take_stops
            with due as materialized (
                select s.agent_id, s.event_id from webhook_stop s
                where s.wait_until > app_now() and not s.is_taken and (
                    select count(*) from webhook_stop o where o.agent_id = s.agent_id
                        and o.is_taken and not o.is_answered and o.wait_until > app_now()) < $3
                order by s.wait_until limit $1 for update of s skip locked
            ), taken as (
                update webhook_stop s set is_taken = true, wait_until = app_now() + make_interval(secs => $2)
                from due where s.agent_id = due.agent_id and s.event_id = due.event_id
                returning s.agent_id, s.event_id
            )
            select t.agent_id, t.event_id, e.seq - e.events as after, e.events::bigint as events, inbox_epoch() as epoch,
                w.url, w.max_events, w.credential_id, w.sealed_secret, w.sealed_previous, w.previous_valid_until, w.updated_at, (
                    select token_id from live_agent_token l where l.agent_id = t.agent_id
                    order by valid_until desc limit 1) as token_id
            from taken t join webhook w on w.agent_id = t.agent_id and w.status = 'active'
            join inbox i on i.principal_id = t.agent_id
            cross join lateral (
                select e.seq, e.events from inbox_entry e
                where e.principal_id = t.agent_id and e.seq > i.head_seq - $4 and t.event_id = any(e.event_ids)
                order by e.seq desc limit 1
            ) e",
            &[&max, &ANSWER_SECONDS, &MAX_AGENT_CALLS, &MAX_EVENTS_BEHIND],
        )
        .await?;
    let taken = |row: &Row| TakenStop {
        agent: row.get("agent_id"),
        event: row.get("event_id"),
        after: row.get("after"),
        events: row.get("events"),
        epoch: row.get("epoch"),
        endpoint: endpoint(row),
    };
    Ok(rows.iter().map(taken).collect())
}

/// A call for a stop that is over, for the log.
pub struct StopCall {
    pub agent: AgentId,
    pub event: EventId,
    pub delivery: DeliveryId,
    /// The event's number in the inbox.
    pub seq: i64,
    /// The event's name.
    pub name: String,
    /// The attempt, as JSON.
    pub attempt: String,
    /// Whether the receiver has answered with 2xx.
    pub is_answered: bool,
}

/// Logs the call for a stop. The deliveries leave an answered event out, and go on with another.
pub async fn finish(db: &Db, call: &StopCall) -> Result<()> {
    let status = if call.is_answered {
        DeliveryStatus::Success
    } else {
        DeliveryStatus::Exhausted
    };
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.finish_stop
            with logged as (
                insert into webhook_delivery (agent_id, delivery_id, seq, event, status, attempts, log)
                values ($1, $3, $4, $5, $6, 1, array[$7])
            ), failed as (
                delete from webhook_stop where agent_id = $1 and event_id = $2 and not $8
            )
            update webhook_stop set is_answered = true, wait_until = app_now()
            where agent_id = $1 and event_id = $2 and $8",
            &[
                &call.agent, &call.event, &call.delivery, &call.seq, &call.name, &status, &call.attempt,
                &call.is_answered,
            ],
        )
        .await?;
    Ok(())
}

/// Forgets a stop: the deliveries have passed its event, or no call is made for it.
pub async fn forget(db: &Db, agent: AgentId, event: EventId) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.forget_stop
            delete from webhook_stop where agent_id = $1 and event_id = $2",
            &[&agent, &event],
        )
        .await?;
    Ok(())
}

/// Forgets some stops whose events are no longer in any inbox. True while there may be more.
pub async fn forget_old(db: &Db, days: i32) -> Result<bool> {
    let client = db.write().await?;
    let deleted = client
        .execute(
            "-- webhooks.forget_stops
            delete from webhook_stop s using (
                select agent_id, event_id from webhook_stop
                where wait_until < app_now() - make_interval(days => $1) order by wait_until limit $2
            ) old
            where s.agent_id = old.agent_id and s.event_id = old.event_id",
            &[&days, &BATCH_ROWS],
        )
        .await?;
    Ok(deleted > 0)
}
