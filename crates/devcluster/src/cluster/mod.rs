//! The cluster from start to stop: services, certificates, secrets, migration, nodes. It restarts
//! anything that ends until a shutdown is requested.

mod backing;
mod cluster_file;
mod greeting;
mod node;
mod passkey_page;
mod secrets;
mod settings;
mod setup;
mod shutdown;

use std::{path::PathBuf, sync::Arc, time::Instant};

pub use self::shutdown::Shutdown;
use self::{node::Node, passkey_page::PasskeyPage, setup::Setup};
use crate::{
    certs::Certificates,
    demo,
    error::{DevError, Result},
    process::Process,
    services::Services,
    terminal::{say, warn},
};

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of all files of the cluster.
    pub root: PathBuf,
    /// Folder of fetched programs, if it is not `packages` in `root`.
    pub packages: Option<PathBuf>,
    /// The program of the nodes.
    pub server: PathBuf,
}

/// A running cluster.
pub struct Cluster {
    setup: Arc<Setup>,
    nodes: Arc<[Node]>,
    /// An entry per node, in the same order.
    processes: Vec<Process>,
    services: Services,
    passkey_page: PasskeyPage,
}

/// Runs a cluster until the shutdown, and introduces it to the person at the terminal.
pub async fn run(options: &Options, with_demo: bool, shutdown: &Shutdown) -> Result<()> {
    let began = Instant::now();
    let cluster = Cluster::start(options, shutdown).await?;
    say(format!(
        "The cluster is up ({:.1} s).\n",
        began.elapsed().as_secs_f32()
    ));
    let (setup, nodes) = (cluster.setup.clone(), cluster.nodes.clone());
    let introduction = async {
        tokio::select! {
            () = introduce(&setup, &nodes, with_demo) => {}
            () = shutdown.requested() => {}
        }
    };
    tokio::join!(cluster.supervise(shutdown), introduction);
    say("Everything is stopped.");
    Ok(())
}

/// Plays the conversation and prints the greeting.
async fn introduce(setup: &Setup, nodes: &[Node], with_demo: bool) {
    if let (true, [first, second, ..]) = (with_demo, nodes) {
        let (first, second) = (first.base_url(), second.base_url());
        let ca = &setup.settings.certificates.ca;
        let played = Box::pin(demo::play(&first, &second, ca, &setup.settings.mails)).await;
        if let Err(error) = played {
            let logs = greeting::short(&setup.settings.root.join("logs"));
            warn(format!(
                "The played conversation failed: {error}\nThe cluster stays up; its logs are in {logs}."
            ));
        }
    }
    greeting::print(setup, nodes);
    if with_demo && setup.settings.app.is_some() {
        guide(setup, nodes).await;
    }
}

/// The agent for a person in the web app, until the cluster stops.
async fn guide(setup: &Setup, nodes: &[Node]) {
    let Some(last) = nodes.last() else { return };
    let (ca, mails) = (&setup.settings.certificates.ca, &setup.settings.mails);
    match Box::pin(demo::Guide::make(&last.base_url(), ca, mails)).await {
        Ok(guide) => {
            guide.print();
            guide.run().await;
        }
        Err(error) => warn(format!("The agent for the web app did not start: {error}")),
    }
}

impl Cluster {
    /// Starts everything. A shutdown meanwhile ends the start with an error.
    pub async fn start(options: &Options, shutdown: &Shutdown) -> Result<Self> {
        let services = backing::start(options, shutdown).await?;
        let (setup, passkey_page) = Setup::prepare(&services, &options.server).await?;
        let mut processes = Vec::new();
        let started = tokio::select! {
            nodes = setup.start_nodes(&mut processes) => nodes,
            () = shutdown.requested() => Err(DevError::new("stopped before the cluster was up")),
        };
        let nodes = match started {
            Ok(nodes) => nodes,
            Err(error) => {
                for process in processes {
                    node::drain(process, shutdown).await;
                }
                return Err(error);
            }
        };
        let pids: Vec<_> = processes.iter().map(Process::pid).collect();
        setup
            .cluster_file
            .publish(&nodes, &pids, &services, &setup.settings)?;
        Ok(Cluster {
            setup: Arc::new(setup),
            nodes: nodes.into(),
            processes,
            services,
            passkey_page,
        })
    }

    pub fn certificates(&self) -> &Certificates {
        &self.setup.settings.certificates
    }

    /// The page to try passkeys on, for node number `n` (from 0).
    pub fn passkey_page_url(&self, n: usize) -> String {
        self.setup.passkey_page_url(&self.nodes[n])
    }

    /// Restarts anything that ends until the shutdown, then stops everything in order.
    pub async fn supervise(mut self, shutdown: &Shutdown) {
        let setup = &self.setup;
        let nodes = (0..).zip(self.nodes.iter()).zip(self.processes);
        let nodes = nodes.map(|((n, node), process)| {
            let restarted = move |pid| {
                let updated = setup.cluster_file.set_pid(n, pid);
                updated.unwrap_or_else(warn);
            };
            node.supervise(process, &setup.http, shutdown, restarted)
        });
        let until_shutdown = async {
            tokio::select! {
                () = self.passkey_page.serve(&self.nodes) => {}
                () = setup.erase_daily(&self.nodes[0]) => {}
                () = shutdown.requested() => {}
            }
            setup.cluster_file.remove();
        };
        tokio::join!(
            futures_util::future::join_all(nodes),
            backing::supervise(&mut self.services, shutdown),
            until_shutdown
        );
        self.services.stop();
    }
}
