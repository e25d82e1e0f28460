//! The tasks beside requests: upkeep of metrics and connections, and acknowledgements.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::{db::Db, egress::Egress, inbox::Acks, metrics, node::Tasks, supervisor};

/// Starts the upkeep in memory: the metrics, and the idle connections of outgoing requests. The
/// latter close at the stop.
pub(super) fn start_tidy(egress: &Egress, tasks: &Tasks) {
    let (egress, stop) = (egress.clone(), tasks.stopping.clone());
    supervisor::spawn(&tasks.workers, "node.tidy", move || {
        let (egress, stop) = (egress.clone(), stop.clone());
        async move {
            tokio::join!(
                stop.run_until_cancelled(tidy_metrics(metrics::install())),
                egress.upkeep(stop.clone()),
            );
        }
    });
}

/// Starts the writer of acknowledgements.
pub(super) fn start_acks(background_db: &Db, tasks: &Tasks) -> Acks {
    let acks = Acks::default();
    let (written, own_db, stop) = (acks.clone(), background_db.clone(), tasks.stopping.clone());
    supervisor::spawn(&tasks.workers, "acks", move || {
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
