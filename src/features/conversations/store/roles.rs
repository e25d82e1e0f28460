//! Changes of a member: its role, and the place of an agent in a group.

use blindpipe_protocol::{
    conversations::Role,
    groups::{AgentInstance, Visibility},
};

use crate::{
    error::Result,
    ids::{AgentId, ConversationId, InstanceId, Principal, RelationId, SessionId},
    work::Tx,
};

/// Sets a member's role. A new owner makes the earlier one an admin.
pub async fn set_role(tx: &Tx, id: ConversationId, who: Principal, role: Role) -> Result<()> {
    tx.execute(
        "-- conversations.set_role
        update member set role = case when principal_id = $2 then $3 else 'admin' end
        where conversation_id = $1 and (principal_id = $2 or $3 = 'owner' and role = 'owner')",
        &[&id, &who.id(), &role],
    )
    .await?;
    Ok(())
}

/// Names the instance and the visibility of an agent that has just become a member, and the session
/// that has added it.
pub async fn place_agent(
    tx: &Tx,
    id: ConversationId,
    instance: &AgentInstance,
    session: SessionId,
) -> Result<()> {
    tx.execute(
        "-- conversations.place_agent
        update member set visibility = $3, instance_id = $4, session_id = $5
        where conversation_id = $1 and principal_id = $2",
        &[
            &id,
            &instance.agent_id,
            &instance.visibility,
            &instance.instance_id,
            &session,
        ],
    )
    .await?;
    Ok(())
}

/// The visibility of an agent, its relation, and the session that sets it.
pub struct AgentMembership {
    pub visibility: Visibility,
    pub relation: RelationId,
    pub session: SessionId,
}

/// Changes the membership of an agent; none if it is not. Returns its instance, and
/// whether its visibility or its relation is another one now.
pub async fn renew_agent(
    tx: &Tx,
    id: ConversationId,
    agent: AgentId,
    place: &AgentMembership,
) -> Result<Option<(InstanceId, bool)>> {
    let row = tx
        .query_opt(
            "-- conversations.renew_agent
            update member m set visibility = $3,
                relation_id = case when r.state = 'revoked' then $4 else m.relation_id end,
                from_seq = case when r.state = 'revoked' then c.last_seq else m.from_seq end,
                all_from_seq = case when m.visibility <> 'all' and $3 = 'all' then c.last_seq else m.all_from_seq end,
                session_id = case when r.state = 'revoked' or m.visibility <> 'all' and $3 = 'all' then $5 else m.session_id end
            from conversation c, relation r, member old
            where m.conversation_id = $1 and m.principal_id = $2 and c.conversation_id = $1 and r.relation_id = m.relation_id
                and old.conversation_id = $1 and old.principal_id = $2
            returning m.instance_id, old.visibility <> $3 or r.state = 'revoked' as is_changed",
            &[&id, &agent, &place.visibility, &place.relation, &place.session],
        )
        .await?;
    Ok(row.map(|row| (row.get("instance_id"), row.get("is_changed"))))
}
