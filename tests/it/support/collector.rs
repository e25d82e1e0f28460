//! A collector of OpenTelemetry: the protocol's own messages over HTTP. It keeps every span.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::{secrets, services::spawn};

/// The header that a collector may ask for, as the value of `OTEL_EXPORTER_OTLP_HEADERS`.
const TOKEN: &str = "authorization=Bearer%20collectors";

/// A span, and the node that made it.
#[derive(Clone, Debug)]
pub struct ExportedSpan {
    pub node: String,
    pub span: Span,
}

impl ExportedSpan {
    pub fn trace_id(&self) -> String {
        base16ct::lower::encode_string(&self.span.trace_id)
    }

    pub fn id(&self) -> String {
        base16ct::lower::encode_string(&self.span.span_id)
    }

    pub fn parent_id(&self) -> String {
        base16ct::lower::encode_string(&self.span.parent_span_id)
    }

    /// An attribute, as text.
    pub fn attribute(&self, key: &str) -> Option<String> {
        let found = self.span.attributes.iter().find(|one| one.key == key)?;
        Some(text(found))
    }
}

fn text(attribute: &KeyValue) -> String {
    match attribute
        .value
        .as_ref()
        .and_then(|value| value.value.as_ref())
    {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

#[derive(Default)]
struct Inner {
    spans: Mutex<Vec<ExportedSpan>>,
}

/// The collector; ends on drop, when it has looked for secrets in all that it got.
pub struct Collector {
    url: String,
    inner: Arc<Inner>,
    _server: AbortOnDropHandle<()>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let inner = Arc::<Inner>::default();
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(inner.clone());
        let server = spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Collector {
            url,
            inner,
            _server: AbortOnDropHandle::new(server),
        }
    }

    /// The settings of a node that exports this part of its requests, at once.
    pub fn settings<'a>(&'a self, node: &'a str, ratio: &'a str) -> [(&'a str, &'a str); 5] {
        [
            ("NODE_NAME", node),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &self.url),
            ("OTEL_EXPORTER_OTLP_HEADERS", TOKEN),
            ("TRACE_SAMPLE_RATIO", ratio),
            // The library's own variable: milliseconds between two exports.
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ]
    }

    pub fn spans(&self) -> Vec<ExportedSpan> {
        self.inner.spans.lock().clone()
    }

    /// Waits until the spans are as `holds` says.
    pub async fn until(
        &self,
        what: &str,
        holds: impl Fn(&[ExportedSpan]) -> bool,
    ) -> Vec<ExportedSpan> {
        for _ in 0..400 {
            let spans = self.spans();
            if holds(&spans) {
                return spans;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not {what}: {:#?}", self.summary());
    }

    /// Node, trace and name of each span.
    fn summary(&self) -> Vec<String> {
        let spans = self.spans().into_iter();
        let line = |one: ExportedSpan| format!("{} {} {}", one.node, one.trace_id(), one.span.name);
        spans.map(line).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let lines: Vec<String> = self.spans().iter().map(|one| format!("{one:?}")).collect();
            let leak = secrets::find(&lines);
            assert_eq!(leak, None, "a span has a secret");
        }
    }
}

async fn take(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|given| given == value);
    if !is("authorization", "Bearer collectors") {
        return (StatusCode::UNAUTHORIZED, Vec::new());
    }
    if !is("content-type", "application/x-protobuf") {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, Vec::new());
    }
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let mut spans = inner.spans.lock();
    for of_resource in request.resource_spans {
        let attributes = of_resource.resource.map(|one| one.attributes);
        let attributes = attributes.unwrap_or_default();
        let node = attributes
            .iter()
            .find(|one| one.key == "service.instance.id");
        let node = node.map(text).unwrap_or_default();
        for span in of_resource
            .scope_spans
            .into_iter()
            .flat_map(|one| one.spans)
        {
            spans.push(ExportedSpan {
                node: node.clone(),
                span,
            });
        }
    }
    let taken = ExportTraceServiceResponse::default();
    (StatusCode::OK, taken.encode_to_vec())
}
