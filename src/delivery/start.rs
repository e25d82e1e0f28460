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
    reconcile::{self, DeliveryStore, Reconciler, scan, unpublished},
};
use crate::{auth::server_secret::ServerSecret, redis::Redis, supervisor};

/// The parts of a node that delivery works with.
pub struct Parts<'a, P, S> {
    /// Connections to Postgres that requests cannot use up.
    pub store: &'a S,
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
pub fn start<P: PubSub, S: DeliveryStore>(parts: Parts<'_, P, S>) -> Backplane {
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
    sweep(parts.store, &backplane, parts.mark_revoked, tasks, stop);
    backplane
}

/// Starts what keeps the subscriptions equal to what Postgres says.
fn sweep<S: DeliveryStore>(
    store: &S,
    backplane: &Backplane,
    mark_revoked: MarkRevoked,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let (own_store, state, until) = (store.clone(), backplane.state(), stop.clone());
    supervisor::spawn(tasks, "losses", move || {
        let (store, state, stop) = (own_store.clone(), state.clone(), until.clone());
        async move { state.unpublished_hints.run(&store, &stop).await }
    });
    let reconciler = Arc::new(Reconciler::new(store, backplane, mark_revoked));
    let (own, state, until) = (reconciler.clone(), backplane.state(), stop.clone());
    supervisor::spawn(tasks, "reconcile.rounds", move || {
        let (reconciler, state, stop) = (own.clone(), state.clone(), until.clone());
        async move { scan::run(&reconciler, &state, &stop).await }
    });
    let (own_store, own, until) = (store.clone(), backplane.clone(), stop.clone());
    supervisor::spawn(tasks, "reconciler", move || {
        let (store, backplane, stop) = (own_store.clone(), own.clone(), until.clone());
        let reconciler = reconciler.clone();
        async move { reconcile_with(&store, &backplane, &reconciler, &stop).await }
    });
}

/// Acts on what Postgres says, until `stop`. No loop waits behind the statements of another.
async fn reconcile_with<S: DeliveryStore>(
    store: &S,
    backplane: &Backplane,
    reconciler: &Reconciler<S>,
    stop: &CancellationToken,
) {
    let state = backplane.state();
    tokio::join!(
        reconcile::run(reconciler, &state, stop),
        reconcile::replay(reconciler, &state, stop),
        invalidation::run(store, backplane.hub(), &state, stop),
        unpublished::run(store, backplane, stop),
    );
}
