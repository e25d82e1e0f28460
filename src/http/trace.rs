//! Request ids, one log line and the metrics of each request, the headers that every answer carries, and the net
//! under panics.

use std::{any::Any, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tracing::Instrument;

use crate::{
    error::{Code, Error},
    limits::Charged,
    metrics as series,
    random::Random,
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Wraps every request of the public listener.
pub async fn record(State(random): State<Random>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request.headers().get(REQUEST_ID).filter(|id| is_sane(id)).cloned();
    let id = id.unwrap_or_else(|| {
        let minted = ulid::Ulid::from(random.ulid()).to_string();
        HeaderValue::try_from(minted).unwrap_or(HeaderValue::from_static("none"))
    });
    let method = request.method().clone();
    let route =
        request.extensions().get::<MatchedPath>().map_or("none".to_owned(), |path| path.as_str().to_owned());
    let charged = Charged::default();
    request.extensions_mut().insert(charged.clone());

    let span = tracing::info_span!("request", request_id = id.to_str().unwrap_or_default(), %method, route);
    let mut response = next.run(request).instrument(span.clone()).await;

    let status = response.status().as_u16();
    let elapsed = started.elapsed();
    series::request(&route, method.as_str(), status, elapsed);
    let duration_ms = elapsed.as_secs_f64() * 1000.0;
    // A line per request costs more than the request's own work; what went wrong on our side is always worth it.
    span.in_scope(|| match status {
        500.. => tracing::warn!(status, duration_ms, "answered"),
        _ => tracing::debug!(status, duration_ms, "answered"),
    });

    let headers = response.headers_mut();
    charged.write(headers);
    headers.insert(REQUEST_ID, id);
    headers.insert(
        header::STRICT_TRANSPORT_SECURITY,
        HeaderValue::from_static("max-age=63072000; includeSubDomains"),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// An id we are willing to repeat into logs.
fn is_sane(id: &HeaderValue) -> bool {
    (1..=128).contains(&id.len())
        && id.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(byte))
}

/// A panic is a bug of ours: counted, answered with 500, and the node lives on.
pub fn panicked(what: Box<dyn Any + Send>) -> Response {
    series::panicked();
    let said =
        what.downcast_ref::<&str>().copied().or_else(|| what.downcast_ref::<String>().map(String::as_str));
    tracing::error!(said, "a handler panicked");
    Error::from(Code::InternalError).into_response()
}
