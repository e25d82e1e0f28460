//! The place of an envelope, with the clear fields that its signature covers.

use crate::{
    Id, Principal, Result,
    bytes::{label, prefixed, sha256},
};

/// The place of an envelope. The signature covers the place's clear fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Message {
        client_message_id: Id,
        in_reply_to: Option<Id>,
    },
    Delta {
        stream_id: String,
        n: u64,
    },
    Request(Request),
    Response {
        /// Of the request, as the one who answers understood it: see [`Request::digest`].
        digest: [u8; 32],
        request_id: String,
        status: String,
        reason: Option<String>,
    },
}

/// The clear part of a tool request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The user who is asked.
    pub asked: Id,
    pub request_id: String,
    pub tool: String,
    pub scope: String,
    pub device_id: Option<String>,
}

impl Request {
    /// Names a request with all that it says, so that a consent is to this request only.
    ///
    /// # Errors
    ///
    /// `malformed` if a field is too long.
    pub fn digest(&self, conversation: Id, agent: Id, content: &[u8]) -> Result<[u8; 32]> {
        let agent = Principal::Agent(agent).to_bytes();
        let label = label("request");
        Ok(sha256(&[
            &label,
            &conversation,
            &agent,
            &self.context()?,
            content,
        ]))
    }

    fn context(&self) -> Result<Vec<u8>> {
        let device = self.device_id.as_deref().unwrap_or_default();
        let fields = [&self.request_id, &self.tool, &self.scope, device];
        let mut context = self.asked.to_vec();
        for field in fields {
            context.extend(prefixed(field.as_bytes())?);
        }
        Ok(context)
    }
}

impl Place {
    /// The kind that an envelope at this place has.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Message { .. } => 1,
            Self::Delta { .. } => 2,
            Self::Request(_) => 3,
            Self::Response { .. } => 4,
        }
    }

    /// Deltas and requests come from agents only, responses from users only.
    pub(super) const fn may_be_by(&self, sender: Principal) -> bool {
        match self {
            Self::Message { .. } => true,
            Self::Delta { .. } | Self::Request(_) => !sender.is_user(),
            Self::Response { .. } => sender.is_user(),
        }
    }

    /// The clear part as bytes.
    ///
    /// # Errors
    ///
    /// `malformed` if a field is too long.
    pub fn context(&self) -> Result<Vec<u8>> {
        match self {
            Self::Message {
                client_message_id,
                in_reply_to,
            } => Ok([*client_message_id, in_reply_to.unwrap_or_default()].concat()),
            Self::Delta { stream_id, n } => {
                Ok([prefixed(stream_id.as_bytes())?, n.to_be_bytes().to_vec()].concat())
            }
            Self::Request(request) => request.context(),
            Self::Response {
                digest,
                request_id,
                status,
                reason,
            } => {
                let reason = reason.as_deref().unwrap_or_default();
                let mut context = digest.to_vec();
                for field in [request_id, status, reason] {
                    context.extend(prefixed(field.as_bytes())?);
                }
                Ok(context)
            }
        }
    }

    pub(super) const fn least_padded(&self) -> usize {
        match self {
            Self::Delta { .. } => 256,
            _ => 128,
        }
    }
}
