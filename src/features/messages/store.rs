use chrono::{DateTime, Utc};
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::{Draft, Waiting};
use crate::{
    db::{Conn, Db},
    error::{Error, Result},
    features::inbox::Delivery,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::HOPS,
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
    /// Another transaction used its key at this very moment: ask again.
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
select 1 from conversation where conversation_id = any($1) order by conversation_id for update";

/// The whole batch: judge, number, store, deliver. Every table is joined by its key, item by item, and what the
/// statement has made itself is never joined with itself, so the cost per message does not grow with the batch.
///
/// It takes its locks itself: conversations, keys, inboxes, each in order. A conversation that changed between the
/// statement's snapshot and its lock (its row has another version) is left alone, and its items are asked about again;
/// the heads of inboxes are read as they are locked, so they cannot be stale. Whoever changes members updates the
/// conversation's row.
///
/// A key that is taken shows as an item that is neither refused nor stored: what it was taken by is looked up
/// afterwards, because replays are rare and the look-up is not.
///
/// Returns a row per item, then a row per inbox: its head before, and the items that it got.
const SEND: &str = "-- messages.send
with item as materialized (
    select * from unnest($1::int4[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::uuid[], $7::text[], $8::bool[],
                         $9::uuid[], $10::uuid[], $11::uuid[], $13::text[], $14::text[])
        as item (n, message_id, conversation_id, sender_id, sender_kind, credential_id, payload, encrypted,
                 key, client_message_id, in_reply_to, named, recipients)
), locked as materialized (
    select l.conversation_id, l.xmin <> s.xmin as stale
    from conversation l join conversation s on s.conversation_id = l.conversation_id
    where l.conversation_id = any($3) order by l.conversation_id for update of l
), judged as materialized (
    select item.*, c.last_seq, s.device_id, h.hop::smallint as hop,
        item.conversation_id in (select conversation_id from locked where stale) as stale,
        case
            when not coalesce(case item.sender_kind
                when 'user' then s.user_id = item.sender_id and s.revoked_at is null and s.absolute_expires_at > app_now()
                else t.agent_id = item.sender_id and t.revoked_at is null
                     and (t.valid_until is null or t.valid_until > app_now()) end, false) then 1
            when m.principal_id is null then 2
            when r.state = 'revoked' then 3
            when c.encryption = 'required' and not item.encrypted then 4
            when item.in_reply_to is not null and answered.conversation_id is distinct from item.conversation_id then 5
            when h.hop > $12 then 6
            when item.named is not null and exists (
                select from unnest(item.named::uuid[]) as name (id) where not exists (
                    select from member x where x.conversation_id = item.conversation_id and x.principal_id = name.id)
            ) then 7
        end as verdict
    from item
    left join session s on s.session_id = item.credential_id
    left join agent_token t on t.token_id = item.credential_id
    left join conversation c on c.conversation_id = item.conversation_id
    left join member m on m.conversation_id = item.conversation_id and m.principal_id = item.sender_id
    left join relation r on r.relation_id = m.relation_id
    left join message answered on answered.message_id = item.in_reply_to
    cross join lateral (
        select case
            when item.sender_kind = 'user' then 0
            when item.in_reply_to is not null then
                case when answered.sender_kind = 'user' then 1
                     when answered.sender_id = item.sender_id then answered.hop
                     else answered.hop + 1 end
            when c.last_sender_kind = 'agent' and c.last_sender_id = item.sender_id then c.last_hop
            when c.last_sender_kind = 'agent' then c.last_hop + 1
            else 1
        end as hop
    ) h
), keyed as materialized (
    insert into idempotency as k (sender_id, key, message_id)
    select sender_id, key, message_id from judged where verdict is null and not stale and key is not null
    order by sender_id, key
    on conflict (sender_id, key) do update set message_id = excluded.message_id, created_at = app_now()
        where k.created_at <= app_now() - interval '24 hours'
    returning message_id
), decided as materialized (
    select *, last_seq + count(*) filter (where good) over (partition by conversation_id order by n) as seq,
           last_seq + count(*) filter (where good) over (partition by conversation_id) as new_last_seq
    from (
        select *, verdict is null and not stale and (key is null or message_id in (select message_id from keyed)) as good
        from judged
    ) j
), stored as (
    insert into message (conversation_id, seq, message_id, sender_id, sender_kind, sender_device, client_message_id,
                         in_reply_to, hop, created_at, payload, recipients)
    select conversation_id, seq, message_id, sender_id, sender_kind, device_id, client_message_id,
           in_reply_to, hop, app_now(), payload, recipients::text[]
    from decided where good
), bumped as (
    update conversation c set last_seq = d.seq, last_message_id = d.message_id,
        last_sender_id = d.sender_id, last_sender_kind = d.sender_kind, last_hop = d.hop, last_activity_at = app_now()
    from decided d where d.good and d.seq = d.new_last_seq and c.conversation_id = d.conversation_id
), heard as materialized (
    select principal_id, array_agg(n) as ns, array_agg(message_id) as ids
    from (
        select m.principal_id, d.n, d.message_id
        from decided d
        join member m on m.conversation_id = d.conversation_id
        left join relation r on r.relation_id = m.relation_id
        where d.good and (m.principal_kind = 'user' or m.principal_id <> d.sender_id) and r.state is distinct from 'revoked'
            and (m.visibility = 'all' or m.principal_id = any(d.named::uuid[]))
        order by m.principal_id, d.n
    ) each
    group by principal_id
), held as materialized (
    select principal_id, ns, ids, i.head_seq
    from heard join inbox i using (principal_id)
    order by principal_id for update of i
), heads as (
    update inbox i set head_seq = held.head_seq + cardinality(held.ids) from held where i.principal_id = held.principal_id
), entries as (
    insert into inbox_entry (principal_id, seq, event_ids) select principal_id, head_seq + cardinality(ids), ids from held
)
select n, good, case when not stale then verdict end, seq, app_now(), hop, device_id, null::uuid, null::int4[] from decided
union all
select null, null, null, head_seq, null, null, null, principal_id, ns from held";

/// What a sender's key was used for in the last 24 hours.
const PRIOR: &str = "-- messages.prior
select m.message_id, m.conversation_id, m.seq, m.created_at, m.payload, m.client_message_id
from idempotency k join message m using (message_id)
where k.sender_id = $1 and k.key = $2 and k.created_at > app_now() - interval '24 hours'";

/// Decides and stores a batch in one transaction and one round trip.
///
/// An error leaves nothing stored, unless the link broke while the commit was under way; that outcome is unknown, and
/// the sender's own id makes the retry safe.
///
/// `lock_first` costs two short statements more, sent along with it, and finds nothing stale.
pub async fn send(db: &Db, batch: &[Waiting], lock_first: bool) -> Result<Vec<Decision>> {
    let mut tries = 0;
    loop {
        match try_send(db, batch, lock_first).await {
            Err(error) if tries < 3 && error.is_conflict() => tries += 1,
            outcome => return outcome,
        }
    }
}

async fn try_send(db: &Db, batch: &[Waiting], lock_first: bool) -> Result<Vec<Decision>> {
    let client = db.read().await?;
    let send = client.prepare_cached(SEND).await?;
    let columns = Columns::of(batch);
    let params = columns.params();
    let rows = if lock_first {
        let lock = client.prepare_cached(LOCK).await?;
        let conversations: &[&(dyn ToSql + Sync)] = &[&columns.conversations];
        // In this order on the wire; a failed one turns the rest into failures and the commit into a rollback.
        let (begun, locked, rows, committed) = futures_util::join!(
            client.batch_execute("begin"),
            client.execute(&lock, conversations),
            client.query(&send, &params),
            client.batch_execute("commit"),
        );
        begun?;
        locked?;
        let rows = rows?;
        committed.map_err(Error::into_unavailable)?;
        rows
    } else {
        // A statement of its own is a transaction: the answer comes after its commit.
        client.query(&send, &params).await?
    };
    // An item without a row cannot be; if it were, it would be asked about again rather than taken for stored.
    let mut decisions: Vec<Decision> = batch.iter().map(|_| Decision::Undecided).collect();
    let place = |n: i32| usize::try_from(n).unwrap_or(usize::MAX);
    let (items, inboxes): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.get::<_, Option<i32>>(0).is_some());
    for row in items {
        if let Some(slot) = decisions.get_mut(place(row.get(0))) {
            *slot = decision(row);
        }
    }
    for row in inboxes {
        let (head, principal): (i64, _) = (row.get(3), row.get(7));
        for (seq, n) in (head + 1..).zip(row.get::<_, Vec<i32>>(8)) {
            if let Some(Decision::Stored(stored)) = decisions.get_mut(place(n)) {
                stored.deliveries.push(Delivery { principal, seq });
            }
        }
    }
    for (decision, one) in decisions.iter_mut().zip(batch) {
        if matches!(decision, Decision::Stored(_) | Decision::Refused(Refusal::Credential)) {
            continue;
        }
        match prior(&client, one).await {
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
    ns: Vec<i32>,
    ids: Vec<MessageId>,
    conversations: Vec<ConversationId>,
    senders: Vec<Uuid>,
    kinds: Vec<&'static str>,
    credentials: Vec<Uuid>,
    payloads: Vec<&'a str>,
    encrypted: Vec<bool>,
    keys: Vec<Option<Uuid>>,
    client_ids: Vec<Option<MessageId>>,
    references: Vec<Option<MessageId>>,
    /// Arrays as Postgres writes them: ids, and the same as the wire shows them.
    named: Vec<Option<String>>,
    recipients: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a [Waiting]) -> Self {
        let each = || batch.iter().map(|one| &one.message);
        Columns {
            ns: (0..).take(batch.len()).collect(),
            ids: batch.iter().map(|one| one.id).collect(),
            conversations: each().map(|message| message.conversation).collect(),
            senders: each().map(|message| message.sender.id()).collect(),
            kinds: each().map(|message| message.sender.kind()).collect(),
            credentials: each().map(|message| message.credential).collect(),
            payloads: each().map(|message| message.draft.payload.as_str()).collect(),
            encrypted: each().map(|message| message.draft.encrypted).collect(),
            keys: each().map(|message| message.draft.key).collect(),
            client_ids: each().map(|message| message.draft.client_message_id).collect(),
            references: each().map(|message| message.draft.in_reply_to).collect(),
            named: each().map(|message| array(&message.draft, |who| who.id().to_string())).collect(),
            recipients: each().map(|message| array(&message.draft, Principal::wire_id)).collect(),
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 14] {
        [
            &self.ns,
            &self.ids,
            &self.conversations,
            &self.senders,
            &self.kinds,
            &self.credentials,
            &self.payloads,
            &self.encrypted,
            &self.keys,
            &self.client_ids,
            &self.references,
            &const { HOPS as i32 },
            &self.named,
            &self.recipients,
        ]
    }
}

fn array(draft: &Draft, show: impl Fn(Principal) -> String) -> Option<String> {
    let ids: Vec<String> = draft.recipients.as_ref()?.iter().copied().map(show).collect();
    Some(format!("{{{}}}", ids.join(",")))
}

fn decision(row: &Row) -> Decision {
    if row.get(1) {
        return Decision::Stored(Stored {
            seq: row.get(3),
            created_at: row.get(4),
            hop: row.get(5),
            device_id: row.get(6),
            deliveries: Vec::new(),
        });
    }
    Decision::Refused(match row.get::<_, Option<i32>>(2) {
        None => return Decision::Undecided,
        Some(1) => Refusal::Credential,
        Some(2) => Refusal::NotMember,
        Some(3) => Refusal::RelationRevoked,
        Some(4) => Refusal::Plaintext,
        Some(5) => Refusal::UnknownReference,
        Some(6) => Refusal::Loop,
        Some(_) => Refusal::UnknownRecipient,
    })
}

/// What the sender's key was used for, if it was: then this is a replay, also for a sender who is no member any more.
async fn prior(client: &Conn, one: &Waiting) -> Result<Option<Prior>> {
    let Some(key) = one.message.draft.key else { return Ok(None) };
    let stmt = client.prepare_cached(PRIOR).await?;
    let row = client.query_opt(&stmt, &[&one.message.sender.id(), &key]).await?;
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
                select ctid from idempotency where created_at < app_now() - interval '25 hours' limit 5000
            ))",
        )
        .await?;
    Ok(client.execute(&stmt, &[]).await? > 0)
}
