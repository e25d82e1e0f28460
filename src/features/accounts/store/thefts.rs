use blindpipe_protocol::revocation::RevocationReason;

use crate::{
    error::Result,
    ids::{AgentId, SessionId},
    work::Tx,
};

/// Locks the agents whose tokens a session has made, or whose webhooks it has set.
pub async fn lock_agents_of(tx: &Tx, session: SessionId) -> Result<()> {
    // An agent's row is locked before its tokens and its webhook, in the order of ids.
    tx.execute(
        "-- accounts.lock_agents_of_session
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
pub async fn webhooks_of(tx: &Tx, session: SessionId) -> Result<Vec<AgentId>> {
    let rows = tx
        .query(
            "-- accounts.webhooks_of_session
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
pub async fn end_tokens_of(tx: &Tx, session: SessionId) -> Result<Vec<AgentId>> {
    let reason = RevocationReason::RefreshReuse;
    let ended = tx
        .query(
            "-- accounts.end_tokens_of_session
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
