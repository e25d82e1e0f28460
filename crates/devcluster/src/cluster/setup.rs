//! The settings of the cluster that precede its nodes, and the nodes' first start.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    cluster_file::ClusterFile,
    greeting::short,
    node::{self, Node, Ports},
    passkey_page::PasskeyPage,
    settings::Settings,
};
use crate::{
    certs::Certificates,
    error::{Context, DevError, Result},
    files::{log_tail, make_folder},
    ports::{free_port, is_free},
    process::Process,
    services::Services,
    terminal::{say, warn},
};

/// The search for free ports begins here.
const FIRST_PORTS: Ports = Ports {
    public: 18443,
    admin: 19443,
};
const NODES: usize = 2;
/// The time between two erasures.
const ERASURE_INTERVAL: Duration = Duration::from_hours(24);
/// Ports that other programs may take before the start fails.
const MAX_LOST_PORTS: usize = 20;

pub struct Setup {
    pub settings: Settings,
    pub cluster_file: ClusterFile,
    pub http: reqwest::Client,
    /// The program of the nodes.
    server: PathBuf,
}

impl Setup {
    pub async fn prepare(services: &Services, server: &Path) -> Result<(Self, PasskeyPage)> {
        let root = &services.directories.root;
        let cluster_file = ClusterFile::new(root.join("cluster.json"));
        let certificates = Certificates::prepare(&root.join("tls"))?;
        let passkey_page = PasskeyPage::bind(&certificates).await?;
        let settings = Settings::new(services, certificates, passkey_page.origin(), server)?;
        make_folder(&settings.mails, 0o700)?;
        make_folder(&root.join("logs"), 0o700)?;
        // Probes go over plain HTTP on loopback: no proxy, no certificates of the system.
        let http = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .build();
        let setup = Setup {
            settings,
            cluster_file,
            http: http.with_context(|| "make an HTTP client".into())?,
            server: server.to_owned(),
        };
        Ok((setup, passkey_page))
    }

    /// The page to try passkeys on with `node`.
    pub fn passkey_page_url(&self, node: &Node) -> String {
        format!("{}/{}", self.settings.passkey_origin, node.name)
    }

    /// Migrates the database and starts the nodes. Their processes go into `processes` as they
    /// start.
    pub async fn start_nodes(&self, processes: &mut Vec<Process>) -> Result<Vec<Node>> {
        node::end_leftovers(&self.settings.root)?;
        let mut nodes = self.plan(&[])?;
        self.migrate(&nodes[0]).await?;
        let mut lost_ports = Vec::new();
        loop {
            let Err(error) = self.start_all(&nodes, processes).await else {
                return Ok(nodes);
            };
            processes.clear();
            // Another program may have taken a port after it was found free.
            let ports = nodes
                .iter()
                .flat_map(|node| [node.ports.public, node.ports.admin]);
            let taken: Vec<_> = ports.filter(|port| !is_free(*port)).collect();
            if taken.is_empty() || lost_ports.len() > MAX_LOST_PORTS {
                return Err(error);
            }
            lost_ports.extend(taken);
            nodes = self.plan(&lost_ports)?;
        }
    }

    /// Starts all nodes and waits until each is ready.
    async fn start_all(&self, nodes: &[Node], processes: &mut Vec<Process>) -> Result<()> {
        for node in nodes {
            node.rotate_log();
            processes.push(node.spawn()?);
        }
        for (node, process) in nodes.iter().zip(processes) {
            node.first_ready(&self.http, process).await?;
        }
        Ok(())
    }

    /// The nodes, on ports that are free now and not in `excluded_ports`.
    fn plan(&self, excluded_ports: &[u16]) -> Result<Vec<Node>> {
        let mut taken = excluded_ports.to_vec();
        let mut take = |from| {
            let port = free_port(from, &taken)?;
            taken.push(port);
            Ok(port)
        };
        let ports = (0..NODES).map(|_| {
            Ok(Ports {
                public: take(FIRST_PORTS.public)?,
                admin: take(FIRST_PORTS.admin)?,
            })
        });
        let ports = ports.collect::<Result<Vec<_>>>()?;
        let public: Vec<_> = ports.iter().map(|ports| ports.public).collect();
        let nodes = ports.iter().enumerate().map(|(n, ports)| {
            let name = format!("node-{}", n + 1);
            Node::new(name, *ports, &self.server, &self.settings, &public)
        });
        Ok(nodes.collect())
    }

    /// Erases the key backups of deleted accounts once a day, as an operator's schedule does.
    pub async fn erase_daily(&self, node: &Node) {
        loop {
            let log = self.settings.root.join("logs/erase.log");
            match node.run("erase", &self.settings.erasure(), &log) {
                Ok(mut process) => {
                    if !node::wait(&mut process).await.success() {
                        warn(format!("The erasure failed; see {}.", short(&log)));
                    }
                }
                Err(error) => warn(error),
            }
            tokio::time::sleep(ERASURE_INTERVAL).await;
        }
    }

    async fn migrate(&self, node: &Node) -> Result<()> {
        let began = Instant::now();
        let log = self.settings.root.join("logs/migrate.log");
        let _ = fs::remove_file(&log);
        let mut process = node.run("migrate", &self.settings.migration(), &log)?;
        let status = node::wait(&mut process).await;
        if status.success() {
            say(format!(
                "Database migrated ({:.1} s)",
                began.elapsed().as_secs_f32()
            ));
            return Ok(());
        }
        Err(DevError::new(format!(
            "the migration failed ({status}); the end of {}:\n{}",
            short(&log),
            log_tail(&log)
        )))
    }
}
