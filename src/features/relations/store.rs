use tokio_postgres::Row;

use super::Relation;
use crate::{
    db::{self, Db},
    error::{Code, Result},
    events::Event,
    http::page,
    ids::{AgentId, ConversationId, Principal, RelationId, UserId},
    jobs::{ConsentEnd, Job},
    objects,
    work::Tx,
};

/// The number of messages that one transaction of the purge empties. Each may have a megabyte.
const MAX_BATCH_RELATIONS: i64 = 100;

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

/// The active relation of the two, and whether this call made it. The caller has locked their
/// conversation.
///
/// It cancels a purge that is not due yet. A purge that has begun continues up to the
/// conversation's current end.
pub async fn open(
    tx: &Tx,
    user: UserId,
    agent: AgentId,
    conversation: ConversationId,
) -> Result<(Relation, bool)> {
    let id = RelationId::generate(tx.random());
    let opened = relation(
        &tx.query_one(
            "-- relations.open
            insert into relation (relation_id, user_id, agent_id) values ($1, $2, $3)
            on conflict (user_id, agent_id) where state = 'active' do update set state = 'active'
            returning relation_id, user_id, agent_id, state, created_at, revoked_at, purge_at",
            &[&id, &user, &agent],
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
            &[&user, &agent, &conversation],
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
    let both = vec![ended.user_id.0, ended.agent_id.0];
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

/// Empties some messages of one ended relation. True while there may be more.
///
/// Rows stay, so that numbers have no gaps and references stay valid. A message of the last 24
/// hours waits for the next round, because its sender may still repeat it. While the relation stays
/// ended, a round comes every week: the user can still write there.
pub async fn purge(db: &Db) -> Result<bool> {
    db.run("relations.purge", async |tx| purge_next(tx).await)
        .await
}

async fn purge_next(tx: &db::Tx) -> Result<bool> {
    let Some((id, conversation)) = due(tx).await? else {
        return Ok(false);
    };
    let moved = match conversation {
        Some(conversation) => {
            tx.execute(
                "-- relations.purge
                with span as (
                    select max(seq) as top from (
                        select m.seq, m.created_at from conversation c
                        join message m on m.conversation_id = c.conversation_id and m.seq > c.purged_seq
                        join relation r on r.relation_id = $2
                        where c.conversation_id = $1 and (r.purge_through is null or m.seq <= r.purge_through)
                        order by m.seq limit $3
                    ) next where created_at < app_now() - interval '24 hours'
                ), searchable as (
                    -- A message that was emptied is found no more.
                    delete from message_token t using span, conversation c
                    where c.conversation_id = $1 and t.conversation_id = $1 and t.seq > c.purged_seq and t.seq <= span.top
                ), emptied as (
                    update message m set payload = '' from span, conversation c
                    where c.conversation_id = $1 and m.conversation_id = $1 and m.seq > c.purged_seq and m.seq <= span.top
                )
                update conversation set purged_seq = span.top from span where conversation_id = $1 and span.top is not null",
                &[&conversation, &id, &MAX_BATCH_RELATIONS],
            )
            .await?
                > 0
        }
        None => false,
    };
    if !moved {
        if let Some(conversation) = conversation {
            objects::registry::purge(tx, conversation).await?;
        }
        purge_consent(tx, id).await?;
        tx.execute(
            "-- relations.purged
            update relation set purge_due = case when purge_through is null then app_now() + interval '7 days' end
            where relation_id = $1",
            &[&id],
        )
        .await?;
    }
    Ok(true)
}

/// Empties the answers to the tool calls of an ended relation, and the words of its grants.
async fn purge_consent(tx: &db::Tx, relation: RelationId) -> Result<()> {
    tx.execute(
        "-- relations.purge_results
        update tool_call t set result = null from relation r
        where r.relation_id = $1 and r.state <> 'active' and t.result is not null and t.created_at <= r.revoked_at
            and t.user_id = r.user_id and t.agent_id = r.agent_id",
        &[&relation],
    )
    .await?;
    tx.execute(
        "-- relations.purge_reasons
        update agent_grant set reason = null where relation_id = $1 and reason is not null",
        &[&relation],
    )
    .await?;
    Ok(())
}

/// A relation whose purge is due, and its conversation, locked. Reopening the relation locks it
/// too.
async fn due(tx: &db::Tx) -> Result<Option<(RelationId, Option<ConversationId>)>> {
    let Some(row) = tx
        .query_opt(
            "-- relations.due
            select relation_id, least(user_id, agent_id) as pair_low, greatest(user_id, agent_id) as pair_high from relation
            where purge_due <= app_now() order by purge_due limit 1",
            &[],
        )
        .await?
    else {
        return Ok(None);
    };
    let id: RelationId = row.get("relation_id");
    let (low, high): (uuid::Uuid, uuid::Uuid) = (row.get("pair_low"), row.get("pair_high"));
    let conversation = tx
        .query_opt(
            "-- relations.lock_pair
            select conversation_id from conversation where pair_low = $1 and pair_high = $2 for update",
            &[&low, &high],
        )
        .await?
        .map(|row| row.get("conversation_id"));
    // The purge was cancelled during the wait for the lock. This round does nothing.
    let still = tx
        .query_opt(
            "-- relations.still_due
            select 1 from relation where relation_id = $1 and purge_due <= app_now()",
            &[&id],
        )
        .await?
        .is_some();
    Ok(Some((id, conversation.filter(|_| still))))
}
