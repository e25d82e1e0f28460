use tokio_postgres::Row;

use super::Relation;
use crate::{
    auth::user::User,
    db::{self, Db, batches::BATCH_ROWS},
    error::{Code, Result},
    events::Event,
    http::page,
    ids::{AgentId, ConversationId, Principal, PrincipalId, RelationId, UserId},
    jobs::{ConsentEnd, Job},
    objects,
    work::Tx,
};

/// Messages that a batch of the purge empties. Each may have a megabyte.
const MAX_BATCH_MESSAGES: i64 = 100;
/// Bytes of the answers to tool calls that a batch of the purge empties.
const MAX_BATCH_BYTES: i64 = 16 << 20;

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

/// Does a batch of the purge of one ended relation, whose turn it then is no more. True while there
/// may be more. A relation whose batch fails waits for an hour, so that others go on.
///
/// Rows stay, so that numbers have no gaps and references stay valid. A message of the last 24
/// hours waits for the next round, because its sender may still repeat it. While the relation stays
/// ended, a round comes every week: the user can still write there.
pub async fn purge(db: &Db) -> Result<bool> {
    let Some(due) = next_due(db).await? else {
        return Ok(false);
    };
    let purging = db.run("relations.purge", async |tx| purge_some(tx, &due).await);
    if let Err(error) = purging.await {
        step_back(db, due.id).await?;
        error.log_in("relations.purge", "the relation is tried again in an hour");
    }
    Ok(true)
}

/// A relation whose purge is due, and its two principals in the order of their conversation.
struct DueRelation {
    id: RelationId,
    pair: [PrincipalId; 2],
}

async fn next_due(db: &Db) -> Result<Option<DueRelation>> {
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

async fn step_back(db: &Db, id: RelationId) -> Result<()> {
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

async fn purge_some(tx: &db::Tx, due: &DueRelation) -> Result<()> {
    let [low, high] = &due.pair;
    // Reopening the relation locks its conversation too.
    let conversation: Option<ConversationId> = tx
        .query_opt(
            "-- relations.lock_pair
            select conversation_id from conversation where pair_low = $1 and pair_high = $2 for update",
            &[low, high],
        )
        .await?
        .map(|row| row.get("conversation_id"));
    let is_due = tx
        .query_opt(
            "-- relations.still_due
            select 1 from relation where relation_id = $1 and purge_due <= app_now()",
            &[&due.id],
        )
        .await?
        .is_some();
    // The purge may have been cancelled during the wait for the lock.
    if !is_due {
        return Ok(());
    }
    let any = match conversation {
        Some(conversation) => {
            purge_messages(tx, due.id, conversation).await?
                || objects::registry::purge(tx, conversation).await?
        }
        None => false,
    };
    if any || purge_results(tx, due.id).await? || purge_reasons(tx, due.id).await? {
        tx.execute(
            "-- relations.end_turn
            update relation set purge_turn_at = app_now() where relation_id = $1",
            &[&due.id],
        )
        .await?;
    } else {
        tx.execute(
            "-- relations.purged
            update relation set purge_turn_at = null,
                purge_due = case when purge_through is null then app_now() + interval '7 days' end
            where relation_id = $1",
            &[&due.id],
        )
        .await?;
    }
    Ok(())
}

/// Empties some messages; false if none was left.
async fn purge_messages(
    tx: &db::Tx,
    relation: RelationId,
    conversation: ConversationId,
) -> Result<bool> {
    let moved = tx
        .execute(
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
            ), answered as (
                -- The people and the decisions of an approval go with it.
                delete from approval a using span, conversation c
                where c.conversation_id = $1 and a.conversation_id = $1 and a.seq > c.purged_seq and a.seq <= span.top
            ), emptied as (
                update message m set payload = '' from span, conversation c
                where c.conversation_id = $1 and m.conversation_id = $1 and m.seq > c.purged_seq and m.seq <= span.top
            )
            update conversation set purged_seq = span.top from span where conversation_id = $1 and span.top is not null",
            &[&conversation, &relation, &MAX_BATCH_MESSAGES],
        )
        .await?;
    Ok(moved > 0)
}

/// Empties the answers to some tool calls of an ended relation; false if none was left.
async fn purge_results(tx: &db::Tx, relation: RelationId) -> Result<bool> {
    let emptied = tx
        .execute(
            "-- relations.purge_results
            update tool_call set result = null where call_id = any(array(
                select call_id from (
                    select call_id, bytes, sum(bytes) over (order by created_at, call_id) as bytes_so_far from (
                        select t.call_id, t.created_at, octet_length(t.result) as bytes from relation r
                        join tool_call t on t.user_id = r.user_id and t.agent_id = r.agent_id and t.created_at <= r.revoked_at
                        where r.relation_id = $1 and r.state <> 'active' and t.result is not null
                        order by t.created_at limit $2
                    ) next
                ) sized where bytes_so_far - bytes < $3))",
            &[&relation, &BATCH_ROWS, &MAX_BATCH_BYTES],
        )
        .await?;
    Ok(emptied > 0)
}

/// Empties the words of some grants of an ended relation; false if none was left.
async fn purge_reasons(tx: &db::Tx, relation: RelationId) -> Result<bool> {
    let emptied = tx
        .execute(
            "-- relations.purge_reasons
            update agent_grant set reason = null where grant_id = any(array(
                select grant_id from agent_grant where relation_id = $1 and reason is not null limit $2))",
            &[&relation, &BATCH_ROWS],
        )
        .await?;
    Ok(emptied > 0)
}
