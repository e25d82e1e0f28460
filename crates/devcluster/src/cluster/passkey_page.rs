//! A page to try passkeys on. An HTTPS server has the pages of all nodes, at `/node-1`, `/node-2`.
//!
//! The page calls its node from another origin, as a web client in production does. The nodes'
//! settings allow that origin (see [`super::settings`]).

use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{node::Node, settings::origin};
use crate::{
    certs::Certificates,
    error::{Context, Result},
    ports::free_port,
};

/// The search for a free port begins here.
const FIRST_PORT: u16 = 17443;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const TEMPLATE: &str = include_str!("passkey_page.html");

/// The server, before and while it serves.
pub struct PasskeyPage {
    listener: TcpListener,
    tls: TlsAcceptor,
    port: u16,
}

impl PasskeyPage {
    pub async fn bind(certificates: &Certificates) -> Result<Self> {
        let tls = server_config(certificates)?;
        let mut taken = Vec::new();
        loop {
            let port = free_port(FIRST_PORT, &taken)?;
            // Another program may have taken the port meanwhile.
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                let tls = TlsAcceptor::from(Arc::new(tls));
                return Ok(PasskeyPage {
                    listener,
                    tls,
                    port,
                });
            }
            taken.push(port);
        }
    }

    /// The web origin of the pages.
    pub fn origin(&self) -> String {
        origin(self.port)
    }

    /// Serves until it is dropped.
    pub async fn serve(&self, nodes: &[Node]) {
        let pages: Arc<[(String, String)]> = nodes
            .iter()
            .map(|node| (format!("/{}", node.name), page(&node.origin())))
            .collect();
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (tls, pages) = (self.tls.clone(), pages.clone());
            // A browser that leaves early is no failure.
            connections.spawn(timeout(REQUEST_TIMEOUT, async move {
                answer(tls, stream, &pages).await.ok();
            }));
            while connections.try_join_next().is_some() {}
        }
    }
}

fn server_config(certificates: &Certificates) -> Result<ServerConfig> {
    let context = || "read the nodes' certificate".to_owned();
    let cert = CertificateDer::from_pem_file(&certificates.cert).with_context(context)?;
    let key = PrivateKeyDer::from_pem_file(&certificates.key).with_context(context)?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .with_context(|| "use the nodes' certificate".into())
}

/// The page that calls the node at `origin`.
fn page(origin: &str) -> String {
    TEMPLATE.replace("{{node_origin}}", origin)
}

/// Reads a request and answers with the page at its path.
async fn answer(tls: TlsAcceptor, stream: TcpStream, pages: &[(String, String)]) -> io::Result<()> {
    let mut stream = BufReader::new(tls.accept(stream).await?);
    let mut request_line = String::new();
    stream.read_line(&mut request_line).await?;
    let mut header = String::new();
    while stream.read_line(&mut header).await? > 2 {
        header.clear();
    }
    let path = request_line.split(' ').nth(1).unwrap_or_default();
    let found = pages.iter().find(|(name, _)| name == path);
    let (status, body) = match found {
        Some((_, page)) => ("200 OK", page.as_str()),
        None => ("404 Not Found", ""),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
