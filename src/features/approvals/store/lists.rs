//! Approvals are read.

use std::collections::BTreeMap;

use blindpipe_protocol::approvals::{Approval, ApprovalFilter};

use super::{read, read_one};
use crate::{
    access_log::{self, AccessKind, Read},
    db::{Conn, Db},
    error::{Code, Result},
    http::page,
    ids::{AgentId, ConversationId, MessageId, Principal},
};

/// Whether a caller sees an approval: a user who is a member since before it, or the agent that
/// asked and still has its place.
pub async fn is_visible(client: &Conn, caller: Principal, id: MessageId) -> Result<bool> {
    let row = client
        .query_opt(
            "-- approvals.visible
            select 1 from approval a join active_member m using (conversation_id)
            where a.approval_id = $2 and m.principal_id = $1 and a.seq > m.from_seq
                and (m.principal_kind = 'user' or a.agent_id = $1)",
            &[&caller.id(), &id],
        )
        .await?;
    Ok(row.is_some())
}

/// An approval that the caller sees. Errors: `NOT_FOUND`.
pub async fn find(client: &Conn, caller: Principal, id: MessageId) -> Result<Approval> {
    match is_visible(client, caller, id).await? {
        true => read_one(client, id).await,
        false => Err(Code::NotFound.into()),
    }
}

/// The approvals that the caller sees, newest first. Each conversation gives its newest, by an
/// index of its own.
pub async fn list(
    client: &Conn,
    caller: Principal,
    filter: ApprovalFilter,
    cursor: Option<MessageId>,
    rows: i64,
) -> Result<Vec<Approval>> {
    if let Some(cursor) = cursor
        && !is_visible(client, caller, cursor).await?
    {
        return Err(page::unknown());
    }
    let is_open = filter == ApprovalFilter::Open;
    let rows = client
        .query(
            "-- approvals.list
            select a.approval_id
            from active_member m cross join lateral (
                select approval_id from approval
                where conversation_id = m.conversation_id and seq > m.from_seq and (state = 'open') = $2
                    and ($3::uuid is null or approval_id < $3) and (m.principal_kind = 'user' or agent_id = $1)
                order by approval_id desc limit $4
            ) a
            where m.principal_id = $1
            order by a.approval_id desc limit $4",
            &[&caller.id(), &is_open, &cursor, &rows],
        )
        .await?;
    let ids: Vec<MessageId> = rows.iter().map(|row| row.get("approval_id")).collect();
    read(client, &ids).await
}

/// Logs that an agent reads people's decisions, at the end of the transaction that reads.
pub async fn record(client: &Conn, agent: AgentId, approvals: &[Approval]) -> Result<()> {
    let mut decided: BTreeMap<ConversationId, i64> = BTreeMap::new();
    for one in approvals.iter().filter(|one| !one.decisions.is_empty()) {
        *decided.entry(one.conversation_id).or_default() += 1;
    }
    let reads = decided.into_iter().map(|(conversation, items)| Read {
        items,
        ..Read::of(conversation)
    });
    let reads: Vec<Read> = reads.collect();
    access_log::record(client, agent, AccessKind::Approval, &reads).await
}

/// Logs what the answer to a change shows, before it is answered. The log comes after inboxes in
/// the order of locks, so it has a transaction of its own.
pub async fn log_read(db: &Db, agent: AgentId, approval: &Approval) -> Result<()> {
    db.run("approvals.log_read", async |tx| {
        record(tx, agent, std::slice::from_ref(approval)).await
    })
    .await
}
