//! Every operator setting: environment variable, default, unit and a line of help. A node that
//! finds faults lists all of them at once and does not start.
//!
//! A value that only one module understands stays text here. Its module parses it, and names a
//! check of it in the list of `node::settings`.

mod migration;
mod reading;
mod values;

use std::{net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use secrecy::SecretString;

pub use migration::{MIGRATE_SETTINGS, MigrationUrls, read_erase_url};
pub use reading::{Checks, Faults, Rule, TextCheck};
use reading::{read_one, settings};
pub use values::{BoundedNumber, Bytes, List, Origin, Profile, Switch};

settings! {
    /// `production`, or `dev` for a cluster on one machine: mails to files, built-in Turnstile;
    /// every listener must be on loopback.
    profile: Profile = "PROFILE", Some("production");
    /// The node's name in logs; the pod's name in Kubernetes.
    node_name: String = "NODE_NAME", Some("node");
    /// Address and port of the public listener.
    listen: SocketAddr = "LISTEN_ADDR", Some("0.0.0.0:8443");
    /// Address and port of the admin listener (probes, metrics); never to be exposed.
    admin: SocketAddr = "ADMIN_ADDR", Some("127.0.0.1:9090");
    /// PEM file of the certificate chain; without it a trusted proxy must terminate TLS.
    tls_cert: Option<PathBuf> = "TLS_CERT_FILE", Some("");
    /// PEM file of the certificate's private key.
    tls_key: Option<PathBuf> = "TLS_KEY_FILE", Some("");
    /// Comma list of networks (CIDR) whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.
    trusted_proxies: List<IpNet> = "TRUSTED_PROXIES", Some("");
    /// Comma list of networks (CIDR) of load balancers that forward TCP; each of their connections
    /// must begin with a header of the PROXY protocol, version 2, which names the client. Needs
    /// `TLS_CERT_FILE`.
    proxy_protocol: List<IpNet> = "PROXY_PROTOCOL_FROM", Some("");
    /// Folder of the built web app, served under `/app`; empty: no app is served.
    app_dir: String = "APP_DIR", Some("");
    /// Comma list of web origins whose pages may show the widget of the web app; empty: none may.
    widget_origins: List<Origin> = "WIDGET_ORIGINS", Some("");
    /// Origin at which this service shows nothing but the human check of the web app, such as
    /// `https://check.example.org`; empty: the app has no human check.
    check_origin: Option<Origin> = "CHECK_ORIGIN", Some("");
    /// Comma list of web origins that may call `/auth/*` and open a WebSocket; requests without
    /// `Origin` always may.
    allowed_origins: List<String> = "ALLOWED_ORIGINS", Some("");
    /// The address clients use, without a trailing slash; issuer of access tokens.
    public_url: String = "PUBLIC_URL", Some("https://localhost:8443");
    /// Postgres, as a URL. Its role serves: it owns nothing, and `blindpipe migrate` grants it its
    /// rights.
    database_url: SecretString = "DATABASE_URL", None;
    /// Connections of the main pool.
    database_pool: BoundedNumber<1, 1000> = "DATABASE_POOL_SIZE", Some("8");
    /// Milliseconds that a request waits for a connection or a lock before it is refused with 503;
    /// a statement may take twice as long, and thrice until its answer is here.
    database_timeout: BoundedNumber<100, 60_000> = "DATABASE_TIMEOUT_MS", Some("1000");
    /// Refuse to start when Postgres may lose what it acknowledged (`fsync` or `synchronous_commit`
    /// off).
    database_durable: Switch = "DATABASE_REQUIRE_DURABLE", Some("true");
    /// Refuse to start when the role of `DATABASE_URL` owns the tables, since nothing in the
    /// database is then append-only for it.
    database_separate: Switch = "DATABASE_REQUIRE_SEPARATE_ROLE", Some("true");
    /// Redis, as a URL (`redis://`, `rediss://`, `redis-cluster://`, `redis-sentinel://`).
    redis_url: SecretString = "REDIS_URL", None;
    /// Starts every Redis key and channel; two clusters on one Redis need two prefixes.
    redis_prefix: String = "REDIS_PREFIX", Some("bp");
    /// Milliseconds to wait for an answer of Redis; without one a node goes on by itself.
    redis_timeout: BoundedNumber<10, 2000> = "REDIS_TIMEOUT_MS", Some("250");
    /// Keys of access tokens, comma separated; the first signs, all verify. `kid:base64` of 32
    /// bytes or more for HS256, `kid:ed25519:base64` of 32 bytes for EdDSA. See operations.md for
    /// changing them.
    access_token_keys: SecretString = "ACCESS_TOKEN_KEYS", None;
    /// Comma list of one to four secrets, each base64 of 32 bytes or more; every MAC of the node
    /// has a key derived from them: the first signs, all verify. All nodes have the same ones. See
    /// operations.md for changing them.
    server_secret: SecretString = "SERVER_SECRET", None;
    /// Where mail goes: `smtps://user:password@host`, `smtp://user:password@host?tls=required`
    /// (STARTTLS), or `file:///folder` in the dev profile.
    mail_url: SecretString = "MAIL_URL", None;
    /// Sender of the mails.
    mail_from: String = "MAIL_FROM", Some("Blindpipe <no-reply@localhost>");
    /// Folder with files `<mail>.<language>.txt` that take the place of the built-in texts of mails;
    /// empty: English and German as built in.
    mail_templates: Option<PathBuf> = "MAIL_TEMPLATES", Some("");
    /// The domain that passkeys belong to; changing it makes every enrolled passkey useless.
    rp_id: String = "RP_ID", Some("localhost");
    /// Comma list of the web origins whose pages may use passkeys; each on `RP_ID` or below it.
    rp_origins: List<Origin> = "RP_ORIGIN", Some("https://localhost:8443");
    /// Turnstile's verification endpoint.
    turnstile_url: String = "TURNSTILE_URL", Some("https://challenges.cloudflare.com/turnstile/v0/siteverify");
    /// Turnstile's secret; required in production.
    turnstile_secret: SecretString = "TURNSTILE_SECRET", Some("");
    /// Turnstile's public site key, for the human check of the web app; required with
    /// `CHECK_ORIGIN` and `TURNSTILE_SECRET`.
    turnstile_site_key: String = "TURNSTILE_SITE_KEY", Some("");
    /// Comma list of hostnames that a Turnstile token may have been earned on; empty: any that the
    /// widget allows.
    turnstile_hostnames: List<String> = "TURNSTILE_HOSTNAMES", Some("");
    /// Comma list of actions that a Turnstile token may have been earned for; empty: any.
    turnstile_actions: List<String> = "TURNSTILE_ACTIONS", Some("");
    /// Where files are kept: `file:///folder` (for one node, or nodes that share the folder),
    /// `s3://bucket/prefix`, `gs://bucket/prefix` or `azure://container/prefix`.
    object_store_url: String = "OBJECT_STORE_URL", Some("file:///var/lib/blindpipe/objects");
    /// Address of an S3-compatible server, of Azure's service, or of a private endpoint of Google;
    /// empty: the provider's own. `http://` allows plain HTTP to it.
    object_store_endpoint: String = "OBJECT_STORE_ENDPOINT", Some("");
    /// Region of an S3 bucket.
    object_store_region: String = "OBJECT_STORE_REGION", Some("us-east-1");
    /// S3's access key id, or Azure's account; empty: the credentials of the machine (S3).
    object_store_access_key: String = "OBJECT_STORE_ACCESS_KEY", Some("");
    /// S3's secret access key, Azure's account key, or the JSON of Google's service account; empty:
    /// the credentials of the machine.
    object_store_secret: SecretString = "OBJECT_STORE_SECRET", Some("");
    /// Clients write to the bucket itself, by an address that it signs; the node then reads the
    /// bytes to verify their hash.
    object_store_direct: Switch = "OBJECT_STORE_DIRECT", Some("false");
    /// Writes the daily digest of the access log into the store of files too, as
    /// `access-log/<day>.txt`.
    access_log_objects: Switch = "ACCESS_LOG_OBJECTS", Some("false");
    /// Changes of the limits table, `scope=count/window` comma separated, such as
    /// `agent_message_send=10/s`; see `GET /limits`.
    limits: String = "LIMIT_OVERRIDES", Some("");
    /// Counts no call against a limit, to measure what limits cost; in the dev profile only.
    limits_off: Switch = "LIMITS_OFF", Some("false");
    /// Hashes passwords and agent tokens with the least work, so that tests do not wait for what makes
    /// guesses slow; in the dev profile only.
    quick_hashes: Switch = "QUICK_HASHES", Some("false");
    /// Bytes that the files of an account and of its agents may have together; open uploads count as
    /// they were declared.
    files_bytes_per_account: Bytes = "FILES_BYTES_PER_ACCOUNT", Some("10737418240");
    /// Bytes of all files from which on an alert tells the operator.
    files_bytes_alert: Bytes = "FILES_BYTES_ALERT", Some("1099511627776");
    /// Agents a user may have.
    agents_per_user: BoundedNumber<1, 100_000> = "AGENTS_PER_USER", Some("50");
    /// Writers that gather concurrent sends into one transaction each; a conversation always uses
    /// the same one. More than one pays only where Postgres has cores to spare: two half batches
    /// cost more than a whole one.
    send_writers: BoundedNumber<1, 64> = "SEND_WRITERS", Some("1");
    /// Sockets one node holds before it refuses more with 503.
    max_sockets: BoundedNumber<1, 10_000_000> = "MAX_SOCKETS", Some("20000");
    /// Connections one node holds, sockets and all others; empty: one and a half times
    /// `MAX_SOCKETS`. Some open files always stay free for Postgres and Redis.
    max_connections: Option<BoundedNumber<1, 20_000_000>> = "MAX_CONNECTIONS", Some("");
    /// Connections of one address (a /64 of IPv6) where the node terminates TLS; trusted proxies
    /// are exempt.
    max_connections_per_address: BoundedNumber<1, 20_000_000> = "MAX_CONNECTIONS_PER_ADDRESS", Some("1000");
    /// Seconds after which a connection without use is closed; on HTTP/2 without a request.
    connection_idle: BoundedNumber<1, 3600> = "CONNECTION_IDLE_SECONDS", Some("75");
    /// MB that one node holds for answers under way, bodies, pages and mailboxes; one principal or
    /// address may hold an eighth, and 8 MB at least.
    max_buffer: BoundedNumber<8, 1_000_000> = "MAX_BUFFER_MB", Some("256");
    /// Seconds a draining node goes on serving before it closes its listener, for load balancers
    /// that notice late.
    drain_lag_seconds: BoundedNumber<0, 8> = "DRAIN_LAG_SECONDS", Some("5");
    /// Connections that an agent may have at once over all nodes, sockets and webhook calls
    /// together.
    agent_connections: BoundedNumber<1, 1000> = "AGENT_CONNECTIONS", Some("3");
    /// Whether this node delivers webhooks; if no node does, run `blindpipe worker` beside them.
    webhook_worker: Switch = "WEBHOOK_WORKER", Some("true");
    /// Conversations of an agent whose events are delivered side by side, within
    /// `AGENT_CONNECTIONS`.
    webhook_conversations: BoundedNumber<1, 1000> = "WEBHOOK_CONVERSATIONS", Some("3");
    /// Seconds over which the seven retries of a delivery are spread; each waits five times as long
    /// as the one before (5 s, 25 s and so on with the default). `Retry-After` is not scaled.
    webhook_retry_seconds: BoundedNumber<1, 604_800> = "WEBHOOK_RETRY_SECONDS", Some("97655");
    /// The word in the names of the webhooks' headers, `X-<word>-Signature` and so on: letters,
    /// digits and hyphens.
    webhook_brand: String = "WEBHOOK_BRAND", Some("Service");
    /// Comma list of the ports that webhooks may have; the dev profile allows every port.
    egress_ports: List<u16> = "EGRESS_PORTS", Some("443,8443");
    /// Comma list of networks (CIDR) that the node never calls on behalf of a user, beside those
    /// that are not the public internet.
    egress_denied: List<IpNet> = "EGRESS_DENIED_NETWORKS", Some("");
    /// Comma list of name servers (address and port) for the hosts of webhooks; empty: those of
    /// `/etc/resolv.conf`.
    egress_name_servers: List<SocketAddr> = "EGRESS_NAME_SERVERS", Some("");
    /// Milliseconds of a call to a webhook, from the name to the last byte of the answer. Receivers
    /// are promised 10,000; tests wait for less.
    egress_timeout: BoundedNumber<100, 10_000> = "EGRESS_TIMEOUT_MS", Some("10000");
    /// Calls to webhooks that a node has under way at once.
    egress_in_flight: BoundedNumber<1, 10_000> = "EGRESS_MAX_IN_FLIGHT", Some("256");
    /// Calls to webhooks of one host and port that a node has under way at once. An agent takes a
    /// further one only while it has fewer than a quarter of those that are free.
    egress_in_flight_per_origin: BoundedNumber<1, 10_000> = "EGRESS_MAX_IN_FLIGHT_PER_ORIGIN", Some("64");
    /// Comma list of hosts of Postgres, Redis, the mail server, Turnstile, the object store and the
    /// collector that may be reached without TLS in production; loopback and Unix sockets always may.
    allow_cleartext: List<String> = "ALLOW_CLEARTEXT", Some("");
    /// Accept `localhost` as the public address and the public Turnstile test keys in production,
    /// to try a cluster in containers.
    allow_test_values: Switch = "ALLOW_TEST_VALUES", Some("false");
    /// Factor on the frequency of periodic jobs, for tests that see an hour of it in seconds; in the
    /// dev profile only.
    upkeep_speed: BoundedNumber<1, 3600> = "UPKEEP_SPEED", Some("1");
    /// Log filter, such as `info` or `blindpipe=debug`.
    log: String = "LOG", Some("info");
    /// Address of an OpenTelemetry collector that takes spans (OTLP over HTTP, as protobuf), such
    /// as `http://collector:4318`; empty: no spans are made.
    otlp_endpoint: String = "OTEL_EXPORTER_OTLP_ENDPOINT", Some("");
    /// Headers of the calls to the collector, such as a token: a comma list of `name=value`, each
    /// value percent-encoded.
    otlp_headers: SecretString = "OTEL_EXPORTER_OTLP_HEADERS", Some("");
    /// The part of the requests and frames that begin a trace, from 0 to 1.
    trace_sample_ratio: String = "TRACE_SAMPLE_RATIO", Some("0.01");
    /// Whether a caller's `traceparent` is the parent of a request's span, and its sampled flag has
    /// the request traced. Only behind a gateway that sets the header itself. Otherwise the span of
    /// a request that the node has sampled links to it.
    trace_trust_callers: Switch = "TRACE_TRUST_CALLERS", Some("false");
}

impl Config {
    /// Reads `ADMIN_ADDR` alone, the only setting that a health check needs.
    pub fn read_admin_address(get: impl Fn(&str) -> Option<String>) -> Result<SocketAddr, Faults> {
        let setting = SETTINGS.iter().find(|(name, ..)| *name == "ADMIN_ADDR");
        let default = setting.and_then(|(_, default, _)| *default);
        let mut faults = Vec::new();
        read_one("ADMIN_ADDR", default, &get, &[], &mut faults).ok_or(Faults(faults))
    }
}

/// The settings as a Markdown table. `docs/configuration.md` contains it, and a test compares the
/// two.
pub fn as_markdown() -> String {
    let mut table = String::from("| variable | default | meaning |\n|---|---|---|\n");
    for (name, default, help) in SETTINGS.iter().chain(MIGRATE_SETTINGS) {
        let default = match default {
            None => "required".to_owned(),
            Some("") => "–".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        table.push_str(&format!("| `{name}` | {default} | {} |\n", help.trim()));
    }
    table
}

/// The settings as `serve --help` shows them.
pub fn as_help() -> String {
    let mut text =
        String::from("Settings (environment; NAME_FILE names a file that holds the value):\n");
    for (name, default, help) in SETTINGS {
        let default = default.map_or("required".to_owned(), |value| format!("default {value:?}"));
        text.push_str(&format!("  {name} ({default})\n      {}\n", help.trim()));
    }
    text
}
