//! The end of a session whose refresh token was stolen, with the agent tokens that it made and the
//! webhooks that it set.

use blindpipe_protocol::revocation::RevocationReason;

use super::store;
use crate::{
    error::Result,
    features::devices,
    ids::SessionId,
    jobs::Job,
    work::{Tx, UnitOfWork},
};

/// Ends the session if this generation of its refresh token is long over. False if it was not.
pub async fn end(work: &UnitOfWork, session: SessionId, generation: i32) -> Result<bool> {
    let ended = work.run("accounts.end_stolen", async |tx| {
        let is_stolen = devices::end_stolen(tx, session, generation).await?;
        if is_stolen {
            end_works(tx, session).await?;
        }
        Ok(is_stolen)
    });
    ended.await
}

/// Ends the tokens that the session made; those of other sessions stay. The tokens are dead with
/// the commit, and their agents' webhooks are suspended, like those whose address or secret the
/// session has set. Agents without a token settle within seconds.
async fn end_works(tx: &Tx, session: SessionId) -> Result<()> {
    store::lock_agents_of(tx, session).await?;
    let agents = store::end_tokens_of(tx, session).await?;
    let mut suspended = store::webhooks_of(tx, session).await?;
    suspended.extend(&agents);
    store::suspend_webhooks(tx, &suspended, RevocationReason::RefreshReuse).await?;
    for agent in agents {
        tx.enqueue(Job::SettleAgentTokens { agent });
    }
    Ok(())
}
