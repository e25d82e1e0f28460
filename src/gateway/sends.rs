//! The `message.send` frames of one socket: one at a time, so that they keep their order.

use std::{collections::VecDeque, pin::Pin};

use blindpipe_protocol::frames::MessageSent;
use serde_json::Value;

use super::{
    Gateway,
    authenticate::AuthenticatedClient,
    close::Close,
    ephemeral::key_of,
    frames::{self, ServerFrame},
    socket::Socket,
    streams::StreamId,
};
use crate::{
    error::{Code, Error, Result},
    features::messages::{Draft, Outgoing, Sent},
    ids::{ConversationId, Principal},
    limits::{Limiter, quotas::MB, table::Limit},
};

/// Sends that may wait for their turn; then the socket is not read until one is answered.
const MAX_PENDING_SENDS: usize = 64;
/// Their bytes, likewise.
const MAX_PENDING_BYTES: usize = 2 * MB;

/// A send that is answered.
pub struct Answered {
    /// As it came.
    pub reference: Value,
    /// The stream that it ends.
    pub stream: Option<StreamId>,
    /// What became of it.
    pub outcome: Result<Sent>,
}

/// Where a send goes.
pub enum Target {
    /// Into a conversation.
    Conversation(ConversationId),
    /// Into the conversation of a stream, which ends with it; else into the one that is named.
    Stream(StreamId, Option<ConversationId>),
}

/// The answer of a send under way.
type Sending = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// What is under way and what waits.
#[derive(Default)]
pub struct Sends {
    sending: Option<Sending>,
    pending: VecDeque<(Value, Target, String)>,
    pending_bytes: usize,
}

impl Sends {
    /// Whether more may come.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_SENDS && self.pending_bytes < MAX_PENDING_BYTES
    }

    /// A frame that has come.
    pub fn push(&mut self, reference: Value, target: Target, body: String) {
        self.pending_bytes += body.len();
        self.pending.push_back((reference, target, body));
    }

    /// Starts the next one if none is under way.
    pub fn start_next(&mut self, gateway: &Gateway, client: &AuthenticatedClient) {
        if self.sending.is_some() {
            return;
        }
        let Some((reference, target, body)) = self.pending.pop_front() else {
            return;
        };
        self.pending_bytes -= body.len();
        let (sender, credential) = (client.principal, client.credential);
        let limiter = Limiter::detached(gateway.limits.clone());
        let (message_writer, ephemeral) =
            (gateway.message_writer.clone(), gateway.ephemeral.clone());
        self.sending = Some(Box::pin(async move {
            let work = async {
                let (mut pass, too_large) = match sender {
                    Principal::Agent(id) => (
                        limiter.pass(Limit::AgentConversationSend, id),
                        Code::WebhookPayloadTooLarge,
                    ),
                    Principal::User(id) => (
                        limiter.pass(Limit::UserMessageSend, id),
                        Code::MessageTooLarge,
                    ),
                };
                let read = async {
                    let mut draft = Draft::from_frame(&body, too_large)?;
                    let (stream, named) = match &target {
                        Target::Conversation(conversation) => {
                            return Ok((draft, *conversation, None));
                        }
                        Target::Stream(stream, named) => (key_of(sender, stream.clone())?, *named),
                    };
                    let home = ephemeral.streams.home(&stream);
                    let conversation = home
                        .map(|home| home.conversation)
                        .or(named)
                        .ok_or(Code::NotFound)?;
                    draft.in_reply_to =
                        draft.in_reply_to.or(home.and_then(|home| home.in_reply_to));
                    Ok((draft, conversation, Some(stream)))
                };
                let (draft, conversation, stream) = pass.during(read).await?;
                let sent = message_writer
                    .send(
                        pass,
                        Outgoing {
                            sender,
                            credential,
                            conversation,
                            draft,
                        },
                    )
                    .await?;
                if let Some(stream) = stream {
                    ephemeral.sent(&stream, conversation, sent.message_id).await;
                }
                Ok(sent)
            };
            let outcome = work.await;
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

    /// The answer of the one under way; never, if there is none. Cancel safe.
    pub async fn answered(&mut self) -> Answered {
        let Some(sending) = &mut self.sending else {
            return std::future::pending().await;
        };
        let answer = sending.await;
        self.sending = None;
        answer
    }
}

/// Says that a frame was refused.
pub async fn refuse(
    socket: &mut Socket,
    reference: &Value,
    stream: Option<&StreamId>,
    error: &Error,
) -> Result<(), Option<Close>> {
    error.log();
    socket
        .say(frames::refused(reference, stream, error))
        .await?;
    Ok(())
}

/// Says what became of a send.
pub async fn answer(socket: &mut Socket, answered: &Answered) -> Result<(), Option<Close>> {
    let Answered {
        reference,
        stream,
        outcome,
    } = answered;
    let sent = match outcome {
        Ok(sent) => sent.clone(),
        Err(error) => {
            refuse(socket, reference, stream.as_ref(), error).await?;
            // A sender whose credential has died is not a listener any more either.
            let dead = matches!(error.code(), Code::Unauthorized | Code::AgentTokenInvalid);
            return if dead {
                Err(Some(Close::Revoked))
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
    socket.say(frames::encode(&frame)).await?;
    Ok(())
}
