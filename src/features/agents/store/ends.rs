//! Ends of several agents' credentials at once: with their owner, or with a stolen session.

use blindpipe_protocol::revocation::RevocationReason;

use super::suspend_webhooks;
use crate::{
    db::Conn,
    error::Result,
    ids::{AgentId, CredentialId, SessionId, UserId},
    jobs::Job,
    work::Tx,
};

/// Deletes the agents of a user with their keys and tokens, and suspends their webhooks. Locks their
/// rows after their owner's and before all others.
pub async fn end_all(tx: &Tx, owner: UserId) -> Result<()> {
    let ended = tx
        .query(
            "-- agents.end_all
        with mine as materialized (
            select agent_id from agent where owner_user_id = $1 and state <> 'deleted' order by agent_id for no key update
        ), keys as (
            delete from agent_key k using mine where k.agent_id = mine.agent_id
        )
        update agent a set state = 'deleted', deleted_at = app_now(), unreachable_since = null
        from mine where a.agent_id = mine.agent_id
        returning a.agent_id",
            &[&owner],
        )
        .await?;
    let ended: Vec<AgentId> = ended.iter().map(|row| row.get("agent_id")).collect();
    let tokens = tx
        .query(
            "-- agents.end_all_tokens
            update agent_token t set revoked_at = app_now(), bcrypt_hash = null, revoke_reason = 'account_deleted'
            from agent a
            where a.agent_id = t.agent_id and a.owner_user_id = $1 and t.revoked_at is null
            returning t.token_id",
            &[&owner],
        )
        .await?;
    let tokens = tokens.iter().map(|row| row.get("token_id")).collect();
    tx.revoke(tokens, RevocationReason::AccountDeleted);
    suspend_webhooks(tx, &ended, RevocationReason::AccountDeleted).await
}

/// Ends the tokens that the session made; those of other sessions stay. The tokens are dead with
/// the commit, and their agents' webhooks are suspended, like those whose address or secret the
/// session has set. Agents without a token settle within seconds.
pub async fn end_works_of(tx: &Tx, session: SessionId) -> Result<()> {
    lock_agents_of(tx, session).await?;
    let agents = end_tokens_of(tx, session).await?;
    let mut suspended = webhooks_of(tx, session).await?;
    suspended.extend(&agents);
    suspend_webhooks(tx, &suspended, RevocationReason::RefreshReuse).await?;
    for agent in agents {
        tx.enqueue(Job::SettleAgentTokens { agent });
    }
    Ok(())
}

/// Locks the agents whose tokens a session has made, or whose webhooks it has set.
async fn lock_agents_of(tx: &Tx, session: SessionId) -> Result<()> {
    // An agent's row is locked before its tokens and its webhook, in the order of ids.
    tx.execute(
        "-- agents.lock_of_session
        select 1 from agent
        where agent_id in (
            select agent_id from agent_token where session_id = $1 and revoked_at is null
            union all
            select agent_id from webhook where url_session_id = $1
            union all
            select agent_id from webhook where secret_session_id = $1)
        order by agent_id for no key update",
        &[&session],
    )
    .await?;
    Ok(())
}

/// The agents whose webhook's address or secret a session has set. They are locked already.
async fn webhooks_of(tx: &Tx, session: SessionId) -> Result<Vec<AgentId>> {
    let rows = tx
        .query(
            "-- agents.webhooks_of_session
            select agent_id from webhook where url_session_id = $1
            union
            select agent_id from webhook where secret_session_id = $1",
            &[&session],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("agent_id")).collect())
}

/// Revokes the agent tokens that a session has made. Returns their agents, which are locked
/// already.
async fn end_tokens_of(tx: &Tx, session: SessionId) -> Result<Vec<AgentId>> {
    let reason = RevocationReason::RefreshReuse;
    let ended = tx
        .query(
            "-- agents.end_tokens_of_session
            update agent_token set revoked_at = app_now(), bcrypt_hash = null, revoke_reason = $2
            where session_id = $1 and revoked_at is null
            returning token_id, agent_id",
            &[&session, &reason],
        )
        .await?;
    tx.revoke(
        ended.iter().map(|row| row.get("token_id")).collect(),
        reason,
    );
    Ok(ended.iter().map(|row| row.get("agent_id")).collect())
}

/// Revokes those tokens that live; returns their number. Locks them in order.
pub async fn mark_revoked(
    tx: &Conn,
    credentials: &[CredentialId],
    reasons: &[RevocationReason],
) -> Result<u64> {
    tx.execute(
        "-- agents.mark_revoked
        with live as materialized (
            select token_id, reason from agent_token
            join unnest($1::uuid[], $2::text[]) as gone (id, reason) on id = token_id
            where revoked_at is null order by token_id for update of agent_token
        )
        update agent_token t set revoked_at = app_now(), revoke_reason = reason, bcrypt_hash = null
        from live where t.token_id = live.token_id",
        &[&credentials, &reasons],
    )
    .await
}

/// Suspends the webhooks with these credentials; returns the number of those that were not. Locks
/// them in order.
pub async fn mark_webhooks_revoked(tx: &Conn, credentials: &[CredentialId]) -> Result<u64> {
    tx.execute(
        "-- agents.mark_webhooks_revoked
        with live as materialized (
            select agent_id from webhook where credential_id = any($1) and status <> 'suspended'
            order by agent_id for update
        ), turns as (
            update webhook_turn t set is_open = false, due_at = null, is_leased = false, turn = t.turn + 1
            from live where t.agent_id = live.agent_id
        )
        update webhook w set status = 'suspended', sealed_secret = null, sealed_previous = null,
            previous_valid_until = null
        from live where w.agent_id = live.agent_id",
        &[&credentials],
    )
    .await
}
