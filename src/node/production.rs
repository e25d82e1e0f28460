//! The rules of production: TLS to every other machine, and no values of a developer's machine.

use reqwest::Url;
use secrecy::ExposeSecret;

use crate::config::{Config, Profile};

/// Checks the rules, and adds a line per fault.
pub(super) fn check_settings(config: &Config, faults: &mut Vec<String>) {
    if config.profile != Profile::Production {
        return;
    }
    if cfg!(feature = "planted-bugs") {
        faults.push("this build has bugs on purpose (the feature planted-bugs)".into());
    }
    if config.limits_off.0 {
        faults.push("LIMITS_OFF: limits can be off in the dev profile only".into());
    }
    if config.quick_hashes.0 {
        faults.push("QUICK_HASHES: hashes can be quick in the dev profile only".into());
    }
    if config.upkeep_speed.0 != 1 {
        faults.push("UPKEEP_SPEED: upkeep can be sped up in the dev profile only".into());
    }
    check_transport(config, faults);
    if !config.allow_test_values.0 {
        check_test_values(config, faults);
    }
}

/// Everything that leaves the machine is encrypted, unless the operator names the host.
fn check_transport(config: &Config, faults: &mut Vec<String>) {
    let expose = ExposeSecret::expose_secret;
    let links = [
        ("DATABASE_URL", clear_postgres(expose(&config.database_url))),
        (
            "REDIS_URL",
            clear_hosts(expose(&config.redis_url), &["rediss"]),
        ),
        ("MAIL_URL", clear_mail(expose(&config.mail_url))),
        (
            "TURNSTILE_URL",
            clear_hosts(&config.turnstile_url, &["https"]),
        ),
        (
            "OBJECT_STORE_ENDPOINT",
            clear_hosts(&config.object_store_endpoint, &["https"]),
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            clear_hosts(&config.otlp_endpoint, &["https"]),
        ),
    ];
    for (name, hosts) in links {
        for host in hosts {
            if !is_loopback(&host) && !config.allow_cleartext.0.contains(&host) {
                faults.push(format!(
                        "{name}: {host} would be reached without TLS; use TLS, or name it in ALLOW_CLEARTEXT"
                    ));
            }
        }
    }
}

/// Values that only make sense on a developer's machine.
fn check_test_values(config: &Config, faults: &mut Vec<String>) {
    let host = |url: &str| Url::parse(url).ok()?.host_str().map(str::to_owned);
    let origins = config.rp_origins.0.iter();
    let local = [
        ("PUBLIC_URL", host(&config.public_url)),
        ("RP_ID", Some(config.rp_id.clone())),
        (
            "RP_ORIGIN",
            origins
                .filter_map(|origin| origin.0.host_str())
                .find(|host| is_loopback(host))
                .map(str::to_owned),
        ),
        (
            "MAIL_FROM",
            config
                .mail_from
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
    let secret = ExposeSecret::expose_secret(&config.turnstile_secret);
    let zeros = secret
        .trim_start_matches(['1', '2', '3'])
        .trim_start_matches('x');
    if secret.len() > 20 && zeros.trim_start_matches('0') == "AA" {
        faults.push("TURNSTILE_SECRET: a public test key accepts or refuses everybody".into());
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
    let Ok(url) = Url::parse(url) else {
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
    let required = Url::parse(url).is_ok_and(|url| {
        url.query_pairs()
            .any(|(name, value)| name == "tls" && value == "required")
    });
    if required || url.starts_with("file:") {
        return Vec::new();
    }
    clear_hosts(url, &["smtps"])
}
