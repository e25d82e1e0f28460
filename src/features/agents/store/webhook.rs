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
