//! Revocations that other nodes announce. A socket is closed for good by them, so Postgres confirms
//! each before this node acts.

use std::collections::HashSet;

use tokio_util::sync::CancellationToken;

use super::{
    Hub,
    backplane::{Announcement, State},
    reconcile::store::dead_credentials,
};
use crate::{db::Db, ids::CredentialId, metrics};

/// Confirms announced revocations and ends their subscriptions, until `stop`.
pub async fn run(db: &Db, hub: &Hub, state: &State, stop: &CancellationToken) {
    while let Some(announced) = stop.run_until_cancelled(state.announced.wait()).await {
        let count = announced.len();
        confirm(db, hub, announced).await;
        state.announced.remove(count);
    }
}

async fn confirm(db: &Db, hub: &Hub, announced: Vec<Announcement>) {
    let credentials: Vec<CredentialId> = announced.iter().map(|one| one.credential).collect();
    let dead: Option<HashSet<CredentialId>> = match dead_credentials(db, &credentials).await {
        Ok(dead) => Some(dead.into_iter().map(|(_, credential)| credential).collect()),
        Err(error) => {
            error.log_in(
                "backplane.confirm",
                "the seal of the announcement has to do",
            );
            None
        }
    };
    for Announcement { credential, reason } in announced {
        // Without Postgres the seal has to do: only nodes can make it, and they announce commits.
        if dead.as_ref().is_none_or(|dead| dead.contains(&credential)) {
            hub.revoke(&[credential], reason);
        } else {
            metrics::hints("unconfirmed", 1);
        }
    }
}
