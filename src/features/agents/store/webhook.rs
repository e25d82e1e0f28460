//! What an agent's state does to its webhook, whose feature stands behind this one.

use blindpipe_protocol::revocation::RevocationReason;

use crate::{error::Result, ids::AgentId, work::Tx};

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

/// Suspends the webhooks of agents whose tokens are revoked: their secrets are invalidated, calls
/// under way are cut, and events wait in the inboxes. A thief of a token may have set them. The
/// agents' rows are locked already.
pub async fn suspend_webhooks(tx: &Tx, agents: &[AgentId], reason: RevocationReason) -> Result<()> {
    let rows = tx
        .query(
            "-- agents.suspend_webhooks
            with held as materialized (
                select agent_id from webhook where agent_id = any($1) order by agent_id for no key update
            ), closed as (
                update webhook_turn t set is_open = false, due_at = null, is_leased = false, is_parked = false,
                    turn = t.turn + 1
                from held where t.agent_id = held.agent_id
            )
            update webhook w set status = 'suspended', sealed_secret = null, sealed_previous = null,
                previous_valid_until = null, updated_at = app_now()
            from held where w.agent_id = held.agent_id
            returning w.credential_id",
            &[&agents],
        )
        .await?;
    let credentials = rows.iter().map(|row| row.get("credential_id")).collect();
    tx.revoke(credentials, reason);
    Ok(())
}
