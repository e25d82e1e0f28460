//! The frames of a server.

use std::sync::Arc;

pub(crate) const CONTINUATION: u8 = 0x0;
pub(crate) const TEXT: u8 = 0x1;
pub(crate) const BINARY: u8 = 0x2;
pub(crate) const CLOSE: u8 = 0x8;
pub(crate) const PING: u8 = 0x9;
pub(crate) const PONG: u8 = 0xa;

pub(crate) const FIN: u8 = 0x80;
pub(crate) const RESERVED: u8 = 0x70;
pub(crate) const MASKED: u8 = 0x80;

/// The longest head of a server's frame.
const MAX_SERVER_HEADER_BYTES: usize = 10;

/// The kind of a server's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Text = TEXT,
    Binary = BINARY,
    Close = CLOSE,
    Ping = PING,
    Pong = PONG,
}

/// Begins a frame of `length` bytes: its head, with room for `more` bytes.
pub(crate) fn begin(kind: Kind, length: usize, more: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(MAX_SERVER_HEADER_BYTES + more);
    frame.push(FIN | kind as u8);
    match length {
        0..=125 => frame.push(length as u8),
        126..=0xffff => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame
}

/// Encodes a whole frame.
fn whole(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut frame = begin(kind, payload.len(), payload.len());
    frame.extend_from_slice(payload);
    frame
}

/// A frame that waits to be written.
pub(crate) struct Frame {
    /// The head, and what is this socket's own.
    head: Vec<u8>,
    /// The part that other sockets send too.
    body: Option<Arc<str>>,
    suffix: &'static str,
    pub(crate) is_pong: bool,
}

impl Frame {
    /// A frame with a payload of its own.
    pub(crate) fn own(kind: Kind, payload: &[u8]) -> Self {
        Frame {
            head: whole(kind, payload),
            body: None,
            suffix: "",
            is_pong: kind == Kind::Pong,
        }
    }

    /// A text of which other sockets send the body too.
    pub(crate) fn shared(prefix: &str, body: Arc<str>, suffix: &'static str) -> Self {
        let length = prefix.len() + body.len() + suffix.len();
        let mut head = begin(Kind::Text, length, prefix.len());
        head.extend_from_slice(prefix.as_bytes());
        Frame {
            head,
            body: Some(body),
            suffix,
            is_pong: false,
        }
    }

    pub(crate) fn parts(&self) -> [&[u8]; 3] {
        [
            &self.head,
            self.body.as_deref().unwrap_or_default().as_bytes(),
            self.suffix.as_bytes(),
        ]
    }

    pub(crate) fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}
