//! The last frame to a socket whose subscription ended.

use blindpipe_protocol::{
    frames::{
        AuthError, AuthErrorReason, ReconnectHint, ResyncRequired, ServerFrame, SessionInvalidated,
    },
    revocation::RevocationReason,
};

use super::{Gateway, authenticate::AuthenticatedClient, close::Close, frames};
use crate::delivery::End;

/// The last frame for `client`, who was sent everything up to `sent`, and the close code.
pub fn to(client: &AuthenticatedClient, end: End, gateway: &Gateway, sent: i64) -> (String, Close) {
    let (frame, close) = match &end {
        End::Revoked { reason } => (
            ServerFrame::SessionInvalidated(SessionInvalidated {
                reason: reason.parse().unwrap_or(RevocationReason::TokenRevoked),
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
        End::EpochChanged => {
            let head = gateway.inbox.cursor(sent);
            (
                ServerFrame::ResyncRequired(ResyncRequired { oldest: head, head }),
                Close::Restart,
            )
        }
    };
    (frames::encode(&frame), close)
}
