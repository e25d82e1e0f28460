//! The tasks beside requests: upkeep of the metrics, and acknowledgements.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::{db::Db, inbox::Acks, metrics, node::Tasks, supervisor};

/// Starts the tasks.
pub(super) fn start(quiet_db: &Db, tasks: &Tasks) -> Acks {
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
