use std::collections::HashMap;

use chrono::{DateTime, Utc};
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::{Draft, Outgoing, PendingSend};
use crate::{
    db::{Db, Tx},
    error::{Error, Result},
    features::inbox::Delivery,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::MAX_HOPS,
};

mod history;

pub use self::history::history;

/// What became of one send.
pub enum Decision {
    /// It is durable.
    Stored(Stored),
    /// Its key was used before, for this.
    Replay(Prior),
    /// It must not be.
    Refused(Refusal),
    /// Its conversation changed at this very moment, or its key has just become free: ask again.
    Undecided,
}

/// A message that has been stored.
pub struct Stored {
    pub seq: i64,
    pub created_at: DateTime<Utc>,
    pub hop: i16,
    pub device_id: Option<String>,
    /// The inboxes it went to.
    pub deliveries: Vec<Delivery>,
}

/// A message that was stored earlier under the same key.
pub struct Prior {
    pub id: MessageId,
    pub conversation: ConversationId,
    pub seq: i64,
    pub created_at: DateTime<Utc>,
    pub payload: String,
    pub client_message_id: Option<MessageId>,
}

/// Why a send was not stored.
pub enum Refusal {
    Credential,
    NotMember,
    RelationRevoked,
    Plaintext,
    UnknownReference,
    Loop,
    UnknownRecipient,
}

/// Takes the locks of a batch's conversations before the statement below begins, so that its snapshot holds all that
/// was committed under them. Only for conversations that it has found stale without.
const LOCK: &str = "-- messages.lock
select 1 from conversation where conversation_id = any($1) order by conversation_id for no key update";

/// The whole batch: judge, number, store, deliver. Items are numbers into the arrays that came in, so rows stay narrow;
/// tables are looked up by their keys, item by item and then conversation by conversation, and what the statement has
/// made itself is never joined with itself, so the cost per message does not grow with the batch.
///
/// Its updates are its locks: conversations, keys, inboxes, each in order (nested loops keep it: [`Plans::Pinned`]). A
/// conversation is updated in the version that was read or not at all; if it changed between the statement's snapshot
/// and its lock, its items are left alone and asked about again. Whoever changes members updates the conversation's
/// row. The heads of inboxes are read as they are locked, so they cannot be stale.
///
/// A key that is taken is a verdict of its own: what it was taken by is looked up afterwards, because replays are rare
/// and the look-up is not. One that is taken meanwhile, for another conversation, ends the statement.
///
/// Returns a row per item that is stored or refused, then a row per inbox: its head, and the messages that it got.
///
/// [`Plans::Pinned`]: crate::db::Plans::Pinned
const SEND: &str = "-- messages.send
with item as (
    select n::int4 as n, ($2::uuid[])[n] as conversation_id, ($3::uuid[])[n] as sender_id, ($4::uuid[])[n] as session_id,
        ($5::uuid[])[n] as token_id, ($6::bool[])[n] as encrypted, ($7::uuid[])[n] as key,
        ($8::uuid[])[n] as in_reply_to, ($9::text[])[n]::uuid[] as named
    from unnest($1::uuid[]) with ordinality as one (message_id, n)
), judged as materialized (
    select item.n, item.conversation_id, c.xmin as version, s.device_id, h.hop::int2 as hop,
        case
            when not coalesce(
                s.user_id = item.sender_id and s.revoked_at is null and s.absolute_expires_at > app_now(),
                (select t.agent_id = item.sender_id and t.revoked_at is null
                     and (t.valid_until is null or t.valid_until > app_now())
                 from agent_token t where t.token_id = item.token_id),
                false) then 1
            when m.principal_id is null then 2
            when m.relation_id is not null
                and (select r.state from relation r where r.relation_id = m.relation_id) = 'revoked' then 3
            when c.encryption = 'required' and not item.encrypted then 4
            when item.in_reply_to is not null and answered.conversation_id is distinct from item.conversation_id then 5
            when h.hop > $10 then 6
            when item.named is not null and not item.named <@ array(
                select x.principal_id from member x where x.conversation_id = item.conversation_id) then 7
            when (select k.message_id from idempotency k where k.key = item.key and k.sender_id = item.sender_id)
                is not null then 8
        end as verdict
    from item
    left join session s on s.session_id = item.session_id
    left join conversation c on c.conversation_id = item.conversation_id
    left join member m on m.conversation_id = item.conversation_id and m.principal_id = item.sender_id
    left join message answered on answered.message_id = item.in_reply_to
    cross join lateral (
        select case
            when item.session_id is not null then 0
            when item.in_reply_to is not null then
                case when answered.sender_kind = 'user' then 1
                     when answered.sender_id = item.sender_id then answered.hop
                     else answered.hop + 1 end
            when c.last_sender_kind = 'agent' and c.last_sender_id = item.sender_id then c.last_hop
            when c.last_sender_kind = 'agent' then c.last_hop + 1
            else 1
        end as hop
    ) h
), bumped as (
    update conversation c set last_seq = c.last_seq + cardinality(d.ns), last_message_id = $1[d.last],
        last_sender_id = $3[d.last], last_sender_kind = case when $4[d.last] is null then 'agent' else 'user' end,
        last_hop = d.hops[cardinality(d.ns)], last_activity_at = app_now()
    from (
        select conversation_id, (array_agg(version))[1] as version, max(n) as last, array_agg(n) as ns,
            array_agg(hop) as hops, array_agg(device_id) as devices, array_agg($1[n]) as ids, array_agg($3[n]) as senders
        from (select * from judged where verdict is null order by conversation_id, n) each
        group by conversation_id order by conversation_id
    ) d
    where c.conversation_id = d.conversation_id and c.xmin = d.version
    returning c.conversation_id, c.last_seq - cardinality(d.ns) as before, d.ns, d.hops, d.devices, d.ids, d.senders
), good as materialized (
    select conversation_id, before + nth as seq, n, hop, device_id
    from bumped cross join unnest(ns, hops, devices) with ordinality as one (n, hop, device_id, nth)
), keyed as (
    insert into idempotency (key, sender_id, message_id)
    select $7[n], $3[n], $1[n] from good where $7[n] is not null order by 2, 1
    returning 1
), stored as (
    insert into message (conversation_id, seq, message_id, sender_id, sender_kind, sender_device, client_message_id,
                         in_reply_to, hop, created_at, payload, recipients)
    select conversation_id, seq, $1[n], $3[n], case when $4[n] is null then 'agent' else 'user' end, device_id,
           ($11::uuid[])[n], $8[n], hop, app_now(), ($12::text[])[n], ($13::text[])[n]::text[]
    from good
), heads as (
    update inbox i set head_seq = i.head_seq + cardinality(h.ids)
    from (
        select principal_id, array_concat(ids) as ids
        from (
            select m.principal_id, case
                    when m.visibility = 'all' and (m.principal_kind = 'user' or m.principal_id <> all(b.senders)) then b.ids
                    else array(
                        select $1[n] from unnest(b.ns) n
                        where (m.principal_kind = 'user' or m.principal_id <> $3[n])
                            and (m.visibility = 'all' or m.principal_id = any($9[n]::uuid[])))
                end as ids
            from bumped b join member m on m.conversation_id = b.conversation_id
            where m.relation_id is null or (select r.state from relation r where r.relation_id = m.relation_id) <> 'revoked'
            order by m.principal_id, b.conversation_id
        ) each
        where (select count(*) from keyed) is not null -- the keys first
        group by principal_id order by principal_id
    ) h
    where i.principal_id = h.principal_id and cardinality(h.ids) > 0
    returning i.principal_id, i.head_seq, h.ids
), entries as (
    insert into inbox_entry (principal_id, seq, event_ids) select principal_id, head_seq, ids from heads
)
select n, null::int4, seq, app_now(), hop, device_id, null::uuid, null::uuid[] from good
union all
select n, verdict, null, null, null, null, null, null from judged where verdict is not null
union all
select null, null, head_seq, null, null, null, principal_id, ids from heads";

/// What a sender's key was used for in the last 24 hours; one that is older is free from now on.
const PRIOR: &str = "-- messages.prior
with freed as (
    delete from idempotency where sender_id = $1 and key = $2 and created_at <= app_now() - interval '24 hours'
)
select m.message_id, m.conversation_id, m.seq, m.created_at, m.payload, m.client_message_id
from idempotency k join message m using (message_id)
where k.sender_id = $1 and k.key = $2 and k.created_at > app_now() - interval '24 hours'";

/// Begins a transaction that holds the conversations of a batch. What is sent in it finds nothing stale.
pub async fn lock(db: &Db, batch: &[PendingSend]) -> Result<Tx> {
    let tx = db.begin("messages.send").await?;
    let stmt = tx.prepare_cached(LOCK).await?;
    let conversations: Vec<ConversationId> =
        batch.iter().map(|one| one.message.conversation).collect();
    tx.execute(&stmt, &[&conversations]).await?;
    Ok(tx)
}

/// Decides and stores a batch in one round trip: in a transaction that holds its conversations, or in one of its own.
///
/// An error leaves nothing stored, unless the link broke while the commit was under way; that outcome is unknown, and
/// the sender's own id makes the retry safe.
pub async fn send(db: &Db, batch: &[PendingSend], mut locked: Option<Tx>) -> Result<Vec<Decision>> {
    let mut tries = 0;
    loop {
        match try_send(db, batch, locked.take()).await {
            Err(error) if tries < 3 && is_write_conflict(&error) => tries += 1,
            outcome => return outcome,
        }
    }
}

async fn try_send(db: &Db, batch: &[PendingSend], locked: Option<Tx>) -> Result<Vec<Decision>> {
    let columns = Columns::of(batch);
    let params = columns.params();
    let rows = match locked {
        Some(tx) => {
            let send = tx.prepare_cached(SEND).await?;
            tx.query_and_commit(&send, &params).await?
        }
        None => {
            let client = db.read().await?;
            // A statement of its own is a transaction: the answer comes after its commit.
            client
                .query(&client.prepare_cached(SEND).await?, &params)
                .await?
        }
    };
    decide(db, batch, &rows).await
}

/// The same, committed only once `gate` opens; else nothing is stored, and its reason is told.
pub async fn send_gated<R>(
    db: &Db,
    batch: &[PendingSend],
    gate: impl Future<Output = Result<(), R>>,
) -> Result<Result<Vec<Decision>, R>> {
    let columns = Columns::of(batch);
    match db
        .query_gated("messages.send", SEND, &columns.params(), gate)
        .await?
    {
        Ok(rows) => decide(db, batch, &rows).await.map(Ok),
        Err(reason) => Ok(Err(reason)),
    }
}

/// Whether somebody else was at the same rows at the same moment: tried again it may succeed.
pub fn is_write_conflict(error: &Error) -> bool {
    error.is_conflict() || error.violates("idempotency_pkey")
}

async fn decide(db: &Db, batch: &[PendingSend], rows: &[Row]) -> Result<Vec<Decision>> {
    // Who has no row is in a conversation that has changed.
    let mut decisions: Vec<Decision> = batch.iter().map(|_| Decision::Undecided).collect();
    let (items, inboxes): (Vec<&Row>, Vec<&Row>) = rows
        .iter()
        .partition(|row| row.get::<_, Option<i32>>(0).is_some());
    for row in items {
        let n: i32 = row.get(0);
        if let Some(slot) = usize::try_from(n - 1)
            .ok()
            .and_then(|n| decisions.get_mut(n))
        {
            *slot = decision(row);
        }
    }
    let places: HashMap<MessageId, usize> = batch.iter().map(|one| one.id).zip(0..).collect();
    for row in inboxes {
        let (head, principal): (i64, _) = (row.get(2), row.get(6));
        let ids: Vec<MessageId> = row.get(7);
        for (seq, id) in (0..=head).rev().zip(ids.iter().rev()) {
            if let Some(Decision::Stored(stored)) =
                places.get(id).and_then(|place| decisions.get_mut(*place))
            {
                stored.deliveries.push(Delivery { principal, seq });
            }
        }
    }
    for (decision, one) in decisions.iter_mut().zip(batch) {
        if matches!(
            decision,
            Decision::Stored(_) | Decision::Refused(Refusal::Credential)
        ) {
            continue;
        }
        match prior(db, one).await {
            Ok(Some(prior)) => *decision = Decision::Replay(prior),
            Ok(None) => {}
            // The others of the batch are stored; this one alone is asked about again.
            Err(_) => *decision = Decision::Undecided,
        }
    }
    Ok(decisions)
}

/// A batch as Postgres takes it: one array per column.
struct Columns<'a> {
    ids: Vec<MessageId>,
    conversations: Vec<ConversationId>,
    senders: Vec<Uuid>,
    /// The credentials of users, and those of agents.
    sessions: Vec<Option<Uuid>>,
    tokens: Vec<Option<Uuid>>,
    encrypted: Vec<bool>,
    keys: Vec<Option<Uuid>>,
    references: Vec<Option<MessageId>>,
    /// Arrays as Postgres writes them: ids, and the same as the wire shows them.
    named: Vec<Option<String>>,
    client_ids: Vec<Option<MessageId>>,
    payloads: Vec<&'a str>,
    recipients: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a [PendingSend]) -> Self {
        let each = || batch.iter().map(|one| &one.message);
        let is_user = |message: &Outgoing| matches!(message.sender, Principal::User(_));
        Columns {
            ids: batch.iter().map(|one| one.id).collect(),
            conversations: each().map(|message| message.conversation).collect(),
            senders: each().map(|message| message.sender.id()).collect(),
            sessions: each()
                .map(|message| is_user(message).then_some(message.credential))
                .collect(),
            tokens: each()
                .map(|message| (!is_user(message)).then_some(message.credential))
                .collect(),
            encrypted: each().map(|message| message.draft.encrypted).collect(),
            keys: each().map(|message| message.draft.key).collect(),
            references: each().map(|message| message.draft.in_reply_to).collect(),
            named: each()
                .map(|message| array(&message.draft, |who| who.id().to_string()))
                .collect(),
            client_ids: each()
                .map(|message| message.draft.client_message_id)
                .collect(),
            payloads: each()
                .map(|message| message.draft.payload.as_str())
                .collect(),
            recipients: each()
                .map(|message| array(&message.draft, Principal::wire_id))
                .collect(),
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 13] {
        [
            &self.ids,
            &self.conversations,
            &self.senders,
            &self.sessions,
            &self.tokens,
            &self.encrypted,
            &self.keys,
            &self.references,
            &self.named,
            &const { MAX_HOPS as i32 },
            &self.client_ids,
            &self.payloads,
            &self.recipients,
        ]
    }
}

fn array(draft: &Draft, show: impl Fn(Principal) -> String) -> Option<String> {
    let ids: Vec<String> = draft
        .recipients
        .as_ref()?
        .iter()
        .copied()
        .map(show)
        .collect();
    Some(format!("{{{}}}", ids.join(",")))
}

fn decision(row: &Row) -> Decision {
    Decision::Refused(match row.get::<_, Option<i32>>(1) {
        None => {
            return Decision::Stored(Stored {
                seq: row.get(2),
                created_at: row.get(3),
                hop: row.get(4),
                device_id: row.get(5),
                deliveries: Vec::new(),
            });
        }
        Some(1) => Refusal::Credential,
        Some(2) => Refusal::NotMember,
        Some(3) => Refusal::RelationRevoked,
        Some(4) => Refusal::Plaintext,
        Some(5) => Refusal::UnknownReference,
        Some(6) => Refusal::Loop,
        Some(7) => Refusal::UnknownRecipient,
        // Its key is taken, or was.
        Some(_) => return Decision::Undecided,
    })
}

/// What the sender's key was used for, if it was: then this is a replay, also for a sender who is no member any more.
async fn prior(db: &Db, one: &PendingSend) -> Result<Option<Prior>> {
    let Some(key) = one.message.draft.key else {
        return Ok(None);
    };
    let client = db.read().await?;
    let stmt = client.prepare_cached(PRIOR).await?;
    let row = client
        .query_opt(&stmt, &[&one.message.sender.id(), &key])
        .await?;
    Ok(row.map(|row| Prior {
        id: row.get(0),
        conversation: row.get(1),
        seq: row.get(2),
        created_at: row.get(3),
        payload: row.get(4),
        client_message_id: row.get(5),
    }))
}

/// Keys older than their window say nothing any more.
pub async fn forget_keys(db: &Db) -> Result<bool> {
    let client = db.read().await?;
    let stmt = client
        .prepare_cached(
            "-- messages.forget_keys
            delete from idempotency where ctid = any(array(
                select ctid from idempotency where created_at < app_now() - interval '25 hours'
                order by created_at limit 5000
            ))",
        )
        .await?;
    Ok(client.execute(&stmt, &[]).await? > 0)
}
