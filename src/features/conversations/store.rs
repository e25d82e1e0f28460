use uuid::Uuid;

use super::{Conversation, Member, Relation};
use crate::{
    db::Tx,
    error::{Code, Error, Result},
    events::EventKind,
    features::{
        agents,
        inbox::{self, Told},
    },
    ids::{AgentId, ConversationId, EventId, Principal, RelationId, UserId},
};

/// Ids for whatever must be made.
pub struct NewIds {
    pub conversation: ConversationId,
    pub relation: RelationId,
    pub events: [EventId; 2],
}

/// What an opening found or made.
pub struct Opened {
    pub conversation: Option<Conversation>,
    /// To be told after commit.
    pub told: Vec<Told>,
}

pub async fn open_direct(tx: &Tx, ids: &NewIds, user: UserId, other: UserId) -> Result<Opened> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.find_user
            select 1 from user_account where user_id = $1",
        )
        .await?;
    tx.query_opt(&stmt, &[&other]).await?.ok_or(Code::NotFound)?;
    let pair = [user.0, other.0];
    let (id, made) = insert(tx, ids.conversation, "direct", user, pair).await?;
    if !made {
        return Ok(Opened { conversation: load(tx, id).await?, told: Vec::new() });
    }
    add_member(tx, id, Principal::User(user), "owner", None).await?;
    add_member(tx, id, Principal::User(other), "member", None).await?;
    tell_created(tx, ids, id, &pair, Vec::new()).await
}

pub async fn open_agent(tx: &Tx, ids: &NewIds, user: UserId, agent: AgentId) -> Result<Opened> {
    agents::find(tx, agent).await?.ok_or(Code::AgentNotRegistered)?;
    let pair = [user.0, agent.0];
    let (id, made) = insert(tx, ids.conversation, "agent", user, pair).await?;
    let (relation, new_relation) = open_relation(tx, ids.relation, user, agent).await?;
    let mut told = Vec::new();
    if new_relation {
        let data =
            serde_json::to_string(&relation).map_err(|error| Error::broken(Code::InternalError, error))?;
        told.push(inbox::append(tx, ids.events[0], EventKind::RelationCreated, None, &data, &pair).await?);
    }
    if made {
        add_member(tx, id, Principal::User(user), "owner", None).await?;
        add_member(tx, id, Principal::Agent(agent), "agent", Some(relation.relation_id)).await?;
        return tell_created(tx, ids, id, &pair, told).await;
    }
    if new_relation {
        renew_relation(tx, id, agent, relation.relation_id).await?;
    }
    Ok(Opened { conversation: load(tx, id).await?, told })
}

async fn tell_created(
    tx: &Tx,
    ids: &NewIds,
    id: ConversationId,
    members: &[Uuid],
    mut told: Vec<Told>,
) -> Result<Opened> {
    let conversation = load(tx, id).await?;
    let data =
        serde_json::to_string(&conversation).map_err(|error| Error::broken(Code::InternalError, error))?;
    told.push(
        inbox::append(tx, ids.events[1], EventKind::ConversationCreated, Some(id), &data, members).await?,
    );
    Ok(Opened { conversation, told })
}

/// The pair's conversation and whether it was made now. The unique pair decides a race; the row is locked either way.
async fn insert(
    tx: &Tx,
    id: ConversationId,
    kind: &str,
    by: UserId,
    pair: [Uuid; 2],
) -> Result<(ConversationId, bool)> {
    let (low, high) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
    let stmt = tx
        .prepare_cached(
            "-- conversations.insert
            insert into conversation (conversation_id, kind, created_by, pair_low, pair_high) values ($1, $2, $3, $4, $5)
            on conflict on constraint conversation_pair do update set pair_low = excluded.pair_low
            returning conversation_id",
        )
        .await?;
    let found: ConversationId = tx.query_one(&stmt, &[&id, &kind, &by, &low, &high]).await?.get(0);
    Ok((found, found == id))
}

async fn add_member(
    tx: &Tx,
    conversation: ConversationId,
    who: Principal,
    role: &str,
    relation: Option<RelationId>,
) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.add_member
            insert into member (conversation_id, principal_id, principal_kind, role, relation_id) values ($1, $2, $3, $4, $5)",
        )
        .await?;
    tx.execute(&stmt, &[&conversation, &who.id(), &who.kind(), &role, &relation]).await?;
    Ok(())
}

async fn open_relation(tx: &Tx, id: RelationId, user: UserId, agent: AgentId) -> Result<(Relation, bool)> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.open_relation
            insert into relation (relation_id, user_id, agent_id) values ($1, $2, $3)
            on conflict (user_id, agent_id) where state = 'active' do update set state = 'active'
            returning relation_id, user_id, agent_id, state, created_at",
        )
        .await?;
    let row = tx.query_one(&stmt, &[&id, &user, &agent]).await?;
    let relation = Relation {
        relation_id: row.get(0),
        user_id: row.get(1),
        agent_id: row.get(2),
        state: row.get(3),
        created_at: row.get(4),
    };
    let made = relation.relation_id == id;
    Ok((relation, made))
}

/// An agent whose relation was ended is in its old conversation by the new one.
async fn renew_relation(
    tx: &Tx,
    conversation: ConversationId,
    agent: AgentId,
    relation: RelationId,
) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.renew_relation
            update member set relation_id = $3 where conversation_id = $1 and principal_id = $2",
        )
        .await?;
    tx.execute(&stmt, &[&conversation, &agent, &relation]).await?;
    Ok(())
}

async fn load(tx: &Tx, id: ConversationId) -> Result<Option<Conversation>> {
    let stmt = tx
        .prepare_cached(
            "-- conversations.load
            select c.conversation_id, c.kind, c.title, c.created_by, c.created_at, c.encryption, c.epoch, c.rotation_required,
                   c.last_message_id, c.last_activity_at, m.principal_kind, m.principal_id,
                   coalesce(u.display_name, a.display_name), m.role, m.joined_at,
                   r.relation_id, r.user_id, r.agent_id, r.state, r.created_at
            from conversation c
            join member m using (conversation_id)
            left join user_account u on u.user_id = m.principal_id
            left join agent a on a.agent_id = m.principal_id
            left join relation r on r.relation_id = m.relation_id and c.kind = 'agent'
            where c.conversation_id = $1
            order by m.joined_at, m.principal_id",
        )
        .await?;
    let rows = tx.query(&stmt, &[&id]).await?;
    let members = rows.iter().map(|row| Member {
        principal_type: row.get(10),
        principal_id: Principal::from_row(row.get(10), row.get(11)).wire_id(),
        display_name: row.get(12),
        role: row.get(13),
        joined_at: row.get(14),
    });
    let members: Vec<Member> = members.collect();
    let relation = rows.iter().find_map(|row| {
        Some(Relation {
            relation_id: row.get::<_, Option<RelationId>>(15)?,
            user_id: row.get(16),
            agent_id: row.get(17),
            state: row.get(18),
            created_at: row.get(19),
        })
    });
    Ok(rows.first().map(|row| Conversation {
        conversation_id: row.get(0),
        r#type: row.get(1),
        title: row.get(2),
        created_by: row.get(3),
        created_at: row.get(4),
        encryption: row.get(5),
        epoch: row.get(6),
        rotation_required: row.get(7),
        member_count: members.len(),
        members,
        last_message_id: row.get(8),
        last_activity_at: row.get(9),
        relation,
    }))
}
