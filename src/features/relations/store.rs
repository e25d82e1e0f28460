use tokio_postgres::Row;

use super::Relation;
use crate::{
    auth::user::User,
    db::{Conn, Db},
    error::{Code, Result},
    events::Event,
    http::page,
    ids::{AgentId, ConversationId, Principal, PrincipalId, RelationId, UserId},
    jobs::{ConsentEnd, Job},
    work::Tx,
};

fn relation(row: &Row) -> Relation {
    Relation {
        relation_id: row.get("relation_id"),
        user_id: row.get("user_id"),
        agent_id: row.get("agent_id"),
        state: row.get("state"),
        created_at: row.get("created_at"),
        revoked_at: row.get("revoked_at"),
        purge_at: row.get("purge_at"),
    }
}

/// Whether the user never had a relation with the agent, which is somebody else's.
pub async fn is_first_with_stranger(tx: &Tx, user: UserId, agent: AgentId) -> Result<bool> {
    let row = tx
        .query_one(
            "-- relations.is_first_with_stranger
            select exists (select from agent where agent_id = $2 and owner_user_id <> $1)
                and not exists (select from relation where user_id = $1 and agent_id = $2) as is_first",
            &[&user, &agent],
        )
        .await?;
    Ok(row.get("is_first"))
}

/// The active relation of the two, and whether this call made it, in the user's session. The caller
/// has locked their conversation.
///
/// It cancels a purge that is not due yet. A purge that has begun continues up to the
/// conversation's current end.
pub async fn open(
    tx: &Tx,
    user: &User,
    agent: AgentId,
    conversation: ConversationId,
) -> Result<(Relation, bool)> {
    let id = RelationId::generate(tx.random());
    let opened = relation(
        &tx.query_one(
            "-- relations.open
            insert into relation (relation_id, user_id, agent_id, session_id) values ($1, $2, $3, $4)
            on conflict (user_id, agent_id) where state = 'active' do update set state = 'active'
            returning relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at",
            &[&id, &user.id, &agent, &user.session],
        )
        .await?,
    );
    let made = opened.relation_id == id;
    if made {
        tx.execute(
            "-- relations.keep
            update relation r set
                purge_at = case when r.purge_at > app_now() then null else r.purge_at end,
                purge_due = case when r.purge_due > app_now() then null else r.purge_due end,
                purge_through = coalesce(r.purge_through, c.last_seq)
            from conversation c
            where r.user_id = $1 and r.agent_id = $2 and r.state = 'revoked' and r.purge_due is not null
                and c.conversation_id = $3",
            &[&user.id, &agent, &conversation],
        )
        .await?;
    }
    Ok((opened, made))
}

/// The active relation of the two. It cannot end before the transaction does.
pub async fn active(tx: &Tx, user: UserId, agent: AgentId) -> Result<Option<RelationId>> {
    Ok(tx
        .query_opt(
            "-- relations.active
            select relation_id from relation where user_id = $1 and agent_id = $2 and state = 'active' for share",
            &[&user, &agent],
        )
        .await?
        .map(|row| row.get("relation_id")))
}

pub async fn list(
    db: &Db,
    user: UserId,
    cursor: Option<RelationId>,
    rows: i64,
) -> Result<Vec<Relation>> {
    let client = db.read().await?;
    let known = "-- relations.cursor
        select 1 from relation where relation_id = $1 and user_id = $2";
    page::must_be_listed(&client, known, cursor, user).await?;
    let rows = client
        .query(
            "-- relations.list
            select relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at from relation
            where user_id = $1 and ($2::uuid is null or relation_id < $2) order by relation_id desc limit $3",
            &[&user, &cursor, &rows],
        )
        .await?;
    Ok(rows.iter().map(relation).collect())
}

/// Ends a relation of the user's. Returns it unchanged if it had ended before.
pub async fn revoke(tx: &Tx, user: UserId, id: RelationId) -> Result<Relation> {
    let found = find(tx, user, id).await?.ok_or(Code::NotFound)?;
    // Another request may have ended it meanwhile. It is then read again.
    match end(tx, id).await? {
        Some(ended) => Ok(ended),
        None => Ok(find(tx, user, id).await?.unwrap_or(found)),
    }
}

/// Ends a relation; none if it had ended before. Every conversation of the agent under it gets
/// another version of its rules. A send that read the relation before and commits later finds
/// itself stale.
async fn end(tx: &Tx, id: RelationId) -> Result<Option<Relation>> {
    tx.execute(
        "-- relations.lock
        select 1 from conversation where conversation_id in (select conversation_id from member where relation_id = $1)
        order by conversation_id for update",
        &[&id],
    )
    .await?;
    let Some(row) = tx
        .query_opt(
            "-- relations.end
            update relation set state = 'revoked', revoked_at = app_now(),
                purge_at = app_now() + interval '7 days', purge_due = app_now() + interval '7 days'
            where relation_id = $1 and state = 'active'
            returning relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at",
            &[&id],
        )
        .await?
    else {
        return Ok(None);
    };
    let ended = relation(&row);
    tx.execute(
        "-- relations.outdate
        update conversation set rules_version = rules_version + 1
        where conversation_id in (select conversation_id from member where relation_id = $1)",
        &[&id],
    )
    .await?;
    let both = vec![ended.user_id.into(), ended.agent_id.into()];
    tx.emit(Event::RelationRevoked(ended.clone()), None, both)?;
    tx.enqueue(Job::EndConsent(ConsentEnd::Relation(id)));
    Ok(Some(ended))
}

/// Ends the relation of the two, if they have one.
pub async fn end_with(tx: &Tx, user: UserId, agent: AgentId) -> Result<()> {
    let found = tx
        .query_opt(
            "-- relations.of_pair
            select relation_id from relation where user_id = $1 and agent_id = $2 and state = 'active'",
            &[&user, &agent],
        )
        .await?;
    if let Some(row) = found {
        end(tx, row.get("relation_id")).await?;
    }
    Ok(())
}

/// Ends the next relation of a principal; false if it has none.
pub async fn end_next(tx: &Tx, who: Principal) -> Result<bool> {
    let next = match who {
        Principal::User(user) => {
            tx.query_opt(
                "-- relations.next_of_user
                select relation_id from relation where user_id = $1 and state = 'active' limit 1",
                &[&user],
            )
            .await?
        }
        Principal::Agent(agent) => {
            tx.query_opt(
                "-- relations.next_of_agent
                select relation_id from relation where agent_id = $1 and state = 'active' limit 1",
                &[&agent],
            )
            .await?
        }
    };
    let Some(next) = next else { return Ok(false) };
    // The other one may have ended it just now. The next round then looks for another.
    end(tx, next.get("relation_id")).await?;
    Ok(true)
}

async fn find(tx: &Tx, user: UserId, id: RelationId) -> Result<Option<Relation>> {
    Ok(tx
        .query_opt(
            "-- relations.find
            select relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at from relation
            where relation_id = $1 and user_id = $2",
            &[&id, &user],
        )
        .await?
        .as_ref()
        .map(relation))
}

/// A relation whose purge is due, and its two principals in the order of their conversation.
pub struct DueRelation {
    pub id: RelationId,
    pair: [PrincipalId; 2],
}

/// The relation whose purge is due for the longest time.
pub async fn next_due(db: &Db) -> Result<Option<DueRelation>> {
    let next = db
        .write()
        .await?
        .query_opt(
            "-- relations.due
            select relation_id, least(user_id, agent_id) as pair_low, greatest(user_id, agent_id) as pair_high from relation
            where coalesce(purge_turn_at, purge_due) <= app_now() and purge_due is not null
            order by coalesce(purge_turn_at, purge_due) limit 1",
            &[],
        )
        .await?;
    Ok(next.map(|row| DueRelation {
        id: row.get("relation_id"),
        pair: [row.get("pair_low"), row.get("pair_high")],
    }))
}

/// Lets a relation whose purge has failed wait for an hour, so that others go on.
pub async fn step_back(db: &Db, id: RelationId) -> Result<()> {
    db.write()
        .await?
        .execute(
            "-- relations.step_back
            update relation set purge_turn_at = app_now() + interval '1 hour' where relation_id = $1",
            &[&id],
        )
        .await?;
    Ok(())
}

/// Locks the conversation of the two, as a renewal of their relation does; none if they have none.
pub async fn lock_pair(tx: &Conn, due: &DueRelation) -> Result<Option<ConversationId>> {
    let [low, high] = &due.pair;
    let row = tx
        .query_opt(
            "-- relations.lock_pair
            select conversation_id from conversation where pair_low = $1 and pair_high = $2 for update",
            &[low, high],
        )
        .await?;
    Ok(row.map(|row| row.get("conversation_id")))
}

/// Whether the purge of the relation is still due.
pub async fn is_due(tx: &Conn, due: &DueRelation) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- relations.still_due
            select 1 from relation where relation_id = $1 and purge_due <= app_now()",
            &[&due.id],
        )
        .await?;
    Ok(row.is_some())
}

/// Ends the turn of a relation, of which more may be left.
pub async fn end_turn(tx: &Conn, id: RelationId) -> Result<()> {
    tx.execute(
        "-- relations.end_turn
        update relation set purge_turn_at = app_now() where relation_id = $1",
        &[&id],
    )
    .await?;
    Ok(())
}

/// Ends the purge of a relation, of which nothing is left. While it stays ended, the next round is
/// in a week.
pub async fn end_purge(tx: &Conn, id: RelationId) -> Result<()> {
    tx.execute(
        "-- relations.purged
        update relation set purge_turn_at = null,
            purge_due = case when purge_through is null then app_now() + interval '7 days' end
        where relation_id = $1",
        &[&id],
    )
    .await?;
    Ok(())
}
