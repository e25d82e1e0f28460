//! Events come into inboxes, and go when they are old.

use chrono::{DateTime, Utc};

use super::super::{Delivery, NewEvent};
use crate::{
    db::{Db, Tx, batches::BATCH_ROWS},
    error::Result,
    events,
    ids::{ConversationId, EventId, Principal, PrincipalId, PrincipalKind},
};

/// Appends events, each to its own recipients, in a single statement. A recipient of several gets
/// them in order.
pub async fn append_all(
    tx: &Tx,
    events: &[NewEvent],
) -> Result<Vec<(DateTime<Utc>, Vec<Delivery>)>> {
    let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.name()).collect();
    let conversations: Vec<Option<ConversationId>> =
        events.iter().map(|event| event.conversation).collect();
    let data: Vec<&str> = events.iter().map(|event| event.data.as_str()).collect();
    let is_new: Vec<bool> = events
        .iter()
        .map(|event| event.recorded_at.is_none())
        .collect();
    let targets = || {
        (1..)
            .zip(events)
            .flat_map(|(n, event)| event.recipients.iter().map(move |id| (n, *id)))
    };
    let (ns, recipients): (Vec<i32>, Vec<Principal>) = targets().unzip();
    let principals: Vec<PrincipalId> = recipients.iter().map(|one| one.id()).collect();
    let kinds_of: Vec<PrincipalKind> = recipients.iter().map(|one| one.kind()).collect();
    let rows = tx
        .query(
            "-- inbox.append
            with told as (
                insert into event (event_id, kind, conversation_id, data)
                select event_id, kind, conversation_id, data
                from unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $7::bool[])
                    as one (event_id, kind, conversation_id, data, is_new)
                where is_new
            ), heard as materialized (
                select principal_id, min(kind) as kind, array_agg(n) as ns, array_agg(($1::uuid[])[n]) as ids
                from (
                    select * from unnest($5::int4[], $6::uuid[], $8::text[]) as target (n, principal_id, kind)
                    order by principal_id, n
                ) each
                group by principal_id
            ), held as materialized (
                select principal_id, kind, ns, ids, i.head_seq
                from heard join inbox i using (principal_id)
                order by principal_id for update of i
            ), heads as (
                update inbox i set head_seq = held.head_seq + cardinality(held.ids)
                from held where i.principal_id = held.principal_id
            ), entries as (
                insert into inbox_entry (principal_id, seq, events, event_ids)
                select principal_id, head_seq + cardinality(ids), cardinality(ids), ids from held
            )
            select app_now() as created_at, null::uuid as principal_id, null as kind, null::bigint as head_seq,
                null::int4[] as ns, null::bool as has_webhook
            union all
            select null, principal_id, kind, head_seq, ns, case when kind = 'agent' then exists (
                select from webhook_turn t where t.agent_id = principal_id and t.is_open) end
            from held",
            &[
                &ids,
                &kinds,
                &conversations,
                &data,
                &ns,
                &principals,
                &is_new,
                &kinds_of,
            ],
        )
        .await?;
    let at: DateTime<Utc> = rows
        .iter()
        .find_map(|row| row.get("created_at"))
        .unwrap_or_default();
    let mut appended: Vec<_> = events
        .iter()
        .map(|event| (at, Vec::with_capacity(event.recipients.len())))
        .collect();
    for row in &rows {
        let Some(kind) = row.get("kind") else {
            continue;
        };
        let recipient = Principal::from_row(kind, row.get("principal_id"));
        let head: i64 = row.get("head_seq");
        let has_webhook = row.get::<_, Option<bool>>("has_webhook") == Some(true);
        for (seq, n) in (head + 1..).zip(row.get::<_, Vec<i32>>("ns")) {
            let event = usize::try_from(n - 1)
                .ok()
                .and_then(|n| appended.get_mut(n));
            let delivery = Delivery {
                recipient,
                seq,
                has_webhook,
            };
            event
                .into_iter()
                .for_each(|(_, deliveries)| deliveries.push(delivery));
        }
    }
    Ok(appended)
}

pub async fn recorded(tx: &Tx, ids: &[EventId]) -> Result<Vec<NewEvent>> {
    let rows = tx
        .query(
            "-- inbox.recorded
            select e.event_id, e.kind, e.conversation_id, e.created_at, e.data
            from unnest($1::uuid[]) with ordinality as wanted (event_id, n) join event e using (event_id)
            order by wanted.n",
            &[&ids],
        )
        .await?;
    // A later build's kind of event is for that build's jobs.
    let event = |row: &tokio_postgres::Row| {
        Some(NewEvent {
            recorded_at: Some(row.get("created_at")),
            id: row.get("event_id"),
            kind: events::EventKind::from_name(row.get("kind"))?,
            conversation: row.get("conversation_id"),
            data: row.get("data"),
            recipients: Vec::new(),
        })
    };
    Ok(rows.iter().filter_map(event).collect())
}

pub async fn expire_entries(db: &Db, days: i32) -> Result<bool> {
    let client = db.write().await?;
    Ok(client
        .execute(
            "-- inbox.expire_entries
            delete from inbox_entry where created_at = any(array(
                select created_at from inbox_entry where created_at < app_now() - make_interval(days => $1)
                order by created_at limit $2
            ))",
            &[&days, &BATCH_ROWS],
        )
        .await?
        > 0)
}

/// Leaves alone the events that an entry refers to: an event is as old as its entries.
pub async fn expire_events(db: &Db, days: i32) -> Result<bool> {
    let client = db.write().await?;
    Ok(client
        .execute(
            "-- inbox.expire_events
            delete from event where event_id = any(array(
                select event_id from event where created_at
                    < least(app_now() - make_interval(days => $1), (select min(created_at) from inbox_entry))
                order by created_at limit $2
            ))",
            &[&days, &BATCH_ROWS],
        )
        .await?
        > 0)
}
