//! THE CLOSE CODES of `/ws`; `crates/protocol/src/close.rs` lists them.

pub use blindpipe_protocol::close::Close;

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client has gone, so no close code can reach it.
    PeerGone,
    /// The client answered no ping. A half-open connection has nobody who could receive a code.
    Silent,
    /// The server closes the socket with this code.
    Close(Close),
}

impl SessionEnd {
    /// The reason in `connections_closed_total`.
    pub fn word(self) -> &'static str {
        match self {
            SessionEnd::PeerGone => "peer",
            SessionEnd::Silent => "pong",
            SessionEnd::Close(_) => "closed",
        }
    }
}

impl From<Close> for SessionEnd {
    fn from(close: Close) -> Self {
        SessionEnd::Close(close)
    }
}
