//! Logs: a JSON object per line on standard error, with the fields of its span (request id, route).
//!
//! The log never contains tokens, codes, cookies, passwords, keys, e-mail and IP addresses, bodies
//! or payloads.

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

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

/// Starts logging with a filter such as `info`. Later calls change nothing.
pub fn start(filter: &str) {
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
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .ok();
}
