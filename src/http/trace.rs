//! The frame of every request: its id, its span, its log line, its metrics, the headers of every answer, and
//! the handler of panics.

use std::{any::Any, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tracing::{Instrument, Span};

use crate::{
    error::{Cause, Code, Error},
    limits::ChargedLimits,
    metrics,
    random::Random,
    telemetry::trace::{self, RequestNames, TraceContext},
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Wraps every request of the public listener.
pub async fn record(State(random): State<Random>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request
        .headers()
        .get(REQUEST_ID)
        .filter(|id| is_sane(id))
        .cloned();
    let id = id.unwrap_or_else(|| {
        let minted = ulid::Ulid::from(random.ulid()).to_string();
        HeaderValue::try_from(minted).unwrap_or(HeaderValue::from_static("none"))
    });
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none".to_owned(), |path| path.as_str().to_owned());
    let charged = ChargedLimits::default();
    request.extensions_mut().insert(charged.clone());

    let name = id.to_str().unwrap_or_default();
    let span = span_of(&request, &route, name, &random);
    let trace_id = TraceContext::of(&span).map(|context| context.trace_id());
    let mut response = next.run(request).instrument(span.clone()).await;

    let status = response.status().as_u16();
    // Of the integers only this type is exported as a number.
    span.record("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
    drop(span);
    let elapsed = started.elapsed();
    // Each path and method that a client may try would be a series.
    let counted = match status {
        405 => ("none", "other"),
        _ => (route.as_str(), known_method(&method)),
    };
    metrics::request(counted.0, counted.1, status, elapsed);
    let duration_ms = elapsed.as_secs_f64() * 1000.0;
    // An answer without a cause was meant: a planned route, a full node, a drain.
    let cause = response.extensions().get::<Cause>().map(|cause| &*cause.0);
    if status == 500 || (status > 500 && cause.is_some()) {
        tracing::error!(
            operation = route,
            request_id = name,
            trace_id,
            %method,
            route,
            status,
            duration_ms,
            cause,
            remedy = "the caller is told",
            "a request failed"
        );
    } else {
        tracing::debug!(request_id = name, trace_id, %method, route, status, duration_ms, "answered");
    }

    let headers = response.headers_mut();
    charged.write(headers);
    headers.insert(REQUEST_ID, id);
    set_security_headers(headers);
    response
}

/// The span of a request: exported if the request is sampled, else for debugging. A span and a
/// line per request were about a seventh of a node's work. A failure of the node is always logged.
fn span_of(request: &Request, route: &str, request_id: &str, random: &Random) -> Span {
    let method = request.method();
    if !trace::is_off() {
        let caller = request.headers().get(TRACEPARENT);
        let caller = caller.and_then(|text| trace::of_caller(text.to_str().ok()?));
        if trace::is_sampled(caller, || random.fraction()) {
            let names = RequestNames {
                method: known_method(method),
                route,
                request_id,
            };
            return trace::of_request(&names, caller);
        }
    }
    tracing::debug_span!("request", request_id, %method, route)
}

/// The headers of every answer. Answers are not stored unless they say so.
fn set_security_headers(headers: &mut HeaderMap) {
    headers.insert(
        header::STRICT_TRANSPORT_SECURITY,
        HeaderValue::from_static("max-age=63072000; includeSubDomains"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
}

/// A label for the metrics. A client may send any word as a method, and each would be a new series.
fn known_method(method: &Method) -> &'static str {
    const KNOWN_METHODS: [&str; 9] = [
        "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT",
    ];
    KNOWN_METHODS
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("other")
}

/// Whether an id may be repeated into logs.
fn is_sane(id: &HeaderValue) -> bool {
    (1..=128).contains(&id.len())
        && id
            .as_bytes()
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(byte))
}

/// Counts a panic and answers 500. A panic is a bug, but the node goes on.
pub fn panicked(what: Box<dyn Any + Send>) -> Response {
    metrics::panicked();
    let said = what.downcast_ref::<&str>().copied();
    tracing::error!(
        operation = "http.handle",
        said,
        remedy = "the caller gets 500 and the node goes on",
        "a handler panicked"
    );
    Error::from(Code::InternalError).into_response()
}
