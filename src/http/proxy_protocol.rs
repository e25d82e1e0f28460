//! The PROXY protocol, version 2: a load balancer that only forwards TCP begins each connection
//! with a header that names its client.
//!
//! `PROXY_PROTOCOL_FROM` lists the balancers. The header of a listed peer is required, because
//! otherwise a client that reached the node past the balancer would share its address. The header of
//! any other peer is refused, because it could name any address.
//!
//! Why: ADR 61.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use ppp::v2::{Addresses, Command, Header};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::TcpStream,
};

/// Longest wait for the header. A balancer sends it at once.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Signature, command, family and length.
const FIXED_BYTES: usize = 16;
/// Longest header that is read. Addresses take 36 bytes; the rest is for extensions, which nobody
/// reads here.
const MAX_HEADER_BYTES: usize = 4096;
/// The first byte of a header. No TLS record and no HTTP method begins with it.
const FIRST_BYTE: u8 = b'\r';

/// The balancers that send headers; clones share the list.
#[derive(Clone, Default)]
pub struct ProxyProtocol {
    balancers: Arc<[IpNet]>,
}

impl ProxyProtocol {
    /// The protocol for connections of `balancers`; none speak it if the list is empty.
    pub fn from(balancers: &[IpNet]) -> Self {
        ProxyProtocol {
            balancers: balancers.into(),
        }
    }

    /// The client of a connection: the one that the header names, or the peer itself. The error is
    /// the reason why the connection ends.
    pub async fn client(
        &self,
        stream: &mut TcpStream,
        peer: SocketAddr,
    ) -> Result<SocketAddr, &'static str> {
        if self.balancers.is_empty() {
            return Ok(peer);
        }
        let address = peer.ip().to_canonical();
        let is_balancer = self.balancers.iter().any(|net| net.contains(&address));
        let header = async {
            if is_balancer {
                let client = read(stream).await.map_err(|_| "proxy_malformed")?;
                return Ok(client.unwrap_or(peer));
            }
            match first(stream).await {
                Some(FIRST_BYTE) => Err("proxy_untrusted"),
                _ => Ok(peer),
            }
        };
        tokio::time::timeout(HEADER_TIMEOUT, header)
            .await
            .unwrap_or(Err("proxy_late"))
    }
}

/// The first byte of a connection, which stays to be read; none if it ends before.
async fn first(stream: &TcpStream) -> Option<u8> {
    let mut byte = [0];
    let read = stream.peek(&mut byte).await.ok()?;
    (read == 1).then_some(byte[0])
}

/// Reads a header and nothing after it. None: the balancer speaks for itself, for example to check
/// whether the node is there.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut bytes = vec![0; FIXED_BYTES];
    stream.read_exact(&mut bytes).await?;
    let length = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    // Bytes that are no header have no length to wait for.
    if !bytes.starts_with(ppp::v2::PROTOCOL_PREFIX) || FIXED_BYTES + length > MAX_HEADER_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.resize(FIXED_BYTES + length, 0);
    stream.read_exact(&mut bytes[FIXED_BYTES..]).await?;
    let header = Header::try_from(bytes.as_slice()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(match (header.command, header.addresses) {
        (Command::Proxy, Addresses::IPv4(of)) => Some((of.source_address, of.source_port).into()),
        (Command::Proxy, Addresses::IPv6(of)) => Some((of.source_address, of.source_port).into()),
        (Command::Local | Command::Proxy, _) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    async fn read_all(head: &[u8], rest: &[u8]) -> (Option<Option<SocketAddr>>, usize) {
        let whole = [head, rest].concat();
        let mut left = whole.as_slice();
        let found = read(&mut left).await.ok();
        (found, left.len())
    }

    fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("short").to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    #[tokio::test]
    async fn a_header_names_its_client_and_ends_where_it_says() {
        let v4 = [203, 0, 113, 7, 10, 0, 0, 1, 0x30, 0x39, 1, 187];
        let with_extension = [v4.as_slice(), &[4, 0, 2, 9, 9]].concat();
        for body in [v4.as_slice(), &with_extension] {
            let found = read_all(&header(0x21, 0x11, body), b"TLS").await;
            let client = "203.0.113.7:12345".parse().expect("an address");
            assert_eq!(found, (Some(Some(client)), 3));
        }
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        v6[32..34].copy_from_slice(&[0, 80]);
        let (found, left) = read_all(&header(0x21, 0x21, &v6), b"TLS").await;
        assert_eq!((found.flatten().map(|it| it.port()), left), (Some(80), 3));
        // The balancer's own connection, and a family that it does not know.
        assert_eq!(
            read_all(&header(0x20, 0, &[]), b"TLS").await,
            (Some(None), 3)
        );
        assert_eq!(
            read_all(&header(0x21, 0, &[]), b"TLS").await,
            (Some(None), 3)
        );
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        let v4 = [0; 12];
        let mut torn = header(0x21, 0x11, &v4);
        torn.truncate(20);
        let mut other = header(0x21, 0x11, &v4);
        other[5] = b'x';
        for bytes in [
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 12345 443\r\n".to_vec(),
            torn,
            other,
            header(0x31, 0x11, &v4),
            header(0x2f, 0x11, &v4),
            header(0x21, 0x11, &v4[..4]),
            header(0x21, 0x11, &[0; MAX_HEADER_BYTES]),
        ] {
            assert_eq!(read_all(&bytes, b"").await.0, None, "{bytes:?}");
        }
    }
}
