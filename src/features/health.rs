//! `GET /health`, `/version` (public), `GET /health/live`, `/health/ready`, `/metrics` (admin).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::service::{Health, Version};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;

use crate::{
    db::Db,
    delivery::Backplane,
    error::{Code, Error},
    http::Data,
    metrics,
};

/// Whether the node wants traffic, and what it has measured.
#[derive(Clone)]
pub struct NodeStatus {
    draining: Arc<AtomicBool>,
    /// The process's metrics.
    pub metrics: PrometheusHandle,
}

impl NodeStatus {
    /// A node that wants traffic.
    pub fn new(metrics: PrometheusHandle) -> Self {
        NodeStatus {
            draining: Arc::default(),
            metrics,
        }
    }

    /// Whether it is on its way out.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// It is from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

/// `GET /health` (public): shallow; 200 while this node wants traffic, 503 while it drains.
pub async fn health(State(status): State<NodeStatus>) -> Response {
    if status.draining() {
        return Error::from(Code::ServiceUnavailable)
            .retry_after(std::time::Duration::from_secs(1))
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

/// `GET /health/live` (admin): the process answers.
pub async fn live() -> Data<Health> {
    Data(ok())
}

fn ok() -> Health {
    Health {
        status: "ok".to_owned(),
    }
}

/// `GET /health/ready` (admin): 200 if requests should come here: Postgres answers and the node does not drain. Redis
/// away is said but does not take the node out: it serves without.
pub async fn ready(
    State(node): State<NodeStatus>,
    State(db): State<Db>,
    State(backplane): State<Backplane>,
) -> Response {
    let postgres = match db.read().await {
        Ok(client) => client.batch_execute("select 1").await.is_ok(),
        Err(_) => false,
    };
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
