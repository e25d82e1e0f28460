use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Bounds, Delivery, Entry, NewEvent};
use crate::{
    access_log::AccessKind,
    cursor::Cursor,
    db::{Conn, Db, Tx},
    error::Result,
    events::{self, Message},
    ids::{AgentId, ConversationId, EventId, MessageId, Principal, TokenId},
};

/// A position's owner: an agent, or a device of a user.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// The owner of the inbox.
    pub principal: Uuid,
    /// Empty for agents, because all connections of an agent share a position.
    pub device_id: String,
}

impl Reader {
    /// The reader of an agent, or of a user on `device_id`.
    pub fn new(principal: Principal, device_id: &str) -> Self {
        Reader {
            principal: principal.id(),
            device_id: device_id.to_owned(),
        }
    }

    /// Whether it is an agent's.
    pub fn is_agent(&self) -> bool {
        self.device_id.is_empty()
    }
}

/// The epoch: the timeline in the high bits, the count of restores in the low bits.
pub async fn epoch(db: &Db) -> Result<u64> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- inbox.epoch
            select inbox_epoch() as epoch",
            &[],
        )
        .await?;
    Ok(from_column(row.get("epoch")))
}

/// Epochs are positive in Postgres, too, which has no unsigned integers.
fn from_column(epoch: i64) -> u64 {
    epoch.unsigned_abs()
}

fn to_column(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

pub async fn create(tx: &Tx, principal: Uuid) -> Result<()> {
    tx.execute(
        "-- inbox.create
        insert into inbox (principal_id) values ($1)",
        &[&principal],
    )
    .await?;
    Ok(())
}

pub async fn create_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    tx.execute(
        "-- inbox.create_reader
        insert into inbox_reader (principal_id, device_id, acked_seq)
        select principal_id, $2, head_seq from inbox where principal_id = $1
        on conflict (principal_id, device_id) do nothing",
        &[&reader.principal, &reader.device_id],
    )
    .await?;
    Ok(())
}

/// Renames a reader, and removes the reader that had the new name before.
pub async fn rename_reader(tx: &Tx, reader: &Reader, device_id: &str) -> Result<()> {
    if reader.device_id == device_id {
        return Ok(());
    }
    forget_reader(
        tx,
        &Reader {
            device_id: device_id.to_owned(),
            ..reader.clone()
        },
    )
    .await?;
    tx.execute(
        "-- inbox.rename_reader
        update inbox_reader set device_id = $3 where principal_id = $1 and device_id = $2",
        &[&reader.principal, &reader.device_id, &device_id],
    )
    .await?;
    Ok(())
}

pub async fn forget_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    tx.execute(
        "-- inbox.forget_reader
        delete from inbox_reader where principal_id = $1 and device_id = $2",
        &[&reader.principal, &reader.device_id],
    )
    .await?;
    Ok(())
}

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
    let (ns, principals): (Vec<i32>, Vec<Uuid>) = targets().unzip();
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
                select principal_id, array_agg(n) as ns, array_agg(($1::uuid[])[n]) as ids
                from (select * from unnest($5::int4[], $6::uuid[]) as target (n, principal_id) order by principal_id, n) each
                group by principal_id
            ), held as materialized (
                select principal_id, ns, ids, i.head_seq
                from heard join inbox i using (principal_id)
                order by principal_id for update of i
            ), heads as (
                update inbox i set head_seq = held.head_seq + cardinality(held.ids)
                from held where i.principal_id = held.principal_id
            ), entries as (
                insert into inbox_entry (principal_id, seq, event_ids)
                select principal_id, head_seq + cardinality(ids), ids from held
            )
            select app_now() as created_at, null::uuid as principal_id, null::bigint as head_seq, null::int4[] as ns
            union all select null, principal_id, head_seq, ns from held",
            &[
                &ids,
                &kinds,
                &conversations,
                &data,
                &ns,
                &principals,
                &is_new,
            ],
        )
        .await?;
    let at: DateTime<Utc> = rows
        .iter()
        .find_map(|row| row.get("created_at"))
        .unwrap_or_default();
    let mut told: Vec<_> = events
        .iter()
        .map(|event| (at, Vec::with_capacity(event.recipients.len())))
        .collect();
    for row in rows
        .iter()
        .filter(|row| row.get::<_, Option<Uuid>>("principal_id").is_some())
    {
        let (principal, head): (_, i64) = (row.get("principal_id"), row.get("head_seq"));
        for (seq, n) in (head + 1..).zip(row.get::<_, Vec<i32>>("ns")) {
            let event = usize::try_from(n - 1).ok().and_then(|n| told.get_mut(n));
            event
                .into_iter()
                .for_each(|(_, deliveries)| deliveries.push(Delivery { principal, seq }));
        }
    }
    Ok(told)
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

pub async fn bounds(db: &Db, reader: &Reader) -> Result<Bounds> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- inbox.bounds
            select i.head_seq,
                   coalesce((select seq - cardinality(event_ids) + 1 from inbox_entry e
                             where e.principal_id = $1 order by seq limit 1), i.head_seq + 1) as oldest_seq,
                   coalesce((select acked_seq from inbox_reader r where r.principal_id = $1 and r.device_id = $2), i.head_seq)
                       as acked_seq, inbox_epoch() as epoch
            from inbox i where i.principal_id = $1",
            &[&reader.principal, &reader.device_id],
        )
        .await?;
    Ok(Bounds {
        head: row.get("head_seq"),
        oldest: row.get("oldest_seq"),
        acked: row.get("acked_seq"),
        epoch: from_column(row.get("epoch")),
    })
}

/// Reads a page, which ends at its limit or before it grows too large. A single larger event is a
/// page of its own.
pub async fn read(
    client: &Conn,
    principal: Uuid,
    after: i64,
    limit: i64,
    bytes: i64,
) -> Result<Vec<Entry>> {
    let rows = client
        .query(
            "-- inbox.read
            select seq, event_id, created_at, kind, conversation_id, data,
                   message_seq, sender_kind, sender_id, sender_device, payload, client_message_id, in_reply_to, hop, recipients
            from (
                select e.seq, e.event_id, coalesce(v.created_at, m.created_at) as created_at, v.kind,
                       coalesce(v.conversation_id, m.conversation_id) as conversation_id, v.data,
                       m.seq as message_seq, m.sender_kind, m.sender_id, m.sender_device, m.payload,
                       m.client_message_id, m.in_reply_to, m.hop, m.recipients,
                       sum(octet_length(coalesce(m.payload, v.data))) over (order by e.seq) as bytes
                from (
                    select part.seq - cardinality(part.event_ids) + one.n as seq, one.event_id
                    from (
                        select seq, event_ids from inbox_entry
                        where principal_id = $1 and seq > $2 order by seq limit $3
                    ) part cross join unnest(part.event_ids) with ordinality as one (event_id, n)
                    where part.seq - cardinality(part.event_ids) + one.n > $2
                    order by 1 limit $3
                ) e
                left join message m on m.message_id = e.event_id
                left join event v on v.event_id = e.event_id
            ) page
            where bytes <= $4 or seq = $2 + 1
            order by seq",
            &[&principal, &after, &limit, &bytes],
        )
        .await?;
    Ok(rows.iter().map(entry).collect())
}

fn entry(row: &tokio_postgres::Row) -> Entry {
    let id: EventId = row.get("event_id");
    let at: DateTime<Utc> = row.get("created_at");
    let conversation: Option<ConversationId> = row.get("conversation_id");
    let recipients: Option<Vec<String>> = row.get("recipients");
    let encoded = match (row.get::<_, Option<&str>>("kind"), conversation) {
        // No event row: the entry announces a message, which carries the event's id.
        (None, Some(conversation)) => message(
            row,
            MessageId(id.0),
            conversation,
            at,
            recipients.as_deref(),
        )
        .encoded(),
        (kind, conversation) => events::encoded(
            id,
            kind.unwrap_or_default(),
            conversation,
            at,
            row.get("data"),
        ),
    };
    Entry {
        seq: row.get("seq"),
        encoded,
    }
}

fn message<'a>(
    row: &'a tokio_postgres::Row,
    id: MessageId,
    conversation: ConversationId,
    at: DateTime<Utc>,
    recipients: Option<&'a [String]>,
) -> Message<'a> {
    Message {
        id,
        conversation,
        seq: row.get("message_seq"),
        sender: Principal::from_row(row.get("sender_kind"), row.get("sender_id")),
        device_id: row.get("sender_device"),
        payload: row.get("payload"),
        recipients,
        client_message_id: row.get("client_message_id"),
        in_reply_to: row.get("in_reply_to"),
        hop: row.get("hop"),
        created_at: at,
    }
}

/// A reader's ack.
pub struct Ack {
    pub reader: Reader,
    /// The number of the last event that the reader has.
    pub seq: i64,
    /// The credential that vouches for it; none if the caller's transaction holds it already.
    pub credential: Option<Uuid>,
}

/// Moves readers' places forward, never back and never past the head; rows are locked in order. A
/// socket that was opened before its device got its name goes on acking under the old one.
///
/// With an epoch, nothing moves once Postgres has another: the numbers would name other events.
///
/// An ack with a credential counts only while the credential is live. A revoked token would move the
/// position that all sockets of an agent share.
pub async fn ack(client: &Conn, acks: &[Ack], epoch: Option<u64>) -> Result<()> {
    let principals: Vec<Uuid> = acks.iter().map(|ack| ack.reader.principal).collect();
    let devices: Vec<&str> = acks
        .iter()
        .map(|ack| ack.reader.device_id.as_str())
        .collect();
    let seqs: Vec<i64> = acks.iter().map(|ack| ack.seq).collect();
    let credentials: Vec<Option<Uuid>> = acks.iter().map(|ack| ack.credential).collect();
    let epoch = epoch.map(to_column);
    client
        .execute(
            "-- inbox.ack
            with said as (
                select said.principal_id, coalesce(d.device_id, said.device_id) as device_id, max(said.seq) as seq
                from unnest($1::uuid[], $2::text[], $3::bigint[], $5::uuid[]) as said (principal_id, device_id, seq, credential_id)
                left join device d on d.user_id = said.principal_id and d.renamed_from = said.device_id
                where ($4::bigint is null or $4 = (select inbox_epoch()))
                    and (said.credential_id is null
                        or exists (select from live_session s where s.session_id = said.credential_id)
                        or exists (select from live_agent_token t where t.token_id = said.credential_id))
                group by 1, 2
            ), locked as materialized (
                select r.principal_id, r.device_id, least(said.seq, i.head_seq) as seq
                from inbox_reader r join said using (principal_id, device_id) join inbox i using (principal_id)
                order by r.principal_id, r.device_id for update of r
            )
            update inbox_reader r set acked_seq = locked.seq from locked
            where r.principal_id = locked.principal_id and r.device_id = locked.device_id and r.acked_seq < locked.seq",
            &[&principals, &devices, &seqs, &epoch, &credentials],
        )
        .await?;
    Ok(())
}

/// An agent's ack, in one statement with the proof that its token counts until it is committed; false if it does not.
/// Nothing moves once Postgres has another epoch than the cursor.
pub async fn ack_by_token(db: &Db, agent: AgentId, token: TokenId, cursor: Cursor) -> Result<bool> {
    let client = db.read().await?;
    Ok(client
        .query_one(
            "-- inbox.ack_by_token
            with token as materialized (
                select 1 from live_agent_token where token_id = $2 and agent_id = $1 for share
            ), moved as (
                update inbox_reader r set acked_seq = least($3, i.head_seq) from inbox i
                where r.principal_id = $1 and r.device_id = '' and i.principal_id = $1
                    and r.acked_seq < least($3, i.head_seq) and exists (select from token)
                    and $4 = (select inbox_epoch())
            )
            select exists (select from token) as is_live",
            &[&agent, &token, &cursor.seq, &to_column(cursor.epoch)],
        )
        .await?
        .get("is_live"))
}

/// The events of agents to log as read, up to a number or the agent's ack.
pub struct Reads<'a> {
    pub agents: &'a [Uuid],
    /// Per agent: the last event that it was sent, if that may be beyond its ack.
    pub up_to: &'a [Option<i64>],
    /// The page that a poll has read begins behind this number; none for pushed events.
    pub after: Option<i64>,
    /// The epoch of these numbers; nothing is logged in another.
    pub epoch: Option<u64>,
}

/// Logs what agents have read: a row per agent and conversation. Pushed events are logged from where
/// the last row ended, at most a thousand per agent. Returns the agents of which more is left.
///
/// The lock on the agent's reader keeps two rows from counting the same event.
pub async fn log_reads(client: &Conn, reads: &Reads<'_>) -> Result<Vec<Uuid>> {
    let kind = match reads.after {
        Some(_) => AccessKind::Poll,
        None => AccessKind::Push,
    };
    let epoch = reads.epoch.map(to_column);
    let rows = client
        .query(
            "-- inbox.log_reads
            with held as materialized (
                select r.principal_id, coalesce($3::bigint, r.logged_seq) as after_seq,
                       least(case when $3::bigint is null then greatest(said.up_to, r.acked_seq) else said.up_to end, i.head_seq)
                           as wanted_seq
                from unnest($1::uuid[], $2::bigint[]) as said (agent_id, up_to)
                join inbox_reader r on r.principal_id = said.agent_id and r.device_id = ''
                join inbox i on i.principal_id = r.principal_id
                where $5::bigint is null or $5 = (select inbox_epoch())
                order by r.principal_id for update of r
            ), span as materialized (
                select principal_id, after_seq, wanted_seq, least(wanted_seq, after_seq + 1000) as up_to_seq
                from held where after_seq < wanted_seq
            ), seen as (
                select span.principal_id, coalesce(m.conversation_id, v.conversation_id) as conversation_id,
                       count(*) as items, min(e.seq) as from_seq, max(e.seq) as to_seq
                from span cross join lateral (
                    select part.seq - cardinality(part.event_ids) + one.n as seq, one.event_id
                    from inbox_entry part cross join unnest(part.event_ids) with ordinality as one (event_id, n)
                    where part.principal_id = span.principal_id and part.seq > span.after_seq
                        and part.seq <= (select coalesce(min(last.seq), span.up_to_seq) from inbox_entry last
                                         where last.principal_id = span.principal_id and last.seq >= span.up_to_seq)
                ) e
                left join message m on m.message_id = e.event_id
                left join event v on v.event_id = e.event_id
                where e.seq > span.after_seq and e.seq <= span.up_to_seq
                group by 1, 2
            ), logged as (
                insert into access_log (subject_id, agent_id, conversation_id, kind, items, from_seq, to_seq)
                select case when c.kind = 'agent' then c.created_by else c.conversation_id end, seen.principal_id,
                       c.conversation_id, $4, seen.items, seen.from_seq, seen.to_seq
                from seen join conversation c using (conversation_id)
                order by 1, 2
            ), moved as (
                update inbox_reader r set logged_seq = greatest(r.logged_seq, span.up_to_seq) from span
                where r.principal_id = span.principal_id and r.device_id = ''
            )
            select principal_id from span where wanted_seq > up_to_seq",
            &[&reads.agents, &reads.up_to, &reads.after, &kind, &epoch],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("principal_id")).collect())
}

/// Of the next 5,000 agents after `after`: those of whose acks a part is not logged, because their
/// node died in between. Also the last agent of the piece, if more may follow.
pub async fn unlogged(db: &Db, after: Uuid) -> Result<(Vec<Uuid>, Option<Uuid>)> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- inbox.unlogged
            with piece as materialized (
                select principal_id, logged_seq < acked_seq as is_behind from inbox_reader
                where device_id = '' and principal_id > $1 order by principal_id limit 5000
            )
            select coalesce(array_agg(principal_id) filter (where is_behind), '{}') as behind,
                case when count(*) = 5000 then (array_agg(principal_id order by principal_id desc))[1] end as last
            from piece",
            &[&after],
        )
        .await?;
    Ok((row.get("behind"), row.get("last")))
}

pub async fn heads(db: &Db, principals: &[Uuid]) -> Result<Vec<Delivery>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- inbox.heads
            select principal_id, head_seq from inbox where principal_id = any($1)",
            &[&principals],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Delivery {
            principal: row.get("principal_id"),
            seq: row.get("head_seq"),
        })
        .collect())
}

pub async fn expire_entries(db: &Db, days: i32) -> Result<bool> {
    let client = db.read().await?;
    Ok(client
        .execute(
            "-- inbox.expire_entries
            delete from inbox_entry where ctid = any(array(
                select ctid from inbox_entry where created_at < app_now() - make_interval(days => $1)
                order by created_at limit 5000
            ))",
            &[&days],
        )
        .await?
        > 0)
}

/// Leaves alone the events that an entry refers to: an event is as old as its entries.
pub async fn expire_events(db: &Db, days: i32) -> Result<bool> {
    let client = db.read().await?;
    Ok(client
        .execute(
            "-- inbox.expire_events
            delete from event where ctid = any(array(
                select ctid from event where created_at
                    < least(app_now() - make_interval(days => $1), (select min(created_at) from inbox_entry))
                order by created_at limit 5000
            ))",
            &[&days],
        )
        .await?
        > 0)
}
