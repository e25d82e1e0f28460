use blindpipe_protocol::revocation::RevocationReason;

use crate::{error::Result, ids::AgentId, work::Tx};

/// Suspends the agent's webhook: its secrets are invalidated, calls under way are cut, and events
/// wait in the inbox. A thief of a revoked token may have set it.
pub async fn suspend_webhook(tx: &Tx, agent: AgentId, reason: RevocationReason) -> Result<()> {
    let rows = tx
        .query(
            "-- agents.suspend_webhook
            with suspended as (
                update webhook set status = 'suspended', sealed_secret = null, sealed_previous = null,
                    previous_valid_until = null, updated_at = app_now()
                where agent_id = $1 returning agent_id, credential_id
            ), closed as (
                update webhook_turn t set is_open = false, due_at = null, is_leased = false, is_parked = false,
                    turn = t.turn + 1
                from suspended s where t.agent_id = s.agent_id
            )
            select credential_id from suspended",
            &[&agent],
        )
        .await?;
    let credentials = rows.iter().map(|row| row.get("credential_id")).collect();
    tx.revoke(credentials, reason);
    Ok(())
}

/// Resumes the deliveries of an agent that has acked. The first attempts are made one by one.
pub async fn resume_webhook(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- agents.resume_webhook
        update webhook_turn t set is_open = true, due_at = app_now(), not_before = null, is_parked = false, has_open = true,
            failures = greatest(t.failures, 1)
        from webhook w
        where t.agent_id = $1 and w.agent_id = $1 and w.status = 'active'",
        &[&agent],
    )
    .await?;
    Ok(())
}
