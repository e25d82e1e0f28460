//! The settings the nodes are given, through their environment.
//!
//! What the launcher's own environment says reaches the nodes (so a load test raises limits), except for addresses
//! and files of this cluster: those are the launcher's.

use std::{env, num::NonZero, path::PathBuf};

use super::{
    certs::Certificates,
    secrets::{self, Secrets},
    services::Services,
    trouble::Result,
};

/// The variable by which the nodes of this folder are recognised later.
pub const MARK: &str = "BLINDPIPE_DEV_CLUSTER";

/// The domain that passkeys of the cluster belong to.
pub const RP_ID: &str = "localhost";

/// What is the same for every node, whatever its ports.
#[derive(Debug)]
pub struct Settings {
    /// `.dev`, absolute.
    pub dev: PathBuf,
    /// The certificate and its authority.
    pub certificates: Certificates,
    /// Where mails go as files.
    pub mails: PathBuf,
    secrets: Secrets,
    database_url: String,
    redis_url: String,
}

impl Settings {
    /// The settings of nodes that use `services`.
    pub fn new(services: &Services, certificates: Certificates) -> Result<Self> {
        let dev = services.place.dev.clone();
        Ok(Settings {
            certificates,
            mails: dev.join("mail"),
            secrets: secrets::prepare(&dev.join("secrets.env"))?,
            database_url: services.postgres.url(),
            redis_url: services.redis.url(),
            dev,
        })
    }

    /// The environment of the node `name` on `ports` (public, admin); `all` are the public ports of all nodes.
    pub fn environment(&self, name: &str, ports: (u16, u16), all: &[u16]) -> Vec<(String, String)> {
        let is_given = |name: &str| {
            env::var_os(name).is_some() || env::var_os(format!("{name}_FILE")).is_some()
        };
        let mut environment = self.owned(name, ports, all);
        environment.extend(unless_given(self.defaults(all), is_given));
        environment
    }

    fn owned(&self, name: &str, (public, admin): (u16, u16), all: &[u16]) -> Vec<(String, String)> {
        let path = |path: &PathBuf| path.display().to_string();
        let pairs = [
            ("PROFILE", "dev".to_owned()),
            ("NODE_NAME", name.to_owned()),
            ("LISTEN_ADDR", format!("127.0.0.1:{public}")),
            ("ADMIN_ADDR", format!("127.0.0.1:{admin}")),
            // One public address for all, as behind a load balancer: it is the issuer of the access tokens.
            ("PUBLIC_URL", origin(all.first().copied().unwrap_or(public))),
            ("RP_ID", RP_ID.to_owned()),
            (
                "RP_ORIGIN",
                all.iter()
                    .map(|port| origin(*port))
                    .collect::<Vec<_>>()
                    .join(","),
            ),
            ("TLS_CERT_FILE", path(&self.certificates.cert)),
            ("TLS_KEY_FILE", path(&self.certificates.key)),
            ("DATABASE_URL", self.database_url.clone()),
            ("REDIS_URL", self.redis_url.clone()),
            ("MAIL_URL", format!("file://{}", path(&self.mails))),
            (MARK, path(&self.dev)),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn defaults(&self, all: &[u16]) -> Vec<(String, String)> {
        let origins = all
            .iter()
            .flat_map(|port| [origin(*port), format!("https://127.0.0.1:{port}")]);
        let pairs = [
            ("ALLOWED_ORIGINS", origins.collect::<Vec<_>>().join(",")),
            ("TRUSTED_PROXIES", "127.0.0.1/32".to_owned()),
            ("MAIL_FROM", "Blindpipe <no-reply@localhost>".to_owned()),
            // The nodes share a machine. Threads of one that wake in vain are in the way of the others.
            (
                "TOKIO_WORKER_THREADS",
                (cores() / all.len().max(1)).max(1).to_string(),
            ),
            // No load balancer looks at these nodes.
            ("DRAIN_LAG_SECONDS", "0".to_owned()),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value));
        self.secrets.iter().cloned().chain(pairs).collect()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The web origin of the node on `port`.
pub fn origin(port: u16) -> String {
    format!("https://localhost:{port}")
}

fn unless_given(
    defaults: Vec<(String, String)>,
    is_given: impl Fn(&str) -> bool,
) -> Vec<(String, String)> {
    defaults
        .into_iter()
        .filter(|(name, _)| !is_given(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_defaults() {
        let defaults = vec![
            ("A".to_owned(), "1".to_owned()),
            ("B".to_owned(), "2".to_owned()),
        ];
        assert_eq!(
            unless_given(defaults, |name| name == "A"),
            [("B".to_owned(), "2".to_owned())]
        );
    }
}
