//! Holds every answer that a test's client gets to the OpenAPI document: its status is declared,
//! and its JSON has the declared schema.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Value, json};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/api/openapi.json");
    serde_json::from_slice(&std::fs::read(file).expect(file)).expect("JSON")
});
/// The validators that were needed so far, by operation and status.
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// The fault of an answer, if it has one. Paths without an operation have no declared answers.
pub fn fault(method: &str, path: &str, status: u16, body: &Value) -> Option<String> {
    let operation = operation(&method.to_lowercase(), path)?;
    let id = operation["operationId"].as_str().expect("an id");
    let Some(declared) = operation["responses"].get(status.to_string()) else {
        return Some(format!("{id}: {status} is not declared: {body}"));
    };
    let declared = match declared["$ref"].as_str() {
        Some(pointer) => DOCUMENT
            .pointer(pointer.trim_start_matches('#'))
            .expect("a response"),
        None => declared,
    };
    let schema = &declared["content"]["application/json"]["schema"];
    if schema.is_null() || body.is_null() {
        return None;
    }
    let mut validators = VALIDATORS.lock();
    let validator = validators
        .entry(format!("{id} {status}"))
        .or_insert_with(|| Arc::new(validator(schema)))
        .clone();
    drop(validators);
    let error = validator.iter_errors(body).next()?;
    let place = error.instance_path().to_string();
    Some(format!("{id}: {status}: {place}: {error}: {body}"))
}

fn validator(schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = json!({ "schemas": DOCUMENT["components"]["schemas"] });
    jsonschema::draft202012::new(&schema).expect("a schema")
}

/// The operation of a path. A literal segment comes before a parameter.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    // All but the paths of logins have an alias.
    let alias = path
        .strip_prefix("/v1")
        .filter(|path| !path.starts_with("/auth/"));
    let path = alias.unwrap_or(path);
    let segments: Vec<&str> = path.split('/').collect();
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    let fits = paths.iter().filter_map(|(template, operations)| {
        let parts: Vec<&str> = template.split('/').collect();
        let is_same = parts.len() == segments.len()
            && parts
                .iter()
                .zip(&segments)
                .all(|(part, segment)| part.starts_with('{') || part == segment);
        let parameters = parts.iter().filter(|part| part.starts_with('{')).count();
        is_same.then_some((parameters, operations))
    });
    let (_, operations) = fits.min_by_key(|(parameters, _)| *parameters)?;
    operations.get(method)
}

#[test]
fn an_answer_that_differs_from_the_document_is_found() {
    let body = json!({ "data": { "versions": [] } });
    let said = fault("GET", "/version", 418, &body).expect("a fault");
    assert!(said.contains("418 is not declared"), "{said}");
    assert!(fault("GET", "/v1/version", 200, &body).is_some());
    let right = json!({ "data": { "supported": ["v1"], "default": "v1", "build": "x" } });
    assert_eq!(fault("GET", "/version", 200, &right), None);
    let refusal = json!({ "error": { "code": "NOT_FOUND" } });
    assert!(fault("GET", "/share/x", 404, &refusal).is_some());
    assert_eq!(fault("GET", "/no/such/path", 418, &body), None);
}
