//! The last words to a socket whose seat must be given up.

use std::time::Duration;

use super::{Gateway, authenticate::AuthenticatedClient, close::Close, frames::ServerFrame};
use crate::delivery::hub::End;

/// What `client`, who has been sent everything up to `sent`, is told, and the code to close with.
pub fn to(client: &AuthenticatedClient, end: End, gateway: &Gateway, sent: i64) -> (String, Close) {
    let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or_default();
    let (frame, close) = match &end {
        End::Revoked { reason } => {
            let device_id = Some(client.reader.device_id.as_str()).filter(|id| !id.is_empty());
            let at = gateway.clock.now();
            (
                ServerFrame::SessionInvalidated {
                    reason,
                    device_id,
                    at,
                },
                Close::Revoked,
            )
        }
        End::Drain(after) => (
            ServerFrame::Reconnect {
                after_ms: millis(*after),
            },
            Close::Restart,
        ),
        End::TooMany => (
            ServerFrame::AuthError {
                reason: "connection_limit",
            },
            Close::ConnectionLimit,
        ),
        End::EpochChanged => {
            let head = gateway.inbox.cursor(sent).to_string();
            (
                ServerFrame::ResyncRequired {
                    oldest: head.clone(),
                    head,
                },
                Close::Restart,
            )
        }
    };
    (frame.encode(), close)
}
