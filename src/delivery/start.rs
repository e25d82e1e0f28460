//! The start of everything that delivers, for a node or for a simulated one.

use std::sync::Arc;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backplane, Hub, MessageSigner,
    backplane::{
        EventObserver, PubSub, PubSubWorker,
        tombstones::{MarkRevoked, Tombstones},
    },
    ephemeral::EphemeralHandler,
    invalidation,
    reconcile::{self, Ledger, Reconciler, scan, unpublished},
};
use crate::{auth::server_secret::ServerSecret, redis::Redis, supervisor};

/// The parts of a node that delivery works with.
pub struct Parts<'a, P, L> {
    /// Connections to Postgres that requests cannot use up.
    pub ledger: &'a L,
    pub redis: &'a Redis,
    pub transport: P,
    pub signer: MessageSigner,
    pub secret: &'a ServerSecret,
    /// Called for every event, before the subscriptions get it.
    pub observer: EventObserver,
    pub handler: Arc<dyn EphemeralHandler>,
    /// Repeats revocations that Postgres may have lost.
    pub mark_revoked: MarkRevoked,
    pub tasks: &'a TaskTracker,
    /// Ends the tasks.
    pub stop: &'a CancellationToken,
}

/// Starts the hub, the backplane and the sweep. The heartbeat of the connection slots must call
/// [`Backplane::on_beat`] and [`Hub::liveness`].
pub fn start<P: PubSub, L: Ledger>(parts: Parts<'_, P, L>) -> Backplane {
    let (tasks, stop) = (parts.tasks, parts.stop);
    let (hub, changes) = Hub::new();
    let tombstones = Tombstones::start(parts.redis.clone(), parts.secret, tasks, stop);
    let (backplane, outgoing) = Backplane::new(
        parts.signer,
        parts.redis.clone(),
        hub,
        tombstones,
        parts.observer,
        parts.handler,
    );
    PubSubWorker::start(&backplane, parts.transport, outgoing, changes, tasks, stop);
    sweep(parts.ledger, &backplane, parts.mark_revoked, tasks, stop);
    backplane
}

/// Starts what keeps the subscriptions equal to what Postgres says.
fn sweep<L: Ledger>(
    ledger: &L,
    backplane: &Backplane,
    mark_revoked: MarkRevoked,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let (own_ledger, state, until) = (ledger.clone(), backplane.state(), stop.clone());
    supervisor::spawn(tasks, "losses", move || {
        let (ledger, state, stop) = (own_ledger.clone(), state.clone(), until.clone());
        async move { state.unpublished_hints.run(&ledger, &stop).await }
    });
    let reconciler = Arc::new(Reconciler::new(ledger, backplane, mark_revoked));
    let (own, state, until) = (reconciler.clone(), backplane.state(), stop.clone());
    supervisor::spawn(tasks, "reconcile.rounds", move || {
        let (reconciler, state, stop) = (own.clone(), state.clone(), until.clone());
        async move { scan::run(&reconciler, &state, &stop).await }
    });
    let (own_ledger, own, until) = (ledger.clone(), backplane.clone(), stop.clone());
    supervisor::spawn(tasks, "reconciler", move || {
        let (ledger, backplane, stop) = (own_ledger.clone(), own.clone(), until.clone());
        let reconciler = reconciler.clone();
        async move { reconcile_with(&ledger, &backplane, &reconciler, &stop).await }
    });
}

/// Acts on what Postgres says, until `stop`. No loop waits behind the statements of another.
async fn reconcile_with<L: Ledger>(
    ledger: &L,
    backplane: &Backplane,
    reconciler: &Reconciler<L>,
    stop: &CancellationToken,
) {
    let state = backplane.state();
    tokio::join!(
        reconcile::run(reconciler, &state, stop),
        reconcile::replay(reconciler, &state, stop),
        invalidation::run(ledger, backplane.hub(), &state, stop),
        unpublished::run(ledger, backplane, stop),
    );
}
