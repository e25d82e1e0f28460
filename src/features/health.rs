//! `GET /health`, `/version` (public), `GET /health/live`, `/health/ready`, `/metrics` (admin).

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    app::NodeStatus,
    db::Db,
    delivery::backplane::Backplane,
    error::{Code, Error},
    http::Data,
    metrics,
};

/// `GET /health` (public): shallow; 200 while this node wants traffic, 503 while it drains.
pub async fn health(State(status): State<NodeStatus>) -> Response {
    if status.draining() {
        return Error::from(Code::ServiceUnavailable)
            .retry_after(std::time::Duration::from_secs(1))
            .into_response();
    }
    Data(json!({ "status": "ok" })).into_response()
}

/// What `GET /version` says.
#[derive(Serialize)]
pub struct Version {
    supported: [&'static str; 1],
    default: &'static str,
    build: &'static str,
}

/// `GET /version` (public).
pub async fn version() -> Data<Version> {
    Data(Version {
        supported: ["v1"],
        default: "v1",
        build: env!("CARGO_PKG_VERSION"),
    })
}

/// `GET /health/live` (admin): the process answers.
pub async fn live() -> Data<Value> {
    Data(json!({ "status": "ok" }))
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
