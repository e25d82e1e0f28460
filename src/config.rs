//! Every operator setting: environment variable, default, unit and a line of help. A node that
//! finds faults lists all of them at once and does not start.

use std::{collections::HashMap, fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::http::HeaderName;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ipnet::IpNet;
use secrecy::SecretString;

/// A variable and a check of its text. It serves settings that stay text here because another
/// module parses them.
pub type Check = (&'static str, fn(&str) -> Result<(), String>);

/// A value that can be read from the environment.
trait Setting: Sized {
    fn read(text: &str) -> Result<Self, String>;
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ty = $variable:literal, $default:expr;)+) => {
        /// The settings of one node.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($(#[doc = $help])+ pub $field: $kind,)+
        }

        impl Config {
            /// Reads all settings through `get` (the environment, in production). `NAME_FILE` names
            /// a file with the value of `NAME`, for mounted secrets.
            pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Faults> {
                Self::read_checked(get, &[])
            }

            /// Reads all settings and applies the `checks` of other modules. Their faults go into
            /// the same list.
            pub fn read_checked(
                get: impl Fn(&str) -> Option<String>,
                checks: &[Check],
            ) -> Result<Self, Faults> {
                let mut faults = Vec::new();
                $(let $field = read_one::<$kind>($variable, $default, &get, checks, &mut faults);)+
                match ($($field,)+) {
                    ($(Some($field),)+) if faults.is_empty() => {
                        let config = Config { $($field),+ };
                        config.check(&mut faults);
                        if faults.is_empty() { Ok(config) } else { Err(Faults(faults)) }
                    }
                    _ => Err(Faults(faults)),
                }
            }
        }

        /// Every setting: (variable, default or `None` if it is required, help).
        pub const SETTINGS: &[(&str, Option<&str>, &str)] = &[$(($variable, $default, concat!($($help),+))),+];
    };
}

settings! {
    /// `production`, or `dev` for a cluster on one machine: mails to files, built-in Turnstile; every listener must be on loopback.
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
    /// Comma list of web origins that may call `/auth/*` and open a WebSocket; requests without `Origin` always may.
    allowed_origins: List<String> = "ALLOWED_ORIGINS", Some("");
    /// The address clients use, without a trailing slash; issuer of access tokens.
    public_url: String = "PUBLIC_URL", Some("https://localhost:8443");
    /// Postgres, as a URL. Its role serves: it owns nothing, and `blindpipe migrate` grants it its rights.
    database_url: SecretString = "DATABASE_URL", None;
    /// Connections of the main pool.
    database_pool: Bounded<1, 1000> = "DATABASE_POOL_SIZE", Some("8");
    /// Milliseconds that a request waits for a connection or a lock before it is refused with 503; a statement may take twice as long, and thrice until its answer is here.
    database_timeout: Bounded<100, 60_000> = "DATABASE_TIMEOUT_MS", Some("1000");
    /// Refuse to start when Postgres may lose what it acknowledged (`fsync` or `synchronous_commit` off).
    database_durable: Switch = "DATABASE_REQUIRE_DURABLE", Some("true");
    /// Refuse to start when the role of `DATABASE_URL` owns the tables, since nothing in the database is then append-only for it.
    database_separate: Switch = "DATABASE_REQUIRE_SEPARATE_ROLE", Some("true");
    /// Redis, as a URL (`redis://`, `rediss://`, `redis-cluster://`, `redis-sentinel://`).
    redis_url: SecretString = "REDIS_URL", None;
    /// Starts every Redis key and channel; two clusters on one Redis need two prefixes.
    redis_prefix: String = "REDIS_PREFIX", Some("bp");
    /// Milliseconds to wait for an answer of Redis; without one a node goes on by itself.
    redis_timeout: Bounded<10, 2000> = "REDIS_TIMEOUT_MS", Some("250");
    /// Keys of access tokens, comma separated; the first signs, all verify. `kid:base64` of 32 bytes or more for HS256, `kid:ed25519:base64` of 32 bytes for EdDSA. See operations.md for changing them.
    access_token_keys: KeyRing = "ACCESS_TOKEN_KEYS", None;
    /// Comma list of one to four secrets, each base64 of 32 bytes or more; every MAC of the node has a key derived from them: the first signs, all verify. The same on every node. See operations.md for changing them.
    server_secret: ServerSecret = "SERVER_SECRET", None;
    /// Where mail goes: `smtps://user:password@host`, `smtp://user:password@host?tls=required` (STARTTLS), or `file:///folder` in the dev profile.
    mail_url: SecretString = "MAIL_URL", None;
    /// Sender of the mails.
    mail_from: String = "MAIL_FROM", Some("Blindpipe <no-reply@localhost>");
    /// The domain that passkeys belong to; changing it makes every enrolled passkey useless.
    rp_id: String = "RP_ID", Some("localhost");
    /// Comma list of the web origins whose pages may use passkeys; each on `RP_ID` or below it.
    rp_origins: List<Origin> = "RP_ORIGIN", Some("https://localhost:8443");
    /// Turnstile's verification endpoint.
    turnstile_url: String = "TURNSTILE_URL", Some("https://challenges.cloudflare.com/turnstile/v0/siteverify");
    /// Turnstile's secret; required in production.
    turnstile_secret: SecretString = "TURNSTILE_SECRET", Some("");
    /// Comma list of hostnames that a Turnstile token may have been earned on; empty: any that the widget allows.
    turnstile_hostnames: List<String> = "TURNSTILE_HOSTNAMES", Some("");
    /// Comma list of actions that a Turnstile token may have been earned for; empty: any.
    turnstile_actions: List<String> = "TURNSTILE_ACTIONS", Some("");
    /// Where files are kept: `file:///folder` (for one node, or nodes that share the folder), `s3://bucket/prefix`, `gs://bucket/prefix` or `azure://container/prefix`.
    object_store_url: String = "OBJECT_STORE_URL", Some("file:///var/lib/blindpipe/objects");
    /// Address of an S3-compatible server, or of Azure's service; empty: the provider's own. `http://` allows plain HTTP to it.
    object_store_endpoint: String = "OBJECT_STORE_ENDPOINT", Some("");
    /// Region of an S3 bucket.
    object_store_region: String = "OBJECT_STORE_REGION", Some("us-east-1");
    /// S3's access key id, or Azure's account; empty: the credentials of the machine (S3).
    object_store_access_key: String = "OBJECT_STORE_ACCESS_KEY", Some("");
    /// S3's secret access key, Azure's account key, or the JSON of Google's service account; empty: the credentials of the machine.
    object_store_secret: SecretString = "OBJECT_STORE_SECRET", Some("");
    /// Clients write to the bucket itself, by an address that it signs; the node then reads the bytes to verify their hash.
    object_store_direct: Switch = "OBJECT_STORE_DIRECT", Some("false");
    /// Changes of the limits table, `scope=count/window` comma separated, such as `agent_message_send=10/s`; see `GET /limits`.
    limits: String = "LIMIT_OVERRIDES", Some("");
    /// Counts no call against a limit, to measure what limits cost; in the dev profile only.
    limits_off: Switch = "LIMITS_OFF", Some("false");
    /// Agents a user may have.
    agents_per_user: Bounded<1, 100_000> = "AGENTS_PER_USER", Some("50");
    /// Writers that gather concurrent sends into one transaction each; a conversation always uses the same one. More than one pays only where Postgres has cores to spare: two half batches cost more than a whole one.
    send_writers: Bounded<1, 64> = "SEND_WRITERS", Some("1");
    /// Sockets one node holds before it refuses more with 503.
    max_sockets: Bounded<1, 10_000_000> = "MAX_SOCKETS", Some("20000");
    /// Connections one node holds, sockets and all others; empty: one and a half times `MAX_SOCKETS`. Some open files always stay free for Postgres and Redis.
    max_connections: Option<Bounded<1, 20_000_000>> = "MAX_CONNECTIONS", Some("");
    /// Connections of one address (a /64 of IPv6) where the node terminates TLS; trusted proxies are exempt.
    max_connections_per_address: Bounded<1, 20_000_000> = "MAX_CONNECTIONS_PER_ADDRESS", Some("1000");
    /// Seconds after which a connection without use is closed; on HTTP/2 without a request.
    connection_idle: Bounded<1, 3600> = "CONNECTION_IDLE_SECONDS", Some("75");
    /// MB that one node holds for answers under way, bodies, pages and mailboxes; one principal or address may hold an eighth, and 8 MB at least.
    max_buffer: Bounded<8, 1_000_000> = "MAX_BUFFER_MB", Some("256");
    /// Seconds a draining node goes on serving before it closes its listener, for load balancers that notice late.
    drain_lag_seconds: Bounded<0, 8> = "DRAIN_LAG_SECONDS", Some("5");
    /// Connections that an agent may have at once over all nodes, sockets and webhook calls together.
    agent_connections: Bounded<1, 1000> = "AGENT_CONNECTIONS", Some("3");
    /// Whether this node delivers webhooks; if no node does, run `blindpipe worker` beside them.
    webhook_worker: Switch = "WEBHOOK_WORKER", Some("true");
    /// Conversations of an agent whose events are delivered side by side, within `AGENT_CONNECTIONS`.
    webhook_conversations: Bounded<1, 1000> = "WEBHOOK_CONVERSATIONS", Some("3");
    /// Seconds over which the seven retries of a delivery are spread; each waits five times as long as the one before (5 s, 25 s and so on with the default). `Retry-After` is not scaled.
    webhook_retry_seconds: Bounded<1, 604_800> = "WEBHOOK_RETRY_SECONDS", Some("97655");
    /// The word in the names of the webhooks' headers, `X-<word>-Signature` and so on: letters, digits and hyphens.
    webhook_brand: Brand = "WEBHOOK_BRAND", Some("Service");
    /// Comma list of the ports that webhooks may have; the dev profile allows every port.
    egress_ports: List<u16> = "EGRESS_PORTS", Some("443,8443");
    /// Comma list of networks (CIDR) that the node never calls on behalf of a user, beside those that are not the public internet.
    egress_denied: List<IpNet> = "EGRESS_DENIED_NETWORKS", Some("");
    /// Comma list of name servers (address and port) for the hosts of webhooks; empty: those of `/etc/resolv.conf`.
    egress_name_servers: List<SocketAddr> = "EGRESS_NAME_SERVERS", Some("");
    /// Milliseconds of a call to a webhook, from the name to the last byte of the answer. Receivers are promised 10,000; tests wait for less.
    egress_timeout: Bounded<100, 10_000> = "EGRESS_TIMEOUT_MS", Some("10000");
    /// Calls to webhooks that a node has under way at once.
    egress_in_flight: Bounded<1, 10_000> = "EGRESS_MAX_IN_FLIGHT", Some("256");
    /// Calls to webhooks of one host and port that a node has under way at once.
    egress_in_flight_per_origin: Bounded<1, 10_000> = "EGRESS_MAX_IN_FLIGHT_PER_ORIGIN", Some("64");
    /// Comma list of hosts of Postgres, Redis, the mail server, Turnstile and the object store that may be reached without TLS in production; loopback and Unix sockets always may.
    allow_cleartext: List<String> = "ALLOW_CLEARTEXT", Some("");
    /// Accept `localhost` as the public address and the public Turnstile test keys in production, to try a cluster in containers.
    allow_test_values: Switch = "ALLOW_TEST_VALUES", Some("false");
    /// Log filter, such as `info` or `blindpipe=debug`.
    log: String = "LOG", Some("info");
}

/// The variable that a node never reads.
const MIGRATE_DATABASE_URL: &str = "MIGRATE_DATABASE_URL";

/// The settings of `blindpipe migrate` beside `DATABASE_URL`: (variable, default, help).
pub const MIGRATE_SETTINGS: &[(&str, Option<&str>, &str)] = &[(
    MIGRATE_DATABASE_URL,
    Some(""),
    "For `blindpipe migrate` only: Postgres as the owner of the schema, as a URL. The role of \
     `DATABASE_URL` then gets exactly the rights that nodes need. Empty: one role owns and serves.",
)];

/// The two roles of a migration, as URLs.
pub struct MigrationUrls {
    /// The role that owns the schema.
    pub owner: SecretString,
    /// The role that nodes serve with; none if it is the owner.
    pub serving: Option<SecretString>,
}

impl MigrationUrls {
    /// Reads `MIGRATE_DATABASE_URL` and `DATABASE_URL`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let mut one = |name, default| -> Option<SecretString> {
            read_one(name, default, &get, &[], &mut faults)
        };
        let (owner, serving) = (
            one(MIGRATE_DATABASE_URL, Some("")),
            one("DATABASE_URL", None),
        );
        let (Some(owner), Some(serving)) = (owner, serving) else {
            return Err(Faults(faults));
        };
        let is_separate = !secrecy::ExposeSecret::expose_secret(&owner).is_empty();
        Ok(if is_separate {
            MigrationUrls {
                owner,
                serving: Some(serving),
            }
        } else {
            MigrationUrls {
                owner: serving,
                serving: None,
            }
        })
    }
}

impl Config {
    /// Reads `ADMIN_ADDR` alone, the only setting that a health check needs.
    pub fn read_admin_address(get: impl Fn(&str) -> Option<String>) -> Result<SocketAddr, Faults> {
        let setting = SETTINGS.iter().find(|(name, ..)| *name == "ADMIN_ADDR");
        let default = setting.and_then(|(_, default, _)| *default);
        let mut faults = Vec::new();
        read_one("ADMIN_ADDR", default, &get, &[], &mut faults).ok_or(Faults(faults))
    }

    /// Checks the rules that involve several settings.
    fn check(&self, faults: &mut Vec<String>) {
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            faults.push("TLS_CERT_FILE and TLS_KEY_FILE: give both or neither".into());
        }
        if self.tls_cert.is_none() && self.trusted_proxies.0.is_empty() {
            faults.push("TLS_CERT_FILE or TRUSTED_PROXIES: without one of them every request would be refused as not TLS".into());
        }
        if self.profile == Profile::Dev
            && !(self.listen.ip().is_loopback() && self.admin.ip().is_loopback())
        {
            faults.push(
                "PROFILE: dev is refused unless LISTEN_ADDR and ADMIN_ADDR are on loopback".into(),
            );
        }
        let below = format!(".{}", self.rp_id);
        let foreign = |origin: &&Origin| {
            !origin
                .0
                .domain()
                .is_some_and(|host| host == self.rp_id || host.ends_with(&below))
        };
        if self.rp_id.is_empty() || self.rp_origins.0.is_empty() {
            faults.push("RP_ID and RP_ORIGIN: passkeys need both".into());
        } else if let Some(origin) = self.rp_origins.0.iter().find(foreign) {
            faults.push(format!(
                "RP_ORIGIN: {} is neither on RP_ID nor below it",
                origin.0.origin().ascii_serialization()
            ));
        }
        if self.object_store_direct.0 && self.object_store_url.starts_with("file:") {
            faults.push("OBJECT_STORE_DIRECT: a local folder signs no addresses".into());
        }
        let mail_to_files =
            secrecy::ExposeSecret::expose_secret(&self.mail_url).starts_with("file:");
        if sends_password_in_the_clear(secrecy::ExposeSecret::expose_secret(&self.mail_url)) {
            faults.push(
                "MAIL_URL: with a password it must be smtps:// or end in ?tls=required".into(),
            );
        }
        if self.profile == Profile::Production {
            if self.limits_off.0 {
                faults.push("LIMITS_OFF: limits can be off in the dev profile only".into());
            }
            if mail_to_files {
                faults.push("MAIL_URL: mail to files is for the dev profile".into());
            }
            if secrecy::ExposeSecret::expose_secret(&self.turnstile_secret).is_empty() {
                faults.push("TURNSTILE_SECRET: required in production".into());
            }
            self.check_transport(faults);
            if !self.allow_test_values.0 {
                self.check_test_values(faults);
            }
        }
    }
}

impl Config {
    /// Everything that leaves the machine is encrypted, unless the operator names the host.
    fn check_transport(&self, faults: &mut Vec<String>) {
        let expose = secrecy::ExposeSecret::expose_secret;
        let links = [
            ("DATABASE_URL", clear_postgres(expose(&self.database_url))),
            (
                "REDIS_URL",
                clear_hosts(expose(&self.redis_url), &["rediss"]),
            ),
            ("MAIL_URL", clear_mail(expose(&self.mail_url))),
            (
                "TURNSTILE_URL",
                clear_hosts(&self.turnstile_url, &["https"]),
            ),
            (
                "OBJECT_STORE_ENDPOINT",
                clear_hosts(&self.object_store_endpoint, &["https"]),
            ),
        ];
        for (name, hosts) in links {
            for host in hosts {
                if !is_loopback(&host) && !self.allow_cleartext.0.contains(&host) {
                    faults.push(format!(
                        "{name}: {host} would be reached without TLS; use TLS, or name it in ALLOW_CLEARTEXT"
                    ));
                }
            }
        }
    }

    /// Values that only make sense on a developer's machine.
    fn check_test_values(&self, faults: &mut Vec<String>) {
        let host = |url: &str| reqwest::Url::parse(url).ok()?.host_str().map(str::to_owned);
        let origins = self.rp_origins.0.iter();
        let local = [
            ("PUBLIC_URL", host(&self.public_url)),
            ("RP_ID", Some(self.rp_id.clone())),
            (
                "RP_ORIGIN",
                origins
                    .filter_map(|origin| origin.0.host_str())
                    .find(|host| is_loopback(host))
                    .map(str::to_owned),
            ),
            (
                "MAIL_FROM",
                self.mail_from
                    .rsplit('@')
                    .next()
                    .map(|host| host.trim_end_matches('>').to_owned()),
            ),
        ];
        for (name, host) in local {
            if host.is_some_and(|host| is_loopback(&host)) {
                faults.push(format!(
                    "{name}: must be set in production, and not to localhost"
                ));
            }
        }
        let secret = secrecy::ExposeSecret::expose_secret(&self.turnstile_secret);
        let zeros = secret
            .trim_start_matches(['1', '2', '3'])
            .trim_start_matches("x");
        if secret.len() > 20 && zeros.trim_start_matches('0') == "AA" {
            faults.push("TURNSTILE_SECRET: a public test key accepts or refuses everybody".into());
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<std::net::IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// The hosts of a URL whose scheme is none of `encrypted`, with those of its `node` parameters.
fn clear_hosts(url: &str, encrypted: &[&str]) -> Vec<String> {
    let Ok(url) = reqwest::Url::parse(url) else {
        return Vec::new();
    };
    if encrypted
        .iter()
        .any(|scheme| url.scheme().starts_with(scheme))
    {
        return Vec::new();
    }
    let nodes = url.query_pairs().filter(|(name, _)| name == "node");
    let nodes = nodes.map(|(_, node)| {
        node.rsplit_once(':')
            .map_or(node.to_string(), |(host, _)| host.to_owned())
    });
    let host = url.host_str().map(str::to_owned);
    host.into_iter().chain(nodes).collect()
}

/// The hosts that Postgres may be reached at without TLS. Only `sslmode=require` insists on it.
fn clear_postgres(url: &str) -> Vec<String> {
    use tokio_postgres::config::{Config, Host, SslMode};
    let Ok(config) = url.parse::<Config>() else {
        return Vec::new();
    };
    if config.get_ssl_mode() == SslMode::Require {
        return Vec::new();
    }
    let hosts = config.get_hosts().iter().filter_map(|host| match host {
        Host::Tcp(host) => Some(host.clone()),
        Host::Unix(_) => None,
    });
    hosts.collect()
}

fn clear_mail(url: &str) -> Vec<String> {
    let required = reqwest::Url::parse(url).is_ok_and(|url| {
        url.query_pairs()
            .any(|(name, value)| name == "tls" && value == "required")
    });
    if required || url.starts_with("file:") {
        return Vec::new();
    }
    clear_hosts(url, &["smtps"])
}

/// Whether a mail server's URL has a password that could travel without TLS.
fn sends_password_in_the_clear(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else {
        return false;
    };
    let required = url
        .query_pairs()
        .any(|(name, value)| name == "tls" && value == "required");
    url.password().is_some() && url.scheme() == "smtp" && !required
}

fn read_one<T: Setting>(
    name: &str,
    default: Option<&str>,
    get: &impl Fn(&str) -> Option<String>,
    checks: &[Check],
    faults: &mut Vec<String>,
) -> Option<T> {
    let file = format!("{name}_FILE");
    let given = match (get(name), get(&file)) {
        // TLS_CERT and TLS_KEY are no settings, so a name that ends in _FILE cannot collide here.
        (Some(value), _) => Some(value),
        (None, Some(path)) => match std::fs::read_to_string(&path) {
            Ok(text) => Some(text.trim_end().to_owned()),
            Err(error) => {
                faults.push(format!("{file}: cannot read {path}: {error}"));
                return None;
            }
        },
        (None, None) => None,
    };
    let Some(text) = given.as_deref().or(default) else {
        faults.push(format!("{name}: must be set"));
        return None;
    };
    let mut checks = checks.iter().filter(|(variable, _)| *variable == name);
    checks
        .try_for_each(|(_, check)| check(text))
        .and_then(|()| T::read(text))
        .map_err(|fault| faults.push(format!("{name}: {fault}")))
        .ok()
}

/// The faults of the settings, a line each.
#[derive(Debug)]
pub struct Faults(Vec<String>);

impl Faults {
    /// The faults, each in the form `NAME: fault`.
    pub fn new(lines: Vec<String>) -> Self {
        Faults(lines)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "the settings have {} fault(s):", self.0.len())?;
        self.0
            .iter()
            .try_for_each(|fault| writeln!(to, "  {fault}"))
    }
}

/// The environment that the node runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Real mail, real Turnstile.
    Production,
    /// A single machine, loopback only.
    Dev,
}

impl Setting for Profile {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "production" => Ok(Profile::Production),
            "dev" => Ok(Profile::Dev),
            _ => Err("is neither production nor dev".into()),
        }
    }
}

/// A whole number within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounded<const MIN: u32, const MAX: u32>(pub u32);

impl<const MIN: u32, const MAX: u32> Bounded<MIN, MAX> {
    /// The value, taken as milliseconds.
    pub fn millis(self) -> Duration {
        Duration::from_millis(self.0.into())
    }
}

impl<const MIN: u32, const MAX: u32> Setting for Bounded<MIN, MAX> {
    fn read(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(n) if (MIN..=MAX).contains(&n) => Ok(Bounded(n)),
            _ => Err(format!("is no whole number from {MIN} to {MAX}")),
        }
    }
}

/// The service's word in the names of headers.
#[derive(Clone, Debug)]
pub struct Brand(String);

impl Brand {
    /// The header `x-<brand>-<suffix>`.
    pub fn header(&self, suffix: &str) -> HeaderName {
        let name = format!("x-{}-{suffix}", self.0);
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            unreachable!("a brand has only characters of header names")
        };
        name
    }
}

impl std::str::FromStr for Brand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let ends = outer(text.chars().next()) && outer(text.chars().next_back());
        if ends && text.len() <= 32 && text.chars().all(inner) {
            Ok(Brand(text.to_ascii_lowercase()))
        } else {
            Err("is no word of up to 32 letters, digits and inner hyphens".into())
        }
    }
}

impl Setting for Brand {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl<const MIN: u32, const MAX: u32> Setting for Option<Bounded<MIN, MAX>> {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(None);
        }
        Bounded::read(text).map(Some)
    }
}

/// `true` or `false`.
#[derive(Clone, Copy, Debug)]
pub struct Switch(pub bool);

impl Setting for Switch {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Switch)
            .map_err(|_| "is neither true nor false".into())
    }
}

/// A comma list; empty is an empty list.
#[derive(Clone, Debug)]
pub struct List<T>(pub Vec<T>);

impl<T: std::str::FromStr> Setting for List<T> {
    fn read(text: &str) -> Result<Self, String> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        items
            .map(|item| item.parse().map_err(|_| format!("cannot read {item:?}")))
            .collect::<Result<_, _>>()
            .map(List)
    }
}

/// A web origin: `https://host` or `https://host:port`.
#[derive(Clone, Debug)]
pub struct Origin(pub reqwest::Url);

impl std::str::FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = reqwest::Url::parse(text)
            .ok()
            .filter(|url| url.scheme() == "https");
        let bare = url.filter(|url| url.origin().ascii_serialization() == text);
        bare.map(Origin)
            .ok_or_else(|| format!("{text:?} is no https origin such as https://example.org"))
    }
}

impl Setting for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl Setting for SecretString {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned().into())
    }
}

impl Setting for Option<PathBuf> {
    fn read(text: &str) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }
}

impl Setting for SocketAddr {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "is no address and port".into())
    }
}

/// A key of access tokens. Cannot be printed.
#[derive(Clone)]
pub enum TokenKey {
    /// HS256: 32 bytes or more.
    Hmac(Vec<u8>),
    /// EdDSA: the seed of an Ed25519 key.
    Ed25519([u8; 32]),
}

/// Named keys of access tokens, the signing one first. Prints as the names only.
#[derive(Clone)]
pub struct KeyRing(pub Arc<Vec<(String, TokenKey)>>);

impl fmt::Debug for KeyRing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_list()
            .entries(self.0.iter().map(|(kid, _)| kid))
            .finish()
    }
}

impl Setting for KeyRing {
    fn read(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut seen = HashMap::new();
        for (n, item) in text.split(',').map(str::trim).enumerate() {
            // The fault never repeats the value, because it is a secret.
            let fault = |what: &str| format!("entry {} {what}", n + 1);
            let (kid, key) = item.split_once(':').ok_or(fault("is not kid:base64"))?;
            let key = match key.split_once(':') {
                Some(("ed25519", seed)) => {
                    let seed = BASE64
                        .decode(seed)
                        .ok()
                        .and_then(|seed| seed.try_into().ok());
                    TokenKey::Ed25519(seed.ok_or(fault("is not base64 of 32 bytes"))?)
                }
                Some(_) => return Err(fault("is of an unknown kind: only ed25519 is named")),
                None => {
                    let key = BASE64.decode(key).ok().filter(|key| key.len() >= 32);
                    TokenKey::Hmac(key.ok_or(fault("is not base64 of 32 bytes or more"))?)
                }
            };
            if kid.is_empty() || seen.insert(kid.to_owned(), ()).is_some() {
                return Err(fault("has no name of its own"));
            }
            keys.push((kid.to_owned(), key));
        }
        Ok(KeyRing(Arc::new(keys)))
    }
}

/// The secrets that all nodes share, the current one first. Cannot be printed.
#[derive(Clone)]
pub struct ServerSecret(pub Arc<[Vec<u8>]>);

/// Most secrets of [`ServerSecret`]. Each more is another MAC that a guess may hit.
const MAX_SERVER_SECRETS: usize = 4;

impl fmt::Debug for ServerSecret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("ServerSecret")
    }
}

impl Setting for ServerSecret {
    fn read(text: &str) -> Result<Self, String> {
        let secret = |text: &str| {
            let secret = BASE64.decode(text.trim()).ok();
            secret
                .filter(|secret| secret.len() >= 32)
                .ok_or("is not base64 of 32 bytes or more")
        };
        let secrets: Vec<Vec<u8>> = text.split(',').map(secret).collect::<Result<_, _>>()?;
        if secrets.len() > MAX_SERVER_SECRETS {
            return Err(format!("has more than {MAX_SERVER_SECRETS} secrets"));
        }
        if (1..secrets.len()).any(|n| secrets[..n].contains(&secrets[n])) {
            return Err("names a secret twice".into());
        }
        Ok(ServerSecret(secrets.into()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_to_a_mail_server_needs_tls() {
        for (url, clear) in [
            ("smtp://user:secret@mail.example.org", true),
            (
                "smtp://user:secret@mail.example.org:25?tls=opportunistic",
                true,
            ),
            (
                "smtp://user:secret@mail.example.org:587?tls=required",
                false,
            ),
            ("smtps://user:secret@mail.example.org", false),
            ("smtp://relay.internal", false),
            ("file:///var/mail", false),
        ] {
            assert_eq!(sends_password_in_the_clear(url), clear, "{url}");
        }
    }

    /// The faults of a production node with these settings instead of sound ones.
    fn faults_with(own: &[(&str, &str)]) -> String {
        let key = BASE64.encode([7; 32]);
        let ring = format!("k:{key}");
        let sound = [
            ("TRUSTED_PROXIES", "10.0.0.0/8"),
            ("DATABASE_URL", "postgres://db.internal/x?sslmode=require"),
            ("REDIS_URL", "rediss://redis.internal"),
            ("MAIL_URL", "smtps://mail.example.org"),
            ("MAIL_FROM", "Chat <no-reply@example.org>"),
            ("PUBLIC_URL", "https://chat.example.org"),
            ("RP_ID", "example.org"),
            ("RP_ORIGIN", "https://chat.example.org"),
            ("TURNSTILE_SECRET", "0x4AAAAAAA"),
            ("SERVER_SECRET", &key),
            ("ACCESS_TOKEN_KEYS", &ring),
        ];
        let all: HashMap<&str, &str> = sound.into_iter().chain(own.iter().copied()).collect();
        let read = Config::read(|name| all.get(name).map(|value| (*value).to_owned()));
        read.err()
            .map(|faults| faults.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn production_speaks_tls_to_everything_that_is_not_named() {
        assert_eq!(faults_with(&[]), "");
        for (name, url) in [
            ("DATABASE_URL", "postgres://db.internal/x"),
            ("DATABASE_URL", "postgres://db.internal/x?sslmode=prefer"),
            ("DATABASE_URL", "postgres://127.0.0.1,db.internal/x"),
            ("REDIS_URL", "redis://db.internal"),
            (
                "REDIS_URL",
                "redis-cluster://127.0.0.1:1?node=db.internal:2",
            ),
            ("MAIL_URL", "smtp://db.internal:25"),
            ("TURNSTILE_URL", "http://db.internal/verify"),
            ("OBJECT_STORE_ENDPOINT", "http://db.internal:9000"),
        ] {
            let said = faults_with(&[(name, url)]);
            assert!(
                said.contains(&format!("{name}: db.internal would")),
                "{url}: {said}"
            );
            let named = ("ALLOW_CLEARTEXT", "other,db.internal");
            assert_eq!(faults_with(&[(name, url), named]), "", "{url}");
        }
        for (name, url) in [
            ("DATABASE_URL", "postgres:///x?host=/run/postgresql"),
            ("DATABASE_URL", "postgres://127.0.0.1/x"),
            ("REDIS_URL", "redis://[::1]:6379"),
            ("REDIS_URL", "rediss-cluster://redis.internal"),
            ("MAIL_URL", "smtp://mail.example.org?tls=required"),
        ] {
            assert_eq!(faults_with(&[(name, url)]), "", "{url}");
        }
    }

    #[test]
    fn production_refuses_what_only_a_developer_means() {
        for (name, value) in [
            ("PUBLIC_URL", "https://localhost:8443"),
            ("MAIL_FROM", "Blindpipe <no-reply@localhost>"),
            ("TURNSTILE_SECRET", "1x0000000000000000000000000000000AA"),
            ("TURNSTILE_SECRET", "2x0000000000000000000000000000000AA"),
        ] {
            let said = faults_with(&[(name, value)]);
            assert!(said.contains(&format!("{name}: ")), "{value}: {said}");
            let tried = ("ALLOW_TEST_VALUES", "true");
            assert_eq!(faults_with(&[(name, value), tried]), "", "{value}");
        }
        let local = [("RP_ID", "localhost"), ("RP_ORIGIN", "https://localhost")];
        let said = faults_with(&local);
        assert!(
            said.contains("RP_ID: ") && said.contains("RP_ORIGIN: "),
            "{said}"
        );
    }

    #[test]
    fn faults_of_other_rooms_are_in_the_same_list() {
        let checks: &[Check] = &[("LIMIT_OVERRIDES", |text| Err(format!("{text:?} is bad")))];
        let get = |name: &str| (name == "LIMIT_OVERRIDES").then(|| "x=1/s".to_owned());
        let faults = Config::read_checked(get, checks)
            .expect_err("faults")
            .to_string();
        for fault in [
            "LIMIT_OVERRIDES: \"x=1/s\" is bad",
            "DATABASE_URL: must be set",
        ] {
            assert!(faults.contains(fault), "{faults}");
        }
    }

    #[test]
    fn a_server_secret_is_up_to_four_different_ones() {
        let secret = |n: u8| BASE64.encode([n; 32]);
        let ring = |numbers: &[u8]| numbers.iter().map(|n| secret(*n)).collect::<Vec<_>>();
        for (text, secrets) in [
            (secret(1), Some(1)),
            (ring(&[1, 2]).join(", "), Some(2)),
            (ring(&[1, 2, 3, 4]).join(","), Some(4)),
            (ring(&[1, 2, 3, 4, 5]).join(","), None),
            (ring(&[1, 1]).join(","), None),
            (BASE64.encode([1; 31]), None),
            (secret(1) + ",", None),
            (String::new(), None),
        ] {
            let read = ServerSecret::read(&text).ok().map(|ring| ring.0.len());
            assert_eq!(read, secrets, "{text}");
        }
    }

    #[test]
    fn an_origin_is_https_and_nothing_but_an_origin() {
        for text in ["https://example.org", "https://localhost:18443"] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for text in [
            "",
            "example.org",
            "http://example.org",
            "https://example.org/",
            "https://example.org/x",
            "https://u@example.org",
        ] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
