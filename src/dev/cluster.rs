//! The dev cluster from start to stop: services, certificates, secrets, migration, two nodes, the played
//! conversation; then it stays up, starting again whatever ends, until it is asked to stop.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    certs::Certificates,
    demo,
    greeting::{greet, short},
    node::{self, Node},
    place::{Place, make_folder},
    ports::{free_port, is_free},
    process::{self, Process},
    published::Published,
    services::{Profile, Services},
    settings::Settings,
    stop::Stop,
    terminal::{say, warn},
    trouble::{Context, DevError, Result},
};
use crate::clock::Clock;

/// Where the search for free ports begins: public listeners, admin listeners.
const FIRST_PORTS: (u16, u16) = (18443, 19443);
const NODES: usize = 2;

/// Runs the cluster in the folder `dev`, with the programs in `packages` if given, until it is asked to stop.
pub async fn run(dev: &Path, packages: Option<&Path>, with_demo: bool) -> Result<()> {
    let stop = Stop::default();
    tokio::select! {
        result = start_and_stay(dev, packages, with_demo, &stop) => result,
        internal = stop.listen() => internal.doing(|| "listen for signals".into()),
    }
}

async fn start_and_stay(
    dev: &Path,
    packages: Option<&Path>,
    with_demo: bool,
    stop: &Stop,
) -> Result<()> {
    let began = Instant::now();
    let mut services = start_services(dev, packages, stop).await?;
    let cluster = Cluster::prepare(&services)?;
    let mut running = Vec::new();
    let started = tokio::select! {
        nodes = cluster.start(&mut running) => nodes,
        () = stop.requested() => Err(DevError::new("stopped before the cluster was up")),
    };
    let nodes = match started {
        Ok(nodes) => nodes,
        Err(trouble) => {
            for process in running {
                node::drain(process, stop).await;
            }
            return Err(trouble);
        }
    };
    let pids: Vec<_> = running.iter().map(Process::pid).collect();
    cluster
        .published
        .publish(&nodes, &pids, &services, &cluster.settings)?;
    say(format!(
        "The cluster is up ({:.1} s).\n",
        began.elapsed().as_secs_f32()
    ));
    let lives = cluster.lives(&nodes, running, stop);
    tokio::join!(
        lives,
        keep(&mut services, stop),
        cluster.show(&nodes, with_demo, stop)
    );
    services.stop();
    say("Everything is stopped.");
    Ok(())
}

/// Starts Postgres and Redis, which blocks, on a thread of its own, so that Ctrl-C is heard meanwhile.
async fn start_services(dev: &Path, packages: Option<&Path>, stop: &Stop) -> Result<Services> {
    let began = Instant::now();
    let (answer, mut started) = oneshot::channel();
    let (dev, packages) = (dev.to_owned(), packages.map(Path::to_owned));
    thread::spawn(move || {
        let place = Place::at(&dev).map(|place| place.with_packages(packages.as_deref()));
        // Nobody listens any more only if the launcher gave up; then the services end by being dropped here.
        drop(answer.send(place.and_then(|place| Services::start_at(place, Profile::Durable))));
    });
    let services = tokio::select! {
        services = &mut started => services.doing(|| "start the services".into())??,
        () = stop.requested() => {
            process::interrupt();
            // The thread sees its child end, cleans up and answers; what it started ends with this process anyway.
            let _ = timeout(Duration::from_secs(20), started).await;
            return Err(DevError::new("stopped before the cluster was up"));
        }
    };
    let (postgres, redis) = (&services.postgres, &services.redis);
    let (postgres_version, redis_version) = (
        &services.tools.postgres.version,
        &services.tools.redis.version,
    );
    let took = began.elapsed().as_secs_f32();
    let (postgres, redis) = (postgres.port(), redis.port());
    say(format!(
        "PostgreSQL {postgres_version} on port {postgres}, Redis {redis_version} on port {redis} ({took:.1} s)"
    ));
    Ok(services)
}

/// Starts Postgres or Redis again if they end, until the stop is requested.
async fn keep(services: &mut Services, stop: &Stop) {
    loop {
        tokio::select! {
            () = sleep(Duration::from_millis(500)) => {}
            () = stop.requested() => return,
        }
        if services.redis.is_down() {
            say("Redis has ended. Starting it again, empty.");
            services.redis.restart().unwrap_or_else(warn);
        }
        if services.postgres.is_down() {
            say("PostgreSQL has ended. Starting it again.");
            services.postgres.restart().unwrap_or_else(warn);
        }
    }
}

/// What is fixed before the nodes start.
struct Cluster {
    settings: Settings,
    published: Published,
    http: reqwest::Client,
}

impl Cluster {
    fn prepare(services: &Services) -> Result<Self> {
        let dev = &services.place.dev;
        let published = Published::nothing(dev.join("cluster.json"));
        let certificates = Certificates::prepare(&dev.join("tls"), Clock::default().now())?;
        let settings = Settings::new(services, certificates)?;
        make_folder(&settings.mails, 0o700)?;
        make_folder(&dev.join("logs"), 0o700)?;
        // Probes go over plain HTTP on loopback: no proxy, no certificates of the system.
        let http = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .build();
        Ok(Cluster {
            settings,
            published,
            http: http.doing(|| "make an HTTP client".into())?,
        })
    }

    /// Migrates and starts the nodes; their processes are put into `running` as they start.
    async fn start(&self, running: &mut Vec<Process>) -> Result<Vec<Node>> {
        node::end_leftovers(&self.settings.dev)?;
        let mut nodes = self.plan(&[])?;
        self.migrate(&nodes[0]).await?;
        let mut lost = Vec::new();
        loop {
            nodes.iter().for_each(Node::rotate_log);
            for node in &nodes {
                running.push(node.spawn()?);
            }
            let mut trouble = None;
            for (node, process) in nodes.iter().zip(running.iter_mut()) {
                if trouble.is_none() {
                    trouble = node.first_ready(&self.http, process).await.err();
                }
            }
            let Some(trouble) = trouble else {
                return Ok(nodes);
            };
            running.clear();
            // Was it the port? Another program may have taken it after it was found free.
            let ports = nodes.iter().flat_map(|node| [node.port, node.admin_port]);
            let stolen: Vec<_> = ports.filter(|port| !is_free(*port)).collect();
            if stolen.is_empty() || lost.len() > 20 {
                return Err(trouble);
            }
            lost.extend(stolen);
            nodes = self.plan(&lost)?;
        }
    }

    /// The nodes, on ports that are free now and none of `lost`.
    fn plan(&self, lost: &[u16]) -> Result<Vec<Node>> {
        let mut taken = lost.to_vec();
        let mut take = |from| {
            let port = free_port(from, &taken)?;
            taken.push(port);
            Ok(port)
        };
        let ports = (0..NODES).map(|_| Ok((take(FIRST_PORTS.0)?, take(FIRST_PORTS.1)?)));
        let ports = ports.collect::<Result<Vec<_>>>()?;
        let public: Vec<_> = ports.iter().map(|ports| ports.0).collect();
        let nodes = ports.iter().enumerate();
        Ok(nodes
            .map(|(n, ports)| Node::new(n + 1, *ports, &public, &self.settings))
            .collect())
    }

    async fn migrate(&self, node: &Node) -> Result<()> {
        let began = Instant::now();
        let log = self.settings.dev.join("logs/migrate.log");
        let _ = fs::remove_file(&log);
        let mut process = node.run("migrate", &log)?;
        let how = node::ended(&mut process).await;
        if process.ended().is_some_and(|status| status.success()) {
            say(format!(
                "Database migrated ({:.1} s)",
                began.elapsed().as_secs_f32()
            ));
            return Ok(());
        }
        let (log, words) = (short(&log), node::tail(&log));
        Err(DevError::new(format!(
            "the migration failed ({how}); the end of {log}:\n{words}"
        )))
    }

    /// All nodes' lives, until each has ended after the stop was requested.
    async fn lives(&self, nodes: &[Node], running: Vec<Process>, stop: &Stop) {
        let lives = nodes
            .iter()
            .zip(running)
            .enumerate()
            .map(|(n, (node, process))| {
                let moved = move |pid| self.published.moved(n, pid).unwrap_or_else(warn);
                node.live(process, &self.http, stop, moved)
            });
        futures_util::future::join_all(lives).await;
    }

    /// Plays the conversation and greets; takes the file back when the stop is requested.
    async fn show(&self, nodes: &[Node], with_demo: bool, stop: &Stop) {
        tokio::select! {
            () = self.play_and_greet(nodes, with_demo) => {}
            () = stop.requested() => {}
        }
        stop.requested().await;
        self.published.forget();
    }

    async fn play_and_greet(&self, nodes: &[Node], with_demo: bool) {
        let mut played = None;
        if let (true, [first, second, ..]) = (with_demo, nodes) {
            let (first, second) = (first.base_url(), second.base_url());
            let (ca, mails) = (&self.settings.certificates.ca, &self.settings.mails);
            match Box::pin(demo::play(&first, &second, ca, mails)).await {
                Ok(agent) => played = Some(agent),
                Err(trouble) => {
                    let logs = short(&self.settings.dev.join("logs"));
                    warn(format!(
                        "The played conversation failed: {trouble}\nThe cluster stays up; its logs are in {logs}."
                    ));
                }
            }
        }
        greet(nodes, &self.published, &self.settings, played.as_ref());
    }
}
