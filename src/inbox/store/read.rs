//! Reads an inbox.

use chrono::{DateTime, Utc};

use super::{
    super::{Bounds, Entry, InboxHead},
    Reader, from_column,
};
use crate::{
    db::{Conn, Db},
    error::Result,
    events::{self, Deletion, Message},
    ids::{ConversationId, Credential, EventId, MessageId, Principal, PrincipalId},
    limits::quotas::MAX_POLL_EVENTS,
};

/// None if `live` is given and has ended. A connect asks so: bounds and credential are of one
/// snapshot then, and cost one statement.
pub async fn bounds(db: &Db, reader: &Reader, live: Option<Credential>) -> Result<Option<Bounds>> {
    let (session, token) = match live {
        Some(Credential::Session(session)) => (Some(session), None),
        Some(Credential::Token(token)) => (None, Some(token)),
        None => (None, None),
    };
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- inbox.bounds
            select i.head_seq,
                   coalesce((select seq - events + 1 from inbox_entry e
                             where e.principal_id = $1 order by seq limit 1), i.head_seq + 1) as oldest_seq,
                   coalesce((select acked_seq from inbox_reader r where r.principal_id = $1 and r.device_id = $2), i.head_seq)
                       as acked_seq, inbox_epoch() as epoch
            from inbox i where i.principal_id = $1
                and ($3::uuid is null or exists (select from live_session s where s.session_id = $3 and s.user_id = $1))
                and ($4::uuid is null or exists (select from live_agent_token t where t.token_id = $4 and t.agent_id = $1))",
            &[&reader.principal.id(), &reader.device_id, &session, &token],
        )
        .await?;
    Ok(row.map(|row| Bounds {
        head: row.get("head_seq"),
        oldest: row.get("oldest_seq"),
        acked: row.get("acked_seq"),
        epoch: from_column(row.get("epoch")),
    }))
}

// The largest page is a literal in the statement. Without it Postgres would expect a tenth of the
// inbox, and plan anew for each read.
const _: () = assert!(MAX_POLL_EVENTS == 1000);

/// Reads a page, which ends at its limit or before it grows too large. A single larger event is a
/// page of its own.
pub async fn read(
    client: &Conn,
    principal: PrincipalId,
    after: i64,
    limit: i64,
    bytes: i64,
) -> Result<Vec<Entry>> {
    let rows = client
        .query(
            "-- inbox.read
            select seq, event_id, created_at, kind, conversation_id, data,
                   message_seq, sender_kind, sender_id, sender_device, payload, client_message_id, in_reply_to, hop, recipients,
                   refs, deleted_at, deleted_by
            from (
                select e.seq, coalesce(e.event_id, m.message_id) as event_id, coalesce(v.created_at, m.created_at) as created_at,
                       v.kind, coalesce(v.conversation_id, m.conversation_id) as conversation_id, v.data,
                       m.seq as message_seq, m.sender_kind, m.sender_id, m.sender_device, m.payload,
                       m.client_message_id, m.in_reply_to, m.hop, m.recipients, m.refs, m.deleted_at, m.deleted_by,
                       sum(octet_length(coalesce(m.payload, v.data))) over (order by e.seq) as bytes
                from (
                    select * from (
                        select part.seq - part.events + n as seq, part.event_ids[n] as event_id,
                               coalesce(part.conversation_id, part.conversation_ids[n]) as conversation_id,
                               coalesce(part.message_seq - part.events + n, part.message_seqs[n]) as message_seq
                        from (
                            select * from inbox_entry
                            where principal_id = $1 and seq > $2 order by seq limit 1000
                        ) part cross join generate_series(1, part.events) n
                        where part.seq - part.events + n > $2
                        order by 1 limit 1000
                    ) largest order by seq limit $3
                ) e
                left join lateral (
                    select * from message where conversation_id = e.conversation_id and seq = e.message_seq limit 1
                ) m on true
                left join lateral (select * from event where event_id = e.event_id limit 1) v on true
            ) page
            where bytes <= $4 or seq = $2 + 1
            order by seq",
            &[&principal, &after, &limit, &bytes],
        )
        .await?;
    // Each row is dropped once it is encoded.
    Ok(rows.into_iter().map(|row| entry(&row)).collect())
}

fn entry(row: &tokio_postgres::Row) -> Entry {
    let id: EventId = row.get("event_id");
    let at: DateTime<Utc> = row.get("created_at");
    let conversation: Option<ConversationId> = row.get("conversation_id");
    let recipients: Option<Vec<String>> = row.get("recipients");
    let refs: Option<Vec<MessageId>> = row.get("refs");
    let encoded = match (row.get::<_, Option<&str>>("kind"), conversation) {
        // No event row: the entry announces a message, which carries the event's id.
        (None, Some(conversation)) => message(
            row,
            MessageId(id.0),
            conversation,
            at,
            recipients.as_deref(),
            refs.as_deref(),
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
    refs: Option<&'a [MessageId]>,
) -> Message<'a> {
    Message {
        id,
        conversation,
        seq: row.get("message_seq"),
        sender: Principal::from_row(row.get("sender_kind"), row.get("sender_id")),
        device_id: row.get("sender_device"),
        payload: row.get("payload"),
        deletion: Deletion::from_row(row),
        recipients,
        client_message_id: row.get("client_message_id"),
        in_reply_to: row.get("in_reply_to"),
        refs,
        hop: row.get("hop"),
        created_at: at,
    }
}

pub async fn heads(db: &Db, principals: &[PrincipalId]) -> Result<Vec<InboxHead>> {
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
        .map(|row| InboxHead {
            principal: row.get("principal_id"),
            seq: row.get("head_seq"),
        })
        .collect())
}
