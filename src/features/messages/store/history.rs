use tokio_postgres::Row;

use crate::{
    db::Conn,
    error::{Code, Result},
    events::Message,
    http::page,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::MAX_PAGE_BYTES,
};

/// A page of a conversation.
pub struct Page {
    /// The messages as JSON, in the requested order.
    pub messages: Vec<String>,
    /// The last message's id, if there are more.
    pub next: Option<MessageId>,
    /// The lowest and the highest number of its messages.
    pub span: Option<(i64, i64)>,
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
       page.client_message_id, page.in_reply_to, page.hop, page.created_at, page.recipients, page.found
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
        .collect();
    let there_are = messages.first().map_or(0, |row| row.get::<_, i64>("found"));
    let more = there_are > i64::try_from(messages.len()).unwrap_or(i64::MAX);
    let next = messages
        .last()
        .filter(|_| more)
        .map(|row| row.get("message_id"));
    let seqs = messages.iter().map(|row| row.get::<_, i64>("seq"));
    let span = seqs.clone().min().zip(seqs.max());
    Ok(Page {
        span,
        messages: messages
            .into_iter()
            .map(|row| json(row, conversation))
            .collect(),
        next,
    })
}

fn json(row: &Row, conversation: ConversationId) -> String {
    let recipients: Option<Vec<String>> = row.get("recipients");
    Message {
        id: row.get("message_id"),
        conversation,
        seq: row.get("seq"),
        sender: Principal::from_row(row.get("sender_kind"), row.get("sender_id")),
        device_id: row.get("sender_device"),
        payload: row.get("payload"),
        recipients: recipients.as_deref(),
        client_message_id: row.get("client_message_id"),
        in_reply_to: row.get("in_reply_to"),
        hop: row.get("hop"),
        created_at: row.get("created_at"),
    }
    .json()
}
