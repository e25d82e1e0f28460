use std::collections::BTreeSet;

use blindpipe_protocol::{
    agents::Sensitivity,
    grants::{
        DecideGrant, Decision, Grant, GrantStatus, GrantsQuery, RequestGrant, RequestedScope,
    },
};
use tokio_postgres::Row;

use super::rules;
use crate::{
    auth::{
        agent::{Agent, lock_live_token},
        user::{User, lock_live_session},
    },
    db::{Conn, Db, batches::BATCH_ROWS},
    error::{Code, Error, Result},
    events::Event,
    features::{
        agents,
        conversations::{self, AskedUser},
        tool_calls,
    },
    http::page,
    ids::{ConversationId, GrantId, PrincipalId, RelationId, UserId},
    limits::quotas::GRANT_REQUEST_TTL,
    work::Tx,
};

/// Most grants that one transaction ends.
const MAX_BATCH_GRANTS: i64 = 100;

fn grant(row: &Row) -> Grant {
    let requested: Vec<String> = row.get("requested_scopes");
    let sensitivities: Vec<Sensitivity> = row.get("sensitivities");
    let requested = requested.into_iter().zip(sensitivities);
    Grant {
        grant_id: row.get("grant_id"),
        agent_id: row.get("agent_id"),
        user_id: row.get("user_id"),
        conversation_id: row.get("conversation_id"),
        status: row.get("state"),
        requested: requested
            .map(|(scope, sensitivity)| RequestedScope { scope, sensitivity })
            .collect(),
        scopes: row.get("scopes"),
        reason: row.get("reason"),
        ttl_seconds: row.get::<_, Option<i32>>("ttl_seconds").map(i64::from),
        created_at: row.get("created_at"),
        expires_at: row.get("expires_at"),
        decided_at: row.get("decided_at"),
        revoked_at: row.get("revoked_at"),
    }
}

async fn show(client: &Conn, id: GrantId) -> Result<Grant> {
    let row = client
        .query_one(
            "-- grants.show
            select * from agent_grant_shown where grant_id = $1",
            &[&id],
        )
        .await?;
    Ok(grant(&row))
}

fn emit(tx: &Tx, event: fn(Grant) -> Event, grant: &Grant) -> Result<()> {
    let both = vec![grant.user_id.into(), grant.agent_id.into()];
    tx.emit(event(grant.clone()), Some(grant.conversation_id), both)
}

/// Makes a pending grant, or finds the one that waits for the same scopes. The flag is true if this
/// call made it.
pub async fn request(
    tx: &Tx,
    agent: Agent,
    body: &RequestGrant,
    scopes: BTreeSet<String>,
) -> Result<(Grant, bool)> {
    lock_live_token(tx, agent.id, agent.token).await?;
    let id = body.conversation_id;
    let asked = conversations::asked_user(tx, id, agent.id, body.user_id).await?;
    let declared = agents::declared(tx, agent.id).await?.scopes;
    let sensitivities = rules::sensitivities(&scopes, &declared)?;
    let scopes = Vec::from_iter(scopes);
    // Two rounds: the waiting request may be decided between the insert and the search.
    for _ in 0..2 {
        lapse(tx, agent, id, &asked, &scopes).await?;
        let new = insert(tx, agent, body, &asked, &scopes, &sensitivities).await?;
        if let Some(new) = new {
            let grant = show(tx, new).await?;
            emit(tx, Event::GrantRequested, &grant)?;
            return Ok((grant, true));
        }
        let waiting = tx
            .query_opt(
                "-- grants.waiting
                select * from agent_grant_shown where agent_id = $1 and user_id = $2 and conversation_id = $3
                    and requested_scopes = $4 and status = 'pending'",
                &[&agent.id, &asked.user, &id, &scopes],
            )
            .await?;
        if let Some(waiting) = waiting {
            return Ok((grant(&waiting), false));
        }
    }
    Err(Error::unavailable("the same request is decided meanwhile"))
}

/// Ends a waiting request for the same scopes that can no longer be decided.
async fn lapse(
    tx: &Tx,
    agent: Agent,
    conversation: ConversationId,
    asked: &AskedUser,
    scopes: &[String],
) -> Result<()> {
    tx.execute(
        "-- grants.lapse
        update agent_grant set status = case when relation_id = $5 then 'expired' else 'revoked' end
        where agent_id = $1 and user_id = $2 and conversation_id = $3 and requested_scopes = $4 and status = 'pending'
            and (expires_at <= app_now() or relation_id <> $5)",
        &[&agent.id, &asked.user, &conversation, &scopes, &asked.relation],
    )
    .await?;
    Ok(())
}

async fn insert(
    tx: &Tx,
    agent: Agent,
    body: &RequestGrant,
    asked: &AskedUser,
    scopes: &[String],
    sensitivities: &[Sensitivity],
) -> Result<Option<GrantId>> {
    let id = GrantId::generate(tx.random());
    let reason = body.reason.as_ref().map(|text| text.0.as_str());
    let ttl = body.ttl_seconds.and_then(|ttl| i32::try_from(ttl).ok());
    let inserted = tx
        .execute(
            "-- grants.insert
            insert into agent_grant (grant_id, agent_id, user_id, conversation_id, relation_id, requested_scopes,
                sensitivities, scopes, reason, ttl_seconds, expires_at)
            values ($1, $2, $3, $4, $5, $6, $7, $6, $8, $9, app_now() + make_interval(secs => $10))
            on conflict (agent_id, user_id, conversation_id, requested_scopes) where status = 'pending' do nothing",
            &[
                &id,
                &agent.id,
                &asked.user,
                &body.conversation_id,
                &asked.relation,
                &scopes,
                &sensitivities,
                &reason,
                &ttl,
                &GRANT_REQUEST_TTL.as_secs_f64(),
            ],
        )
        .await?;
    Ok((inserted > 0).then_some(id))
}

/// Locks a grant of the user's and reads its present state.
async fn lock(tx: &Tx, user: UserId, id: GrantId) -> Result<Grant> {
    tx.query_opt(
        "-- grants.lock
        select 1 from agent_grant where grant_id = $1 and user_id = $2 for update",
        &[&id, &user],
    )
    .await?
    .ok_or(Code::NotFound)?;
    // A separate statement, so that it sees everything committed before the lock.
    show(tx, id).await
}

pub async fn decide(tx: &Tx, user: &User, id: GrantId, body: &DecideGrant) -> Result<Grant> {
    lock_live_session(tx, user.id, user.session).await?;
    let pending = lock(tx, user.id, id).await?;
    let requested: Vec<String> = pending.requested.into_iter().map(|one| one.scope).collect();
    let granted = rules::granted(body, &requested)?;
    if pending.status != GrantStatus::Pending {
        return Err(Error::from(Code::AlreadyDecided).with("status", pending.status.as_str()));
    }
    let status = match body.decision {
        Decision::Approve => GrantStatus::Approved,
        Decision::Deny => GrantStatus::Denied,
    };
    tx.execute(
        "-- grants.decide
        update agent_grant set status = $2, scopes = coalesce($3::text[], '{}'), decided_at = app_now(), decided_by = $4,
            expires_at = case when $2 = 'approved' then app_now() + make_interval(secs => ttl_seconds) end
        where grant_id = $1",
        &[&id, &status, &granted, &user.device_id],
    )
    .await?;
    let decided = show(tx, id).await?;
    emit(tx, Event::GrantDecided, &decided)?;
    Ok(decided)
}

/// Revokes a grant of the user's. Returns it unchanged if it had ended before.
pub async fn revoke(tx: &Tx, user: UserId, id: GrantId) -> Result<Grant> {
    let found = lock(tx, user, id).await?;
    if !matches!(found.status, GrantStatus::Pending | GrantStatus::Approved) {
        return Ok(found);
    }
    end(tx, &[id]).await?;
    show(tx, id).await
}

/// Ends grants, which are locked.
async fn end(tx: &Tx, ids: &[GrantId]) -> Result<()> {
    tx.execute(
        "-- grants.end
        update agent_grant set status = 'revoked', revoked_at = app_now() where grant_id = any($1)",
        &[&ids],
    )
    .await?;
    let rows = tx
        .query(
            "-- grants.ended
            select * from agent_grant_shown where grant_id = any($1) order by grant_id",
            &[&ids],
        )
        .await?;
    let ended: Vec<Grant> = rows.iter().map(grant).collect();
    for one in &ended {
        emit(tx, Event::GrantRevoked, one)?;
    }
    // An answer locks the call before the agreement too.
    tool_calls::deny_of_grants(tx, ids).await?;
    for one in &ended {
        tool_calls::revoke_consent(tx, one.user_id, one.agent_id, one.conversation_id).await?;
    }
    Ok(())
}

/// Ends some grants of a relation that has ended. True while there may be more.
pub async fn end_of_relation(tx: &Tx, relation: RelationId) -> Result<bool> {
    let rows = tx
        .query(
            "-- grants.of_relation
            select grant_id from agent_grant where relation_id = $1 and status in ('pending', 'approved')
            order by grant_id limit $2 for update",
            &[&relation, &MAX_BATCH_GRANTS],
        )
        .await?;
    end_some(tx, &rows).await
}

/// Ends some grants of a member that was removed. True while there may be more. A member that has
/// come back meanwhile keeps what it was granted since.
pub async fn end_of_member(
    tx: &Tx,
    conversation: ConversationId,
    principal: PrincipalId,
) -> Result<bool> {
    let rows = tx
        .query(
            "-- grants.of_member
            select grant_id from agent_grant g
            where conversation_id = $1 and $2 in (user_id, agent_id) and status in ('pending', 'approved')
                and not exists (select from member m where m.conversation_id = $1 and m.principal_id = $2
                                                       and m.joined_at <= g.created_at)
            order by grant_id limit $3 for update",
            &[&conversation, &principal, &MAX_BATCH_GRANTS],
        )
        .await?;
    end_some(tx, &rows).await
}

async fn end_some(tx: &Tx, rows: &[Row]) -> Result<bool> {
    let ids: Vec<GrantId> = rows.iter().map(|row| row.get("grant_id")).collect();
    if ids.is_empty() {
        return Ok(false);
    }
    end(tx, &ids).await?;
    Ok(i64::try_from(ids.len()) == Ok(MAX_BATCH_GRANTS))
}

pub async fn list(
    db: &Db,
    user: UserId,
    filter: &GrantsQuery,
    cursor: Option<GrantId>,
    rows: i64,
) -> Result<Vec<Grant>> {
    let client = db.read().await?;
    let known = "-- grants.cursor
        select 1 from agent_grant where grant_id = $1 and user_id = $2";
    page::must_be_listed(&client, known, cursor, user).await?;
    let GrantsQuery {
        state,
        agent_id,
        conversation_id,
    } = filter;
    let rows = client
        .query(
            "-- grants.list
            select * from agent_grant_shown
            where user_id = $1 and ($2::uuid is null or grant_id < $2) and ($3::text is null or state = $3)
                and ($4::uuid is null or agent_id = $4) and ($5::uuid is null or conversation_id = $5)
            order by grant_id desc limit $6",
            &[&user, &cursor, state, agent_id, conversation_id, &rows],
        )
        .await?;
    Ok(rows.iter().map(grant).collect())
}

/// Empties the words of some grants of an ended relation; false if none was left.
pub async fn purge(tx: &Conn, relation: RelationId) -> Result<bool> {
    let emptied = tx
        .execute(
            "-- grants.purge
            update agent_grant set reason = null where grant_id = any(array(
                select grant_id from agent_grant where relation_id = $1 and reason is not null limit $2))",
            &[&relation, &BATCH_ROWS],
        )
        .await?;
    Ok(emptied > 0)
}
