//! Checks of the services that a node calls: Postgres, Redis, the mail server, the object store, the name service.

use std::time::Duration;

use secrecy::ExposeSecret;

use super::Report;
use crate::{
    auth::{agent::MAX_CONCURRENT_LOOKUPS, server_secret::ServerSecret},
    clock::Clock,
    config::Config,
    db::{Db, Inspection as Postgres, Plans, migrate},
    features::{
        push::{self, EndpointSeal},
        webhooks::{self, SecretSeal},
    },
    mail::Mailer,
    objects::Backend,
    random::Random,
    redis::Inspection as Redis,
};

/// Longest wait for a service.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// Clocks that differ by more are worth a look: a network takes milliseconds.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Clocks that differ by more let access tokens live shorter or longer than promised.
const MAX_SAFE_CLOCK_SKEW: Duration = Duration::from_secs(5);
/// The oldest Postgres that is supported, as `server_version_num`.
const MIN_POSTGRES: i32 = 150_000;
/// The oldest Redis that is supported.
const MIN_REDIS: u32 = 7;

/// Whether the public host has an address.
pub(super) async fn check_name(config: &Config, report: &mut Report) {
    let host = reqwest::Url::parse(&config.public_url).ok();
    let host = host.and_then(|url| url.host_str().map(str::to_owned));
    let host = host.unwrap_or_default();
    let found = tokio::time::timeout(SERVICE_TIMEOUT, tokio::net::lookup_host((&*host, 443)));
    let found = found.await.ok().and_then(Result::ok);
    match found.and_then(|mut addresses| addresses.next()) {
        Some(_) => report.good("dns", format!("{host} has an address")),
        None => report.warning(
            "dns",
            format!("{host} has no address, as seen from here"),
            "enter the host of PUBLIC_URL into DNS; ignore this where inner names differ",
        ),
    }
}

/// Whether Postgres keeps what it acknowledges, and the role and the schema fit.
pub(super) async fn check_postgres(config: &Config, clock: &Clock, report: &mut Report) {
    let url = config.database_url.expose_secret();
    let found = tokio::time::timeout(SERVICE_TIMEOUT, Postgres::of(url)).await;
    let found = match found.map_err(|_| "no answer in time".into()).flatten() {
        Ok(found) => found,
        Err(error) => {
            let said = format!("it cannot be reached with DATABASE_URL: {error}");
            let remedy = "check host, port, role, password, TLS and the network policy";
            return report.fault("postgres", said, remedy);
        }
    };
    report.require(
        "postgres.version",
        found.version >= MIN_POSTGRES,
        format!("version {}", found.version / 10_000),
        format!(
            "version {}, and 15 or newer is needed",
            found.version / 10_000
        ),
        "upgrade Postgres",
    );
    report.require(
        "postgres.primary",
        !found.is_standby,
        "a primary".into(),
        "a standby, which takes no writes".into(),
        "let DATABASE_URL name the primary; after a failover, its new address",
    );
    check_durability(config, &found, report);
    check_schema(&found, report);
    check_role(config, &found, report);
    check_connections(config, &found, report);
    if !found.is_standby {
        check_timeouts(config, report).await;
    }
    if found
        .schema
        .is_some_and(|version| version >= migrate::newest())
    {
        check_seals(config, clock, report).await;
    }
    check_clock("postgres.clock", clock, found.clock, report);
}

fn check_durability(config: &Config, found: &Postgres, report: &mut Report) {
    let part = "postgres.durability";
    let off: Vec<&str> = [
        ("fsync", &found.fsync),
        ("synchronous_commit", &found.synchronous_commit),
        ("full_page_writes", &found.full_page_writes),
    ]
    .into_iter()
    .filter(|(_, value)| *value == "off")
    .map(|(name, _)| name)
    .collect();
    let said = format!(
        "off: {}. A crash may lose acknowledged messages",
        off.join(", ")
    );
    let remedy = "set it to on in postgresql.conf, for the database or for the role";
    if off.is_empty() {
        report.good(part, "acknowledged messages survive a crash");
    } else if config.database_durable.0 {
        report.fault(part, said, remedy);
    } else {
        report.warning(part, said, remedy);
    }
}

fn check_schema(found: &Postgres, report: &mut Report) {
    let newest = migrate::newest();
    match found.schema {
        Some(version) if version == newest => {
            report.good("postgres.schema", format!("version {version}"));
        }
        Some(version) if version > newest => report.warning(
            "postgres.schema",
            format!("version {version}, newer than this build's {newest}"),
            "finish the upgrade of all nodes",
        ),
        Some(version) => report.fault(
            "postgres.schema",
            format!("version {version}, and this build needs {newest}"),
            "run `blindpipe migrate`",
        ),
        None => report.fault(
            "postgres.schema",
            "there is none, or the role may not read it",
            "run `blindpipe migrate` with MIGRATE_DATABASE_URL and DATABASE_URL",
        ),
    }
}

fn check_role(config: &Config, found: &Postgres, report: &mut Report) {
    let part = "postgres.role";
    let remedy = "give nodes a role of their own, without rights, and run `blindpipe migrate` with \
                  the owner's MIGRATE_DATABASE_URL";
    let said = "it owns the tables or is a superuser: it could change what is append-only";
    match (found.is_powerful, config.database_separate.0) {
        (false, _) => report.good(part, "it owns nothing and is no superuser"),
        (true, true) => report.fault(part, said, remedy),
        (true, false) => report.warning(part, said, remedy),
    }
}

fn check_connections(config: &Config, found: &Postgres, report: &mut Report) {
    // As `node::Stores` opens them.
    let writers = 2 * config.send_writers.0;
    let webhooks = if config.webhook_worker.0 { 6 } else { 2 };
    let tokens = u32::try_from(MAX_CONCURRENT_LOOKUPS).unwrap_or(u32::MAX);
    let wanted = config.database_pool.0 + writers + 3 + 3 + tokens + webhooks;
    let max = found.max_connections;
    report.require(
        "postgres.connections",
        i64::from(wanted) < max,
        format!("{max} allowed; a node opens about {wanted}"),
        format!("{max} allowed, and a single node opens about {wanted}"),
        "raise max_connections, lower DATABASE_POOL_SIZE, or put PgBouncer between",
    );
}

/// Whether everything that is sealed under `SERVER_SECRET` opens, and still does without its later secrets.
async fn check_seals(config: &Config, clock: &Clock, report: &mut Report) {
    let (webhooks, push) = match count_seals(config, clock).await {
        Ok((webhooks, push)) => (Ok(webhooks), Ok(push)),
        Err(error) => (Err(error.clone()), Err(error)),
    };
    report_seals("webhooks.secrets", "webhook_secrets_old", webhooks, report);
    report_seals("push.secrets", "push_secrets_old", push, report);
}

/// Reports the numbers under an earlier secret of the ring and under none.
fn report_seals(
    part: &'static str,
    gauge: &str,
    counted: Result<(i64, i64), String>,
    report: &mut Report,
) {
    match counted {
        Ok((_, unreadable)) if unreadable > 0 => report.fault(
            part,
            format!("{unreadable} are sealed under a secret that SERVER_SECRET does not have"),
            &format!(
                "keep that secret at the end of SERVER_SECRET until {gauge} is 0 on all nodes"
            ),
        ),
        Ok((old, _)) if old > 0 => report.warning(
            part,
            format!("{old} are not sealed under the first secret yet"),
            "remove no secret from SERVER_SECRET; the nodes seal them anew within minutes",
        ),
        Ok(_) => report.good(part, "all are sealed under the first secret"),
        Err(error) => {
            let said = error.lines().next().unwrap_or_default();
            let said = format!("they cannot be counted: {said}");
            report.warning(
                part,
                said,
                "remove no secret from SERVER_SECRET before they are",
            );
        }
    }
}

/// The secrets of webhooks and the addresses of pushes: those under an earlier secret, and under none.
async fn count_seals(config: &Config, clock: &Clock) -> Result<((i64, i64), (i64, i64)), String> {
    let secret: ServerSecret = config.server_secret.expose_secret().parse()?;
    let random = Random::new(clock.clone());
    let seal = SecretSeal::new(&secret, random.clone());
    let endpoints = EndpointSeal::new(&secret, random);
    let (url, wait) = (&config.database_url, config.database_timeout.millis());
    let db = Db::new(url, "blindpipe doctor", 1, Plans::Free, wait)
        .map_err(|error| format!("{error:?}"))?;
    let counted = async {
        let webhooks = webhooks::count_seals(&db, &seal).await?;
        let push = push::count_seals(&db, &endpoints).await?;
        Result::Ok((
            (webhooks.old, webhooks.unreadable),
            (push.old, push.unreadable),
        ))
    };
    counted
        .await
        .map_err(|error: crate::error::Error| format!("{error:?}"))
}

/// Whether a node would take a connection: behind a pooler, the role itself needs time-outs.
async fn check_timeouts(config: &Config, report: &mut Report) {
    let part = "postgres.timeouts";
    let remedy = "give the role of DATABASE_URL the time-outs that the chart's README has for \
                  PgBouncer: `alter role … set statement_timeout = …`, twice \
                  DATABASE_TIMEOUT_MS, and two others";
    let wait = config.database_timeout.millis();
    match Postgres::missing_timeouts(&config.database_url, wait).await {
        Ok(missing) if missing.is_empty() => report.good(part, "a connection has all of them"),
        Ok(missing) => {
            let said = format!(
                "connections through this pooler have no {}",
                missing.join(" and no ")
            );
            report.warning(part, said, remedy);
        }
        Err(error) => {
            let error = format!("{error:?}");
            // A refusal of the pool says its reason twice, on two lines.
            let reason = error.lines().next().unwrap_or_default();
            let reason = reason
                .split_once("hook failed: ")
                .map_or(reason, |(_, own)| own);
            report.fault(part, format!("nodes refuse to connect: {reason}"), remedy);
        }
    }
}

/// Whether Redis is new enough and forgets nothing by itself.
pub(super) async fn check_redis(config: &Config, clock: &Clock, report: &mut Report) {
    let found = tokio::time::timeout(SERVICE_TIMEOUT, Redis::of(&config.redis_url)).await;
    let found = match found.map_err(|_| "no answer in time".into()).flatten() {
        Ok(found) => found,
        Err(error) => {
            let said = format!("it cannot be reached with REDIS_URL: {error}");
            let remedy = "check host, port, password, TLS and the network policy; a node runs \
                          without Redis, with limits of its own and later hints";
            return report.fault("redis", said, remedy);
        }
    };
    let major = found.version.split('.').next().unwrap_or_default();
    report.require(
        "redis.version",
        major.parse::<u32>().is_ok_and(|major| major >= MIN_REDIS),
        format!("version {}", found.version),
        format!(
            "version {}, and {MIN_REDIS} or newer is needed",
            found.version
        ),
        "upgrade Redis",
    );
    let remedy = "set maxmemory-policy to noeviction: eviction would drop limits and slots";
    match found.policy.as_deref() {
        Some("noeviction") => report.good("redis.policy", "noeviction"),
        Some(policy) => report.fault("redis.policy", policy.to_owned(), remedy),
        None => report.warning("redis.policy", "the server does not say it", remedy),
    }
    if found.round_trip > config.redis_timeout.millis() / 2 {
        report.warning(
            "redis.latency",
            format!("{} ms for a command", found.round_trip.as_millis()),
            "move Redis nearer, or raise REDIS_TIMEOUT_MS",
        );
    } else {
        report.good("redis.latency", "short");
    }
    check_clock("redis.clock", clock, found.clock, report);
}

/// Compares a service's clock with this machine's. The clock came with half a round trip's delay.
fn check_clock(part: &str, own: &Clock, clock: Duration, report: &mut Report) {
    let own = u64::try_from(own.now().timestamp_millis()).unwrap_or_default();
    let skew = Duration::from_millis(own).abs_diff(clock);
    let said = format!("{:.1} s from this machine's", skew.as_secs_f64());
    let remedy = "keep both clocks right with NTP; access tokens end by this machine's clock";
    if skew > MAX_SAFE_CLOCK_SKEW {
        report.fault(part, said, remedy);
    } else if skew > MAX_CLOCK_SKEW {
        report.warning(part, said, remedy);
    } else {
        report.good(part, "as this machine's");
    }
}

/// Whether the mail server takes the node's login.
pub(super) async fn check_mail(config: &Config, report: &mut Report) {
    let tried = async { Mailer::new(config)?.check().await };
    let tried = tokio::time::timeout(SERVICE_TIMEOUT, tried).await;
    match tried.map_err(|_| "no answer in time".into()).flatten() {
        Ok(()) => report.good("mail", "the server answers; nothing was sent"),
        Err(error) => report.fault(
            "mail",
            format!("no mail can be sent: {error}"),
            "check MAIL_URL: host, port, TLS, user and password. Without mail nobody can register",
        ),
    }
}

/// Whether an object can be written, read and deleted.
pub(super) async fn check_objects(config: &Config, random: &Random, report: &mut Report) {
    let tried = async { Backend::open(config)?.probe(random).await };
    let tried = tokio::time::timeout(SERVICE_TIMEOUT, tried).await;
    match tried.map_err(|_| "no answer in time".into()).flatten() {
        Ok(()) => report.good("objects", "an object was written, read and deleted"),
        Err(error) => report.fault(
            "objects",
            error.to_string(),
            "check OBJECT_STORE_URL and its rights: get, put, delete and multipart uploads",
        ),
    }
}
