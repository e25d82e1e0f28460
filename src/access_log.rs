//! THE ACCESS LOG: a row for each read of user data by an agent, in the transaction that reads.
//!
//! The database numbers and chains the rows, and refuses every change of them. The subject of a row
//! is the user whose data it is. For a group it is the group: a row per member and read would be
//! hundreds. The lock on the end of a subject's chain is held for the commit only, because the row
//! is the last thing that a transaction writes.

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
pub async fn record(client: &Conn, agent: AgentId, kind: AccessKind, reads: &[Read]) -> Result<()> {
    if reads.is_empty() {
        return Ok(());
    }
    let conversations: Vec<ConversationId> = reads.iter().map(|read| read.conversation).collect();
    let items: Vec<i64> = reads.iter().map(|read| read.items).collect();
    let first: Vec<Option<i64>> = reads.iter().map(|read| read.span.map(|of| of.0)).collect();
    let last: Vec<Option<i64>> = reads.iter().map(|read| read.span.map(|of| of.1)).collect();
    client
        .execute(
            "-- access_log.record
            insert into access_log (subject_id, agent_id, conversation_id, kind, items, from_seq, to_seq)
            select case when c.kind = 'agent' then c.created_by else c.conversation_id end, $1, c.conversation_id, $2,
                   read.items, read.from_seq, read.to_seq
            from unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[])
                as read (conversation_id, items, from_seq, to_seq)
            join conversation c using (conversation_id)
            order by 1",
            &[&agent, &kind, &conversations, &items, &first, &last],
        )
        .await?;
    Ok(())
}

/// Logs what an agent reads about a user outside of conversations.
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
            insert into access_log (subject_id, agent_id, kind, items) values ($1, $2, $3, $4)",
            &[&user, &agent, &kind, &items],
        )
        .await?;
    Ok(())
}
