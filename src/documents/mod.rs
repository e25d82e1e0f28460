//! The documents of the interface: OpenAPI of the routes and AsyncAPI of `/ws`. They are generated
//! from the tables and the types of the protocol. `blindpipe openapi` and `blindpipe asyncapi`
//! print them; `docs/api` holds the output.

mod asyncapi;
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

fn pretty(document: &Value) -> String {
    format!("{document:#}\n")
}
