use blindpipe_protocol::revocation::RevocationReason;

use crate::{
    error::Result,
    ids::{AgentId, SessionId},
    work::Tx,
};

/// Revokes the agent tokens that a session has made. Returns their agents.
pub async fn end_tokens_of(tx: &Tx, session: SessionId) -> Result<Vec<AgentId>> {
    // An agent's row is locked before its tokens, in the order of ids.
    tx.execute(
        "-- accounts.lock_agents_of_session
        select 1 from agent
        where agent_id in (select agent_id from agent_token where session_id = $1 and revoked_at is null)
        order by agent_id for no key update",
        &[&session],
    )
    .await?;
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
