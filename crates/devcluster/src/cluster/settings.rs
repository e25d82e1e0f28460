//! The settings of the nodes, passed through their environment.
//!
//! The nodes inherit the launcher's environment, so a load test can raise limits. Addresses and
//! files of this cluster always come from the launcher.

use std::{
    env,
    num::NonZero,
    path::{Path, PathBuf},
};

use super::{
    node::Ports,
    secrets::{self, Secrets},
};
use crate::{certs::Certificates, error::Result, services::Services};

/// Marks the nodes of this folder, so that a later start recognises them.
pub const CLUSTER_VARIABLE: &str = "BLINDPIPE_DEV_CLUSTER";

/// The domain that passkeys of the cluster belong to.
pub const RP_ID: &str = "localhost";

/// Settings that all nodes share.
#[derive(Debug)]
pub struct Settings {
    /// `.dev`, absolute.
    pub root: PathBuf,
    /// The certificate and its authority.
    pub certificates: Certificates,
    /// Folder of the mails that the nodes send.
    pub mails: PathBuf,
    /// The web origin of the page to try passkeys on.
    pub passkey_origin: String,
    /// The folder of the built web app that the nodes serve, if there is one.
    pub app: Option<PathBuf>,
    secrets: Secrets,
    database_url: String,
    migrate_database_url: String,
    erase_database_url: String,
    redis_url: String,
}

impl Settings {
    pub fn new(
        services: &Services,
        certificates: Certificates,
        passkey_origin: String,
        server: &Path,
    ) -> Result<Self> {
        let root = services.directories.root.clone();
        Ok(Settings {
            certificates,
            passkey_origin,
            app: app(server),
            mails: root.join("mail"),
            secrets: secrets::prepare(&root.join("secrets.env"))?,
            database_url: services.postgres.serving_url(),
            migrate_database_url: services.postgres.url(),
            erase_database_url: services.postgres.erasing_url(),
            redis_url: services.redis.url(),
            root,
        })
    }

    /// The environment of the node `name` on `ports`. `all` are the public ports of all nodes.
    pub fn environment(&self, name: &str, ports: Ports, all: &[u16]) -> Vec<(String, String)> {
        let is_given = |name: &str| {
            env::var_os(name).is_some() || env::var_os(format!("{name}_FILE")).is_some()
        };
        let mut environment = self.owned(name, ports, all);
        environment.extend(unless_given(self.defaults(all), is_given));
        environment
    }

    /// The settings of a migration beside the environment of a node: the other roles.
    pub fn migration(&self) -> [(&str, &str); 2] {
        [
            ("MIGRATE_DATABASE_URL", &self.migrate_database_url),
            ("ERASE_DATABASE_URL", &self.erase_database_url),
        ]
    }

    /// The setting of an erasure beside the environment of a node.
    pub fn erasure(&self) -> [(&str, &str); 1] {
        [("ERASE_DATABASE_URL", &self.erase_database_url)]
    }

    fn owned(&self, name: &str, ports: Ports, all: &[u16]) -> Vec<(String, String)> {
        let Ports { public, admin } = ports;
        let path = |path: &PathBuf| path.display().to_string();
        let pairs = [
            ("PROFILE", "dev".to_owned()),
            ("NODE_NAME", name.to_owned()),
            ("LISTEN_ADDR", format!("127.0.0.1:{public}")),
            ("ADMIN_ADDR", format!("127.0.0.1:{admin}")),
            // All nodes share a public address, as behind a load balancer. It is the issuer of the
            // access tokens.
            ("PUBLIC_URL", origin(all.first().copied().unwrap_or(public))),
            ("RP_ID", RP_ID.to_owned()),
            (
                "RP_ORIGIN",
                self.with_passkey_origin(all.iter().map(|port| origin(*port))),
            ),
            ("TLS_CERT_FILE", path(&self.certificates.cert)),
            ("TLS_KEY_FILE", path(&self.certificates.key)),
            ("DATABASE_URL", self.database_url.clone()),
            ("REDIS_URL", self.redis_url.clone()),
            ("MAIL_URL", format!("file://{}", path(&self.mails))),
            (
                "OBJECT_STORE_URL",
                format!("file://{}", path(&self.root.join("objects"))),
            ),
            (CLUSTER_VARIABLE, path(&self.root)),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// A comma list of `origins` and that of the passkey page.
    fn with_passkey_origin(&self, origins: impl Iterator<Item = String>) -> String {
        let all = origins.chain([self.passkey_origin.clone()]);
        all.collect::<Vec<_>>().join(",")
    }

    fn defaults(&self, all: &[u16]) -> Vec<(String, String)> {
        let origins = all
            .iter()
            .flat_map(|port| [origin(*port), format!("https://127.0.0.1:{port}")]);
        let pairs = [
            ("ALLOWED_ORIGINS", self.with_passkey_origin(origins)),
            ("TRUSTED_PROXIES", "127.0.0.1/32".to_owned()),
            ("MAIL_FROM", "Blindpipe <no-reply@localhost>".to_owned()),
            // The nodes share a machine, and the idle threads of a node disturb the other when they
            // wake.
            (
                "TOKIO_WORKER_THREADS",
                (cores() / all.len().max(1)).max(1).to_string(),
            ),
            // No load balancer watches these nodes.
            ("DRAIN_LAG_SECONDS", "0".to_owned()),
            ("WEBHOOK_RETRY_SECONDS", "10".to_owned()),
        ];
        let app = self
            .app
            .iter()
            .map(|app| ("APP_DIR", app.display().to_string()));
        let pairs = pairs.into_iter().chain(app);
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value));
        self.secrets.iter().cloned().chain(pairs).collect()
    }
}

/// The folder that `APP_DIR` names, or `app` beside the program of the nodes, as a release has it.
fn app(server: &Path) -> Option<PathBuf> {
    let given = env::var_os("APP_DIR").filter(|given| !given.is_empty());
    let app = given.map_or_else(|| server.with_file_name("app"), PathBuf::from);
    app.join("index.html").is_file().then_some(app)
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
