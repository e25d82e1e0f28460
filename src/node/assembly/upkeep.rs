//! The tasks that keep a node's state equal to what Postgres says.

use std::{sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    db::Db,
    delivery::{
        Backplane, Hub, invalidation,
        reconcile::{self, Reconciler, rounds},
    },
    inbox::Acks,
    metrics,
    node::Tasks,
    supervisor,
};

/// Starts the tasks: upkeep of the metrics, acknowledgements, revocations and the sweep.
pub(super) fn start(hub: &Hub, backplane: &Backplane, quiet_db: &Db, tasks: &Tasks) -> Acks {
    let Tasks {
        workers, stopping, ..
    } = tasks;
    supervisor::spawn_until(workers, stopping, "metrics.tidy", || {
        tidy_metrics(metrics::install())
    });

    let acks = Acks::default();
    let (written, own_db, stop) = (acks.clone(), quiet_db.clone(), stopping.clone());
    supervisor::spawn(workers, "acks", move || {
        let (acks, db, stop) = (written.clone(), own_db.clone(), stop.clone());
        async move { acks.run(&db, &stop).await }
    });
    let (own_db, own_hub, state, stop) = (
        quiet_db.clone(),
        hub.clone(),
        backplane.state(),
        stopping.clone(),
    );
    supervisor::spawn(workers, "backplane.confirm", move || {
        invalidation::run(own_db.clone(), own_hub.clone(), state.clone(), stop.clone())
    });
    let (losses, own_db) = (backplane.state().losses.clone(), quiet_db.clone());
    let stop = stopping.clone();
    supervisor::spawn(workers, "losses", move || {
        let (losses, db, stop) = (losses.clone(), own_db.clone(), stop.clone());
        async move { losses.run(&db, &stop).await }
    });
    let reconciler = Arc::new(Reconciler::new(quiet_db, backplane));
    let (own, state, stop) = (reconciler.clone(), backplane.state(), stopping.clone());
    supervisor::spawn(workers, "reconcile.rounds", move || {
        let (reconciler, state, stop) = (own.clone(), state.clone(), stop.clone());
        async move { rounds::run(&reconciler, &state, &stop).await }
    });
    let (own, state, stop) = (reconciler.clone(), backplane.state(), stopping.clone());
    supervisor::spawn(workers, "reconcile.replay", move || {
        let (reconciler, state, stop) = (own.clone(), state.clone(), stop.clone());
        async move { reconcile::replay(&reconciler, &state, &stop).await }
    });
    let (state, stop) = (backplane.state(), stopping.clone());
    supervisor::spawn(workers, "reconciler", move || {
        let (reconciler, state, stop) = (reconciler.clone(), state.clone(), stop.clone());
        async move { reconcile::run(&reconciler, &state, &stop).await }
    });
    acks
}

/// Histograms keep every sample until they are folded into their buckets, which only a scrape would
/// do otherwise.
async fn tidy_metrics(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
        metrics::end_old_measurements();
    }
}
