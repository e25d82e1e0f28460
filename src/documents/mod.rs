//! The documents of the interface: OpenAPI of the routes and AsyncAPI of `/ws`, made from the
//! tables and the protocol's types. `blindpipe openapi`, `blindpipe asyncapi`
//! and `blindpipe event-types` print them, and `docs/api` contains the output.

mod asyncapi;
mod event_types;
mod openapi;
mod operations;
mod schemas;
mod yaml;

use serde_json::Value;

/// The text of `docs/api/openapi.json`.
pub fn openapi() -> String {
    pretty(&openapi::document())
}

/// The text of `docs/api/asyncapi.yaml`.
pub fn asyncapi() -> String {
    yaml::write(&asyncapi::document())
}

/// The text of `docs/api/event-types.json`.
pub fn event_types() -> String {
    pretty(&event_types::document())
}

fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}
