//! Tool calls: every state and transition, the windows, and what nodes' deaths leave of them.
//!
//! | from | by | to | test |
//! |---|---|---|---|
//! | none | a request without a grant | denied, `scope_not_granted` | `states::without_a_grant_...` |
//! | none | a request under a grant | pending | `states::low_...`, `windows::medium_...`, `states::high_...` |
//! | pending | an answer | executed, failed, denied (`user_denied`) | `states::low_...` |
//! | pending | 30 s, high | denied, `user_timeout` | `states::high_...`, `states::a_call_outlives_...` |
//! | pending | 5 min, low or silent | denied, `device_timeout` | `states::low_...`, `windows::a_medium_call_...` |
//! | pending | 5 min, medium with a prompt | denied, `user_timeout` | `windows::a_medium_call_...` |
//! | pending | the end of its grant | denied, `grant_revoked` | `states::a_revoked_grant_...`, `grants` |
//! | ended | another answer | the same, 409 | `states::low_...`, `grants::of_twenty_devices_...` |
//! | ended | a late answer | the same, 409 | `states::high_...` |

mod requests;
mod states;
mod windows;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::respond;
use crate::support::{Agent, User};

/// The outcome of a call, out of the agent's inbox by poll.
pub async fn outcome(agent: &Agent, request_id: &str) -> Option<Value> {
    let page = agent.poll("limit=100").await.expect(200);
    let events = page.body["data"].as_array().expect("events").clone();
    let mine = events.into_iter().find(|event| {
        event["event"] == "artifact_response" && event["data"]["request_id"] == *request_id
    });
    mine.map(|event| event["data"].clone())
}

/// Waits for the outcome of a call, and for no longer than a sweep takes.
pub async fn ended(agent: &Agent, request_id: &str) -> Value {
    let since = Instant::now();
    loop {
        if let Some(outcome) = outcome(agent, request_id).await {
            return outcome;
        }
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "{request_id} is open"
        );
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

pub async fn execute(user: &User, request_id: &str) {
    let answer = json!({ "status": "executed", "payload": { "result": "ok" } });
    respond(user, request_id, answer).await.expect(200);
}
