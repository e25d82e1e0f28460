//! The cluster under test, as `cluster.json` describes it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::TlsConnector;

use crate::{Result, http::Link};

/// The file that a cluster's launcher writes.
#[derive(Deserialize)]
struct Published {
    nodes: Vec<PublishedNode>,
    ca_file: String,
    mail_dir: String,
    postgres_url: String,
    redis_url: String,
}

#[derive(Deserialize)]
struct PublishedNode {
    base_url: String,
    admin_url: String,
    pid: u32,
}

/// A running cluster.
pub struct Cluster {
    /// Its nodes, in order.
    pub nodes: Vec<Node>,
    /// The folder of its mails, which are files.
    pub mail_dir: String,
    /// The database of the nodes.
    pub postgres_url: String,
    /// The Redis of the nodes.
    pub redis_url: String,
    /// The folder of the file that describes it.
    pub folder: PathBuf,
}

/// A connection, with or without TLS.
pub type Wire = Box<dyn Stream>;

/// The operations of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A node.
#[derive(Clone)]
pub struct Node {
    /// `host:port` of the public listener.
    pub address: String,
    /// `host:port` of the admin listener. Empty for a release elsewhere.
    pub admin: String,
    /// The id of its process, or 0 for a release elsewhere.
    pub pid: u32,
    /// None without TLS, as behind a proxy.
    tls: Option<TlsConnector>,
}

impl Cluster {
    /// Reads the file. The error for a missing file says how to start a cluster.
    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).map_err(|error| {
            format!(
                "no cluster is described by {} ({error}): start one, or let --start do it",
                file.display()
            )
        })?;
        let published: Published = serde_json::from_str(&text)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&published.ca_file)?)?;
        let mut config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = TlsConnector::from(Arc::new(config));
        let nodes = published.nodes.into_iter().map(|node| Node {
            address: without_scheme(&node.base_url),
            admin: without_scheme(&node.admin_url),
            pid: node.pid,
            tls: Some(tls.clone()),
        });
        Ok(Cluster {
            nodes: nodes.collect(),
            mail_dir: published.mail_dir,
            postgres_url: published.postgres_url,
            redis_url: published.redis_url,
            folder: file.parent().unwrap_or(Path::new(".")).to_owned(),
        })
    }

    /// A copy with other nodes on the same Postgres and Redis.
    pub fn with_nodes(&self, nodes: Vec<Node>) -> Self {
        Cluster {
            nodes,
            mail_dir: self.mail_dir.clone(),
            postgres_url: self.postgres_url.clone(),
            redis_url: self.redis_url.clone(),
            folder: self.folder.clone(),
        }
    }

    /// Node number `n`, modulo the number of nodes.
    pub fn node(&self, n: usize) -> &Node {
        &self.nodes[n % self.nodes.len()]
    }
}

impl Node {
    /// The node, or the load balancer, behind a base URL like `https://api.example.org`.
    pub fn remote(base_url: &str, tls: Arc<rustls::ClientConfig>) -> Result<Self> {
        let address = base_url
            .strip_prefix("https://")
            .map(|rest| rest.trim_end_matches('/'))
            .filter(|address| !address.is_empty() && !address.contains('/'))
            .ok_or_else(|| format!("{base_url} is not like https://api.example.org"))?;
        let address = match address.rsplit_once(':') {
            Some(_) => address.to_owned(),
            None => format!("{address}:443"),
        };
        Ok(Node {
            address,
            admin: String::new(),
            pid: 0,
            tls: Some(TlsConnector::from(tls)),
        })
    }

    /// A node without TLS.
    pub fn plain(address: String, admin: String, pid: u32) -> Self {
        Node {
            address,
            admin,
            pid,
            tls: None,
        }
    }

    /// A connection to the public listener.
    pub async fn dial(&self) -> Result<Wire> {
        self.wrap(TcpStream::connect(&self.address).await?).await
    }

    /// A connection through a prepared socket.
    pub async fn dial_from(&self, socket: TcpSocket) -> Result<Wire> {
        self.wrap(socket.connect(self.address.parse()?).await?)
            .await
    }

    async fn wrap(&self, stream: TcpStream) -> Result<Wire> {
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let host = self
            .address
            .rsplit_once(':')
            .map_or(self.address.as_str(), |(host, _)| host);
        Ok(Box::new(
            tls.connect(ServerName::try_from(host.to_owned())?, stream)
                .await?,
        ))
    }

    /// A connection for HTTP.
    pub async fn link(&self) -> Result<Link<Wire>> {
        Ok(Link::over(self.dial().await?))
    }

    /// The node's metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        let mut link = Link::over(TcpStream::connect(&self.admin).await?);
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\n\r\n", self.admin);
        let answer = link.ask(request.as_bytes()).await?;
        Ok(Metrics(String::from_utf8_lossy(&answer.body).into_owned()))
    }
}

/// The text of `/metrics`.
pub struct Metrics(String);

impl Metrics {
    /// The metrics of this process, which runs the code of nodes.
    pub fn own() -> Self {
        Metrics(blindpipe::metrics::install().render())
    }

    /// The sum of a series over its labels.
    pub fn sum(&self, name: &str) -> f64 {
        self.sum_having(name, "")
    }

    /// The sum of a series over the lines whose labels contain `having`.
    pub fn sum_having(&self, name: &str, having: &str) -> f64 {
        let of = |line: &&str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let lines = self
            .0
            .lines()
            .filter(of)
            .filter(|line| line.contains(having));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

impl Metrics {
    /// The buckets of a histogram over the lines with these labels: upper bound, and count up to it.
    pub fn buckets<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [&str],
    ) -> impl Iterator<Item = (f64, f64)> + 'a {
        let lines = self.0.lines().filter(move |line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with("_bucket{"))
                && labels.iter().all(|label| line.contains(label))
        });
        lines.filter_map(|line| {
            let bound = line.split_once("le=\"")?.1.split_once('"')?.0;
            Some((bound.parse().ok()?, line.rsplit(' ').next()?.parse().ok()?))
        })
    }
}

fn without_scheme(url: &str) -> String {
    url.split_once("://")
        .map_or(url, |(_, rest)| rest)
        .trim_end_matches('/')
        .to_owned()
}
