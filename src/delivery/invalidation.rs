//! Revocations that other nodes publish. A socket is closed for good by them, so Postgres confirms
//! each before this node acts.

use std::collections::HashSet;

use tokio_util::sync::CancellationToken;

use super::{
    Hub,
    backplane::{RevocationNotice, State},
    reconcile::DeliveryStore,
};
use crate::{ids::CredentialId, metrics};

/// Confirms notices of revocations and ends their subscriptions, until `stop`.
pub async fn run<S: DeliveryStore>(store: &S, hub: &Hub, state: &State, stop: &CancellationToken) {
    while let Some(revocation_notices) = stop
        .run_until_cancelled(state.revocation_notices.wait())
        .await
    {
        let count = revocation_notices.len();
        confirm(store, hub, revocation_notices).await;
        state.revocation_notices.remove(count);
    }
}

async fn confirm<S: DeliveryStore>(
    store: &S,
    hub: &Hub,
    revocation_notices: Vec<RevocationNotice>,
) {
    let credentials: Vec<CredentialId> = revocation_notices
        .iter()
        .map(|one| one.credential)
        .collect();
    let dead: Option<HashSet<CredentialId>> = match store.revoked_credentials(&credentials).await {
        Ok(dead) => Some(dead.into_iter().map(|(_, credential)| credential).collect()),
        Err(error) => {
            error.log_in(
                "backplane.confirm",
                "the signature of the message is enough",
            );
            None
        }
    };
    for RevocationNotice { credential, reason } in revocation_notices {
        // Without Postgres the signature is enough: only nodes can make it, and they publish commits.
        if dead.as_ref().is_none_or(|dead| dead.contains(&credential)) {
            hub.revoke(&[credential], reason);
        } else {
            metrics::hints("unconfirmed", 1);
        }
    }
}
