use blindpipe_protocol::access_log::{Access, AccessQuery};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::rules::{ulid_ceiling, ulid_floor};
use crate::{
    db::Db,
    error::Result,
    ids::{AccessId, SubjectId, UserId},
};

/// Behind the id of every row.
const LAST: AccessId = AccessId::from_bytes([0xff; 16]);

fn access(row: &Row) -> Access {
    let at: DateTime<Utc> = row.get("at");
    let subject: SubjectId = row.get("subject_id");
    Access {
        access_id: row.get("access_id"),
        agent_id: row.get("agent_id"),
        conversation_id: row.get("conversation_id"),
        kind: row.get("kind"),
        items: row.get("items"),
        from_seq: row.get("from_seq"),
        to_seq: row.get("to_seq"),
        at: at.into(),
        at_us: at.timestamp_micros(),
        subject_id: subject.0.to_string(),
        seq: row.get("seq"),
        hash: base16ct::lower::encode_string(row.get("hash")),
    }
}

/// Reads of the user's data and of the user's groups since the user joined. Each chain is walked by
/// an index from its newest row, at most a page, and the pages are merged. A conversation with an
/// agent has rows of that agent only, so its filter is one by agent.
const BY_TIME: &str = "-- access_log.list
with chain as materialized (
    select $1::uuid as subject_id, null::uuid as since
    where $3::uuid is null or exists (select from conversation where conversation_id = $3 and kind = 'agent')
    union all
    select m.conversation_id, ulid_floor(m.joined_at) from member m join conversation c using (conversation_id)
    where m.principal_id = $1 and c.kind = 'group' and ($3::uuid is null or m.conversation_id = $3)
)
select newest.access_id, newest.agent_id, newest.conversation_id, newest.kind, newest.items,
    newest.from_seq, newest.to_seq, newest.at, newest.subject_id, newest.seq, newest.hash
from chain cross join lateral (
    select * from access_log l
    where l.subject_id = chain.subject_id and l.access_id < $4 and l.access_id >= greatest(chain.since, $5::uuid)
        and ($3::uuid is null or l.conversation_id = $3) and $2::uuid is null
    order by l.access_id desc limit $6
) newest
order by access_id desc limit $6";

/// Like [`BY_TIME`] for a single agent, by its own index.
const BY_AGENT: &str = "-- access_log.list_of_agent
with chain as materialized (
    select $1::uuid as subject_id, null::uuid as since
    where $3::uuid is null or exists (select from conversation where conversation_id = $3 and kind = 'agent')
    union all
    select m.conversation_id, ulid_floor(m.joined_at) from member m join conversation c using (conversation_id)
    where m.principal_id = $1 and c.kind = 'group' and ($3::uuid is null or m.conversation_id = $3)
)
select newest.access_id, newest.agent_id, newest.conversation_id, newest.kind, newest.items,
    newest.from_seq, newest.to_seq, newest.at, newest.subject_id, newest.seq, newest.hash
from chain cross join lateral (
    select * from access_log l
    where l.subject_id = chain.subject_id and l.agent_id = $2::uuid and l.access_id < $4
        and l.access_id >= greatest(chain.since, $5::uuid) and ($3::uuid is null or l.conversation_id = $3)
    order by l.access_id desc limit $6
) newest
order by access_id desc limit $6";

pub async fn list(
    db: &Db,
    user: UserId,
    filter: &AccessQuery,
    cursor: Option<AccessId>,
    rows: i64,
) -> Result<Vec<Access>> {
    let mut agent = filter.agent_id;
    if let (None, Some(conversation)) = (agent, filter.conversation_id) {
        let client = db.read().await?;
        agent = client
            .query_opt(
                "-- access_log.agent_of_pair
                select m.principal_id as agent_id from conversation c join member m using (conversation_id)
                where c.conversation_id = $1 and c.kind = 'agent' and c.created_by = $2 and m.principal_kind = 'agent'",
                &[&conversation, &user],
            )
            .await?
            .map(|row| row.get("agent_id"));
    }
    // Ids begin with their time, so a span of time is a span of ids. A cursor is compared and need
    // not exist.
    let before = filter.to.map_or(LAST, |to| ulid_ceiling(to.0));
    let before = cursor.map_or(before, |cursor| before.min(cursor));
    let from = filter.from.map_or(AccessId::NIL, |from| ulid_floor(from.0));
    let sql = if agent.is_some() { BY_AGENT } else { BY_TIME };
    let rows = db
        .run("access_log.list", async |tx| {
            // Bounds on both sides make the planner expect few rows, and sort a whole chain.
            tx.batch_execute("set local enable_bitmapscan = off")
                .await?;
            let stmt = tx.prepare_cached(sql).await?;
            let conversation = &filter.conversation_id;
            tx.query(&stmt, &[&user, &agent, conversation, &before, &from, &rows])
                .await
        })
        .await?;
    Ok(rows.iter().map(access).collect())
}
