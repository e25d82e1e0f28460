//! Comparable systems, two nodes of each on the cluster's Redis, beside our nodes: Socket.IO on
//! Node with its Redis adapter, and the floor.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use serde::Serialize;
use tokio_tungstenite::tungstenite::{Utf8Bytes, client::IntoClientRequest};

use crate::{
    Options, Result, baseline,
    cluster::{Cluster, Wire},
    cpu::Watch,
    crowd::Line,
    plain::{Child, dial, free_port},
    report::{say, warn},
};

const PACKAGE: &str = include_str!("../peers/socketio/package.json");
const SERVER: &str = include_str!("../peers/socketio/server.js");

/// The kinds of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Floor,
    SocketIo,
}

/// The findings for each kind, a value per round.
pub type Found<T> = BTreeMap<Kind, Vec<T>>;

/// Starts the wanted kinds one after the other and measures each. A kind that is unavailable or
/// fails is omitted: only our nodes must not fail.
pub async fn measure<T>(
    cluster: &Cluster,
    options: &Options,
    found: &mut Found<T>,
    measure: impl AsyncFn(&Peer) -> Result<T>,
) {
    if options.no_peers {
        return;
    }
    for kind in Kind::ALL {
        let one = async { measure(&Peer::start(kind, cluster, options).await?).await };
        match Box::pin(one).await {
            Ok(value) => found.entry(kind).or_default().push(value),
            Err(failure) => warn(format!("Without {} in this round: {failure}.", kind.name())),
        }
    }
}

/// A remark on the kinds that are missing in the findings.
pub fn remark<T>(found: &Found<T>) -> Option<String> {
    let missing: Vec<_> = Kind::ALL
        .iter()
        .filter(|kind| !found.contains_key(kind))
        .map(|kind| kind.name())
        .collect();
    (!missing.is_empty()).then(|| format!("Without {}.", missing.join(" and ")))
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Floor, Kind::SocketIo];

    /// The name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Floor => "floor",
            Kind::SocketIo => "Socket.IO",
        }
    }
}

/// Two running nodes of a kind.
pub struct Peer {
    /// The kind of the nodes.
    pub kind: Kind,
    children: Vec<Child>,
    ports: Vec<u16>,
    redis_url: String,
}

impl Peer {
    async fn start(kind: Kind, cluster: &Cluster, options: &Options) -> Result<Self> {
        let mut peer = Peer {
            kind,
            children: Vec::new(),
            ports: Vec::new(),
            redis_url: cluster.redis_url.clone(),
        };
        for _ in 0..2 {
            let port = free_port()?;
            peer.children.push(match kind {
                Kind::Floor => baseline::Kind::Floor.start(port, &peer.redis_url)?,
                Kind::SocketIo => {
                    let mut node = Command::new("node");
                    node.arg("server.js")
                        .arg(port.to_string())
                        .arg(&peer.redis_url);
                    node.current_dir(socket_io(options)?);
                    Child::spawn(node).map_err(|error| format!("node: {error}"))?
                }
            });
            peer.ports.push(port);
            dial(port).await?;
        }
        Ok(peer)
    }

    /// Opens socket number `n`, which receives every broadcast.
    pub async fn connect(&self, n: usize) -> Result<Talk> {
        self.open(n, "").await
    }

    /// Opens a socket that receives nothing.
    pub async fn connect_silently(&self, n: usize) -> Result<Talk> {
        self.open(n, "silent=1").await
    }

    async fn open(&self, n: usize, query: &str) -> Result<Talk> {
        let port = self.ports[n % self.ports.len()];
        let path = match self.kind {
            Kind::Floor => "?",
            Kind::SocketIo => "socket.io/?EIO=4&transport=websocket&",
        };
        let request = format!("ws://127.0.0.1:{port}/{path}{query}").into_client_request()?;
        let mut line = Line::over(request, Box::new(dial(port).await?) as Wire).await?;
        if self.kind == Kind::SocketIo {
            // Engine.IO sends its greeting. Socket.IO then confirms the default namespace on
            // request.
            line.hear().await?;
            line.say("40".to_owned()).await?;
            line.hear().await?;
        }
        Ok(Talk {
            kind: self.kind,
            line,
        })
    }

    /// The ids of the processes.
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// A watch for the processes and their Redis.
    pub async fn watch(&self) -> Result<Watch> {
        Watch::on_redis(self.pids(), &self.redis_url).await
    }
}

/// A socket of a peer.
pub struct Talk {
    kind: Kind,
    line: Line,
}

impl Talk {
    /// Broadcasts a text to every socket that is not silent.
    pub async fn say(&mut self, text: &str) -> Result<()> {
        self.line
            .say(match self.kind {
                Kind::Floor => text.to_owned(),
                Kind::SocketIo => format!(r#"42["send","{text}"]"#),
            })
            .await
    }

    /// The next broadcast.
    pub async fn hear(&mut self) -> Result<Utf8Bytes> {
        loop {
            let frame = self.line.hear().await?;
            if self.kind == Kind::Floor {
                return Ok(frame);
            }
            if let Some(text) = frame.strip_prefix(r#"42["m",""#) {
                return Ok(text.trim_end_matches(r#""]"#).into());
            }
            if frame.as_str() == "2" {
                self.line.say("3".to_owned()).await?;
            }
        }
    }
}

/// The folder of Socket.IO, which npm downloads the first time.
fn socket_io(options: &Options) -> Result<PathBuf> {
    let folder = options.dir.join("peers").join("socketio");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("package.json"), PACKAGE)?;
    fs::write(folder.join("server.js"), SERVER)?;
    if !folder.join("node_modules").exists() {
        say("Fetching Socket.IO.");
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--silent"])
            .current_dir(&folder);
        if !npm.status().is_ok_and(|status| status.success()) {
            return Err("npm install failed".into());
        }
    }
    Ok(folder)
}
