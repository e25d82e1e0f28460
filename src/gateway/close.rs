//! THE CLOSE CODES of `/ws`, which `crates/protocol/src/close.rs` lists, and the last frame to a
//! socket whose subscription ended.

pub use blindpipe_protocol::close::Close;
use blindpipe_protocol::frames::{
    AuthError, AuthErrorReason, ReconnectHint, ResyncRequired, ServerFrame, SessionInvalidated,
};

use super::{Gateway, authenticate::AuthenticatedClient, frames};
use crate::delivery::End;

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

/// The last frame to `client`, and the code to close with.
pub fn last_frame(client: &AuthenticatedClient, end: End, gateway: &Gateway) -> (String, Close) {
    let (frame, close) = match &end {
        End::Revoked { reason } => (
            ServerFrame::SessionInvalidated(SessionInvalidated {
                reason: *reason,
                device_id: Some(client.reader.device_id.clone()).filter(|id| !id.is_empty()),
                at: gateway.clock.now().into(),
            }),
            Close::Revoked,
        ),
        End::Drain(after) => (
            ServerFrame::Reconnect(ReconnectHint {
                after_ms: u64::try_from(after.as_millis()).unwrap_or_default(),
            }),
            Close::Restart,
        ),
        End::TooMany => (
            ServerFrame::AuthError(AuthError {
                reason: AuthErrorReason::ConnectionLimit,
            }),
            Close::ConnectionLimit,
        ),
        End::EpochChanged { head } => (
            ServerFrame::ResyncRequired(ResyncRequired {
                oldest: *head,
                head: *head,
            }),
            Close::Restart,
        ),
    };
    (frames::encode(&frame), close)
}
