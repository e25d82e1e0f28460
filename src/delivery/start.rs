//! The start of everything that delivers, for a node or for a simulated one.

use std::sync::Arc;

use fred::clients::SubscriberClient;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backplane, Hub, MessageSigner,
    backplane::{
        EventObserver, PubSubWorker, RedisPubSub,
        tombstones::{MarkRevoked, Tombstones},
    },
    ephemeral::EphemeralHandler,
    invalidation,
    reconcile::{self, Reconciler, scan, unpublished},
};
use crate::{auth::server_secret::ServerSecret, db::Db, redis::Redis, supervisor};

/// The parts of a node that delivery works with.
pub struct Parts<'a> {
    /// Connections that requests cannot use up.
    pub background_db: &'a Db,
    pub redis: &'a Redis,
    pub subscriber: SubscriberClient,
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
pub fn start(parts: Parts<'_>) -> Backplane {
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
    let transport = RedisPubSub {
        redis: parts.redis.clone(),
        subscriber: parts.subscriber,
    };
    PubSubWorker::start(&backplane, transport, outgoing, changes, tasks, stop);
    sweep(
        parts.background_db,
        &backplane,
        parts.mark_revoked,
        tasks,
        stop,
    );
    backplane
}

/// Starts what keeps the subscriptions equal to what Postgres says.
fn sweep(
    db: &Db,
    backplane: &Backplane,
    mark_revoked: MarkRevoked,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let (own_db, state, until) = (db.clone(), backplane.state(), stop.clone());
    supervisor::spawn(tasks, "losses", move || {
        let (db, state, stop) = (own_db.clone(), state.clone(), until.clone());
        async move { state.unpublished_hints.run(&db, &stop).await }
    });
    let reconciler = Arc::new(Reconciler::new(db, backplane, mark_revoked));
    let (own, state, until) = (reconciler.clone(), backplane.state(), stop.clone());
    supervisor::spawn(tasks, "reconcile.rounds", move || {
        let (reconciler, state, stop) = (own.clone(), state.clone(), until.clone());
        async move { scan::run(&reconciler, &state, &stop).await }
    });
    let (own_db, own, until) = (db.clone(), backplane.clone(), stop.clone());
    supervisor::spawn(tasks, "reconciler", move || {
        let (db, backplane, stop) = (own_db.clone(), own.clone(), until.clone());
        let reconciler = reconciler.clone();
        async move { reconcile_with(&db, &backplane, &reconciler, &stop).await }
    });
}

/// Acts on what Postgres says, until `stop`. No loop waits behind the statements of another.
async fn reconcile_with(
    db: &Db,
    backplane: &Backplane,
    reconciler: &Reconciler,
    stop: &CancellationToken,
) {
    let state = backplane.state();
    tokio::join!(
        reconcile::run(reconciler, &state, stop),
        reconcile::replay(reconciler, &state, stop),
        invalidation::run(db, backplane.hub(), &state, stop),
        unpublished::run(db, backplane, stop),
    );
}
