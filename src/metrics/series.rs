//! THE METRICS: name, kind and help of every series. Labels are templates, classes and scopes,
//! never an id.

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
    (
        "build_info",
        Kind::Gauge,
        "1, with the version of the build as its label.",
    ),
    ("panics_total", Kind::Counter, "Panics turned into a 500."),
    (
        "task_panics_total",
        Kind::Counter,
        "Panics of tasks, by task. A task that must live starts again.",
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
    (
        "db_connections_awaited",
        Kind::Gauge,
        "Callers that wait for a connection, by pool.",
    ),
    ("sends_total", Kind::Counter, "Sends decided, by outcome."),
    (
        "send_batches_total",
        Kind::Counter,
        "Transactions of sends, by when they took their locks: `first`, where another node writes to \
         the same conversations, or `inside` the statement.",
    ),
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
        "hint_to_socket_seconds",
        Kind::Seconds,
        "Time from an event's arrival in a mailbox, by a hint or a commit here, to its write to the socket.",
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
        "Time of a sweep, by part: the log's news, or a round over sessions with its pauses.",
    ),
    (
        "sweep_lookups_total",
        Kind::Counter,
        "Inboxes and credentials that sweeps looked up in Postgres, by kind.",
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
        "Connections that ended, by reason; sockets_closed_total has the codes of sockets.",
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
        "resumes_total",
        Kind::Counter,
        "Sockets opened, by outcome: `fresh` (no cursor), `current` (nothing missed), `replayed`, `resync` (the cursor is of no use).",
    ),
    (
        "resume_events",
        Kind::Size,
        "Events that a socket had missed when it opened.",
    ),
    (
        "mailbox_events",
        Kind::Size,
        "Events in a mailbox when its socket takes them.",
    ),
    (
        "inbox_lag_events",
        Kind::Size,
        "Events that a socket was sent and had not processed, at each of its acks.",
    ),
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
        "Open streams that this node has published or received.",
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
        "hashes_waiting",
        Kind::Gauge,
        "Password and token hashes that wait or run, by queue.",
    ),
    (
        "hashes_refused_total",
        Kind::Counter,
        "Password and token hashes refused because their queue was full, by queue.",
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
        "sessions_ahead_total",
        Kind::Counter,
        "Refresh tokens of a later generation than their session: the database has lost its last rotations.",
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
        "codes_tried_total",
        Kind::Counter,
        "Mailed codes tried, by outcome. A rise of `wrong` is an attack on codes.",
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
    (
        "webhook_secrets_old",
        Kind::Gauge,
        "Webhook secrets that are sealed under another secret of SERVER_SECRET than the first.",
    ),
    (
        "webhook_secrets_unreadable",
        Kind::Gauge,
        "Webhook secrets that are sealed under a secret that SERVER_SECRET does not have.",
    ),
    (
        "pushes_total",
        Kind::Counter,
        "Wakes of devices that a worker has claimed, by outcome.",
    ),
    (
        "push_backlog_seconds",
        Kind::Gauge,
        "Age of the oldest wake that is due and that no worker has, at the last sweep.",
    ),
    (
        "push_late_total",
        Kind::Counter,
        "Wakes that a sweep found: their hint was lost.",
    ),
    (
        "push_secrets_old",
        Kind::Gauge,
        "Endpoints of pushes that are sealed under another secret of SERVER_SECRET than the first.",
    ),
    (
        "push_secrets_unreadable",
        Kind::Gauge,
        "Endpoints of pushes that are sealed under a secret that SERVER_SECRET does not have.",
    ),
    ("job_seconds", Kind::Seconds, "Time of a job, by name."),
    (
        "jobs_total",
        Kind::Counter,
        "Jobs, by name and outcome; `failed`: given up.",
    ),
    (
        "trace_exports_total",
        Kind::Counter,
        "Calls to the collector of spans, by outcome; `lost`: their spans are dropped.",
    ),
    (
        "oldest_row_seconds",
        Kind::Gauge,
        "Age of the oldest row, by table that retention cleans; on the node that measured last.",
    ),
    (
        "storage_used_bytes",
        Kind::Gauge,
        "Bytes of all files and open uploads; on the node that measured last.",
    ),
    (
        "storage_alert_bytes",
        Kind::Gauge,
        "Bytes of all files from which on the operator is told (`FILES_BYTES_ALERT`).",
    ),
];
