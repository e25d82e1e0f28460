use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    db::Db,
    error::{Error, Result},
    ids::{AgentId, UserId},
    limits::quotas::MAX_PAGE_BYTES,
};

/// An agent's row with all that belongs to it.
pub struct AgentRow {
    pub id: AgentId,
    pub owner: UserId,
    pub display_name: String,
    pub description: Option<String>,
    pub state: String,
    pub delivery_mode: String,
    pub manifest: Option<String>,
    pub manifest_version: i32,
    pub key_id: Option<String>,
    /// The current token: when it was made, when it was last used.
    pub token: Option<(DateTime<Utc>, Option<DateTime<Utc>>)>,
    /// Until when the youngest of the earlier tokens is good.
    pub grace_until: Option<DateTime<Utc>>,
    pub head_seq: i64,
    pub acked_seq: i64,
    pub unreachable_since: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
}

/// What the asking principal may see of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// All of it: its owner, or itself.
    Insider,
    /// Its public card: they have a relation or share a conversation.
    Related,
    /// Not even that it exists.
    Stranger,
}

/// The agent and how much of it `viewer` may see.
pub async fn find_visible(
    db: &Db,
    id: AgentId,
    viewer: Uuid,
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
                            join member its on its.conversation_id = m.conversation_id and its.principal_id = $1
                            left join relation r on r.relation_id = its.relation_id
                            where m.principal_id = $2 and r.state is distinct from 'revoked') then 'related'
                        else 'stranger' end
            from agent_shown a where agent_id = $1",
            &[&id, &viewer],
        )
        .await?;
    Ok(row.map(|row| {
        let viewer = match row.get(16) {
            "insider" => Viewer::Insider,
            "related" => Viewer::Related,
            _ => Viewer::Stranger,
        };
        (shown(&row), viewer)
    }))
}

/// The owner's next agents after `cursor`, oldest first: at most `rows`, and one page's bytes of manifests. The flag says
/// whether bytes cut it off.
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
            select *, sum(coalesce(octet_length(manifest), 0)) over (order by agent_id) from agent_shown
            where owner_user_id = $1 and ($2::uuid is null or agent_id > $2)
            order by agent_id limit $3",
            &[&owner, &cursor, &rows],
        )
        .await?;
    // One agent is always there, however large its manifest.
    let fits = |(n, row): &(usize, &Row)| *n == 0 || row.get::<_, i64>(16) <= MAX_PAGE_BYTES;
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
    let made: Option<DateTime<Utc>> = row.get(9);
    AgentRow {
        id: row.get(0),
        owner: row.get(1),
        display_name: row.get(2),
        description: row.get(3),
        state: row.get(4),
        delivery_mode: row.get(5),
        manifest: row.get(6),
        manifest_version: row.get(7),
        key_id: row.get(8),
        token: made.map(|made| (made, row.get(10))),
        grace_until: row.get(11),
        head_seq: row.get(12),
        acked_seq: row.get(13),
        unreachable_since: row.get(14),
        created_at: row.get(15),
    }
}
