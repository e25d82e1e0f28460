//! `GET /openapi.json`, `/asyncapi.yaml`, `/events/types`, `/docs`: the documents of the interface,
//! as they are committed in `docs/api`. A test compares these files with the types. The served
//! OpenAPI document names this service as its server.

pub mod docs;

use axum::{
    extract::State,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};

const OPENAPI: &str = include_str!("../../../docs/api/openapi.json");

/// The OpenAPI document as a node serves it; clones share it.
#[derive(Clone)]
pub struct ServedOpenApi {
    document: Bytes,
    /// The call that draws it in a browser.
    drawing: Bytes,
}

impl ServedOpenApi {
    /// The committed document with the address of this service as its server.
    pub fn new(public_url: &str) -> serde_json::Result<Self> {
        let mut document: Value = serde_json::from_str(OPENAPI)?;
        document["servers"] = json!([{ "url": public_url.trim_end_matches('/') }]);
        let document = serde_json::to_string_pretty(&document)?;
        Ok(ServedOpenApi {
            drawing: docs::drawing(&document),
            document: document.into(),
        })
    }
}

/// `GET /openapi.json`: OpenAPI 3.1 of every route.
pub async fn openapi(State(served): State<ServedOpenApi>) -> Response {
    document("application/json", served.document)
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
fn document(content_type: &'static str, text: impl Into<Bytes>) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "public, max-age=300"),
    ];
    (headers, text.into()).into_response()
}
