//! Deliveries of a webhook: genuine ones become events.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use blindpipe_protocol::{text::Secret, tool_calls::ToolCallOutcome};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{Agent, handlers::told_origin};
use crate::{InboxEvent, Result};

const TOLERANCE_SECONDS: u64 = 300;
const DEADLINE: Duration = Duration::from_secs(9);
/// A shorter secret can be guessed.
const MIN_SECRET_BYTES: usize = 24;
const RETRY_SECONDS: u32 = 5;

/// A webhook's secret; the new one and the old one while it is rotated.
#[derive(Clone)]
pub struct WebhookSecrets(Vec<Secret>);

impl From<&str> for WebhookSecrets {
    fn from(secret: &str) -> Self {
        [secret].into()
    }
}

impl From<String> for WebhookSecrets {
    fn from(secret: String) -> Self {
        [secret].into()
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for WebhookSecrets {
    fn from(secrets: [S; N]) -> Self {
        secrets.into_iter().collect()
    }
}

impl<S: Into<String>> From<Vec<S>> for WebhookSecrets {
    fn from(secrets: Vec<S>) -> Self {
        secrets.into_iter().collect()
    }
}

impl<S: Into<String>> FromIterator<S> for WebhookSecrets {
    fn from_iter<T: IntoIterator<Item = S>>(secrets: T) -> Self {
        let secrets = secrets.into_iter();
        Self(secrets.map(|secret| Secret(secret.into())).collect())
    }
}

/// Whether a delivery is genuine under any of the secrets, over its bytes as they came and in
/// constant time. Nothing is genuine under a secret of fewer than 24 bytes.
#[must_use]
pub fn verify(
    secrets: impl Into<WebhookSecrets>,
    headers: &HeaderMap,
    body: &[u8],
    now_seconds: u64,
) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(id), Some(timestamp), Some(signatures)) = (
        header("webhook-id"),
        header("webhook-timestamp"),
        header("webhook-signature"),
    ) else {
        return false;
    };
    let is_fresh = timestamp
        .parse::<u64>()
        .is_ok_and(|at| now_seconds.abs_diff(at) <= TOLERANCE_SECONDS);
    if !is_fresh {
        return false;
    }
    let signatures = signatures.split(' ').filter_map(|signature| {
        let coded = signature.strip_prefix("v1,")?;
        STANDARD.decode(coded).ok()
    });
    let signatures: Vec<_> = signatures.collect();
    let WebhookSecrets(secrets) = secrets.into();
    let mut keys = secrets.iter().filter_map(|secret| key_of(secret.expose()));
    keys.any(|key| {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else {
            return false;
        };
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        let is_genuine = |signature: &Vec<u8>| mac.clone().verify_slice(signature).is_ok();
        signatures.iter().any(is_genuine)
    })
}

/// The bytes behind `whsec_`, or the characters of a secret without that prefix; none for a secret
/// that is too short, as an unset variable is.
fn key_of(secret: &str) -> Option<Vec<u8>> {
    let key = match secret.strip_prefix("whsec_") {
        Some(coded) => STANDARD.decode(coded).ok()?,
        None => secret.as_bytes().to_owned(),
    };
    (key.len() >= MIN_SECRET_BYTES).then_some(key)
}

impl WebhookSecrets {
    /// Whether each of them can prove something, and there is one.
    pub(super) fn are_fit(&self) -> bool {
        let is_fit = |secret: &Secret| key_of(secret.expose()).is_some();
        !self.0.is_empty() && self.0.iter().all(is_fit)
    }
}

/// The answer to a delivery, for any framework.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The value of `Retry-After`.
    pub retry_after: Option<u32>,
    /// The body: JSON.
    pub body: String,
}

impl WebhookAnswer {
    fn new(status: u16, body: &Value) -> Self {
        Self {
            status,
            retry_after: None,
            body: body.to_string(),
        }
    }

    fn later(why: &str) -> Self {
        Self {
            retry_after: Some(RETRY_SECONDS),
            ..Self::new(503, &json!({ "error": why }))
        }
    }
}

/// The deliveries under way. A repetition meanwhile does not run the handler again.
#[derive(Default)]
pub(super) struct Handling(Mutex<HashSet<[u8; 32]>>);

impl Handling {
    /// None while `origin` is being handled, which ends with the answer.
    fn begin(&self, origin: [u8; 32]) -> Option<impl Drop> {
        let is_new = self.0.lock().insert(origin);
        is_new.then(|| Ended(self, origin))
    }
}

struct Ended<'a>(&'a Handling, [u8; 32]);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

/// A receiver of an agent's deliveries. A handler has 9 s there; slow ones belong on a socket or a
/// poll. A delivery is answered 200 once its handler has ended; meanwhile, another delivery of the same
/// is answered 503.
#[derive(Clone)]
pub struct Webhook {
    pub(super) agent: Agent,
    pub(super) secrets: WebhookSecrets,
}

impl Webhook {
    /// Judges a request by its headers and its raw body, and handles the event in it.
    pub async fn receive(&self, headers: &HeaderMap, body: &[u8]) -> WebhookAnswer {
        let now = self.agent.clock().now_ms() / 1000;
        if !verify(self.secrets.clone(), headers, body, now) {
            return WebhookAnswer::new(401, &json!({ "error": "not genuine" }));
        }
        let Ok(call) = serde_json::from_slice::<Value>(body) else {
            return WebhookAnswer::new(400, &json!({ "error": "not JSON" }));
        };
        let until = Instant::now() + DEADLINE;
        if let Some(events) = call["events"].as_array() {
            return self.handle_batch(events, until).await;
        }
        match call["event"].as_str() {
            Some("webhook.verify") => {
                let challenge = &call["data"]["challenge"];
                WebhookAnswer::new(200, &json!({ "challenge": challenge }))
            }
            Some("webhook.test") => WebhookAnswer::new(200, &json!({})),
            _ => self.handle(&call, until).await,
        }
    }

    /// Handles the events of a call: those of a conversation in their order, and conversations side by
    /// side. The answer names what has failed.
    async fn handle_batch(&self, events: &[Value], until: Instant) -> WebhookAnswer {
        let mut conversations: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for event in events {
            let id = event["conversation_id"].as_str().unwrap_or_default();
            conversations.entry(id).or_default().push(event);
        }
        let handled = conversations.into_values().map(|events| async move {
            for (n, event) in events.iter().enumerate() {
                let answer = self.handle(event, until).await;
                if answer.status != 200 {
                    return Some((answer, events.len() - n, &event["delivery_id"]));
                }
            }
            None
        });
        let failed: Vec<_> = join_all(handled).await.into_iter().flatten().collect();
        let unfinished: usize = failed.iter().map(|(_, events, _)| events).sum();
        let ids: Vec<&Value> = failed.iter().map(|(_, _, id)| *id).collect();
        let answer = WebhookAnswer::new(200, &json!({ "failed": ids }));
        // The service makes a pause if nothing succeeds.
        let nothing = failed
            .into_iter()
            .next()
            .filter(|_| unfinished == events.len());
        nothing.map_or(answer, |(first, _, _)| first)
    }

    async fn handle(&self, call: &Value, until: Instant) -> WebhookAnswer {
        let Ok(event) = serde_json::from_value::<InboxEvent>(call.clone()) else {
            return WebhookAnswer::new(400, &json!({ "error": "no event" }));
        };
        // A delivery tells which attempt it is.
        let replayed = call["attempt"].as_u64() > Some(1);
        let Some(_handling) = self.agent.handling().begin(*told_origin(&event).hash()) else {
            return WebhookAnswer::later("its handler runs");
        };
        match tokio::time::timeout_at(until, Box::pin(self.process(event, replayed))).await {
            Ok(Ok(())) => WebhookAnswer::new(200, &json!({})),
            Ok(Err(failed)) if failed.is_retryable() => {
                warn!(error = failed.kind(), "the service is away");
                WebhookAnswer::later("the service is away")
            }
            Ok(Err(failed)) => {
                error!(error = failed.kind(), "a handler has failed");
                WebhookAnswer::new(500, &json!({ "error": "the handler has failed" }))
            }
            Err(_) => WebhookAnswer::later("not in time"),
        }
    }

    async fn process(&self, event: InboxEvent, replayed: bool) -> Result<()> {
        let core = self.agent.start().await?;
        core.check_key_daily().await;
        let event = Box::pin(core.session.resolved_event(event)).await?;
        if event.event == "artifact_response"
            && let Some(outcome) = event.data::<ToolCallOutcome>()
        {
            core.tool_calls.deliver(outcome);
        }
        core.look_up(event.conversation_id)?;
        core.turns.arrive(&event);
        core.session.observe(&event);
        core.read_changed_keys(&event).await;
        let stopping = CancellationToken::new();
        let _stop = stopping.clone().drop_guard();
        let handlers = self.agent.handlers();
        let handled = handlers.process(&core, event, replayed, &stopping).await;
        if !core.save().await {
            // An answer of success would acknowledge it.
            return handled.and(Err(crate::Error::Store(std::io::Error::other(
                "not stored",
            ))));
        }
        handled
    }

    /// A router that receives deliveries at `/`, to be nested anywhere.
    #[cfg(feature = "axum")]
    pub fn into_router(self) -> axum::Router {
        use axum::{extract::DefaultBodyLimit, routing::post};
        // An event of 1 MB with its envelope.
        const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
        let receive = move |headers: HeaderMap, body: axum::body::Bytes| {
            let webhook = self.clone();
            async move {
                let answer = webhook.receive(&headers, &body).await;
                axum::response::Response::from(answer)
            }
        };
        axum::Router::new()
            .route("/", post(receive))
            .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
    }
}

#[cfg(feature = "axum")]
impl From<WebhookAnswer> for axum::response::Response {
    fn from(answer: WebhookAnswer) -> Self {
        let mut response = axum::response::Response::new(answer.body.into());
        *response.status_mut() = axum::http::StatusCode::from_u16(answer.status)
            .unwrap_or(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let json = axum::http::HeaderValue::from_static("application/json");
        headers.insert("content-type", json);
        if let Some(seconds) = answer.retry_after {
            headers.insert("retry-after", seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_genuine_and_fresh_deliveries_are_believed() {
        let secret = format!("whsec_{}", STANDARD.encode([7; 32]));
        let body = br#"{"event":"webhook.test"}"#;
        let mut mac = Hmac::<Sha256>::new_from_slice(&[7; 32]).expect("any length");
        mac.update(b"id.1000.");
        mac.update(body);
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let headers = |id: &str, at: &str, signatures: String| {
            let mut headers = HeaderMap::new();
            headers.insert("webhook-id", id.parse().expect("a value"));
            headers.insert("webhook-timestamp", at.parse().expect("a value"));
            headers.insert("webhook-signature", signatures.parse().expect("a value"));
            headers
        };
        let good = headers("id", "1000", format!("v1,AAAA v1,{signature}"));
        let secret = secret.as_str();
        assert!(verify(secret, &good, body, 1300));
        assert!(!verify(secret, &good, body, 1301), "too old");
        assert!(!verify(secret, &good, b"{}", 1000), "another body");
        for short in ["", "whsec_", "whsec_!", "a secret of 23 bytes.."] {
            assert!(key_of(short).is_none(), "{short}");
        }
        assert!(key_of("a secret of twenty-four.").is_some());
        assert!(!verify("another", &good, body, 1000), "another secret");
        let other = headers("other", "1000", format!("v1,{signature}"));
        assert!(!verify(secret, &other, body, 1000), "another id");
        assert!(!verify(secret, &HeaderMap::new(), body, 1000));
        // While a secret is rotated, either one counts.
        for both in [["another", secret], [secret, "another"]] {
            assert!(verify(both, &good, body, 1000));
        }
        assert!(!verify(["another", "third"], &good, body, 1000));
        assert!(
            !verify(Vec::<String>::new(), &good, body, 1000),
            "no secret"
        );
    }
}
