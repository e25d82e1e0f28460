use serde_json::json;
use uuid::Uuid;

use crate::{
    clock::iso,
    db::Tx,
    error::Result,
    events::EventKind,
    features::{
        inbox::{self, Told},
        relations,
    },
    ids::{AgentId, ConversationId, EventId, PrincipalKind, RelationId, UserId},
    random::Random,
    vocabulary::Role,
};

/// Ends one relation of a deleted agent, or takes it out of one group; none when there is nothing left to do.
pub async fn leave_next(tx: &Tx, random: &Random) -> Result<Option<Vec<Told>>> {
    let stmt = tx
        .prepare_cached(
            "-- agents.to_leave
            select agent_id from agent where state = 'deleted' and left_at is null
            order by deleted_at limit 1 for no key update skip locked",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[]).await? else {
        return Ok(None);
    };
    let agent: AgentId = row.get("agent_id");
    if let Some(relation) = next_relation(tx, agent).await? {
        // Its user may have ended it just now; then the next turn looks for another.
        let ended = relations::end(tx, relation, EventId::generate(random)).await?;
        return Ok(Some(ended.map(|(_, told)| told).unwrap_or_default()));
    }
    if let Some(told) = leave_group(tx, random, agent).await? {
        return Ok(Some(told.into_iter().collect()));
    }
    let stmt = tx
        .prepare_cached(
            "-- agents.left
            update agent set left_at = app_now() where agent_id = $1
                and not exists (select from relation where agent_id = $1 and state = 'active')
                and not exists (select from member join conversation using (conversation_id)
                                where principal_id = $1 and kind = 'group')",
        )
        .await?;
    tx.execute(&stmt, &[&agent]).await?;
    Ok(Some(Vec::new()))
}

/// Nobody opens another one meanwhile: whoever does asks for the agent first, and it is gone.
async fn next_relation(tx: &Tx, agent: AgentId) -> Result<Option<RelationId>> {
    let stmt = tx
        .prepare_cached(
            "-- agents.next_relation
            select relation_id from relation where agent_id = $1 and state = 'active' limit 1",
        )
        .await?;
    Ok(tx
        .query_opt(&stmt, &[&agent])
        .await?
        .map(|row| row.get("relation_id")))
}

/// None if it is in no group; nothing is told if another one has taken it out meanwhile.
async fn leave_group(tx: &Tx, random: &Random, agent: AgentId) -> Result<Option<Option<Told>>> {
    let stmt = tx
        .prepare_cached(
            "-- agents.next_group
            update conversation set rotation_required = true where conversation_id = (
                select conversation_id from conversation join member using (conversation_id)
                where principal_id = $1 and kind = 'group' limit 1
            ) returning conversation_id",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[&agent]).await? else {
        return Ok(None);
    };
    let group: ConversationId = row.get("conversation_id");
    let stmt = tx
        .prepare_cached(
            "-- agents.leave_group
            delete from member m using agent a
            where m.conversation_id = $1 and m.principal_id = $2 and a.agent_id = $2
            returning a.display_name, m.role, m.joined_at, a.owner_user_id",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[&group, &agent]).await? else {
        return Ok(Some(None));
    };
    let (name, role, owner): (String, Role, UserId) = (
        row.get("display_name"),
        row.get("role"),
        row.get("owner_user_id"),
    );
    let stmt = tx
        .prepare_cached(
            "-- agents.others
            select principal_id from active_member where conversation_id = $1",
        )
        .await?;
    let others: Vec<Uuid> = tx
        .query(&stmt, &[&group])
        .await?
        .iter()
        .map(|row| row.get("principal_id"))
        .collect();
    let data = json!({
        "conversation_id": group,
        "member": {
            "principal_type": PrincipalKind::Agent, "principal_id": agent, "display_name": name, "role": role,
            "joined_at": iso(row.get("joined_at")),
        },
        "by": owner,
    });
    let (id, kind) = (EventId::generate(random), EventKind::MemberRemoved);
    inbox::append(tx, id, kind, Some(group), &data.to_string(), &others)
        .await
        .map(|told| Some(Some(told)))
}
