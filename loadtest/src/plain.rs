//! Nodes of our own beside the cluster's, on the same Postgres and Redis, without TLS: behind a proxy, as it were. What
//! a socket costs is then what it costs the node, not what its encryption does; and the peers speak no TLS either.

use std::{
    net::TcpListener,
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use crate::{
    Result,
    cluster::{Cluster, Node},
    crowd::environment,
};

/// Until a node is ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that is killed when this is dropped.
pub struct Child(std::process::Child);

impl Child {
    /// Starts a program, silent.
    pub fn spawn(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Child(command.spawn()?))
    }

    /// Starts this program again.
    pub fn ourselves(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        Self::spawn(command)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// SIGKILL.
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

/// Nodes that are killed when this is dropped.
pub struct Plain {
    children: Vec<Child>,
    /// The cluster, as far as they are concerned.
    pub cluster: Cluster,
}

impl Plain {
    /// Starts so many.
    pub async fn start(cluster: &Cluster, nodes: usize) -> Result<Self> {
        Self::start_with(cluster, nodes, &[]).await
    }

    /// The same with settings of their own.
    pub async fn start_with(cluster: &Cluster, nodes: usize, settings: &[(&str, &str)]) -> Result<Self> {
        let pid = cluster.node(0).pid;
        let environment = environment(pid)?;
        let mut plain = Plain { children: Vec::new(), cluster: cluster.with_nodes(Vec::new()) };
        for n in 0..nodes {
            let [public, admin] = [free_port()?, free_port()?];
            let mut command = Command::new(format!("/proc/{pid}/exe"));
            command.arg("serve").env_clear().envs(&environment).envs(settings.iter().copied());
            command.env_remove("TLS_CERT_FILE").env_remove("TLS_KEY_FILE");
            command.env("NODE_NAME", format!("plain-{}", n + 1));
            command.env("LISTEN_ADDR", format!("127.0.0.1:{public}"));
            command.env("ADMIN_ADDR", format!("127.0.0.1:{admin}"));
            let child = Child::spawn(command)?;
            let node = Node::plain(format!("127.0.0.1:{public}"), format!("127.0.0.1:{admin}"), child.id());
            plain.children.push(child);
            let began = Instant::now();
            while node.metrics().await.is_err() {
                if began.elapsed() > PATIENCE {
                    return Err("a node without TLS does not start".into());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            plain.cluster.nodes.push(node);
        }
        Ok(plain)
    }

    /// SIGKILL.
    pub fn kill(&mut self, n: usize) {
        self.children[n].kill();
    }
}

/// Below the kernel's range for outgoing connections; never the same one twice.
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
