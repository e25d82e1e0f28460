//! The recorder of this process, which `/metrics` reads.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::{
    labels,
    series::{Kind, SERIES},
};

const SECONDS_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// A mailbox holds 1,024 events at most; a reader may have missed more.
const SIZE_BUCKETS: &[f64] = &[
    0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0,
];

/// Installs the recorder of this process. A second call returns the first handle, because tests run
/// several nodes in a process.
pub fn install() -> PrometheusHandle {
    static HANDLE: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    HANDLE.get_or_init(start).clone()
}

fn start() -> PrometheusHandle {
    let mut builder = PrometheusBuilder::new();
    for (name, kind, _) in SERIES {
        let buckets = match kind {
            Kind::Seconds => SECONDS_BUCKETS,
            Kind::Size => SIZE_BUCKETS,
            Kind::Counter | Kind::Gauge => continue,
        };
        // Only an empty list of buckets is an error.
        builder = builder
            .set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)
            .unwrap_or_default();
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_err() {
        tracing::warn!(
            operation = "metrics.start",
            remedy = "/metrics stays empty",
            "another metrics recorder is installed"
        );
    }
    for (name, kind, help) in SERIES {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *help),
            Kind::Seconds | Kind::Size => metrics::describe_histogram!(*name, *help),
        }
    }
    labels::begin();
    handle
}
