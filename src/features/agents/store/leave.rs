use serde_json::json;
use uuid::Uuid;

use crate::{
    clock::iso,
    error::Result,
    events::EventKind,
    features::relations,
    ids::{AgentId, ConversationId, RelationId, UserId},
    work::Tx,
};

/// Ends one relation of a deleted agent, or takes it out of one group; false when there is nothing left to do.
pub async fn leave_next(tx: &Tx) -> Result<bool> {
    let Some(row) = tx
        .query_opt(
            "-- agents.to_leave
            select agent_id from agent where state = 'deleted' and left_at is null
            order by deleted_at limit 1 for no key update skip locked",
            &[],
        )
        .await?
    else {
        return Ok(false);
    };
    let agent: AgentId = row.get(0);
    if let Some(relation) = next_relation(tx, agent).await? {
        // Its user may have ended it just now; then the next turn looks for another.
        relations::end(tx, relation).await?;
        return Ok(true);
    }
    if leave_group(tx, agent).await? {
        return Ok(true);
    }
    tx.execute(
        "-- agents.left
        update agent set left_at = app_now() where agent_id = $1
            and not exists (select from relation where agent_id = $1 and state = 'active')
            and not exists (select from member join conversation using (conversation_id)
                            where principal_id = $1 and kind = 'group')",
        &[&agent],
    )
    .await?;
    Ok(true)
}

/// Nobody opens another one meanwhile: whoever does asks for the agent first, and it is gone.
async fn next_relation(tx: &Tx, agent: AgentId) -> Result<Option<RelationId>> {
    Ok(tx
        .query_opt(
            "-- agents.next_relation
            select relation_id from relation where agent_id = $1 and state = 'active' limit 1",
            &[&agent],
        )
        .await?
        .map(|row| row.get(0)))
}

/// False if it is in no group; nothing is told if another one has taken it out meanwhile.
async fn leave_group(tx: &Tx, agent: AgentId) -> Result<bool> {
    let Some(row) = tx
        .query_opt(
            "-- agents.next_group
            update conversation set rotation_required = true where conversation_id = (
                select conversation_id from conversation join member using (conversation_id)
                where principal_id = $1 and kind = 'group' limit 1
            ) returning conversation_id",
            &[&agent],
        )
        .await?
    else {
        return Ok(false);
    };
    let group: ConversationId = row.get(0);
    let Some(row) = tx
        .query_opt(
            "-- agents.leave_group
            delete from member m using agent a
            where m.conversation_id = $1 and m.principal_id = $2 and a.agent_id = $2
            returning a.display_name, m.role, m.joined_at, a.owner_user_id",
            &[&group, &agent],
        )
        .await?
    else {
        return Ok(true);
    };
    let (name, role, owner): (String, String, UserId) = (row.get(0), row.get(1), row.get(3));
    let others: Vec<Uuid> = tx
        .query(
            "-- agents.others
            select m.principal_id from member m left join relation r on r.relation_id = m.relation_id
            where m.conversation_id = $1 and r.state is distinct from 'revoked'",
            &[&group],
        )
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect();
    let data = json!({
        "conversation_id": group,
        "member": {
            "principal_type": "agent", "principal_id": agent, "display_name": name, "role": role,
            "joined_at": iso(row.get(2)),
        },
        "by": owner,
    });
    tx.emit(EventKind::MemberRemoved, Some(group), &data, others)?;
    Ok(true)
}
