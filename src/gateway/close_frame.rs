//! The last frame to a socket whose subscription ended.

use blindpipe_protocol::frames::{
    AuthError, AuthErrorReason, ReconnectHint, ResyncRequired, ServerFrame, SessionInvalidated,
};

use super::{Gateway, authenticate::AuthenticatedClient, close::Close, frames};
use crate::delivery::End;

/// The last frame to `client`, and the code to close with.
pub fn to(client: &AuthenticatedClient, end: End, gateway: &Gateway) -> (String, Close) {
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
