//! `GET /openapi.json`, `/asyncapi.yaml`, `/events/types`, `/docs`: the documents of the interface,
//! as they are committed in `docs/api`. A test compares these files with the types.

pub mod docs;

use axum::{
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
};

const OPENAPI: &str = include_str!("../../../docs/api/openapi.json");

/// `GET /openapi.json`: OpenAPI 3.1 of every route.
pub async fn openapi() -> Response {
    document("application/json", OPENAPI)
}

/// `GET /asyncapi.yaml`: AsyncAPI 3 of `/ws`.
pub async fn asyncapi() -> Response {
    document(
        "application/yaml",
        include_str!("../../../docs/api/asyncapi.yaml"),
    )
}

/// `GET /events/types`: every durable event with its recipients and the JSON schema of its data.
pub async fn event_types() -> Response {
    document(
        "application/json",
        include_str!("../../../docs/api/event-types.json"),
    )
}

/// A document of this release. Clients may keep it for five minutes.
fn document(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "public, max-age=300"),
    ];
    (headers, text).into_response()
}
