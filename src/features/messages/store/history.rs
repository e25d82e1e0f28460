//! Pages of a conversation, and the messages that refer to a page.

use tokio_postgres::Row;

use crate::{
    db::Conn,
    error::{Code, Result},
    events::{Deletion, Message},
    http::page,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::{MAX_PAGE_BYTES, MAX_REFERRING},
    planted::PlantedBug,
};

/// A page of a conversation.
pub struct Page {
    /// The messages as JSON, in the requested order.
    pub messages: Vec<String>,
    /// The last message's id, if there are more.
    pub next: Option<MessageId>,
    /// The numbers of its messages.
    pub seqs: Vec<i64>,
    /// The bytes of its payloads.
    pub bytes: i64,
}

/// The messages that refer to one of a page.
pub struct Referring {
    /// The messages as JSON, oldest first.
    pub messages: Vec<String>,
    /// Their numbers.
    pub seqs: Vec<i64>,
    /// Whether there are more.
    pub is_truncated: bool,
}

/// A page of what the reader can see: messages after it joined, and up to `named_seq` only its own
/// and those that name it. That is the end of time for an `addressed` agent. For an agent whose
/// visibility was widened, it is the last message before. A single snapshot reads membership,
/// cursor and messages, so nothing appears that was committed after the reader's removal. At most
/// three of the six branches run, and each walks one index.
const HISTORY: &str = "-- messages.history
with me as materialized (
    select me.from_seq, seen.seq as cursor_seq,
           case when me.visibility = 'all' then greatest(me.from_seq, me.all_from_seq) else 9223372036854775807 end as named_seq
    from active_member me
    left join message seen on seen.message_id = $3 and seen.conversation_id = $1 and seen.seq > me.from_seq
    where me.conversation_id = $1 and me.principal_id = $2
)
select me.cursor_seq, page.seq, page.message_id, page.sender_kind, page.sender_id, page.sender_device, page.payload,
       page.client_message_id, page.in_reply_to, page.hop, page.created_at, page.recipients,
       page.refs, page.deleted_at, page.deleted_by, page.found, page.bytes
from me left join lateral (
    select found.*, count(*) over () as found,
           sum(octet_length(payload)) over (order by case when $4 then seq else -seq end) as bytes,
           row_number() over (order by case when $4 then seq else -seq end) as n
    from (
        (select * from message m
         where $4 and m.conversation_id = $1 and m.seq > greatest(me.cursor_seq, me.named_seq)
         order by m.seq limit $5)
        union all
        (select * from message m
         where not $4 and m.conversation_id = $1 and m.seq > me.named_seq
             and (me.cursor_seq is null or m.seq < me.cursor_seq)
         order by m.seq desc limit $5)
        union all
        (select * from message m
         where $4 and me.named_seq > me.from_seq and m.conversation_id = $1
             and m.seq > coalesce(me.cursor_seq, me.from_seq) and m.seq <= me.named_seq
             and m.recipients is not null and $2::text = any(m.recipients)
         order by m.seq limit $5)
        union all
        (select * from message m
         where not $4 and me.named_seq > me.from_seq and m.conversation_id = $1
             and m.seq > me.from_seq and m.seq <= me.named_seq and (me.cursor_seq is null or m.seq < me.cursor_seq)
             and m.recipients is not null and $2::text = any(m.recipients)
         order by m.seq desc limit $5)
        union all
        (select * from message m
         where $4 and me.named_seq > me.from_seq and m.conversation_id = $1
             and m.sender_kind = 'agent' and m.sender_id = $2
             and m.seq > coalesce(me.cursor_seq, me.from_seq) and m.seq <= me.named_seq
             and (m.recipients is null or $2::text <> all(m.recipients))
         order by m.seq limit $5)
        union all
        (select * from message m
         where not $4 and me.named_seq > me.from_seq and m.conversation_id = $1
             and m.sender_kind = 'agent' and m.sender_id = $2
             and m.seq > me.from_seq and m.seq <= me.named_seq and (me.cursor_seq is null or m.seq < me.cursor_seq)
             and (m.recipients is null or $2::text <> all(m.recipients))
         order by m.seq desc limit $5)
    ) found
) page on page.n < $5 and (page.bytes <= $6 or page.n = 1)
order by page.n";

/// Reads a page: oldest first if `forward`, else newest first. A page ends early rather than grow
/// too large.
pub async fn history(
    client: &Conn,
    conversation: ConversationId,
    reader: Principal,
    cursor: Option<MessageId>,
    forward: bool,
    rows: i64,
) -> Result<Page> {
    let stmt = client.prepare_cached(HISTORY).await?;
    let found = client
        .query(
            &stmt,
            &[
                &conversation,
                &reader.id(),
                &cursor,
                &forward,
                &rows,
                &MAX_PAGE_BYTES,
            ],
        )
        .await?;
    let first = found.first().ok_or(Code::NotFound)?;
    if cursor.is_some() && first.get::<_, Option<i64>>("cursor_seq").is_none() {
        return Err(page::unknown());
    }
    let messages: Vec<&Row> = found
        .iter()
        .filter(|row| row.get::<_, Option<i64>>("seq").is_some())
        .skip(usize::from(!forward && PlantedBug::ReadsLag.is_planted()))
        .collect();
    let there_are = messages.first().map_or(0, |row| row.get::<_, i64>("found"));
    let more = there_are > i64::try_from(messages.len()).unwrap_or(i64::MAX);
    let next = messages
        .last()
        .filter(|_| more)
        .map(|row| row.get("message_id"));
    Ok(Page {
        seqs: messages.iter().map(|row| row.get("seq")).collect(),
        bytes: messages.last().map_or(0, |row| row.get("bytes")),
        messages: messages
            .into_iter()
            .map(|row| json(row, conversation))
            .collect(),
        next,
    })
}

/// The newest messages that refer to one of a page and that the reader can see, by the rules of
/// [`HISTORY`]. Each message of the page leads to its newest ones by an index.
const REFERRING: &str = "-- messages.referring
with me as materialized (
    select from_seq,
           case when visibility = 'all' then greatest(from_seq, all_from_seq) else 9223372036854775807 end as named_seq
    from active_member where conversation_id = $1 and principal_id = $2
), newest as materialized (
    select distinct near.seq
    from me cross join unnest($3::bigint[]) as page (seq) cross join lateral (
        select r.seq from message_ref r join message m on m.conversation_id = $1 and m.seq = r.seq
        where r.conversation_id = $1 and r.referred_seq = page.seq and r.seq > me.from_seq
            and (r.seq > me.named_seq or (m.sender_kind = 'agent' and m.sender_id = $2) or $2::text = any(m.recipients))
        order by r.seq desc limit $4
    ) near
    order by near.seq desc limit $4
)
select seq, message_id, sender_kind, sender_id, sender_device, payload, client_message_id, in_reply_to, hop, created_at,
       recipients, refs, deleted_at, deleted_by, found
from (
    select m.*, count(*) over () as found, sum(octet_length(m.payload)) over (order by m.seq desc) as bytes,
           row_number() over (order by m.seq desc) as n
    from newest join message m on m.conversation_id = $1 and m.seq = newest.seq
) newest
where n < $4 and bytes <= $5
order by seq";

/// Reads the messages that refer to one of these, in at most so many bytes.
pub async fn referring(
    client: &Conn,
    conversation: ConversationId,
    reader: Principal,
    page: &Page,
) -> Result<Referring> {
    let stmt = client.prepare_cached(REFERRING).await?;
    let bytes = MAX_PAGE_BYTES - page.bytes;
    let rows = MAX_REFERRING + 1;
    let found = client
        .query(
            &stmt,
            &[&conversation, &reader.id(), &page.seqs, &rows, &bytes],
        )
        .await?;
    let there_are = found.first().map(|row| row.get::<_, i64>("found"));
    let shown = i64::try_from(found.len()).unwrap_or(i64::MAX);
    Ok(Referring {
        seqs: found.iter().map(|row| row.get("seq")).collect(),
        is_truncated: there_are.is_some_and(|there_are| there_are > shown),
        messages: found.iter().map(|row| json(row, conversation)).collect(),
    })
}

fn json(row: &Row, conversation: ConversationId) -> String {
    let recipients: Option<Vec<String>> = row.get("recipients");
    let refs: Option<Vec<MessageId>> = row.get("refs");
    Message {
        id: row.get("message_id"),
        conversation,
        seq: row.get("seq"),
        sender: Principal::from_row(row.get("sender_kind"), row.get("sender_id")),
        device_id: row.get("sender_device"),
        payload: row.get("payload"),
        deletion: Deletion::from_row(row),
        recipients: recipients.as_deref(),
        client_message_id: row.get("client_message_id"),
        in_reply_to: row.get("in_reply_to"),
        refs: refs.as_deref(),
        hop: row.get("hop"),
        created_at: row.get("created_at"),
    }
    .json()
}
