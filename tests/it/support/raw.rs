//! A WebSocket client that can break every rule: it writes raw bytes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{client::User, world::TestNode};

/// Opcodes of RFC 6455.
pub const CONTINUATION: u8 = 0x0;
pub const TEXT: u8 = 0x1;
pub const BINARY: u8 = 0x2;
pub const CLOSE: u8 = 0x8;
pub const PING: u8 = 0x9;
pub const PONG: u8 = 0xa;
/// The last frame of a message.
pub const FIN: u8 = 0x80;

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

pub struct RawSocket {
    stream: TcpStream,
    received: Vec<u8>,
}

impl RawSocket {
    /// Upgrades a connection and sends nothing more.
    pub async fn open(node: &TestNode) -> Self {
        Self::open_at(&node.base).await
    }

    async fn open_at(base: &str) -> Self {
        let address = base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let ip = format!(
            "10.{}.{}.{}",
            rand::random::<u8>(),
            rand::random::<u8>(),
            rand::random::<u8>()
        );
        let request = format!(
            "GET /ws HTTP/1.1\r\nhost: {address}\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nx-forwarded-proto: https\r\nx-forwarded-for: {ip}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut socket = RawSocket {
            stream,
            received: Vec::new(),
        };
        let end = loop {
            if let Some(at) = socket
                .received
                .windows(4)
                .position(|bytes| bytes == b"\r\n\r\n")
            {
                break at + 4;
            }
            assert!(socket.receive().await, "cut in the handshake");
        };
        let head = String::from_utf8_lossy(&socket.received[..end]).to_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        // The key above and its answer are RFC 6455's own example.
        assert!(
            head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="),
            "{head}"
        );
        socket.received.drain(..end);
        socket
    }

    /// Upgrades, authenticates and catches up.
    pub async fn of(node: &TestNode, user: &User) -> Self {
        Self::at(&node.base, user).await
    }

    /// Like [`of`](Self::of), at a node that is a process of its own.
    pub async fn at(base: &str, user: &User) -> Self {
        let mut socket = Self::open_at(base).await;
        let auth = json!({ "type": "auth", "access_token": user.access_token }).to_string();
        socket.frame(FIN | TEXT, auth.as_bytes()).await;
        while socket.text().await["type"] != "caught_up" {}
        socket
    }

    async fn receive(&mut self) -> bool {
        let mut some = vec![0; 16 * 1024];
        let read = tokio::time::timeout(Duration::from_secs(10), self.stream.read(&mut some));
        match read.await.expect("an answer within ten seconds") {
            Ok(n) if n > 0 => {
                self.received.extend_from_slice(&some[..n]);
                true
            }
            _ => false,
        }
    }

    /// Writes raw bytes. A cut connection shows in later reads.
    pub async fn bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// The header of a masked frame of this length.
    pub fn head(first: u8, length: u64) -> Vec<u8> {
        let mut head = vec![first];
        match length {
            0..=125 => head.push(0x80 | length as u8),
            126..=0xffff => {
                head.push(0x80 | 126);
                head.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                head.push(0x80 | 127);
                head.extend_from_slice(&length.to_be_bytes());
            }
        }
        head.extend_from_slice(&MASK);
        head
    }

    /// A masked frame; `first` is its first byte.
    pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Self::head(first, payload.len() as u64);
        bytes.extend(
            payload
                .iter()
                .zip(MASK.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        bytes
    }

    /// Writes a masked frame.
    pub async fn frame(&mut self, first: u8, payload: &[u8]) -> bool {
        self.bytes(&Self::masked(first, payload)).await
    }

    /// The next frame: opcode and payload, or none if the node has cut the connection.
    pub async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((opcode, from, to)) = whole(&self.received) {
                let payload = self.received[from..to].to_vec();
                self.received.drain(..to);
                return Some((opcode, payload));
            }
            if !self.receive().await {
                return None;
            }
        }
    }

    /// The next text frame.
    pub async fn text(&mut self) -> Value {
        let (opcode, payload) = self.next().await.expect("a frame");
        assert_eq!(opcode, TEXT, "{payload:?}");
        serde_json::from_slice(&payload).expect("JSON")
    }

    /// Asserts that the node closes with this code, and then cuts the connection.
    #[track_caller]
    pub fn expect_close(mut self, code: u16, what: &str) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let closed = loop {
                match self.next().await {
                    Some((CLOSE, payload)) => break payload,
                    Some(_) => {}
                    None => panic!("at {place}: {what}: cut without a close frame"),
                }
            };
            let found = u16::from_be_bytes([closed[0], closed[1]]);
            assert_eq!(
                found,
                code,
                "at {place}: {what}: {}",
                String::from_utf8_lossy(&closed[2..])
            );
            assert!(
                self.next().await.is_none(),
                "at {place}: {what}: more after the close frame"
            );
        }
    }
}

/// The first frame that has arrived in full: opcode, start and end of its payload.
fn whole(received: &[u8]) -> Option<(u8, usize, usize)> {
    let (first, second) = (*received.first()?, *received.get(1)?);
    assert_eq!(first & 0x70, 0, "reserved bits");
    assert_eq!(first & FIN, FIN, "the node never fragments");
    assert_eq!(second & 0x80, 0, "a server does not mask");
    let (from, length) = match second {
        126 => (
            4,
            usize::from(u16::from_be_bytes(received.get(2..4)?.try_into().ok()?)),
        ),
        127 => (
            10,
            usize::try_from(u64::from_be_bytes(received.get(2..10)?.try_into().ok()?)).ok()?,
        ),
        n => (2, usize::from(n)),
    };
    (received.len() >= from + length).then_some((first & 0x0f, from, from + length))
}
