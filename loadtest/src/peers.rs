//! Others that do something like it, run beside ours: Socket.IO on Node with its Redis adapter, two nodes.

use std::{fs, path::Path, process::Command, time::Duration};

use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::{
    Result,
    cluster::{Cluster, Wire},
    crowd::Line,
    plain::{Child, free_port},
    report::warn,
};

const PACKAGE: &str = include_str!("../peers/socketio/package.json");
const SERVER: &str = include_str!("../peers/socketio/server.js");

/// Two nodes of Socket.IO on the cluster's Redis.
pub struct SocketIo {
    children: Vec<Child>,
    ports: Vec<u16>,
    cluster: Cluster,
}

impl SocketIo {
    /// Fetches it from npm the first time; nothing if there is no Node, no npm, or no network.
    pub async fn start(cluster: &Cluster, dir: &Path) -> Result<Option<Self>> {
        let folder = dir.join("peers").join("socketio");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("package.json"), PACKAGE)?;
        fs::write(folder.join("server.js"), SERVER)?;
        if !folder.join("node_modules").exists() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder);
            if !npm.status().is_ok_and(|status| status.success()) {
                warn("Socket.IO cannot be fetched (npm install failed): without it.");
                return Ok(None);
            }
        }
        let mut peer =
            SocketIo { children: Vec::new(), ports: Vec::new(), cluster: cluster.with_nodes(Vec::new()) };
        for _ in 0..2 {
            let port = free_port()?;
            let mut node = Command::new("node");
            node.arg("server.js").arg(port.to_string()).arg(&cluster.redis_url).current_dir(&folder);
            peer.children.push(Child::spawn(node)?);
            peer.ports.push(port);
            for _ in 0..100 {
                if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(Some(peer))
    }

    /// Socket number `n`, in the room that is told everything.
    pub async fn connect(&self, n: usize) -> Result<Line> {
        self.open(n, "").await
    }

    /// A socket that is told nothing.
    pub async fn connect_silently(&self, n: usize) -> Result<Line> {
        self.open(n, "&silent=1").await
    }

    async fn open(&self, n: usize, query: &str) -> Result<Line> {
        let address = format!("127.0.0.1:{}", self.ports[n % self.ports.len()]);
        let wire = tokio::net::TcpStream::connect(&address).await?;
        wire.set_nodelay(true)?;
        let url = format!("ws://{address}/socket.io/?EIO=4&transport=websocket{query}");
        let mut line = Line::over(url.into_client_request()?, Box::new(wire) as Wire).await?;
        // Engine.IO says hello, Socket.IO is asked for the default namespace and says yes.
        line.hear().await?;
        line.say("40".to_owned()).await?;
        line.hear().await?;
        Ok(line)
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// On whose Redis they run.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}
