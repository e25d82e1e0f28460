//! The ends of calls and agreements that no device brings about: deadlines, revocations, age.

use tokio_postgres::Row;

use super::{GRANT_REVOKED, StoredCall, USER_STOPPED};
use crate::{
    db::{Db, batches::BATCH_ROWS},
    error::Result,
    ids::{AgentId, ConversationId, GrantId, UserId},
    work::Tx,
};

/// Most calls that one transaction denies.
const MAX_BATCH_CALLS: i64 = 100;

fn emit_all(tx: &Tx, rows: &[Row]) -> Result<()> {
    let mut calls = rows.iter().map(StoredCall::of);
    calls.try_for_each(|call| call.emit_to(tx, call.both()))
}

/// Denies some overdue calls. True while there may be more. A call that another transaction holds
/// is being answered, or denied by another node.
pub async fn expire(tx: &Tx) -> Result<bool> {
    let rows = tx
        .query(
            "-- tool_calls.expire
            with due as materialized (
                select call_id from tool_call where status = 'pending' and expires_at <= app_now()
                order by expires_at limit $1 for update skip locked
            )
            update tool_call t set status = 'denied', ended_at = app_now(),
                reason = case when t.prompt_required then 'user_timeout' else 'device_timeout' end
            from due where t.call_id = due.call_id
            returning t.call_id, t.agent_id, t.request_id, t.user_id, t.conversation_id, t.scope, t.sensitivity, t.device_id, t.prompt_required, t.status,
                t.reason, t.result, t.answered_by, t.expires_at",
            &[&MAX_BATCH_CALLS],
        )
        .await?;
    emit_all(tx, &rows)?;
    Ok(i64::try_from(rows.len()) == Ok(MAX_BATCH_CALLS))
}

/// Denies the pending calls of grants that the transaction revokes.
pub async fn deny_of_grants(tx: &Tx, grants: &[GrantId]) -> Result<()> {
    let rows = tx
        .query(
            "-- tool_calls.deny_of_grants
            with held as materialized (
                select call_id from tool_call where grant_id = any($1) and status = 'pending' order by call_id for update
            )
            update tool_call t set status = 'denied', reason = $2, ended_at = app_now()
            from held where t.call_id = held.call_id and t.status = 'pending'
            returning t.call_id, t.agent_id, t.request_id, t.user_id, t.conversation_id, t.scope, t.sensitivity, t.device_id, t.prompt_required, t.status,
                t.reason, t.result, t.answered_by, t.expires_at",
            &[&grants, &GRANT_REVOKED],
        )
        .await?;
    emit_all(tx, &rows)
}

/// Denies the pending calls of agents in a conversation.
pub async fn deny_of_stopped(
    tx: &Tx,
    conversation: ConversationId,
    agents: &[AgentId],
) -> Result<()> {
    let rows = tx
        .query(
            "-- tool_calls.deny_of_stopped
            with held as materialized (
                select call_id from tool_call where conversation_id = $1 and agent_id = any($2) and status = 'pending'
                order by call_id for update
            )
            update tool_call t set status = 'denied', reason = $3, ended_at = app_now()
            from held where t.call_id = held.call_id and t.status = 'pending'
            returning t.call_id, t.agent_id, t.request_id, t.user_id, t.conversation_id, t.scope, t.sensitivity, t.device_id, t.prompt_required, t.status,
                t.reason, t.result, t.answered_by, t.expires_at",
            &[&conversation, &agents, &USER_STOPPED],
        )
        .await?;
    emit_all(tx, &rows)
}

pub async fn revoke_consent(
    tx: &Tx,
    user: UserId,
    agent: AgentId,
    conversation: ConversationId,
) -> Result<()> {
    tx.execute(
        "-- tool_calls.end_silence
        delete from tool_consent where user_id = $1 and agent_id = $2 and conversation_id = $3",
        &[&user, &agent, &conversation],
    )
    .await?;
    Ok(())
}

pub async fn revoke_consent_of_device(tx: &Tx, user: UserId, device: &str) -> Result<()> {
    tx.execute(
        "-- tool_calls.end_silence_of_device
        delete from tool_consent where user_id = $1 and device_id = $2",
        &[&user, &device],
    )
    .await?;
    Ok(())
}

pub async fn forget_calls(db: &Db, days: i32) -> Result<bool> {
    let client = db.write().await?;
    let deleted = client
        .execute(
            "-- tool_calls.forget_calls
            delete from tool_call where call_id = any(array(
                select call_id from tool_call where created_at < app_now() - make_interval(days => $1)
                order by created_at limit $2
            ))",
            &[&days, &BATCH_ROWS],
        )
        .await?;
    Ok(deleted > 0)
}

pub async fn forget_consents(db: &Db) -> Result<bool> {
    let client = db.write().await?;
    let deleted = client
        .execute(
            "-- tool_calls.forget_consents
            delete from tool_consent where used_at = any(array(
                select used_at from tool_consent where used_at < app_now() - interval '24 hours' order by used_at limit $1
            ))",
            &[&BATCH_ROWS],
        )
        .await?;
    Ok(deleted > 0)
}
