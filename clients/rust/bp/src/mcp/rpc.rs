//! The messages of the protocol: JSON-RPC 2.0.

use serde_json::{Value, json};

use super::{Server, tools};
use crate::failure::Failure;

/// The versions that begin with a handshake, the newest first.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const INSTRUCTIONS: &str = "A line to people, encrypted end to end. `ask_human` and `request_approval` wait for a \
    short time. When nobody has answered yet, they return a ticket, and `check` goes on with it, minutes or days \
    later, even after a restart of this server.";
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;

fn error(id: &Value, code: i32, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

impl Server {
    /// The answer to a message; none to a notification or an answer.
    pub(super) async fn answer(&self, message: &[u8]) -> Option<Value> {
        let Ok(message) = serde_json::from_slice::<Value>(message) else {
            return Some(error(&Value::Null, PARSE_ERROR, "no JSON"));
        };
        let id = &message["id"];
        let Some(method) = message["method"].as_str() else {
            let is_answer = message.get("result").is_some() || message.get("error").is_some();
            return (!is_answer).then(|| error(id, INVALID_REQUEST, "no method"));
        };
        if id.is_null() {
            return None;
        }
        let result = match method {
            "initialize" => initialize(&message["params"]),
            "ping" => json!({}),
            "tools/list" => json!({ "tools": tools::all() }),
            "tools/call" => self.call(&message["params"]).await,
            _ => return Some(error(id, METHOD_NOT_FOUND, "there is no such method")),
        };
        Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
    }

    /// A failure is a result too: the model reads it, and its remedy.
    async fn call(&self, params: &Value) -> Value {
        let name = params["name"].as_str().unwrap_or_default();
        let arguments = match &params["arguments"] {
            Value::Null => json!({}),
            arguments => arguments.clone(),
        };
        match Box::pin(tools::call(&self.asker, name, arguments)).await {
            Ok(answer) => json!({
                "content": [{ "type": "text", "text": answer.to_string() }],
                "structuredContent": answer,
            }),
            Err(failure) => json!({
                "content": [{ "type": "text", "text": told(&failure) }],
                "isError": true,
            }),
        }
    }
}

fn initialize(params: &Value) -> Value {
    let asked = params["protocolVersion"].as_str().unwrap_or_default();
    let version = VERSIONS
        .iter()
        .find(|it| **it == asked)
        .unwrap_or(&VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "bp", "version": env!("CARGO_PKG_VERSION") },
        "instructions": INSTRUCTIONS,
    })
}

fn told(failure: &Failure) -> String {
    match failure.what_to_do() {
        Some(remedy) => format!("{}; try: {remedy}", failure.message()),
        None => failure.message().to_owned(),
    }
}
