//! The `message.send` frames of a socket. They run in turn, so they keep their order.

use std::{collections::VecDeque, pin::Pin};

use blindpipe_protocol::frames::MessageSent;
use serde_json::Value;
use uuid::Uuid;

use super::{
    Gateway,
    authenticate::AuthenticatedClient,
    close::{Close, SessionEnd},
    frames::{self, ServerFrame},
    socket::Socket,
};
use crate::{
    error::{Code, Error, Result},
    features::{
        messages::{Draft, MessageWriter, SendRequest, Sent},
        streams::{StreamId, StreamKey, Streams, key_of},
    },
    ids::{ConversationId, Principal},
    limits::{Limiter, buffers::BytePermit, quotas::MB, table::Limit},
};

/// Sends that may wait for their turn. Beyond that the socket is not read until a send is answered.
const MAX_PENDING_SENDS: usize = 64;
/// Bytes of the sends that may wait, likewise.
const MAX_PENDING_BYTES: usize = 2 * MB;

/// A send with its outcome.
pub struct Answered {
    /// The opaque value of the frame.
    pub reference: Value,
    /// The stream that the send ends.
    pub stream: Option<StreamId>,
    /// The outcome of the send.
    pub outcome: Result<Sent>,
}

/// The target of a send.
pub enum Target {
    /// A conversation.
    Conversation(ConversationId),
    /// The conversation of a stream, which ends with the send. If the stream is unknown, the named
    /// conversation.
    Stream(StreamId, Option<ConversationId>),
}

/// A send that waits for its turn.
struct Pending {
    reference: Value,
    target: Target,
    body: String,
    /// The bytes of a large body, held until its send is over.
    permit: Option<BytePermit>,
}

/// The send in progress, and those that wait.
#[derive(Default)]
pub struct Sends {
    sending: Option<Pin<Box<dyn Future<Output = Answered> + Send>>>,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
}

impl Sends {
    /// Whether another send may wait.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_SENDS && self.pending_bytes < MAX_PENDING_BYTES
    }

    /// Queues a frame.
    pub fn push(
        &mut self,
        reference: Value,
        target: Target,
        body: String,
        permit: Option<BytePermit>,
    ) {
        self.pending_bytes += body.len();
        self.pending.push_back(Pending {
            reference,
            target,
            body,
            permit,
        });
    }

    /// Starts the next send if none is in progress.
    pub fn start_next(&mut self, gateway: &Gateway, client: &AuthenticatedClient) {
        if self.sending.is_some() {
            return;
        }
        let Some(Pending {
            reference,
            target,
            body,
            permit,
        }) = self.pending.pop_front()
        else {
            return;
        };
        self.pending_bytes -= body.len();
        let sending = Sending {
            limiter: Limiter::detached(gateway.limits.clone()),
            message_writer: gateway.message_writer.clone(),
            streams: gateway.streams.clone(),
            sender: client.principal,
            credential: client.credential,
        };
        self.sending = Some(Box::pin(async move {
            let outcome = sending.send(&target, &body).await;
            drop(permit);
            let stream = match target {
                Target::Conversation(_) => None,
                Target::Stream(stream, _) => Some(stream),
            };
            Answered {
                reference,
                stream,
                outcome,
            }
        }));
    }

    /// The outcome of the send in progress; never, if there is none. Cancel safe.
    pub async fn answered(&mut self) -> Answered {
        let Some(sending) = &mut self.sending else {
            return std::future::pending().await;
        };
        let answer = sending.await;
        self.sending = None;
        answer
    }
}

/// The handles that a send needs of its socket and node.
struct Sending {
    limiter: Limiter,
    message_writer: MessageWriter,
    streams: Streams,
    sender: Principal,
    credential: Uuid,
}

impl Sending {
    async fn send(&self, target: &Target, body: &str) -> Result<Sent> {
        let (draft, conversation, stream) = match self.sender {
            Principal::Agent(id) => {
                let read = async { self.read(target, body, Code::WebhookPayloadTooLarge) };
                let limit = Limit::AgentConversationSend;
                self.limiter.check_during(limit, id, read).await?
            }
            Principal::User(id) => {
                let read = async { self.read(target, body, Code::MessageTooLarge) };
                let limit = Limit::UserMessageSend;
                self.limiter.check_during(limit, id, read).await?
            }
        };
        let request = SendRequest {
            sender: self.sender,
            credential: self.credential,
            conversation,
            draft,
        };
        let sent = self.message_writer.send(request).await?;
        if let Some(stream) = stream {
            self.streams
                .sent(&stream, conversation, sent.message_id)
                .await;
        }
        Ok(sent)
    }

    /// Reads the draft, its conversation, and the stream that it ends.
    fn read(
        &self,
        target: &Target,
        body: &str,
        too_large: Code,
    ) -> Result<(Draft, ConversationId, Option<StreamKey>)> {
        let mut draft = Draft::from_frame(body, too_large)?;
        let (stream, named) = match target {
            Target::Conversation(conversation) => return Ok((draft, *conversation, None)),
            Target::Stream(stream, named) => (key_of(self.sender, stream.clone())?, *named),
        };
        let home = self.streams.target(&stream);
        let conversation = home
            .map(|home| home.conversation)
            .or(named)
            .ok_or(Code::NotFound)?;
        draft.in_reply_to = draft.in_reply_to.or(home.and_then(|home| home.in_reply_to));
        Ok((draft, conversation, Some(stream)))
    }
}

/// Queues the refusal of a frame.
pub fn refuse(socket: &mut Socket, reference: &Value, stream: Option<&StreamId>, error: &Error) {
    error.log();
    socket.feed(&frames::refused(reference, stream, error));
}

/// Queues the outcome of a send.
pub fn answer(socket: &mut Socket, answered: &Answered) -> Result<(), SessionEnd> {
    let Answered {
        reference,
        stream,
        outcome,
    } = answered;
    let sent = match outcome {
        Ok(sent) => sent.clone(),
        Err(error) => {
            refuse(socket, reference, stream.as_ref(), error);
            // A sender whose credential was revoked may not read either.
            let revoked = matches!(error.code(), Code::Unauthorized | Code::AgentTokenInvalid);
            return if revoked {
                Err(Close::Revoked.into())
            } else {
                Ok(())
            };
        }
    };
    let frame = ServerFrame::MessageSent(MessageSent {
        r#ref: reference.clone(),
        stream_id: stream.clone(),
        data: sent,
    });
    socket.feed(&frames::encode(&frame));
    Ok(())
}
