//! The documents of the interface: OpenAPI of the routes and AsyncAPI of `/ws`, made of the tables and the types of
//! the protocol. `blindpipe openapi` and `blindpipe asyncapi` print them; `docs/api` holds what they print.

mod asyncapi;
mod openapi;
mod operations;
mod schemas;
mod yaml;

use serde_json::Value;

/// `docs/api/openapi.json`.
pub fn openapi() -> String {
    pretty(&openapi::document())
}

/// `docs/api/asyncapi.yaml`.
pub fn asyncapi() -> String {
    yaml::write(&asyncapi::document())
}

fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}
