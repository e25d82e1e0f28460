use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::super::{AgentState, DeliveryMode};
use crate::{
    db::Db,
    error::{Error, Result},
    ids::{AgentId, PrincipalId, UserId},
    limits::quotas::MAX_PAGE_BYTES,
};

/// An agent's row with its token and key data.
pub struct AgentRow {
    pub id: AgentId,
    pub owner: UserId,
    pub display_name: String,
    pub description: Option<String>,
    pub state: AgentState,
    pub delivery_mode: DeliveryMode,
    pub manifest: Option<String>,
    pub manifest_version: i32,
    pub key_id: Option<String>,
    /// The current token's creation time and last use.
    pub token: Option<(DateTime<Utc>, Option<DateTime<Utc>>)>,
    /// The end of grace of the latest earlier token.
    pub grace_until: Option<DateTime<Utc>>,
    pub head_seq: i64,
    pub acked_seq: i64,
    pub unreachable_since: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
}

/// The part of an agent that the asking principal may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// All of it, for the owner and the agent itself.
    Insider,
    /// The public card, for a principal with a relation or a shared conversation.
    Related,
    /// Nothing, not even its existence.
    Unrelated,
}

/// The agent, and the part of it that `viewer` may see.
pub async fn find_visible(
    db: &Db,
    id: AgentId,
    viewer: PrincipalId,
) -> Result<Option<(AgentRow, Viewer)>> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- agents.show
            select a.*,
                   case when $2 in (owner_user_id, agent_id) then 'insider'
                        when exists (select 1 from relation r where r.user_id = $2 and r.agent_id = $1 and r.state = 'active')
                          or exists (
                            select 1 from member m
                            join active_member its on its.conversation_id = m.conversation_id and its.principal_id = $1
                            where m.principal_id = $2) then 'related'
                        else 'stranger' end as viewer
            from agent_shown a where agent_id = $1",
            &[&id, &viewer],
        )
        .await?;
    Ok(row.map(|row| {
        let viewer = match row.get("viewer") {
            "insider" => Viewer::Insider,
            "related" => Viewer::Related,
            _ => Viewer::Unrelated,
        };
        (shown(&row), viewer)
    }))
}

/// The owner's next agents after `cursor`, oldest first: at most `rows`, and one page's bytes of
/// manifests. The flag is true if the bytes ended the page.
pub async fn list(
    db: &Db,
    owner: UserId,
    cursor: Option<AgentId>,
    rows: i64,
) -> Result<(Vec<AgentRow>, bool)> {
    let client = db.read().await?;
    if let Some(cursor) = cursor {
        let known = client
            .query_opt(
                "-- agents.knows_cursor
                select 1 from agent where agent_id = $1 and owner_user_id = $2",
                &[&cursor, &owner],
            )
            .await?;
        known.ok_or_else(|| Error::field("cursor", "unknown", "is no agent of yours"))?;
    }
    let rows = client
        .query(
            "-- agents.list
            select *, sum(coalesce(octet_length(manifest), 0)) over (order by agent_id) as manifest_bytes from agent_shown
            where owner_user_id = $1 and ($2::uuid is null or agent_id > $2)
            order by agent_id limit $3",
            &[&owner, &cursor, &rows],
        )
        .await?;
    // A page has at least one agent, however large its manifest.
    let fits =
        |(n, row): &(usize, &Row)| *n == 0 || row.get::<_, i64>("manifest_bytes") <= MAX_PAGE_BYTES;
    let page: Vec<AgentRow> = rows
        .iter()
        .enumerate()
        .take_while(fits)
        .map(|(_, row)| shown(row))
        .collect();
    let cut = page.len() < rows.len();
    Ok((page, cut))
}

fn shown(row: &Row) -> AgentRow {
    let made: Option<DateTime<Utc>> = row.get("token_created_at");
    AgentRow {
        id: row.get("agent_id"),
        owner: row.get("owner_user_id"),
        display_name: row.get("display_name"),
        description: row.get("description"),
        state: row.get("state"),
        delivery_mode: row.get("delivery_mode"),
        manifest: row.get("manifest"),
        manifest_version: row.get("manifest_version"),
        key_id: row.get("key_id"),
        token: made.map(|made| (made, row.get("token_last_used_at"))),
        grace_until: row.get("grace_until"),
        head_seq: row.get("head_seq"),
        acked_seq: row.get("acked_seq"),
        unreachable_since: row.get("unreachable_since"),
        created_at: row.get("created_at"),
    }
}
