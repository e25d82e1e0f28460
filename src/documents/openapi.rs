//! OpenAPI 3.1: the table of the routes, joined with the request and answer of each.

use std::collections::{BTreeMap, BTreeSet};

use blindpipe_protocol::{errors::ErrorEnvelope, ids::*, text::DeviceId};
use serde_json::{Map, Value, json};

use super::{
    operations::{Body, OPERATIONS, Operation},
    schemas::{SchemaOf, Schemas, bytes, of},
};
use crate::{
    error::Code,
    limits::table::Limit,
    routes::{self, Access, Route},
};

const DESCRIPTION: &str = "A messaging backend for users and agents. Conversations are end-to-end encrypted; the service \
    stores public keys, ciphertext and encrypted backups. Every path but those under `/auth` is served under `/v1` as well. \
    Rate limits are defaults: `GET /limits` says what holds.";

/// The whole OpenAPI document.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let error = json!({
        "description": "Refused, or failed.",
        "content": { "application/json": { "schema": of::<ErrorEnvelope>(&mut schemas) } },
    });
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes::table() {
        let name = format!("{} {}", route.method, route.path);
        let Some(operation) = OPERATIONS.iter().find(|row| row.route == name) else {
            continue;
        };
        let method = route.method.as_str().to_ascii_lowercase();
        let described = describe(&route, operation, &mut schemas);
        paths
            .entry(route.path)
            .or_default()
            .insert(method, described);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Blindpipe",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "{base_url}", "variables": { "base_url": { "default": "https://localhost" } } }],
        "paths": paths,
        "components": {
            "schemas": schemas.into_merged_components(),
            "responses": { "Error": error },
            "securitySchemes": {
                "user": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A user's access token." },
                "agent": { "type": "http", "scheme": "bearer", "bearerFormat": "hsk_...", "description": "An agent token." },
                "refresh": { "type": "apiKey", "in": "cookie", "name": "refresh_token", "description": "Sent to `/auth` only." },
            },
        },
    })
}

fn describe(route: &Route, operation: &Operation, schemas: &mut Schemas) -> Value {
    let mut described = json!({
        "operationId": operation_id(route),
        "summary": operation.summary,
        "tags": [tag(route.path)],
        "security": security(route),
        "responses": responses(route, operation, schemas),
        "x-error-codes": errors(route, operation),
    });
    let parameters = parameters(route.path, operation, schemas);
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    let (schema, required) = match operation.body {
        Body::Nothing => (None, false),
        Body::Optional(schema) => (Some(schema), false),
        Body::Required(schema) => (Some(schema), true),
        Body::Bytes => (Some(bytes::<()> as SchemaOf), true),
    };
    if let Some(schema) = schema {
        let (kind, content) = content(schema(schemas));
        described["requestBody"] = json!({ "required": required, "content": { kind: content } });
    }
    let limits = limits(route);
    if !limits.is_empty() {
        described["x-rate-limits"] = limits.iter().map(|limit| described_limit(*limit)).collect();
    }
    described
}

/// The id of an operation, such as `post_agents_agent_id_messages`.
fn operation_id(route: &Route) -> String {
    let words = route
        .path
        .split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_')
        .filter(|word| !word.is_empty());
    let method = route.method.as_str().to_ascii_lowercase();
    std::iter::once(method.as_str())
        .chain(words)
        .collect::<Vec<_>>()
        .join("_")
}

fn tag(path: &str) -> &str {
    path.split('/').nth(1).unwrap_or_default()
}

fn security(route: &Route) -> Value {
    match route.caller {
        Access::Public if route.path == "/auth/refresh" => json!([{ "refresh": [] }]),
        // A client without a session may log out.
        Access::Public if route.path == "/auth/logout" => json!([{ "refresh": [] }, {}]),
        Access::Public => json!([]),
        Access::User => json!([{ "user": [] }]),
        Access::Agent => json!([{ "agent": [] }]),
        Access::Either => json!([{ "user": [] }, { "agent": [] }]),
    }
}

/// The limits of a route's row. Its caller decides the default one.
fn limits(route: &Route) -> Vec<Limit> {
    use Limit::{AgentTier1, AgentTier2, AgentTier3, DefaultIp, DefaultUser};
    let default: &[Limit] = match route.caller {
        _ if !route.charges.default => &[],
        Access::Public => &[DefaultIp],
        Access::User => &[DefaultUser],
        Access::Agent => &[AgentTier1, AgentTier2, AgentTier3],
        Access::Either => &[DefaultUser, AgentTier1, AgentTier2, AgentTier3],
    };
    [default, route.charges.principal, route.charges.own].concat()
}

fn described_limit(limit: Limit) -> Value {
    json!({
        "scope": limit.scope(),
        "limit": limit.default_budget().to_string(),
        "per": limit.per(),
    })
}

fn responses(route: &Route, operation: &Operation, schemas: &mut Schemas) -> Value {
    let mut responses = Map::new();
    for (status, schema) in operation.success {
        let description = match status {
            201 => "Created.",
            206 => "The part that was asked for.",
            304 => "The caller has these bytes.",
            _ => "OK.",
        };
        let answer = responses
            .entry(status.to_string())
            .or_insert_with(|| json!({ "description": description }));
        match schema(schemas) {
            Value::Null => {}
            schema => {
                let (kind, content) = content(schema);
                answer["content"][kind] = content;
            }
        }
    }
    if route.path == "/ws" {
        let answer = json!({ "description": "Switching to WebSocket." });
        responses.insert("101".to_owned(), answer);
    }
    let mut lines: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for code in errors(route, operation) {
        let line = format!("- `{}`: {}", code.wire(), code.message());
        lines.entry(code.http_status()).or_default().push(line);
    }
    for (status, lines) in lines {
        // A reference may have a description beside it.
        let error = "#/components/responses/Error";
        match responses.get_mut(&status.to_string()) {
            // A page that people read tells them in words.
            Some(page) => {
                page["content"]["application/json"] =
                    json!({ "schema": of::<ErrorEnvelope>(schemas) });
                page["description"] = lines.join("\n").into();
            }
            None => {
                let answer = json!({ "$ref": error, "description": lines.join("\n") });
                responses.insert(status.to_string(), answer);
            }
        }
    }
    responses.into()
}

/// The content type of a body and its description: JSON, bytes, or another text.
fn content(schema: Value) -> (String, Value) {
    let kind = match &schema["contentMediaType"] {
        // A schema would describe a value that a reader makes of the text.
        Value::String(kind) => return (kind.clone(), json!({})),
        _ if schema["format"] == "binary" => "application/octet-stream".to_owned(),
        _ => "application/json".to_owned(),
    };
    (kind, json!({ "schema": schema }))
}

/// The errors that the row and the operation can answer with.
fn errors(route: &Route, operation: &Operation) -> BTreeSet<Code> {
    let mut codes = BTreeSet::from([
        Code::TlsRequired,
        Code::InternalError,
        Code::ServiceUnavailable,
    ]);
    codes.extend(operation.errors);
    // A malformed id is one that nothing has.
    if route.path.contains('{') {
        codes.extend([Code::NotFound]);
    }
    match route.caller {
        Access::Public => {}
        Access::User => codes.extend([Code::Unauthorized]),
        Access::Agent => codes.extend([Code::AgentTokenInvalid]),
        Access::Either => codes.extend([Code::Unauthorized, Code::AgentTokenInvalid]),
    }
    if route.path.starts_with("/auth/") {
        codes.extend([Code::OriginNotAllowed]);
    }
    if !limits(route).is_empty() {
        codes.extend([Code::RateLimited]);
    }
    if !operation.query.is_empty() {
        codes.extend([Code::ValidationError]);
    }
    match operation.body {
        Body::Nothing => {}
        Body::Bytes => codes.extend([Code::ValidationError, Code::RequestTimeout]),
        Body::Optional(_) | Body::Required(_) => codes.extend([
            Code::ValidationError,
            Code::RequestTimeout,
            Code::PayloadTooLarge,
        ]),
    }
    codes
}

fn parameters(path: &str, operation: &Operation, schemas: &mut Schemas) -> Vec<Value> {
    let mut all = Vec::new();
    for name in path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    {
        let schema = path_schema(name, schemas);
        all.push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
    }
    for query in operation.query {
        let reference = query(schemas);
        let object = schemas.resolve(&reference).clone();
        for (name, schema) in object["properties"].as_object().into_iter().flatten() {
            let schema = without_null(schema.clone());
            all.push(json!({ "name": name, "in": "query", "required": false, "schema": schema }));
        }
    }
    all
}

fn path_schema(name: &str, schemas: &mut Schemas) -> Value {
    match name {
        "agent_id" => schemas.reference::<AgentId>(),
        "conversation_id" => schemas.reference::<ConversationId>(),
        "device_id" => schemas.reference::<DeviceId>(),
        "instance_id" => schemas.reference::<InstanceId>(),
        "passkey_id" => schemas.reference::<PasskeyId>(),
        "principal_id" => schemas.reference::<Principal>(),
        "relation_id" => schemas.reference::<RelationId>(),
        "upload_id" => schemas.reference::<UploadId>(),
        "user_id" => schemas.reference::<UserId>(),
        _ => json!({ "type": "string" }),
    }
}

/// Removes the null choice of a query's fields, since a query leaves out an absent field.
fn without_null(mut schema: Value) -> Value {
    let choices = schema.pointer_mut("/oneOf").and_then(Value::as_array_mut);
    if let Some(choices) = choices {
        choices.retain(|choice| choice["type"] != "null");
        return choices.pop().unwrap_or_default();
    }
    let kinds = schema.pointer_mut("/type").and_then(Value::as_array_mut);
    if let Some(kinds) = kinds {
        kinds.retain(|kind| kind != "null");
        schema["type"] = kinds.pop().unwrap_or_default();
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_an_operation_and_no_other() {
        let mut routes: Vec<String> = routes::table()
            .iter()
            .map(|route| format!("{} {}", route.method, route.path))
            .collect();
        let mut operations: Vec<&str> = OPERATIONS.iter().map(|row| row.route).collect();
        routes.sort_unstable();
        operations.sort_unstable();
        assert_eq!(operations, routes);
    }

    #[test]
    fn every_reference_is_a_component() {
        for document in [document(), super::super::asyncapi::document()] {
            let text = document.to_string();
            for reference in text.split("\"$ref\":\"#").skip(1) {
                let pointer = reference.split('"').next().expect("an end");
                assert!(document.pointer(pointer).is_some(), "{pointer}");
            }
        }
    }
}
