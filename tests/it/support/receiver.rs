//! A receiver of webhooks: an HTTP server that records calls and answers as a test says.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::task::AbortOnDropHandle;

use super::services::spawn;

/// The receiver's answer to a call.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub body: Value,
    pub delay: Duration,
    /// The answer waits for a notification.
    pub gate: Option<Arc<Notify>>,
}

impl Reply {
    /// An answer without content.
    pub fn status(status: u16) -> Self {
        Reply {
            status,
            retry_after: None,
            body: json!({}),
            delay: Duration::ZERO,
            gate: None,
        }
    }

    /// An answer that sends messages.
    pub fn messages(messages: Value) -> Self {
        Reply {
            body: json!({ "messages": messages }),
            ..Self::status(200)
        }
    }

    /// The answer comes once `gate` is notified.
    pub fn once(self, gate: &Arc<Notify>) -> Self {
        Reply {
            gate: Some(gate.clone()),
            ..self
        }
    }

    pub fn after(self, delay: Duration) -> Self {
        Reply { delay, ..self }
    }
}

/// A call that the receiver got.
#[derive(Clone, Debug)]
pub struct Call {
    pub headers: HeaderMap,
    pub body: Value,
    /// The body as it arrived.
    pub raw: String,
    /// The time of its arrival.
    pub from: Instant,
    /// The time of its answer; none while it is under way or after a cut.
    pub to: Option<Instant>,
}

impl Call {
    pub fn event(&self) -> &str {
        self.body["event"].as_str().unwrap_or_default()
    }

    pub fn seq(&self) -> i64 {
        self.body["seq"].as_i64().unwrap_or_default()
    }

    pub fn attempt(&self) -> i64 {
        self.body["attempt"].as_i64().unwrap_or_default()
    }

    pub fn delivery(&self) -> &str {
        self.body["delivery_id"].as_str().unwrap_or_default()
    }

    pub fn conversation(&self) -> &str {
        self.body["conversation_id"].as_str().unwrap_or_default()
    }

    /// The text of a message.
    pub fn text(&self) -> &str {
        let text = &self.body["data"]["payload"]["text"];
        text.as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(HeaderValue::to_str);
        value.transpose().ok().flatten().unwrap_or_default()
    }
}

type Behaviour = Box<dyn Fn(&Call) -> Reply + Send + Sync>;

struct Inner {
    calls: Mutex<Vec<Call>>,
    behaviour: Mutex<Behaviour>,
    answers_challenge: Mutex<bool>,
}

/// A receiver; ends on drop.
pub struct Receiver {
    pub url: String,
    inner: Arc<Inner>,
    _server: AbortOnDropHandle<()>,
}

impl Receiver {
    /// A receiver that answers challenges, and everything else with 200.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let inner = Arc::new(Inner {
            calls: Mutex::default(),
            behaviour: Mutex::new(Box::new(|_| Reply::status(200))),
            answers_challenge: Mutex::new(true),
        });
        let router = Router::new().fallback(hear).with_state(inner.clone());
        let server = spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Receiver {
            url,
            inner,
            _server: AbortOnDropHandle::new(server),
        }
    }

    /// Answers events as `behaviour` says from now on.
    pub fn behave(&self, behaviour: impl Fn(&Call) -> Reply + Send + Sync + 'static) {
        *self.inner.behaviour.lock() = Box::new(behaviour);
    }

    /// Answers events with this status from now on.
    pub fn answer(&self, status: u16) {
        self.behave(move |_| Reply::status(status));
    }

    /// Answers challenges with another text.
    pub fn refuse_challenges(&self) {
        *self.inner.answers_challenge.lock() = false;
    }

    /// All calls so far, the challenges too.
    pub fn all(&self) -> Vec<Call> {
        self.inner.calls.lock().clone()
    }

    /// The calls with events of the inbox so far.
    pub fn events(&self) -> Vec<Call> {
        let mut all = self.all();
        all.retain(|call| call.body["seq"].is_i64());
        all
    }

    /// The calls with messages so far.
    pub fn messages(&self) -> Vec<Call> {
        let mut all = self.all();
        all.retain(|call| call.event() == "message.created");
        all
    }

    /// The texts of the messages that were answered with 2xx or are under way.
    pub fn texts(&self) -> Vec<String> {
        let text = |call: &Call| {
            call.body["data"]["payload"]["text"]
                .as_str()
                .map(str::to_owned)
        };
        self.messages().iter().filter_map(text).collect()
    }

    /// Waits until `holds` for the calls so far.
    pub async fn until(&self, what: &str, holds: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        for _ in 0..600 {
            let calls = self.events();
            if holds(&calls) {
                return calls;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("no {what}: {:#?}", self.events());
    }

    /// Waits for `n` calls with events of the inbox.
    pub async fn receives(&self, n: usize) -> Vec<Call> {
        self.until(&format!("{n} calls"), |calls| calls.len() >= n)
            .await
    }
}

async fn hear(State(inner): State<Arc<Inner>>, headers: HeaderMap, text: String) -> Response {
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let call = Call {
        headers,
        body,
        raw: text,
        from: Instant::now(),
        to: None,
    };
    let (n, reply) = {
        let mut calls = inner.calls.lock();
        let reply = if call.event() == "webhook.verify" {
            let challenge = call.body["data"]["challenge"].clone();
            let answers = *inner.answers_challenge.lock();
            Reply {
                body: json!({ "challenge": if answers { challenge } else { json!("x") } }),
                ..Reply::status(200)
            }
        } else {
            (inner.behaviour.lock())(&call)
        };
        calls.push(call);
        (calls.len() - 1, reply)
    };
    tokio::time::sleep(reply.delay).await;
    if let Some(gate) = reply.gate {
        gate.notified().await;
    }
    inner.calls.lock()[n].to = Some(Instant::now());
    let status = StatusCode::from_u16(reply.status).expect("a status");
    let mut response = (status, axum::Json(reply.body)).into_response();
    if let Some(seconds) = reply.retry_after {
        let value = HeaderValue::from_str(&seconds.to_string()).expect("a number");
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}
