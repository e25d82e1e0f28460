//! Additional nodes on the cluster's Postgres and Redis, without TLS, as behind a proxy. The cost
//! of a socket is then the node's cost, without its encryption. The peers use no TLS either.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    net::TcpListener,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use tokio::net::TcpStream;

use crate::{
    Failure, Result,
    cluster::{Cluster, Node},
    crowd::environment,
};

/// The longest wait until a node is ready.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A process that is killed when this is dropped.
pub struct Child(std::process::Child);

impl Child {
    /// Starts a program without output.
    pub fn spawn(command: Command) -> Result<Self> {
        Self::spawn_into(command, Stdio::null(), Stdio::null())
    }

    fn spawn_into(mut command: Command, output: Stdio, errors: Stdio) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        Ok(Child(command.spawn()?))
    }

    /// Starts this program again.
    pub fn ourselves(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        Self::spawn(command)
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The way to a node and its ways to others, if these lead through proxies.
#[derive(Clone)]
pub struct Detour {
    /// `host:port` at which the node listens.
    pub listen: String,
    /// `host:port` at which clients reach it.
    pub address: String,
    /// Settings of this node alone.
    pub settings: Vec<(String, String)>,
    /// The file to which the node's log is added; none for no log.
    pub log: Option<PathBuf>,
}

/// Nodes that are killed when this is dropped.
pub struct Plain {
    children: Vec<Child>,
    /// The program and its arguments.
    program: String,
    environment: HashMap<String, String>,
    /// The ways to and from each node.
    detours: Vec<Detour>,
    /// The cluster with only these nodes.
    pub cluster: Cluster,
}

impl Plain {
    /// Starts `nodes` nodes.
    pub async fn start(cluster: &Cluster, nodes: usize) -> Result<Self> {
        Self::start_with(cluster, nodes, &[]).await
    }

    /// Starts nodes with additional settings.
    pub async fn start_with(
        cluster: &Cluster,
        nodes: usize,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let straight = || {
            let listen = format!("127.0.0.1:{}", free_port()?);
            Ok::<_, Failure>(Detour {
                address: listen.clone(),
                listen,
                settings: Vec::new(),
                log: None,
            })
        };
        let detours = (0..nodes).map(|_| straight()).collect::<Result<_>>()?;
        Self::start_by(cluster, detours, settings).await
    }

    /// Starts a node for each detour, with additional settings.
    pub async fn start_by(
        cluster: &Cluster,
        detours: Vec<Detour>,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let pid = cluster.node(0).pid;
        let mut environment = environment(pid)?;
        environment.extend(
            settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let mut plain = Plain {
            children: Vec::new(),
            program: format!("/proc/{pid}/exe"),
            environment,
            detours,
            cluster: cluster.with_nodes(Vec::new()),
        };
        for n in 0..plain.detours.len() {
            let admin = format!("127.0.0.1:{}", free_port()?);
            let node = Node::plain(plain.detours[n].address.clone(), admin, 0);
            plain.cluster.nodes.push(node);
            let child = plain.spawn(n)?;
            plain.cluster.nodes[n].pid = child.id();
            plain.children.push(child);
            plain.up(n).await?;
        }
        Ok(plain)
    }

    fn spawn(&self, n: usize) -> Result<Child> {
        let (node, detour) = (&self.cluster.nodes[n], &self.detours[n]);
        let mut command = Command::new(&self.program);
        command.arg("serve").env_clear().envs(&self.environment);
        let own = detour.settings.iter();
        command.envs(own.map(|(name, value)| (name, value)));
        command
            .env_remove("TLS_CERT_FILE")
            .env_remove("TLS_KEY_FILE");
        command.env("NODE_NAME", format!("plain-{}", n + 1));
        command
            .env("LISTEN_ADDR", &detour.listen)
            .env("ADMIN_ADDR", &node.admin);
        let Some(log) = &detour.log else {
            return Child::spawn(command);
        };
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        Child::spawn_into(command, log.try_clone()?.into(), log.into())
    }

    async fn up(&mut self, n: usize) -> Result<()> {
        let began = Instant::now();
        while self.cluster.nodes[n].metrics().await.is_err() {
            if self.has_ended(n) {
                return Err("a node ended while it started".into());
            }
            if began.elapsed() > TIMEOUT {
                return Err("a node without TLS does not start".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Whether the process of a node has ended.
    pub fn has_ended(&mut self, n: usize) -> bool {
        !matches!(self.children[n].0.try_wait(), Ok(None))
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, n: usize) {
        self.children[n].kill();
    }

    /// Starts a node that has ended again at the same address.
    pub async fn restart(&mut self, n: usize) -> Result<()> {
        self.children[n] = self.spawn(n)?;
        self.cluster.nodes[n].pid = self.children[n].id();
        self.up(n).await
    }
}

/// A port below the kernel's range for outgoing connections, never the same one twice.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(21_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if port > 30_000 {
            return Err("no port is free".into());
        }
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}

/// Connects to a server of this machine that may still be starting.
pub async fn dial(port: u16) -> Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(_) if began.elapsed() < Duration::from_secs(5) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
