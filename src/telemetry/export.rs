//! The export of spans to an OpenTelemetry collector: OTLP over HTTP, as protobuf.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use secrecy::ExposeSecret;
use tokio::runtime::Handle;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, filter_fn},
    registry::LookupSpan,
};

use super::trace::{self, SampleRatio};
use crate::{config::Config, metrics};

/// Longest wait for the collector. Spans that it does not take in time are dropped.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of an ending process for the last spans to leave.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Checks the settings of the export, and adds a line per fault.
pub fn check_settings(config: &Config, faults: &mut Vec<String>) {
    let endpoint = &config.otlp_endpoint;
    let is_web = |url: Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    if !endpoint.is_empty() && !endpoint.parse().is_ok_and(is_web) {
        faults.push(
            "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL such as http://collector:4318".into(),
        );
    }
    if headers(config.otlp_headers.expose_secret()).is_none() {
        faults.push("OTEL_EXPORTER_OTLP_HEADERS: must be a comma list of name=value".into());
    }
}

/// The exporter of a process.
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// The exporter that the settings ask for; none without a collector. A background thread
    /// gathers spans and sends them. It drops what the collector does not take.
    pub fn new(config: &Config) -> Result<Option<Self>, Failure> {
        if config.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let headers = headers(config.otlp_headers.expose_secret()).unwrap_or_default();
        let client = Collector {
            http: reqwest::Client::builder()
                .timeout(EXPORT_TIMEOUT)
                .default_headers(headers)
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            runtime: Handle::current(),
        };
        let endpoint = config.otlp_endpoint.trim_end_matches('/');
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .with_timeout(EXPORT_TIMEOUT)
            .build()?;
        let resource = Resource::builder()
            .with_service_name("blindpipe")
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", config.node_name.clone()),
            ])
            .build();
        // Only what is sampled becomes a span.
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::AlwaysOn)
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        trace::begin(
            SampleRatio::parse(&config.trace_sample_ratio)?,
            config.trace_trust_callers.0,
        );
        Ok(Some(Exporter(provider)))
    }

    /// The layer that makes the spans of [`trace`] those of OpenTelemetry, and no others.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        OpenTelemetryLayer::new(self.0.tracer("blindpipe"))
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(
                filter_fn(|metadata| metadata.target() == trace::TARGET)
                    .with_max_level_hint(LevelFilter::INFO),
            )
    }

    /// Sends what is left.
    pub async fn stop(self) {
        let stop = move || self.0.shutdown_with_timeout(STOP_TIMEOUT);
        tokio::task::spawn_blocking(stop).await.ok();
    }
}

/// Reads `name=value,name=value`; none if it is something else. The values are percent-encoded.
fn headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let decoded =
            url::form_urlencoded::parse(format!("v={}", value.replace('+', "%2B")).as_bytes())
                .next()
                .map(|(_, value)| value.into_owned())?;
        let mut value = HeaderValue::try_from(decoded).ok()?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(name.trim()).ok()?, value);
    }
    Some(headers)
}

/// The collector. Its calls run on the runtime of the node, since the exporter's thread has none.
struct Collector {
    http: reqwest::Client,
    runtime: Handle,
}

impl fmt::Debug for Collector {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Collector")
    }
}

impl HttpClient for Collector {
    fn send_bytes<'life, 'future>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'life: 'future,
        Self: 'future,
    {
        let http = self.http.clone();
        let sending = self.runtime.spawn(async move {
            let sent = post(&http, request).await;
            let is_taken = sent
                .as_ref()
                .is_ok_and(|answer| answer.status().is_success());
            metrics::traces_exported(if is_taken { "taken" } else { "lost" });
            sent
        });
        Box::pin(async move { sending.await? })
    }
}

async fn post(
    http: &reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (parts, body) = request.into_parts();
    let url = parts.uri.to_string();
    let request = http
        .request(parts.method, url)
        .headers(parts.headers)
        .body(body);
    // The errors of reqwest have the address of the collector, which may carry a password.
    let response = request.send().await.map_err(reqwest::Error::without_url)?;
    let mut answer = Response::builder().status(response.status());
    if let Some(headers) = answer.headers_mut() {
        headers.extend(response.headers().clone());
    }
    let body = response
        .bytes()
        .await
        .map_err(reqwest::Error::without_url)?;
    Ok(answer.body(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_list_of_pairs() {
        let read = headers("authorization=Bearer%20a+b=, x-scope = team").expect("headers");
        assert_eq!(read["authorization"], "Bearer a+b=");
        assert_eq!(read["x-scope"], " team");
        assert!(read["authorization"].is_sensitive());
        assert!(headers("").is_some_and(|none| none.is_empty()));
        for text in ["authorization", "a b=c", "=c"] {
            assert!(headers(text).is_none(), "{text}");
        }
    }
}
