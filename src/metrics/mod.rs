//! The functions that record the metrics. [`SERIES`], in `series.rs`, declares each of them.

mod labels;
mod recorder;
mod series;

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::{
    labels::KNOWN_COUNTERS,
    recorder::install,
    series::{Kind, SERIES},
};

fn seconds(name: &'static str, labels: &[(&'static str, &'static str)], span: Duration) {
    metrics::histogram!(name, labels).record(span.as_secs_f64());
}

fn count(name: &'static str, labels: &[(&'static str, &'static str)]) {
    add(name, labels, 1);
}

fn add(name: &'static str, labels: &[(&'static str, &'static str)], n: u64) {
    debug_assert!(
        labels::fits(name, labels),
        "{name} {labels:?}: not in labels.rs"
    );
    metrics::counter!(name, labels).increment(n);
}

pub fn request(route: &str, method: &'static str, status: u16, span: Duration) {
    let route = route.to_owned();
    metrics::counter!("http_requests_total", "route" => route.clone(), "method" => method, "status" => status.to_string())
        .increment(1);
    metrics::histogram!("http_request_seconds", "route" => route, "method" => method)
        .record(span.as_secs_f64());
}

pub fn build(version: &'static str) {
    metrics::gauge!("build_info", "version" => version).set(1.0);
}

pub fn panicked() {
    count("panics_total", &[]);
}

pub fn task_panicked(task: &'static str) {
    count("task_panics_total", &[("task", task)]);
}

pub fn traces_exported(outcome: &'static str) {
    count("trace_exports_total", &[("outcome", outcome)]);
}

pub fn rate_limited(scope: &'static str) {
    count("rate_limited_total", &[("scope", scope)]);
}

pub fn limiter(span: Duration) {
    seconds("limiter_seconds", &[], span);
}

pub fn limiter_fallback() {
    count("limiter_fallback_total", &[]);
}

pub fn slot(outcome: &'static str) {
    count("slots_total", &[("outcome", outcome)]);
}

pub fn redis_call(outcome: &'static str) {
    count("redis_calls_total", &[("outcome", outcome)]);
}

pub fn transaction(name: &'static str, span: Duration, committed: bool) {
    let outcome = if committed {
        "committed"
    } else {
        "rolled_back"
    };
    seconds(
        "db_transaction_seconds",
        &[("name", name), ("outcome", outcome)],
        span,
    );
}

pub fn pool(name: &'static str, used: usize, max: usize, awaited: usize) {
    metrics::gauge!("db_connections_used", "pool" => name).set(used as f64);
    metrics::gauge!("db_connections_max", "pool" => name).set(max as f64);
    metrics::gauge!("db_connections_awaited", "pool" => name).set(awaited as f64);
}

pub fn send(outcome: &'static str) {
    count("sends_total", &[("outcome", outcome)]);
}

/// A batch of sends was committed. `locked_first` says whether it took its conversations' locks
/// before the statement.
pub fn send_batch(messages: usize, locked_first: bool, span: Duration) {
    let how = if locked_first { "first" } else { "inside" };
    count("send_batches_total", &[("locks", how)]);
    metrics::histogram!("send_batch_messages").record(messages as f64);
    seconds("send_commit_seconds", &[], span);
}

pub fn hints(outcome: &'static str, n: u64) {
    add("hints_total", &[("outcome", outcome)], n);
}

pub fn hint_loop(span: Duration) {
    seconds("hint_loop_seconds", &[], span);
}

/// A mailbox that its socket has written, so many events after so long.
pub fn mailbox(events: usize, span: Duration) {
    metrics::histogram!("mailbox_events").record(events as f64);
    seconds("hint_to_socket_seconds", &[], span);
}

pub fn resumed(outcome: &'static str, missed: i64) {
    count("resumes_total", &[("outcome", outcome)]);
    metrics::histogram!("resume_events").record(missed as f64);
}

pub fn inbox_lag(events: i64) {
    metrics::histogram!("inbox_lag_events").record(events as f64);
}

pub fn backplane_healthy(healthy: bool) {
    metrics::gauge!("backplane_healthy").set(f64::from(u8::from(healthy)));
}

pub fn resubscribed(cause: &'static str) {
    count("backplane_resubscribes_total", &[("cause", cause)]);
}

pub fn sweep(part: &'static str, span: Duration, late: u64) {
    seconds("sweep_seconds", &[("part", part)], span);
    metrics::counter!("sweep_late_total").increment(late);
}

pub fn sweep_lookups(kind: &'static str, n: usize) {
    metrics::counter!("sweep_lookups_total", "kind" => kind).increment(n as u64);
}

pub fn socket_opened(kind: &'static str) {
    metrics::gauge!("sockets_open", "kind" => kind).increment(1.0);
}

pub fn socket_gone(kind: &'static str) {
    metrics::gauge!("sockets_open", "kind" => kind).decrement(1.0);
}

pub fn sockets_max(n: usize) {
    metrics::gauge!("sockets_max").set(n as f64);
}

pub fn socket_closed(code: u16) {
    metrics::counter!("sockets_closed_total", "code" => code.to_string()).increment(1);
}

pub fn connection_closed(reason: &'static str) {
    count("connections_closed_total", &[("reason", reason)]);
}

pub fn buffered(bytes: usize) {
    metrics::gauge!("buffer_bytes").set(bytes as f64);
}

pub fn buffers_refused(share: &'static str) {
    count("buffers_refused_total", &[("share", share)]);
}

pub fn frames(direction: &'static str, n: u64) {
    metrics::counter!("frames_total", "direction" => direction).increment(n);
}

pub fn mailbox_dropped() {
    count("mailbox_dropped_total", &[]);
}

pub fn ephemeral_dropped() {
    count("asides_dropped_total", &[]);
}

pub fn streams_open(n: usize) {
    metrics::gauge!("streams_open").set(n as f64);
}

pub fn inbox_read() {
    count("inbox_reads_total", &[]);
}

pub fn acks(n: u64) {
    metrics::counter!("acks_total").increment(n);
}

pub fn hashed(algorithm: &'static str, span: Duration) {
    seconds("hash_seconds", &[("algorithm", algorithm)], span);
}

pub fn hashes_waiting(queue: &'static str, change: f64) {
    metrics::gauge!("hashes_waiting", "queue" => queue).increment(change);
}

pub fn hash_refused(queue: &'static str) {
    count("hashes_refused_total", &[("queue", queue)]);
}

pub fn token_seen(how: &'static str) {
    count("token_cache_total", &[("how", how)]);
}

pub fn session_stolen() {
    count("sessions_stolen_total", &[]);
}

pub fn session_ahead() {
    count("sessions_ahead_total", &[]);
}

pub fn manifest_large() {
    count("manifests_large_total", &[]);
}

pub fn mail(outcome: &'static str) {
    count("mails_total", &[("outcome", outcome)]);
}

pub fn login(outcome: &'static str) {
    count("password_logins_total", &[("outcome", outcome)]);
}

pub fn code_tried(outcome: &'static str) {
    count("codes_tried_total", &[("outcome", outcome)]);
}

pub fn passkey_login(outcome: &'static str) {
    count("passkey_logins_total", &[("outcome", outcome)]);
}

pub fn human_verified(outcome: &'static str) {
    count("human_verifications_total", &[("outcome", outcome)]);
}

pub fn upload(outcome: &'static str) {
    count("uploads_total", &[("outcome", outcome)]);
}

pub fn upload_opened() {
    metrics::gauge!("uploads_open").increment(1.0);
}

pub fn upload_closed() {
    metrics::gauge!("uploads_open").decrement(1.0);
}

pub fn object_bytes(direction: &'static str, n: u64) {
    metrics::counter!("object_bytes_total", "direction" => direction).increment(n);
}

pub fn object_missing() {
    count("objects_missing_total", &[]);
}

pub fn object_damaged() {
    count("objects_damaged_total", &[]);
}

pub fn share_opened(outcome: &'static str) {
    count("shares_opened_total", &[("outcome", outcome)]);
}

pub fn egress(outcome: &'static str, span: Duration) {
    seconds("egress_seconds", &[("outcome", outcome)], span);
}

pub fn webhook_attempt(outcome: &'static str) {
    count("webhook_attempts_total", &[("outcome", outcome)]);
}

pub fn webhook_calls(change: f64) {
    metrics::gauge!("webhook_calls").increment(change);
}

pub fn webhook_turns(change: f64) {
    metrics::gauge!("webhook_turns").increment(change);
}

pub fn webhook_secrets(old: i64, unreadable: i64) {
    metrics::gauge!("webhook_secrets_old").set(old as f64);
    metrics::gauge!("webhook_secrets_unreadable").set(unreadable as f64);
}

pub fn webhook_backlog(late: u64, agents: i64, age: f64) {
    metrics::counter!("webhook_late_total").increment(late);
    metrics::gauge!("webhook_backlog_agents").set(agents as f64);
    metrics::gauge!("webhook_backlog_seconds").set(age);
}

pub fn push(outcome: &'static str) {
    count("pushes_total", &[("outcome", outcome)]);
}

pub fn push_late(late: u64) {
    metrics::counter!("push_late_total").increment(late);
}

pub fn push_backlog(age: f64) {
    metrics::gauge!("push_backlog_seconds").set(age);
}

pub fn push_secrets(old: i64, unreadable: i64) {
    metrics::gauge!("push_secrets_old").set(old as f64);
    metrics::gauge!("push_secrets_unreadable").set(unreadable as f64);
}

pub fn job(name: &'static str, outcome: &'static str, span: Duration) {
    seconds("job_seconds", &[("name", name)], span);
    count("jobs_total", &[("name", name), ("outcome", outcome)]);
}

/// The tables whose ages this node has set, and the time of that.
static MEASURED: Mutex<Option<(Instant, Vec<String>)>> = Mutex::new(None);
/// Time after which another node measures, and this node's ages are out of date.
const MEASURED_TTL: Duration = Duration::from_secs(180);

/// Sets the age of the oldest row of each table, in seconds.
pub fn oldest_rows(ages: Vec<(String, f64)>) {
    for (table, age) in &ages {
        metrics::gauge!("oldest_row_seconds", "table" => table.clone()).set(*age);
    }
    let tables = ages.into_iter().map(|(table, _)| table).collect();
    *MEASURED.lock() = Some((Instant::now(), tables));
}

/// Sets the bytes that all accounts have in use, and those from which on the operator is told.
pub fn storage(used_bytes: u64, alert_bytes: u64) {
    set_storage([used_bytes as f64, alert_bytes as f64]);
}

fn set_storage([used, alert]: [f64; 2]) {
    metrics::gauge!("storage_used_bytes").set(used);
    metrics::gauge!("storage_alert_bytes").set(alert);
}

/// Ends ages that this node measured long ago: their series have no number until it measures again.
pub fn end_old_measurements() {
    let mut measured = MEASURED.lock();
    let is_old = |(at, _): &mut (Instant, _)| at.elapsed() > MEASURED_TTL;
    let Some((_, tables)) = measured.take_if(is_old) else {
        return;
    };
    set_storage([f64::NAN; 2]);
    for table in tables {
        metrics::gauge!("oldest_row_seconds", "table" => table).set(f64::NAN);
    }
}
