//! Logs and traces. A log is a JSON object per line on standard error, with the fields of its span
//! (request id, trace id, route). Spans of sampled requests go to a collector, if there is one.
//!
//! The log never contains tokens, codes, cookies, passwords, keys, e-mail and IP addresses, bodies
//! or payloads.

mod export;
pub mod trace;

use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

pub use self::export::{Exporter, check_settings};

/// Makes every panic a line of the log. A formatted message may quote what a client sent, so only a
/// literal one is repeated.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let said = panic.payload().downcast_ref::<&str>().copied();
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current().name().map(str::to_owned);
        tracing::error!(
            operation = thread,
            said,
            place,
            remedy = "the task ends",
            "a panic"
        );
    }));
}

/// Starts logging with a filter such as `info`, and the export of spans. Later calls change
/// nothing.
pub fn start(filter: &str, exporter: Option<&Exporter>) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // refinery prints whole migrations, fred each reconnect attempt.
    let filter = [
        "refinery_core=warn",
        "fred=warn",
        "lettre=warn",
        // This crate logs a client's mistake as an error.
        "webauthn_rs=off",
        "webauthn_rs_core=off",
        // These crates would print bound parameters and frames.
        "tokio_postgres=warn",
        "tungstenite=info",
        "tokio_tungstenite=info",
        "h2=info",
        "hyper=info",
        // These would print the hosts of users' webhooks.
        "hickory_resolver=error",
        "hickory_net=error",
        "hickory_proto=error",
        // The exporter's calls would write of themselves.
        "opentelemetry=error",
        "opentelemetry_sdk=error",
        "opentelemetry_otlp=error",
    ]
    .iter()
    .filter_map(|directive| directive.parse().ok())
    .fold(filter, EnvFilter::add_directive);
    let lines = fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(std::io::stderr);
    // Lines within an exported span have its ids, whatever the filter says about spans.
    let filter = match (exporter, "blindpipe::trace=info".parse()) {
        (Some(_), Ok(directive)) => filter.add_directive(directive),
        _ => filter,
    };
    // A filter of the lines alone: it must not keep spans from the exporter.
    tracing_subscriber::registry()
        .with(exporter.map(Exporter::layer))
        .with(lines.with_filter(filter))
        .try_init()
        .ok();
}
