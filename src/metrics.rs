//! THE METRICS: name, kind and help of every series, and the functions that record them. Labels are
//! templates, classes and scopes, never an id.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The kind of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only rises.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Seconds, in buckets.
    Seconds,
    /// Counts, in buckets.
    Size,
}

/// Every series: (name, kind, help).
pub const SERIES: &[(&str, Kind, &str)] = &[
    (
        "http_requests_total",
        Kind::Counter,
        "Requests answered, by route, method and status.",
    ),
    (
        "http_request_seconds",
        Kind::Seconds,
        "Time to answer a request, by route and method.",
    ),
    ("panics_total", Kind::Counter, "Panics turned into a 500."),
    (
        "task_panics_total",
        Kind::Counter,
        "Panics of tasks that then started again.",
    ),
    (
        "rate_limited_total",
        Kind::Counter,
        "Calls refused by the limiter, by scope.",
    ),
    (
        "limiter_seconds",
        Kind::Seconds,
        "Time of a decision over all rules of a call.",
    ),
    (
        "limiter_fallback_total",
        Kind::Counter,
        "Decisions made from the node's own share because Redis was away.",
    ),
    (
        "slots_total",
        Kind::Counter,
        "Connection slots, by what became of a call for one.",
    ),
    (
        "redis_calls_total",
        Kind::Counter,
        "Redis calls, by outcome.",
    ),
    (
        "db_transaction_seconds",
        Kind::Seconds,
        "Time of a transaction with its waits, by name and outcome.",
    ),
    (
        "db_connections_used",
        Kind::Gauge,
        "Connections in use, by pool.",
    ),
    (
        "db_connections_max",
        Kind::Gauge,
        "Connections a pool may open, by pool.",
    ),
    ("sends_total", Kind::Counter, "Sends decided, by outcome."),
    (
        "send_batch_messages",
        Kind::Size,
        "Messages committed by one transaction.",
    ),
    (
        "send_commit_seconds",
        Kind::Seconds,
        "Time of one batch in Postgres.",
    ),
    (
        "hints_total",
        Kind::Counter,
        "Hints to other nodes, by what became of them.",
    ),
    (
        "hint_loop_seconds",
        Kind::Seconds,
        "Time of the probe from this node through Redis back to it.",
    ),
    (
        "backplane_healthy",
        Kind::Gauge,
        "1 while the probe comes back.",
    ),
    (
        "backplane_resubscribes_total",
        Kind::Counter,
        "Times all subscriptions were renewed, by cause.",
    ),
    (
        "sweep_seconds",
        Kind::Seconds,
        "Time of one sweep over the local sessions.",
    ),
    (
        "sweep_late_total",
        Kind::Counter,
        "Sessions that a sweep found behind: their hint was lost or late.",
    ),
    (
        "sockets_open",
        Kind::Gauge,
        "WebSocket sessions on this node, by principal kind.",
    ),
    (
        "sockets_max",
        Kind::Gauge,
        "Sockets that this node holds at most, MAX_SOCKETS.",
    ),
    (
        "sockets_closed_total",
        Kind::Counter,
        "WebSocket sessions ended by the server, by close code.",
    ),
    (
        "connections_closed_total",
        Kind::Counter,
        "Connections that ended, by reason; sockets are in sockets_closed_total.",
    ),
    (
        "buffer_bytes",
        Kind::Gauge,
        "Bytes held for answers, bodies, pages and mailboxes, of MAX_BUFFER_MB.",
    ),
    (
        "buffers_refused_total",
        Kind::Counter,
        "Answers, bodies and pages that the byte budget had no room for, by whose share was used up.",
    ),
    ("frames_total", Kind::Counter, "Frames, by direction."),
    (
        "mailbox_dropped_total",
        Kind::Counter,
        "Bodies not queued for a slow socket; it reads them from its inbox.",
    ),
    (
        "asides_dropped_total",
        Kind::Counter,
        "Ephemeral frames that a slow socket was not sent.",
    ),
    (
        "streams_open",
        Kind::Gauge,
        "Streams begun on this node and not over.",
    ),
    (
        "inbox_reads_total",
        Kind::Counter,
        "Pages read from an inbox.",
    ),
    ("acks_total", Kind::Counter, "Acks written."),
    (
        "hash_seconds",
        Kind::Seconds,
        "Time of a password or token hash with its wait, by algorithm.",
    ),
    (
        "token_cache_total",
        Kind::Counter,
        "Agent tokens presented, by how they were recognised.",
    ),
    (
        "sessions_stolen_total",
        Kind::Counter,
        "Sessions ended because an old refresh token came back.",
    ),
    (
        "manifests_large_total",
        Kind::Counter,
        "Manifests of 64 KB or more that were sent.",
    ),
    (
        "mails_total",
        Kind::Counter,
        "Mails handed to the mail server, by outcome.",
    ),
    (
        "password_logins_total",
        Kind::Counter,
        "Logins by password, by outcome. A rise of `wrong` is an attack on passwords.",
    ),
    (
        "passkey_logins_total",
        Kind::Counter,
        "Sign-ins with a passkey, by outcome; `copied`: its counter went back, and it was removed.",
    ),
    (
        "egress_seconds",
        Kind::Seconds,
        "Time of a call to an address that a user chose, by outcome.",
    ),
    (
        "human_verifications_total",
        Kind::Counter,
        "Turnstile tokens presented, by what became of them.",
    ),
    (
        "uploads_total",
        Kind::Counter,
        "Uploads, by what became of them; `sha256_mismatch`: the bytes were not the announced ones.",
    ),
    (
        "uploads_open",
        Kind::Gauge,
        "Uploads whose bytes this node receives.",
    ),
    (
        "object_bytes_total",
        Kind::Counter,
        "Bytes of objects, by direction.",
    ),
    (
        "objects_missing_total",
        Kind::Counter,
        "Reads and confirmations of an object that the store has lost.",
    ),
    (
        "objects_damaged_total",
        Kind::Counter,
        "Reads and confirmations of an object that is another in the store than was uploaded.",
    ),
    (
        "shares_opened_total",
        Kind::Counter,
        "Shares asked for, by outcome.",
    ),
    (
        "webhook_attempts_total",
        Kind::Counter,
        "Attempts of deliveries, by outcome.",
    ),
    (
        "webhook_calls",
        Kind::Gauge,
        "Calls to receivers under way on this node.",
    ),
    (
        "webhook_turns",
        Kind::Gauge,
        "Agents whose deliveries this node makes at the moment.",
    ),
    (
        "webhook_backlog_agents",
        Kind::Gauge,
        "Agents whose deliveries are due and that no worker has, at the last sweep.",
    ),
    (
        "webhook_backlog_seconds",
        Kind::Gauge,
        "Age of the oldest of them.",
    ),
    (
        "webhook_late_total",
        Kind::Counter,
        "Agents that a sweep found with undelivered events: their wake-up was lost.",
    ),
    ("job_seconds", Kind::Seconds, "Time of a job, by name."),
    (
        "jobs_total",
        Kind::Counter,
        "Jobs, by name and outcome; `failed`: given up.",
    ),
    (
        "oldest_row_seconds",
        Kind::Gauge,
        "Age of the oldest row, by table that retention cleans; on the node that measured last.",
    ),
];

const SECONDS_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const BATCH_SIZE_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Installs the recorder of this process. A second call returns the first handle, because tests run
/// several nodes in a process.
pub fn install() -> PrometheusHandle {
    static HANDLE: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    HANDLE.get_or_init(start).clone()
}

fn start() -> PrometheusHandle {
    let mut builder = PrometheusBuilder::new();
    for (name, kind, _) in SERIES {
        let buckets = match kind {
            Kind::Seconds => SECONDS_BUCKETS,
            Kind::Size => BATCH_SIZE_BUCKETS,
            Kind::Counter | Kind::Gauge => continue,
        };
        // Only an empty list of buckets is an error.
        builder = builder
            .set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)
            .unwrap_or_default();
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_err() {
        tracing::warn!("another metrics recorder is installed; /metrics will be empty");
    }
    for (name, kind, help) in SERIES {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *help),
            Kind::Seconds | Kind::Size => metrics::describe_histogram!(*name, *help),
        }
    }
    handle
}

fn seconds(name: &'static str, labels: &[(&'static str, &'static str)], span: Duration) {
    metrics::histogram!(name, labels).record(span.as_secs_f64());
}

fn count(name: &'static str, labels: &[(&'static str, &'static str)]) {
    metrics::counter!(name, labels).increment(1);
}

pub fn request(route: &str, method: &'static str, status: u16, span: Duration) {
    let route = route.to_owned();
    metrics::counter!("http_requests_total", "route" => route.clone(), "method" => method, "status" => status.to_string())
        .increment(1);
    metrics::histogram!("http_request_seconds", "route" => route, "method" => method)
        .record(span.as_secs_f64());
}

pub fn panicked() {
    count("panics_total", &[]);
}

pub fn task_panicked(task: &'static str) {
    count("task_panics_total", &[("task", task)]);
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

pub fn pool(name: &'static str, used: usize, max: usize) {
    metrics::gauge!("db_connections_used", "pool" => name).set(used as f64);
    metrics::gauge!("db_connections_max", "pool" => name).set(max as f64);
}

pub fn send(outcome: &'static str) {
    count("sends_total", &[("outcome", outcome)]);
}

pub fn send_batch(messages: usize, span: Duration) {
    metrics::histogram!("send_batch_messages").record(messages as f64);
    seconds("send_commit_seconds", &[], span);
}

pub fn hints(outcome: &'static str, n: u64) {
    metrics::counter!("hints_total", "outcome" => outcome).increment(n);
}

pub fn hint_loop(span: Duration) {
    seconds("hint_loop_seconds", &[], span);
}

pub fn backplane_healthy(healthy: bool) {
    metrics::gauge!("backplane_healthy").set(f64::from(u8::from(healthy)));
}

pub fn resubscribed(cause: &'static str) {
    count("backplane_resubscribes_total", &[("cause", cause)]);
}

pub fn sweep(span: Duration, late: u64) {
    seconds("sweep_seconds", &[], span);
    metrics::counter!("sweep_late_total").increment(late);
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

pub fn token_seen(how: &'static str) {
    count("token_cache_total", &[("how", how)]);
}

pub fn session_stolen() {
    count("sessions_stolen_total", &[]);
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

pub fn webhook_backlog(late: u64, agents: i64, age: f64) {
    metrics::counter!("webhook_late_total").increment(late);
    metrics::gauge!("webhook_backlog_agents").set(agents as f64);
    metrics::gauge!("webhook_backlog_seconds").set(age);
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

/// Ends ages that this node measured long ago: their series have no number until it measures again.
pub fn end_old_measurements() {
    let mut measured = MEASURED.lock();
    let is_old = |(at, _): &mut (Instant, _)| at.elapsed() > MEASURED_TTL;
    for table in measured
        .take_if(is_old)
        .into_iter()
        .flat_map(|(_, tables)| tables)
    {
        metrics::gauge!("oldest_row_seconds", "table" => table).set(f64::NAN);
    }
}
