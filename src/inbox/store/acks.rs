//! Acknowledgements, and the record of what agents have read.

use super::{Reader, to_column};
use crate::{
    access_log::AccessKind,
    cursor::Cursor,
    db::{Conn, Db},
    error::Result,
    ids::{AgentId, CredentialId, PrincipalId, TokenId},
};

/// A reader's ack.
pub struct Ack {
    pub reader: Reader,
    /// The number of the last event that the reader has.
    pub seq: i64,
    /// The credential that vouches for it; none if the caller's transaction holds it already.
    pub credential: Option<CredentialId>,
}

/// Moves readers' places forward, never back and never past the head; rows are locked in order. A
/// socket that was opened before its device got its name goes on acking under the old one.
///
/// With an epoch, nothing moves once Postgres has another: the numbers would name other events.
///
/// An ack with a credential counts only while the credential is live. A revoked token would move
/// the position that all sockets of an agent share.
pub async fn ack(client: &Conn, acks: &[Ack], epoch: Option<u64>) -> Result<()> {
    let principals: Vec<PrincipalId> = acks.iter().map(|ack| ack.reader.principal.id()).collect();
    let devices: Vec<&str> = acks
        .iter()
        .map(|ack| ack.reader.device_id.as_str())
        .collect();
    let seqs: Vec<i64> = acks.iter().map(|ack| ack.seq).collect();
    let credentials: Vec<Option<CredentialId>> = acks.iter().map(|ack| ack.credential).collect();
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

/// An agent's ack, in one statement with the proof that its token counts until it is committed;
/// false if it does not. Nothing moves once Postgres has another epoch than the cursor.
pub async fn ack_by_token(db: &Db, agent: AgentId, token: TokenId, cursor: Cursor) -> Result<bool> {
    let client = db.write().await?;
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
    pub agents: &'a [AgentId],
    /// Per agent: the last event that it was sent, if that may be beyond its ack.
    pub up_to: &'a [Option<i64>],
    /// The page that a poll has read begins behind this number; none for pushed events alone.
    pub after: Option<i64>,
    /// The epoch of these numbers; nothing is logged in another.
    pub epoch: Option<u64>,
}

/// Logs what agents have read: a row per agent, conversation and kind. Pushed events are logged from
/// where the last row ended, at most a thousand per agent, and before the page of a poll. Returns
/// the agents of which more is left; their polls are not logged yet.
///
/// The lock on the agent's reader keeps two rows from counting the same event. A transaction logs
/// once: each row locks its user's chain, and `log_access` takes the chains in order.
pub async fn log_reads(client: &Conn, reads: &Reads<'_>) -> Result<Vec<AgentId>> {
    let epoch = reads.epoch.map(to_column);
    let rows = client
        .query(
            "-- inbox.log_reads
            with held as materialized (
                select r.principal_id, r.logged_seq, r.acked_seq, said.up_to, i.head_seq
                from unnest($1::uuid[], $2::bigint[]) as said (agent_id, up_to)
                join inbox_reader r on r.principal_id = said.agent_id and r.device_id = ''
                join inbox i on i.principal_id = r.principal_id
                where $4::bigint is null or $4 = (select inbox_epoch())
                order by r.principal_id for update of r
            ), wanted as (
                select principal_id, $5::text as kind, logged_seq as after_seq,
                       least(case when $3::bigint is null then greatest(up_to, acked_seq) else acked_seq end, head_seq) as wanted_seq
                from held
                union all
                select principal_id, $6::text, $3::bigint, least(up_to, head_seq)
                from held where acked_seq <= logged_seq + 1000 and $3::bigint is not null
            ), span as materialized (
                select principal_id, kind, after_seq, wanted_seq, least(wanted_seq, after_seq + 1000) as up_to_seq
                from wanted where after_seq < wanted_seq
            ), seen as (
                select span.principal_id, span.kind, coalesce(e.conversation_id, v.conversation_id) as conversation_id,
                       count(*) as items, min(e.seq) as from_seq, max(e.seq) as to_seq
                from span cross join lateral (
                    select part.seq - part.events + n as seq, part.event_ids[n] as event_id,
                           coalesce(part.conversation_id, part.conversation_ids[n]) as conversation_id
                    from (
                        select * from inbox_entry
                        where principal_id = span.principal_id and seq > span.after_seq
                        order by seq limit span.up_to_seq - span.after_seq
                    ) part cross join generate_series(1, part.events) n
                ) e
                left join lateral (select conversation_id from event where event_id = e.event_id limit 1) v on true
                where e.seq > span.after_seq and e.seq <= span.up_to_seq
                group by 1, 2, 3
            ), logged as materialized (
                select log_access(array_agg(principal_id), array_agg(kind), array_agg(conversation_id), null,
                                  array_agg(items), array_agg(from_seq), array_agg(to_seq)) as rows
                from seen where conversation_id is not null
            ), moved as (
                update inbox_reader r set logged_seq = greatest(r.logged_seq, last.seq)
                from (select principal_id, max(up_to_seq) as seq from span group by 1) last cross join logged
                where r.principal_id = last.principal_id and r.device_id = '' and logged.rows is not null
            )
            select principal_id from span where kind = $5 and wanted_seq > up_to_seq",
            &[
                &reads.agents,
                &reads.up_to,
                &reads.after,
                &epoch,
                &AccessKind::Push,
                &AccessKind::Poll,
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("principal_id")).collect())
}

/// Of the next 5,000 agents after `after`: those of whose acks a part is not logged, because their
/// node died in between. Also the last agent of the piece, if more may follow.
pub async fn unlogged(db: &Db, after: AgentId) -> Result<(Vec<AgentId>, Option<AgentId>)> {
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
