//! `GET /health`, `/version` (public), `GET /health/live`, `/health/ready`, `/metrics` (admin).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::service::{Health, Version};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio::sync::Mutex;

use crate::{
    db::Db,
    delivery::Backplane,
    error::{Code, Error},
    http::Data,
    metrics,
};

/// The time for which an answer of Postgres stands. Probes cost it a query a second at most.
const READINESS_TTL: Duration = Duration::from_secs(1);

/// The state of the node: whether it drains, and its metrics.
#[derive(Clone)]
pub struct NodeStatus {
    draining: Arc<AtomicBool>,
    /// Whether Postgres answered, and when it was asked. The lock is held meanwhile, so concurrent
    /// probes ask once.
    postgres: Arc<Mutex<Option<(Instant, bool)>>>,
    /// The metrics of the process.
    pub metrics: PrometheusHandle,
}

impl NodeStatus {
    /// The state of a node that accepts traffic.
    pub fn new(metrics: PrometheusHandle) -> Self {
        NodeStatus {
            draining: Arc::default(),
            postgres: Arc::default(),
            metrics,
        }
    }

    /// Whether the node drains.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether Postgres answers, or answered within the last second.
    async fn reaches(&self, db: &Db) -> bool {
        let mut known = self.postgres.lock().await;
        if let Some((at, answers)) = *known
            && at.elapsed() < READINESS_TTL
        {
            return answers;
        }
        let answers = match db.read().await {
            Ok(client) => client.batch_execute("select 1").await.is_ok(),
            Err(_) => false,
        };
        *known = Some((Instant::now(), answers));
        answers
    }

    /// Starts the drain.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

/// `GET /health` (public): shallow; 200 while this node accepts traffic, 503 while it drains.
pub async fn health(State(status): State<NodeStatus>) -> Response {
    if status.draining() {
        return Error::from(Code::ServiceUnavailable)
            .retry_after(Duration::from_secs(1))
            .into_response();
    }
    Data(ok()).into_response()
}

/// `GET /version` (public).
pub async fn version() -> Data<Version> {
    Data(Version {
        supported: vec!["v1".to_owned()],
        default: "v1".to_owned(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// `GET /health/live` (admin): 200 as long as the process answers.
pub async fn live() -> Data<Health> {
    Data(ok())
}

fn ok() -> Health {
    Health {
        status: "ok".to_owned(),
    }
}

/// `GET /health/ready` (admin): 200 if Postgres answers, as of the last second, and the node does
/// not drain. The body reports a missing Redis, but the node stays ready without it.
pub async fn ready(
    State(node): State<NodeStatus>,
    State(db): State<Db>,
    State(backplane): State<Backplane>,
) -> Response {
    let postgres = node.reaches(&db).await;
    let ready = postgres && !node.draining();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let data = json!({
        "status": if ready { "ready" } else { "not ready" },
        "draining": node.draining(),
        "postgres": postgres,
        "backplane": backplane.state().healthy(),
    });
    (status, Data(data)).into_response()
}

/// `GET /metrics` (admin): Prometheus text.
pub async fn metrics(State(status): State<NodeStatus>, State(db): State<Db>) -> Response {
    let (used, max) = db.usage();
    metrics::pool("main", used, max);
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        status.metrics.render(),
    )
        .into_response()
}
