//! The words of A2A 1.0: its JSON is that of the protocol's buffers.

use serde_json::{Value, json};

/// The version of the protocol, and the header that names it.
pub const VERSION: &str = "1.0";
pub const VERSION_HEADER: &str = "a2a-version";
pub const CARD_PATH: &str = "/.well-known/agent-card.json";

pub const SUBMITTED: &str = "TASK_STATE_SUBMITTED";
pub const WORKING: &str = "TASK_STATE_WORKING";
pub const COMPLETED: &str = "TASK_STATE_COMPLETED";
pub const FAILED: &str = "TASK_STATE_FAILED";
pub const CANCELED: &str = "TASK_STATE_CANCELED";
pub const REJECTED: &str = "TASK_STATE_REJECTED";
pub const INPUT_REQUIRED: &str = "TASK_STATE_INPUT_REQUIRED";
pub const AUTH_REQUIRED: &str = "TASK_STATE_AUTH_REQUIRED";

/// Whether a task in this state changes no more.
pub fn is_final(state: &str) -> bool {
    matches!(state, COMPLETED | FAILED | CANCELED | REJECTED)
}

/// Whether a task in this state goes on by itself.
pub fn is_under_way(state: &str) -> bool {
    matches!(state, SUBMITTED | WORKING)
}

/// The words of parts. Data is shown as JSON, and an address as it is: nothing is fetched.
pub fn words_of(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    let words = parts.filter_map(|part| match part {
        part if part["text"].is_string() => part["text"].as_str().map(str::to_owned),
        part if part["url"].is_string() => part["url"].as_str().map(str::to_owned),
        part => part.get("data").map(ToString::to_string),
    });
    words.collect::<Vec<_>>().join("\n")
}

/// A message of an agent.
pub fn said(id: &str, task: &str, context: &str, text: &str) -> Value {
    json!({
        "messageId": id,
        "taskId": task,
        "contextId": context,
        "role": "ROLE_AGENT",
        "parts": [{ "text": text }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_words() {
        let parts = json!([
            { "text": "Hello" },
            { "data": { "n": 1 } },
            { "url": "https://example.com/a.png", "filename": "a.png" },
            { "raw": "AAAA", "filename": "b.bin" },
        ]);
        assert_eq!(
            words_of(&parts),
            "Hello\n{\"n\":1}\nhttps://example.com/a.png"
        );
        assert_eq!(words_of(&Value::Null), "");
    }

    #[test]
    fn a_task_ends_once() {
        for (state, ends) in [
            (SUBMITTED, false),
            (WORKING, false),
            (INPUT_REQUIRED, false),
            (AUTH_REQUIRED, false),
            (COMPLETED, true),
            (FAILED, true),
            (CANCELED, true),
            (REJECTED, true),
        ] {
            assert_eq!(is_final(state), ends, "{state}");
            let waits = matches!(state, INPUT_REQUIRED | AUTH_REQUIRED);
            assert_eq!(is_under_way(state), !ends && !waits, "{state}");
        }
    }
}
