//! An HTTP/2 client that can break every rule: it writes raw frames.

use std::{sync::Arc, time::Duration};

use devcluster::certs::Certificates;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

pub const HEADERS: u8 = 0x1;
pub const RST_STREAM: u8 = 0x3;
pub const SETTINGS: u8 = 0x4;
pub const PING: u8 = 0x6;
pub const END_STREAM: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;

/// Certificates for nodes that terminate TLS, and a client that trusts them.
pub struct Tls {
    folder: std::path::PathBuf,
    certificates: Certificates,
    connector: TlsConnector,
}

impl Tls {
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("blindpipe-tls-{}", super::ulid()));
        let certificates = Certificates::prepare(&folder).expect("certificates");
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&certificates.ca).expect("the CA");
        roots.add(ca).expect("a root");
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Tls {
            folder,
            certificates,
            connector: TlsConnector::from(Arc::new(config)),
        }
    }

    /// The settings of a node with these certificates.
    pub fn settings(&self) -> [(&'static str, &str); 2] {
        [
            (
                "TLS_CERT_FILE",
                self.certificates.cert.to_str().expect("UTF-8"),
            ),
            (
                "TLS_KEY_FILE",
                self.certificates.key.to_str().expect("UTF-8"),
            ),
        ]
    }

    /// The certificate of the authority.
    pub fn authority(&self) -> Vec<u8> {
        std::fs::read(&self.certificates.ca).expect("the CA")
    }

    /// The file of that certificate.
    pub fn authority_file(&self) -> &str {
        self.certificates.ca.to_str().expect("UTF-8")
    }

    /// Connects and says the preface. Streams may be sent `window` bytes until more are granted.
    /// An error if the node cuts the connection.
    pub async fn connect(&self, base: &str, window: u32) -> std::io::Result<H2> {
        let address = base.trim_start_matches("http://");
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        let stream = socket.connect(address.parse().expect("an address")).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut h2 = H2 {
            stream: self.connector.connect(name, stream).await?,
        };
        h2.stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await?;
        let mut settings = vec![0, 4];
        settings.extend(window.to_be_bytes());
        h2.frame(SETTINGS, 0, 0, &settings).await?;
        h2.frame(SETTINGS, 1, 0, &[]).await?;
        Ok(h2)
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

pub struct H2 {
    stream: TlsStream<tokio::net::TcpStream>,
}

impl H2 {
    /// Writes a frame.
    pub async fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let length = u32::try_from(payload.len()).expect("a small frame");
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).await
    }

    /// Sends a whole GET request.
    pub async fn get(&mut self, stream: u32, path: &str, token: &str) -> std::io::Result<()> {
        let flags = END_STREAM | END_HEADERS;
        self.frame(HEADERS, flags, stream, &head(path, token)).await
    }

    /// Reads a frame: its kind, flags, stream and length. An error once the connection is over.
    pub async fn read(&mut self) -> std::io::Result<(u8, u8, u32, usize)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let stream = u32::from_be_bytes(stream);
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        Ok((kind, flags, stream, length))
    }

    /// Answers pings and nothing else until the node closes, for at most `patience`.
    pub async fn closes_within(&mut self, patience: Duration) -> bool {
        let reading = async {
            while let Ok((kind, flags, ..)) = self.read().await {
                if kind == PING && flags == 0 {
                    self.frame(PING, 1, 0, &[0; 8]).await.ok();
                }
            }
        };
        tokio::time::timeout(patience, reading).await.is_ok()
    }
}

/// The head of a GET request in HPACK, without compression.
pub fn head(path: &str, token: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x87];
    for (name, value) in [
        (&[0x01][..], "localhost"),
        (&[0x04], path),
        (&[0x0f, 0x08], &format!("Bearer {token}")),
    ] {
        head.extend_from_slice(name);
        let mut length = value.len();
        if length < 127 {
            head.push(u8::try_from(length).expect("small"));
        } else {
            head.push(127);
            length -= 127;
            while length >= 128 {
                head.push(u8::try_from(length % 128).expect("small") | 128);
                length /= 128;
            }
            head.push(u8::try_from(length).expect("small"));
        }
        head.extend_from_slice(value.as_bytes());
    }
    head
}
