//! Reads the settings of a node, with the checks of the modules that use them.

use crate::{
    auth::{server_secret::ServerSecret, token_keys::KeyRing, turnstile},
    config::{Checks, Config, Faults, Profile},
    features::{passkeys, web_app, webhooks::signature::Brand},
    limits::table::Overrides,
    mail,
    objects::location,
    telemetry::{self, trace::SampleRatio},
};

use super::production;

/// The checks of all modules.
const CHECKS: Checks = Checks {
    texts: &[
        ("ACCESS_TOKEN_KEYS", KeyRing::check),
        ("SERVER_SECRET", ServerSecret::check),
        ("LIMIT_OVERRIDES", Overrides::check),
        ("OBJECT_STORE_URL", location::check_url),
        ("TRACE_SAMPLE_RATIO", SampleRatio::check),
        ("WEBHOOK_BRAND", Brand::check),
    ],
    rules: &[
        check_listeners,
        passkeys::check_settings,
        location::check_settings,
        mail::check_settings,
        turnstile::check_settings,
        telemetry::check_settings,
        web_app::check_settings,
        production::check_settings,
    ],
};

/// Reads the settings through `get`. The faults of all modules are in the same list.
pub fn read_settings(get: impl Fn(&str) -> Option<String>) -> Result<Config, Faults> {
    Config::read(get, CHECKS)
}

/// The rules of the listeners.
fn check_listeners(config: &Config, faults: &mut Vec<String>) {
    if config.tls_cert.is_some() != config.tls_key.is_some() {
        faults.push("TLS_CERT_FILE and TLS_KEY_FILE: give both or neither".into());
    }
    if config.tls_cert.is_none() && config.trusted_proxies.0.is_empty() {
        faults.push(
            "TLS_CERT_FILE or TRUSTED_PROXIES: without one of them every request would be \
             refused as not TLS"
                .into(),
        );
    }
    if config.tls_cert.is_none() && !config.proxy_protocol.0.is_empty() {
        faults.push(
            "PROXY_PROTOCOL_FROM: needs TLS_CERT_FILE, because such a load balancer does not \
             terminate TLS"
                .into(),
        );
    }
    let loopback = config.listen.ip().is_loopback() && config.admin.ip().is_loopback();
    if config.profile == Profile::Dev && !loopback {
        faults.push(
            "PROFILE: dev is refused unless LISTEN_ADDR and ADMIN_ADDR are on loopback".into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

    use super::*;

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
        let read = read_settings(|name| all.get(name).map(|value| (*value).to_owned()));
        read.err()
            .map(|faults| faults.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn the_human_check_shares_no_origin_with_what_it_protects() {
        let check = ("CHECK_ORIGIN", "https://check.example.org");
        let key = ("TURNSTILE_SITE_KEY", "0x4AAAAAAB");
        assert_eq!(faults_with(&[check, key]), "");
        assert!(faults_with(&[check]).contains("TURNSTILE_SITE_KEY: required"));
        let origin = "https://chat.example.org";
        assert!(faults_with(&[("CHECK_ORIGIN", origin), key]).contains("CHECK_ORIGIN: must"));
        let allowed = ("ALLOWED_ORIGINS", "https://check.example.org");
        assert!(faults_with(&[check, key, allowed]).contains("CHECK_ORIGIN: must"));
        assert!(faults_with(&[("WIDGET_ORIGINS", "*"), key]).contains("WIDGET_ORIGINS"));
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
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://db.internal:4318"),
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
    fn a_broken_text_of_a_mail_stops_the_start() {
        let folder = std::env::temp_dir().join(format!("texts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("code_login.fr.txt");
        let shown = folder.display().to_string();
        let said = |text: &str| {
            std::fs::write(&file, text).expect("written");
            faults_with(&[("MAIL_TEMPLATES", &shown)])
        };
        assert_eq!(said("Subject: Votre code\n\n{{code}}"), "");
        let fault = said("Subject: Votre code\n\n{{code}} {{nom}}");
        let missing = faults_with(&[("MAIL_TEMPLATES", "/nowhere/at/all")]);
        std::fs::remove_dir_all(&folder).expect("removed");
        let expected = "MAIL_TEMPLATES: code_login.fr.txt: this mail has no value {{nom}}";
        assert!(fault.contains(expected), "{fault}");
        assert!(
            missing.contains("MAIL_TEMPLATES: cannot be read"),
            "{missing}"
        );
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
    fn all_faults_are_in_the_same_list() {
        let get = |name: &str| (name == "LIMIT_OVERRIDES").then(|| "x=1/s".to_owned());
        let faults = read_settings(get).expect_err("faults").to_string();
        for fault in ["LIMIT_OVERRIDES: ", "DATABASE_URL: must be set"] {
            assert!(faults.contains(fault), "{faults}");
        }
    }
}
