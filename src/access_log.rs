//! THE ACCESS LOG: a row for each read of user data by an agent, in the transaction that reads.
//!
//! A function of the database, `log_access`, writes them: it proves that the agent is the reader. The
//! database numbers and chains the rows, and refuses every change of them. The subject of a row
//! is the user whose data it is. For a group it is the group: a row per member and read would be
//! hundreds. The lock on the end of a subject's chain is held for the commit only, because the row
//! is the last thing that a transaction writes.
//!
//! Why: ADR 35.

pub use blindpipe_protocol::access_log::AccessKind;

use crate::{
    db::Conn,
    error::Result,
    ids::{AgentId, ConversationId, UserId},
};

/// An agent's read in one conversation.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub conversation: ConversationId,
    /// The number of messages, keys or files.
    pub items: i64,
    /// The numbers of the first and the last message.
    pub span: Option<(i64, i64)>,
}

impl Read {
    /// A read of one thing.
    pub fn of(conversation: ConversationId) -> Self {
        Read {
            conversation,
            items: 1,
            span: None,
        }
    }
}

/// Logs what an agent reads in conversations, at the end of the transaction that reads.
///
/// Errors: 503 if the agent has lost the right to read meanwhile.
pub async fn record(client: &Conn, agent: AgentId, kind: AccessKind, reads: &[Read]) -> Result<()> {
    if reads.is_empty() {
        return Ok(());
    }
    let conversations: Vec<ConversationId> = reads.iter().map(|read| read.conversation).collect();
    let items: Vec<i64> = reads.iter().map(|read| read.items).collect();
    let first: Vec<Option<i64>> = reads.iter().map(|read| read.span.map(|of| of.0)).collect();
    let last: Vec<Option<i64>> = reads.iter().map(|read| read.span.map(|of| of.1)).collect();
    let (agents, kinds) = (vec![agent; reads.len()], vec![kind; reads.len()]);
    client
        .execute(
            "-- access_log.record
            select log_access($1, $2, $3, null, $4, $5, $6)",
            &[&agents, &kinds, &conversations, &items, &first, &last],
        )
        .await?;
    Ok(())
}

/// Logs what an agent reads about a user outside of conversations. Errors as for [`record`].
pub async fn record_user(
    client: &Conn,
    agent: AgentId,
    kind: AccessKind,
    user: UserId,
    items: usize,
) -> Result<()> {
    let items = i64::try_from(items).unwrap_or(i64::MAX);
    client
        .execute(
            "-- access_log.record_user
            select log_access(array[$1::uuid], array[$2], null, array[$3::uuid], array[$4::bigint], null, null)",
            &[&agent, &kind, &user, &items],
        )
        .await?;
    Ok(())
}
